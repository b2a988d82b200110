// What each process says of itself, in an append-only file of its own: a line is there as soon as `tell` has returned, whatever kills
// the process next. The oracle holds these lines against the store.
import { openSync, readdirSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";

/** Every line has its instant and its process, which `pid` and the instant of its beginning, `since`, name. */
export type Line = { readonly at: number; readonly pid: number; readonly since: number } & (
  | ({ readonly what: "ask"; readonly id: string } & Ordered)
  | { readonly what: "ack"; readonly id: string; readonly got: string; readonly created: boolean }
  | { readonly what: "refused"; readonly id: string; readonly code: string }
  | { readonly what: "start"; readonly id: string; readonly kind: string; readonly fence: string }
  | { readonly what: "step"; readonly id: string; readonly name: string; readonly attempt: number }
  | { readonly what: "kept"; readonly id: string; readonly name: string; readonly attempt: number }
  | { readonly what: "committed"; readonly id: string; readonly fence: string }
  | { readonly what: "rejected"; readonly id: string; readonly write: string }
);

/** What was ordered, as far as it can be held against what came of it. */
export interface Ordered {
  readonly kind: string;
  /** While the job of another order of this kind and key has not ended, it is the answer to this one. */
  readonly dedupeKey?: string;
  readonly amount?: number;
  /** How often it fails before it succeeds. */
  readonly failures?: number;
}

/** What a process says: the instant and the process are added. */
export type Told = Line extends infer L ? (L extends Line ? Omit<L, "at" | "pid" | "since"> : never) : never;

/** The folder must be there: a process that starts after the run has ended and everything was removed creates nothing. */
export function teller(folder: string): (told: Told) => void {
  const { pid } = process;
  const since = wallTime();
  const file = openSync(join(folder, `${pid}-${since}.jsonl`), "a");
  return (told) => void writeSync(file, `${JSON.stringify({ at: wallTime(), pid, since, ...told })}\n`);
}

/** By the monotonic clock: lines of a process whose wall clock the rig moves must still sort among those of the others. */
function wallTime(): number {
  return Math.floor(performance.timeOrigin + performance.now());
}

/** All lines of all processes, by time. The last line of a killed process may be cut: it was never reported. */
export function readHistories(folder: string): Line[] {
  return readdirSync(folder)
    .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n").flatMap(parsed))
    .sort((a, b) => a.at - b.at);
}

function parsed(text: string): Line[] {
  if (text === "") return [];
  try {
    return [JSON.parse(text) as Line];
  } catch {
    return [];
  }
}
