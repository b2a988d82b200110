// Losses of contact as this store keeps them; recovery/losses.ts decides.
import type { KindSettings } from "../../job/job.ts";
import type { Loss, LostJob, LossVerdict, Resolution } from "../../recovery/losses.ts";
import type { Losses, RecoveredJob } from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import {
  assertDeclared,
  assertWritable,
  begunRow,
  changeArgs,
  fieldsOf,
  historyEntry,
  keptSteps,
  shownJob,
  workerRow,
} from "./encoding.ts";
import { STATE } from "../rows.ts";
import { incidentJobs } from "./inspect.ts";
import { deathsElsewhere, TAKEN_AT_ONCE } from "./recover.ts";

export function losses(connection: Connection): Losses {
  return {
    async open(): Promise<readonly Loss[]> {
      const list = (await connection.eval("openLosses")) as unknown as [string, string, Reply[]][];
      return list.map(([incident, resolution, worker]) => ({
        incident,
        worker: worker.length === 0 ? null : workerRow(worker),
        resolution: (resolution || null) as Resolution | null,
      }));
    },
    async resolve(worker, resolution) {
      return ((await connection.eval("resolveLoss", [worker, resolution])) || null) as Resolution | null;
    },
    jobs: (incident, limit) => lostJobs(connection, incident, limit),
    async judge(incident, verdicts) {
      for (let from = 0; from < verdicts.length; from += TAKEN_AT_ONCE)
        await judge(connection, incident, verdicts.slice(from, from + TAKEN_AT_ONCE));
      if ((await lostJobs(connection, incident, 1)).length > 0) return false;
      return (await connection.eval("closeLoss", [incident])) === 1;
    },
  };
}

async function lostJobs(connection: Connection, incident: string, limit: number): Promise<readonly LostJob[]> {
  const listed = fieldsOf(await incidentJobs(connection, incident));
  const open = Object.entries(listed)
    .filter(([field]) => !field.includes(":") && listed[`${field}:judged`] === undefined)
    .map(([row, text]) => ({ row: Number(row), lost: JSON.parse(text) as RecoveredJob }))
    .filter(({ lost }) => lost.decision === "lost")
    .toSorted((a, b) => a.row - b.row);
  const jobs: Omit<LostJob, "deathsElsewhere">[] = [];
  for (let from = 0; from < open.length && jobs.length < limit; from += TAKEN_AT_ONCE)
    jobs.push(...(await stillThere(connection, open.slice(from, from + TAKEN_AT_ONCE))));
  jobs.splice(limit);
  const deaths = await deathsElsewhere(
    connection,
    incident,
    jobs.map((job) => ({ job, alone: job.alone })),
  );
  return jobs.map((job, at) => ({ ...job, deathsElsewhere: deaths[at]! }));
}

/** Those of them whose records are still theirs, as they are now. */
async function stillThere(
  connection: Connection,
  open: readonly { readonly row: number; readonly lost: RecoveredJob }[],
): Promise<Omit<LostJob, "deathsElsewhere">[]> {
  const rows = open.map(({ row }) => String(row));
  const [list, flat] = (await connection.eval("jobs", [String(rows.length), ...rows])) as unknown as [
    [Reply, string[], string[], string][],
    string[],
  ];
  const kinds = fieldsOf(flat);
  return open.flatMap(({ lost }, at) => {
    const [shown, steps, history, begunInput] = list[at] ?? [];
    if (shown === undefined) return [];
    const job = shownJob(shown);
    if (job.id !== lost.jobId) return [];
    const { id, row, state, epoch, fence, counters } = job;
    const hasNewStep = keptSteps(id, steps!).some(({ attempt }) => attempt > lost.fence);
    const wasRetried = history!
      .map(historyEntry)
      .some(({ event, attempt }) => event === "retry" && attempt >= lost.fence);
    const kind = JSON.parse(kinds[job.kind]!) as KindSettings;
    const movedOn = hasNewStep || wasRetried;
    const of = { id, row, state, epoch, fence, counters, kind, alone: lost.alone, movedOn };
    return [{ ...of, ...begunRow(job, begunInput!) }];
  });
}

async function judge(connection: Connection, incident: string, verdicts: readonly LossVerdict[]): Promise<void> {
  const args = [incident, String(verdicts.length)];
  for (const { job, decision, change } of verdicts) {
    if (change) assertWritable(change, job.id);
    const { crashes, blamed, losses: lost } = job.counters;
    args.push(String(job.row), job.id, String(STATE[job.state]), String(job.epoch), String(job.fence));
    args.push(String(crashes), String(blamed), String(lost), decision);
    args.push(...(change === null ? [""] : ["1", ...changeArgs(change, job.id)]));
  }
  assertDeclared(await connection.eval("judge", args));
}
