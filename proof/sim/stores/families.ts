// The parts of scripts that are about cancels which include the children of a job. One script must not run for long, so the cancel only records
// it, and each turn of any worker cancels a piece.
import { isTerminal } from "../../../src/job/job.ts";
import * as transitions from "../../../src/job/transitions.ts";
import type { Data, JobRecord } from "./records.ts";

/** How many children one turn reads. Few, so that families of the simulator take several turns. */
export const PIECE = 3;

export function cancelFamily(data: Data, parent: number, actor: string): void {
  data.putFamily(parent, { actor, cursor: 0, due: true });
}

/** The job has enqueued more children. */
export function noteNewChildren(data: Data, parent: number): void {
  const family = data.family(parent);
  if (family !== null) data.putFamily(parent, { ...family, cursor: 0, due: true });
}

type ApplyChange = (
  data: Data,
  job: JobRecord,
  change: transitions.Change,
  of: { readonly actor: string; readonly incident: null },
) => unknown;

/** Cancels a piece of one family. Returns whether it did anything. */
export function cancelChildren(data: Data, apply: ApplyChange): boolean {
  const parent = data.families().find((row) => data.family(row)!.due);
  if (parent === undefined) return false;
  const family = data.family(parent)!;
  const job = data.job(parent);
  const rows = data.unfinishedChildren(parent).filter((row) => row > family.cursor);
  const piece = rows.slice(0, PIECE);
  for (const row of piece) {
    const child = data.job(row)!;
    const { id, state, fence, counters } = child;
    if (!transitions.hasNotBegun(state, fence)) continue;
    const change = transitions.cancel({ id, state, counters }, job?.id);
    apply(data, child, change, { actor: family.actor, incident: null });
  }
  if (piece.length === PIECE) data.putFamily(parent, { ...family, cursor: piece.at(-1)! });
  else if (job !== null && !isTerminal(job.state)) data.putFamily(parent, { ...family, due: false });
  else data.deleteFamily(parent);
  return true;
}
