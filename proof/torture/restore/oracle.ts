// The judge of a store that was replaced by an older copy of itself. What was written between the copy and the moment at which everybody
// must have noticed is taken back, and nothing is demanded of it. Everything else is there, a user's row if and only if its job has
// succeeded; and what was issued before the restore is never issued again: no fence of a job twice, and no epoch.
import type { Engine } from "../../../src/index.ts";
import type { Ledger } from "../processes/ledger.ts";
import { wrongFences } from "../processes/fences.ts";
import type { Line } from "../processes/history.ts";
import { allJobs, wrongEnd, wrongLedger } from "../processes/oracle.ts";

/** One restore, in instants of the histories. */
export interface Restore {
  /** Nothing of what was acknowledged before this may be missing. */
  readonly copyBeganAt: number;
  /** The copy is in the place of the store. */
  readonly restoredAt: number;
  /** From here on, nothing may be acknowledged that is not in the restored store. */
  readonly noticedBy: number;
}

export interface RestoreJudgement {
  readonly enqueued: number;
  /** Jobs that were acknowledged between a copy and its restore, and went with it. */
  readonly takenBack: number;
  readonly lost: number;
  readonly committedTwice: number;
  readonly violations: readonly string[];
}

export async function judgeRestores(
  engine: Engine,
  ledger: Ledger,
  lines: readonly Line[],
  restores: readonly Restore[],
): Promise<RestoreJudgement> {
  const jobs = await allJobs(engine);
  const rows = Map.groupBy(await ledger.entries(engine), ({ job }) => job);
  const twice = [...rows].filter(([, entries]) => entries.length > 1);
  const mayBeTakenBack = ({ at }: Line): boolean =>
    restores.some(({ copyBeganAt, noticedBy }) => at >= copyBeganAt && at <= noticedBy);
  const acknowledged = Map.groupBy(
    lines.filter((line) => line.what === "ack"),
    ({ got }) => got,
  );
  const missing = [...acknowledged].filter(([id]) => !jobs.has(id));
  const lost = missing.filter(([, acks]) => !acks.every(mayBeTakenBack)).map(([id]) => id);
  const unfinished = [...jobs.values()].filter(({ state }) => state === "queued" || state === "running");
  const asked = new Set(lines.flatMap((line) => (line.what === "ask" ? [line.id] : [])));
  const phantoms = [...jobs.keys()].filter((id) => !asked.has(id));
  const unkept = lines.filter(
    (line) =>
      line.what === "committed" &&
      !mayBeTakenBack(line) &&
      !rows.get(line.id)?.some(({ fence }) => fence === line.fence),
  );
  return {
    enqueued: jobs.size,
    takenBack: missing.length - lost.length,
    lost: lost.length + unfinished.length,
    committedTwice: twice.length,
    violations: [
      ...lost.map((id) => `job ${id} was acknowledged before the copy or after the restore, and is not in the store`),
      ...unfinished.map(({ id, state }) => `job ${id} is still ${state}`),
      ...phantoms.map((id) => `job ${id} is in the store and was never ordered`),
      ...twice.map(([id, entries]) => `job ${id} has ${entries.length} rows in the ledger`),
      ...[...jobs.values()].flatMap(wrongEnd),
      ...wrongLedger(jobs, rows),
      ...unkept.map(
        (line) =>
          `job ${line.id} was committed before the copy or after the restore, and the row of that attempt is not there`,
      ),
      ...(await wrongFences(engine, lines, jobs)),
      ...restores.flatMap((restore) => repeatedEpochs(lines, restore)),
    ],
  };
}

/** A process that began after a restore works under an epoch above all that were issued before it. */
function repeatedEpochs(lines: readonly Line[], { restoredAt }: Restore): string[] {
  const starts = lines.flatMap((line) => (line.what === "start" ? [{ ...line, epoch: epochOf(line.fence) }] : []));
  const issued = starts.filter(({ at }) => at < restoredAt).reduce((top, { epoch }) => Math.max(top, epoch), -Infinity);
  return starts
    .filter(({ since, epoch }) => since > restoredAt && epoch <= issued)
    .map(
      ({ id, fence }) => `job ${id} was started under fence ${fence} after a restore before which ${issued} was issued`,
    );
}

function epochOf(fence: string): number {
  return Number(fence.split(".")[0]);
}
