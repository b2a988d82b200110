// A process killed with SIGKILL as its main thread enters its N-th write, sync, truncate or unlink, for every N or for some; then the
// judge. What the dead process had written is all there: this finds orders of writes that are wrong, where power losses find missing
// syncs.
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { Scenario } from "../scenarios/scenario.ts";
import { type Kill, type Plant, type Point, Site } from "./site.ts";

export interface KillOptions {
  readonly scenarios: readonly Scenario[];
  /** At most this many kills per scenario, spread evenly over its calls; null: at every call. */
  readonly most: number | null;
  /** Killed at these alone, one process after the other in the same fixture. */
  readonly at?: readonly Point[];
  /** A control, which must be found out. */
  readonly plant?: Plant;
  /** How many processes are killed at once. */
  readonly lanes: number;
  readonly root: string;
  readonly onKill?: (kill: Kill, done: number) => void;
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

/** Scenes that are broken are left, each as its kill left it; nothing else is. */
export async function runKills(options: KillOptions): Promise<KillTally> {
  const { scenarios, most, at, lanes, root, plant, onKill } = options;
  const tally = { kills: 0, survived: 0, lost: 0, corrupt: 0, committedTwice: 0, stuck: 0, acknowledged: 0 };
  const killed: Record<string, number> = {};
  const folder = mkdtempSync(join(root, "outlive-kill-at-call-"));
  const [scratch, broken] = [join(folder, "scratch"), join(folder, "broken")];
  try {
    for (const scenario of scenarios) {
      const site = new Site(scenario, join(scratch, scenario.name), {
        codeCache: join(scratch, "code"),
        broken,
        plant,
      });
      await site.prepare();
      killed[scenario.name] = 0;
      const kills = at ? [at] : chosen(await site.points(), most).map((point) => [point]);
      await inLanes(lanes, kills, async (points) => {
        const kill = await site.killAt(...points);
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
    rmSync(existsSync(broken) ? scratch : folder, { recursive: true, force: true });
  }
  return { ...tally, scenarios: killed };
}

/** Each lane takes the next when it is done with one. */
async function inLanes<T>(lanes: number, all: readonly T[], kill: (one: T) => Promise<void>): Promise<void> {
  const left = all.values();
  const lane = async (): Promise<void> => {
    for (const one of left) await kill(one);
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
        "The scenario does not make the same calls in every run: run it again on a machine with less to do, or fix it.",
    );
  return found;
}

const WORDS = { lost: "lost", corrupt: "corrupt", committedTwice: "committed twice", stuck: "stuck" } as const;

/** What no run of this rig does, with the reason or the rig that does it. */
export const NOT_RUN: readonly string[] = [
  "calls of other threads: strace counts each thread separately, so only those of the main thread can be named; the maintenance thread dies with it",
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
