// Recovery as the store carries it out: a worker is condemned, what it holds is read, what was decided is written under guard. The decisions are made
// between the calls, in recovery/.
import { BACKGROUND_MS, isOnTrial, ranAlone } from "../../job/isolation.ts";
import type { HistoryEntry, KindSettings } from "../../job/job.ts";
import type { Change } from "../../job/transitions.ts";
import { TRUSTED } from "../../recovery/confirmed-time.ts";
import { withLastWord } from "../../recovery/incident.ts";
import { isProof } from "../liveness.ts";
import {
  type Condemned,
  type CondemnRequest,
  type HeldJob,
  type HeldJobs,
  type HeldQuery,
  type Overdue,
  recoveredJob,
  type TakeBackAnswer,
  type TakeBackRequest,
  type Taken,
} from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import {
  begunRow,
  changeArgs,
  faultOf,
  fieldsOf,
  historyEntry,
  shownJob,
  undeclaredMessage,
  workerRow,
} from "./encoding.ts";

export async function condemn(connection: Connection, request: CondemnRequest): Promise<Condemned | null> {
  const { worker: dead, death, recovery, incident } = request;
  for (;;) {
    const [shown] = (await connection.eval("worker", [dead.id])) as [Reply?];
    if (shown === undefined) return null;
    const { lastWord } = workerRow(shown);
    const record = {
      detectedAt: death.detectedAt,
      host: dead.host,
      pid: dead.pid,
      version: dead.version,
      workerStartedAt: dead.startedAt,
      lastHeartbeatAt: dead.heartbeatAt,
      lastSeenAliveAt: death.lastSeenAliveAt,
      loopLagMs: dead.loopLagMs,
      startedAt: recovery.startedAt,
      by: recovery.by,
      integrity: recovery.integrity,
      summary: recovery.summary,
    };
    const evidence = withLastWord(death.evidence, lastWord) ?? "";
    const guard = [isProof(death.how) ? "1" : "", String(dead.beats), dead.lock.identity ?? "", lastWord ?? ""];
    const about = [incident, recovery.id, JSON.stringify(record), evidence, death.how];
    const reply = await connection.eval("condemn", [dead.id, ...guard, ...about]);
    if (reply === "again") continue;
    if (reply === "") return null;
    const [id, opened, cursor, how, held, suspects] = reply as string[];
    return {
      worker: dead.id,
      incident: id!,
      opened: opened === "1",
      cursor: Number(cursor),
      how: how as Condemned["how"],
      heldAtDeath: Number(held),
      suspectsAtDeath: Number(suspects),
    };
  }
}

/** What one script reads of what a worker holds, and what one takes back: of 1,000 jobs the first took 17 ms of the server, and the second 70. */
const HELD_AT_ONCE = 150;
export const TAKEN_AT_ONCE = 50;

export function heldBy(connection: Connection, query: HeldQuery): Promise<HeldJobs> {
  return "condemned" in query
    ? heldByCondemned(connection, query.condemned, query.limit)
    : overdueJobs(connection, query.overdue, query.limit);
}

async function heldByCondemned(connection: Connection, condemned: Condemned, limit: number): Promise<HeldJobs> {
  const { worker, cursor, incident } = condemned;
  const { jobs, more } = await heldJobs(connection, worker, cursor, limit);
  const asked = jobs.map((job) => ({ job, alone: ranAlone(job.counters, condemned) }));
  const deaths = await deathsElsewhere(connection, incident, asked);
  return { jobs: jobs.map((job, at) => ({ ...job, deathsElsewhere: deaths[at]! })), more };
}

export async function heldJobs(
  connection: Connection,
  worker: string,
  cursor: number,
  limit: number,
): Promise<HeldJobs> {
  const jobs: HeldJob[] = [];
  for (let after = cursor; jobs.length < limit; after = jobs.at(-1)!.row) {
    const most = Math.min(limit - jobs.length, HELD_AT_ONCE);
    const piece = jobsOf(await connection.eval("held", [worker, String(after), String(most)]));
    jobs.push(...piece);
    if (piece.length < most) return { jobs, more: false };
  }
  return { jobs, more: true };
}

async function overdueJobs(connection: Connection, overdue: Overdue, limit: number): Promise<HeldJobs> {
  const { marginMs, confirmed = TRUSTED } = overdue;
  const bound = (ms: number): string => String(Math.min(ms, Number.MAX_SAFE_INTEGER));
  const most = Math.min(limit, HELD_AT_ONCE);
  const args = [String(marginMs), bound(confirmed.asOf), bound(confirmed.steadyMs), String(most)];
  const jobs = jobsOf(await connection.eval("overdue", args));
  return { jobs, more: jobs.length === most };
}

function jobsOf(reply: Reply): HeldJob[] {
  const [list, flat] = reply as unknown as [[Reply, string, string][], string[]];
  const kinds = fieldsOf(flat);
  return list.map(([shown, lastStep, begunInput]) => {
    const job = shownJob(shown);
    const { id, row, worker, epoch, fence, counters, deadlineAt, kind } = job;
    const settings = JSON.parse(kinds[kind]!) as KindSettings;
    const guard = { row, worker: worker!, epoch, fence };
    return {
      id,
      state: "running",
      ...guard,
      counters,
      kind: settings,
      deadlineAt,
      lastStep: lastStep || null,
      deathsElsewhere: 0,
      ...begunRow(job, begunInput),
    };
  });
}

/** As the port says of `HeldJob.deathsElsewhere`: read only where a verdict depends on it. */
export async function deathsElsewhere(
  connection: Connection,
  incident: string,
  asked: readonly { readonly job: Pick<HeldJob, "row" | "counters" | "kind">; readonly alone: boolean }[],
): Promise<readonly number[]> {
  const onTrial = asked
    .filter(({ job, alone }) => isOnTrial(job.counters, alone, job.kind.limits))
    .map(({ job }) => job);
  if (onTrial.length === 0) return asked.map(() => 0);
  const rows = onTrial.map(({ row }) => String(row));
  const [list, , now] = (await connection.eval("jobs", [String(rows.length), ...rows])) as unknown as [
    [Reply, string[], string[]][],
    string[],
    string,
  ];
  const args = onTrial.flatMap(({ row, counters: { crashes } }, at) => {
    const history = (list[at]?.[2] ?? []).map(historyEntry);
    return [String(row), String(sinceFirstCrash(history, crashes, Number(now)))];
  });
  const counts = (await connection.eval("deaths", [incident, String(onTrial.length), ...args])) as number[];
  const byRow = new Map(onTrial.map(({ row }, at) => [row, counts[at]!]));
  return asked.map(({ job }) => byRow.get(job.row) ?? 0);
}

function sinceFirstCrash(history: readonly HistoryEntry[], crashes: number, now: number): number {
  const counted = history.filter(({ event }) => event === "crash" || event === "countLoss");
  const latest = crashes === 0 ? [] : counted.slice(-crashes);
  return Math.min(now - BACKGROUND_MS, ...latest.map(({ at }) => at));
}

/** In pieces. A recovery that is killed between two of them is continued after the first one's jobs. */
export async function takeBack(connection: Connection, request: TakeBackRequest): Promise<TakeBackAnswer> {
  const { verdicts, last } = request;
  const taken: Taken[] = [];
  for (let from = 0; from === 0 || from < verdicts.length; from += TAKEN_AT_ONCE) {
    const piece = verdicts.slice(from, from + TAKEN_AT_ONCE);
    const isLast = last && from + TAKEN_AT_ONCE >= verdicts.length;
    taken.push(...(await takePiece(connection, { ...request, verdicts: piece, last: isLast })));
  }
  return { taken };
}

async function takePiece(connection: Connection, request: TakeBackRequest): Promise<readonly Taken[]> {
  const { verdicts, of, last } = request;
  // What can't be written of one job is its own failure, and is found before anything is sent.
  const faults = verdicts.map(({ change }) => (change === null ? null : faultOf(change)));
  const args = [of?.worker ?? "", of?.incident ?? "", last ? "1" : ""];
  const sent = verdicts.filter((_, at) => faults[at] === null);
  args.push(String(sent.length));
  for (const verdict of sent) {
    const { job, change } = verdict;
    args.push(...guardArgs(job), ...(change === null ? [""] : ["1", ...changeArgs(change, job.id)]));
    if (of) args.push(note(verdict, "taken"), note(verdict, "cancelled"));
  }
  const replies = [...((await connection.eval("takeBack", args)) as string[])];
  const taken = verdicts.map((_, at): Taken => {
    const fault = faults[at];
    if (fault) return { refused: fault };
    const became = replies.shift()!;
    return became.startsWith("!") ? { refused: undeclaredMessage(became.slice(1)) } : (became as Taken);
  });
  if (of)
    for (const [at, became] of taken.entries())
      if (typeof became === "object")
        await connection.eval("noteJob", [of.incident, String(verdicts[at]!.job.row), note(verdicts[at]!, became)]);
  return taken;
}

/** Changes of jobs under guard, which belong to no incident. */
export async function takeAway(
  connection: Connection,
  list: readonly { readonly job: HeldJob; readonly change: Change }[],
): Promise<void> {
  const args = ["", "", "", String(list.length)];
  for (const { job, change } of list) args.push(...guardArgs(job), "1", ...changeArgs(change, job.id));
  await connection.eval("takeBack", args);
}

function guardArgs({ row, id, worker, epoch, fence, deadlineAt }: HeldJob): string[] {
  return [String(row), id, worker, String(epoch), String(fence), deadlineAt === null ? "" : String(deadlineAt)];
}

/** What the incident keeps of a job; scripts choose among these texts and do not read them. */
function note(verdict: TakeBackRequest["verdicts"][number], taken: Taken): string {
  return JSON.stringify(recoveredJob(verdict, taken));
}
