// A process killed with SIGKILL as its main thread enters its N-th write, sync, truncate or unlink, for every N or for some; then the
// judge. What the dead process had written is all there: this finds orders of writes that are wrong, where power losses find missing
// syncs.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisedBy } from "../scenarios/promised.ts";
import type { Scenario } from "../scenarios/scenario.ts";
import { parseWords, WORDS_FILE } from "../scenarios/word.ts";
import { assertPlayed, play, type Play } from "../strace.ts";
import { judge, type Verdict } from "../verdict.ts";

/** Not `write`: it carries only the words and the wake-ups between threads. */
const CALLS = "pwrite64,fsync,fdatasync,ftruncate,unlink";

/** The n-th call of that name: strace counts for each name by itself. */
export interface Point {
  readonly call: string;
  readonly nth: number;
}

export interface KillOptions {
  readonly scenarios: readonly Scenario[];
  /** At most so many kills per scenario, spread evenly over its calls; null: at every call. */
  readonly most: number | null;
  /** How many processes are killed at once. */
  readonly lanes: number;
  readonly root: string;
  readonly onKill?: (kill: Kill, done: number) => void;
}

export interface Kill {
  readonly scenario: string;
  /** The calls that were not made, one for each process that died. */
  readonly points: readonly Point[];
  readonly promises: number;
  readonly verdict: Verdict;
}

export interface KillTally {
  readonly kills: number;
  /** Runs that ended before they came to their call: how many calls there are depends a little on time. */
  readonly survived: number;
  readonly lost: number;
  readonly corrupt: number;
  readonly committedTwice: number;
  readonly stuck: number;
  readonly acknowledged: number;
  /** How many kills there were in each scenario. */
  readonly scenarios: Readonly<Record<string, number>>;
}

export async function runKills({ scenarios, most, lanes, root, onKill }: KillOptions): Promise<KillTally> {
  const tally = { kills: 0, survived: 0, lost: 0, corrupt: 0, committedTwice: 0, stuck: 0, acknowledged: 0 };
  const killed: Record<string, number> = {};
  const folder = mkdtempSync(join(root, "outlive-kill-at-call-"));
  try {
    for (const scenario of scenarios) {
      const site = new Site(scenario, join(folder, scenario.name), join(folder, "code"));
      await site.prepare();
      killed[scenario.name] = 0;
      await inLanes(lanes, chosen(await site.points(), most), async (point) => {
        const kill = await site.killAt(point);
        if (kill === null) {
          tally.survived++;
          return;
        }
        tally.kills++;
        killed[scenario.name]!++;
        tally.acknowledged += kill.promises;
        for (const kind of ["lost", "corrupt", "committedTwice", "stuck"] as const)
          if (kill.verdict[kind].length > 0) tally[kind]++;
        onKill?.(kill, tally.kills);
      });
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return { ...tally, scenarios: killed };
}

/** Each lane takes the next point when it is done with one. */
async function inLanes(lanes: number, points: readonly Point[], kill: (point: Point) => Promise<void>): Promise<void> {
  const left = points.values();
  const lane = async (): Promise<void> => {
    for (const point of left) await kill(point);
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

/** More than this share of the planned kills, and more than one, and the run shows less than it says. */
const MOST_SURVIVED = 0.05;

/** What is wrong with a run, a sentence each. None: every promise was kept, and enough processes died to say so. */
export function complaints(tally: KillTally): string[] {
  const { kills, survived, scenarios } = tally;
  const found: string[] = [];
  for (const kind of ["lost", "corrupt", "committedTwice", "stuck"] as const)
    if (tally[kind] > 0) found.push(`${tally[kind]} of ${kills} kills left something ${WORDS[kind]}.`);
  const unkilled = Object.keys(scenarios).filter((name) => scenarios[name] === 0);
  if (kills === 0) found.push("Nobody was killed, so nothing is shown.");
  else if (unkilled.length > 0) found.push(`Nobody was killed in ${unkilled.join(", ")}, so nothing is shown of it.`);
  const planned = kills + survived;
  if (survived > Math.max(1, planned * MOST_SURVIVED))
    found.push(
      `${survived} of ${planned} processes ended before the call at which they were to be killed; ${MOST_SURVIVED * 100} % may. ` +
        "The scenario does not make the same calls in every run: run it again on a machine with less to do, or mend it.",
    );
  return found;
}

const WORDS = { lost: "lost", corrupt: "corrupt", committedTwice: "committed twice", stuck: "stuck" } as const;

/** What no run of this rig does, with the reason or the rig that does it. */
export const NOT_RUN: readonly string[] = [
  "calls of other threads: strace counts for each thread by itself, so only those of the main thread can be named; the keeper's thread dies with it",
  "calls of a second process: in fleet and large only one of the two is killed at its calls",
  "calls that an undisturbed run does not make: the points are those of one recording of each scenario",
  "open, rename and mapped memory: only pwrite64, fsync, fdatasync, ftruncate and unlink are points; the shared memory of the log is written without a call",
  "PostgreSQL: the writes and syncs are its server's, not the engine's; the rig of processes kills that server (--store postgres)",
  "power loss: a rig of its own, --power-loss; what a killed process had written is all there",
];

function chosen(points: readonly Point[], most: number | null): Point[] {
  const kills = most === null ? points.length : Math.min(points.length, most);
  return Array.from({ length: kills }, (_, n) => points[Math.floor((n * points.length) / kills)]!);
}

/** One scenario in a folder of its own: its file before, and a fresh copy of it, a scene, for every kill. */
export class Site {
  readonly #scenario: Scenario;
  readonly #folder: string;
  readonly #base: string;
  readonly #codeCache: string;

  constructor(scenario: Scenario, folder: string, codeCache: string) {
    this.#scenario = scenario;
    this.#folder = folder;
    this.#base = join(folder, "base");
    this.#codeCache = codeCache;
  }

  async prepare(): Promise<void> {
    mkdirSync(this.#base, { recursive: true });
    for (const act of this.#scenario.before) {
      const given = { act, folder: this.#base, durability: "full" } as const;
      assertPlayed(given, await play(given, undefined, this.#codeCache));
    }
  }

  /** Every call of the main thread, in their order. */
  async points(): Promise<Point[]> {
    const trace = join(this.#folder, "trace");
    await this.#inScene(async (given) =>
      assertPlayed(given, await play(given, ["-e", `trace=${CALLS}`, "-xx", "-o", trace], this.#codeCache)),
    );
    const counts = new Map<string, number>();
    const points = readFileSync(trace, "latin1")
      .matchAll(/^(\w+)\(/gm)
      .map(([, call]) => {
        const nth = (counts.get(call!) ?? 0) + 1;
        counts.set(call!, nth);
        return { call: call!, nth };
      });
    const all = [...points];
    if (all.length === 0) throw new Error(`${this.#scenario.name} makes no call that could be its last`);
    return all;
  }

  /** Killed at each of these in turn, the next process on what the one before left. Null: one ended by itself before it. */
  killAt(...points: readonly Point[]): Promise<Kill | null> {
    return this.#inScene(async (given) => {
      for (const { call, nth } of points) {
        // Not with --seccomp-bpf: strace 6.1 then injects nothing. Not with -f: each thread would have a count of its own, and
        // whichever came to it first would be the one that dies.
        const killing = ["-e", `trace=${call}`, "-e", `inject=${call}:signal=SIGKILL:when=${nth}`, "-o", "/dev/null"];
        const end = await play(given, killing, this.#codeCache);
        if (end.code === 0) return null;
        if (end.signal !== "SIGKILL" && end.code !== 137)
          throw new Error(
            `${this.#scenario.name}, killed at ${call} ${nth}, ended with ${end.signal ?? end.code}:\n${end.stderr}`,
          );
      }
      const promised = promisedBy(parseWords(readFileSync(join(given.folder, WORDS_FILE), "utf8")));
      const verdict = await judge(given.folder, promised, { rebooted: false });
      return { scenario: this.#scenario.name, points, promises: promised.count, verdict };
    });
  }

  /**
   * Sets a scene up to the last act, for as long as `body` takes. Acts before the last are played anew: in a copy of the folder no
   * lock is the one that its worker held.
   */
  async #inScene<T>(body: (last: Play) => Promise<T>): Promise<T> {
    const folder = mkdtempSync(join(this.#folder, "scene-"));
    try {
      cpSync(this.#base, folder, { recursive: true });
      const given = this.#scenario.watched.map((act) => ({ act, folder, durability: "full" }) as const);
      for (const before of given.slice(0, -1)) assertPlayed(before, await play(before, undefined, this.#codeCache));
      return await body(given.at(-1)!);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
}
