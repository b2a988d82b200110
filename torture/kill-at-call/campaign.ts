// A process killed with SIGKILL as it enters its N-th write, sync, truncate or unlink, for every N or for some; then the judge. What
// the dead process had written is all there: this finds orders of writes that are wrong, where power losses find missing syncs.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisedBy } from "../scenarios/promised.ts";
import type { Scenario } from "../scenarios/scenario.ts";
import { parseWords, WORDS_FILE } from "../scenarios/word.ts";
import { assertPlayed, play } from "../strace.ts";
import { judge, type Verdict } from "../verdict.ts";

/** Not `write`: it carries only the words and the wake-ups between threads. */
const CALLS = "pwrite64,fsync,fdatasync,ftruncate,unlink";

/** The n-th call of that name by one thread: strace counts for each name and each thread by itself. */
export interface Point {
  readonly call: string;
  readonly nth: number;
}

export interface KillOptions {
  readonly scenarios: readonly Scenario[];
  /** At most so many kills per scenario, spread evenly over its calls; null: at every call. */
  readonly most: number | null;
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
  readonly scenarios: number;
  /** What was left out, and why. */
  readonly notRun: readonly string[];
}

/** Several processes count each for itself, and the others would wait for the dead one. */
const NOT_KILLABLE: Readonly<Record<string, string>> = { fleet: "two processes, each with calls of its own" };

export async function runKills({ scenarios, most, root, onKill }: KillOptions): Promise<KillTally> {
  const tally = { kills: 0, survived: 0, lost: 0, corrupt: 0, committedTwice: 0, stuck: 0, acknowledged: 0 };
  const notRun: string[] = [];
  const folder = mkdtempSync(join(root, "outlive-kill-at-call-"));
  try {
    for (const scenario of scenarios) {
      const why = NOT_KILLABLE[scenario.name];
      if (why !== undefined) {
        notRun.push(`${scenario.name}: ${why}`);
        continue;
      }
      const site = new Site(scenario, join(folder, scenario.name), join(folder, "code"));
      await site.prepare();
      for (const point of chosen(await site.points(), most)) {
        const kill = await site.killAt(point);
        if (kill === null) {
          tally.survived++;
          continue;
        }
        tally.kills++;
        tally.acknowledged += kill.promises;
        for (const kind of ["lost", "corrupt", "committedTwice", "stuck"] as const)
          if (kill.verdict[kind].length > 0) tally[kind]++;
        onKill?.(kill, tally.kills);
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return { ...tally, scenarios: scenarios.length - notRun.length, notRun };
}

export function isClean(tally: KillTally): boolean {
  return tally.kills > 0 && tally.lost + tally.corrupt + tally.committedTwice + tally.stuck === 0;
}

function chosen(points: readonly Point[], most: number | null): Point[] {
  const kills = most === null ? points.length : Math.min(points.length, most);
  return Array.from({ length: kills }, (_, n) => points[Math.floor((n * points.length) / kills)]!);
}

/** One scenario in a folder of its own: its file before, and a fresh copy of it for every kill. */
export class Site {
  readonly #scenario: Scenario;
  readonly #base: string;
  readonly #scene: string;
  readonly #codeCache: string;

  constructor(scenario: Scenario, folder: string, codeCache: string) {
    this.#scenario = scenario;
    this.#base = join(folder, "base");
    this.#scene = join(folder, "scene");
    this.#codeCache = codeCache;
  }

  async prepare(): Promise<void> {
    mkdirSync(this.#base, { recursive: true });
    for (const act of this.#scenario.before) {
      const given = { act, folder: this.#base, durability: "full" } as const;
      assertPlayed(given, await play(given, undefined, this.#codeCache));
    }
  }

  /** Every call of the thread that makes most of them, in their order. */
  async points(): Promise<Point[]> {
    const trace = join(this.#base, "../trace");
    const given = await this.#set();
    assertPlayed(given, await play(given, ["-e", `trace=${CALLS}`, "-xx", "-o", trace], this.#codeCache));
    const threads = new Map<string, Point[]>();
    for (const [, thread, call] of readFileSync(trace, "latin1").matchAll(/^(\d+) +(\w+)\(/gm)) {
      const points = threads.get(thread!) ?? [];
      points.push({ call: call!, nth: points.filter((point) => point.call === call).length + 1 });
      threads.set(thread!, points);
    }
    const [most] = [...threads.values()].toSorted((a, b) => b.length - a.length);
    if (!most) throw new Error(`${this.#scenario.name} makes no call that could be its last`);
    return most;
  }

  /** Killed at each of these in turn, the next process on what the one before left. Null: one ended by itself before it. */
  async killAt(...points: readonly Point[]): Promise<Kill | null> {
    const given = await this.#set();
    for (const { call, nth } of points) {
      // Not with --seccomp-bpf: strace 6.1 then injects nothing.
      const killing = ["-e", `trace=${call}`, "-e", `inject=${call}:signal=SIGKILL:when=${nth}`, "-o", "/dev/null"];
      const end = await play(given, killing, this.#codeCache);
      if (end.code === 0) return null;
      if (end.signal !== "SIGKILL" && end.code !== 137)
        throw new Error(
          `${this.#scenario.name}, killed at ${call} ${nth}, ended with ${end.signal ?? end.code}:\n${end.stderr}`,
        );
    }
    const promised = promisedBy(parseWords(readFileSync(join(this.#scene, WORDS_FILE), "utf8")));
    const verdict = await judge(this.#scene, promised, { rebooted: false });
    return { scenario: this.#scenario.name, points, promises: promised.count, verdict };
  }

  /** The scene up to the last act. Acts before it are played anew: in a copy of the folder no lock is the one that its worker held. */
  async #set() {
    rmSync(this.#scene, { recursive: true, force: true });
    cpSync(this.#base, this.#scene, { recursive: true });
    const { watched } = this.#scenario;
    for (const act of watched.slice(0, -1)) {
      const given = { act, folder: this.#scene, durability: "full" } as const;
      assertPlayed(given, await play(given, undefined, this.#codeCache));
    }
    return { act: watched.at(-1)!, folder: this.#scene, durability: "full" } as const;
  }
}
