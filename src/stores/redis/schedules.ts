// Schedules as the port wants them: what is due is one sorted set, and firing is a script that moves rows and inserts their jobs. Nothing is decided
// here.
import type { AuditEntry } from "../../job/audit.ts";
import type { ScheduleRow } from "../../job/schedules.ts";
import {
  byZoneData,
  type Declared,
  type DueSchedules,
  type Firing,
  type FiringAnswer,
  IN_BODY,
  NO_SCHEDULE,
  type PlannedJob,
  type ScheduleReview,
  type Schedules,
} from "../schedules.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { assertDeclared, draftsArgs, entryArgs } from "./encoding.ts";
import { enqueuedOf } from "./enqueue.ts";

export function schedules(connection: Connection): Schedules {
  return {
    due: (limit) => dueSchedules(connection, limit),
    async fire(firings, entry) {
      if (entry) return fire(connection, firings, entry);
      const answers: FiringAnswer[] = [];
      for (let from = 0, upTo = 0; from < firings.length; from = upTo) {
        // One that has been due many times fires up to 100 jobs.
        for (let cost = 0; upTo < firings.length; upTo++) {
          cost += 1 + firings[upTo]!.jobs.length;
          if (cost > FIRED_COST && upTo > from) break;
        }
        answers.push(...(await fire(connection, firings.slice(from, upTo))));
      }
      return answers;
    },
    write: async (row, entry) => (await connection.eval("writeSchedule", [...entryArgs(entry), ...rowArgs(row)])) === 1,
    remove: async (name, version, entry) => {
      const args = [...entryArgs(entry), name, version === null ? "" : String(version)];
      return (await connection.eval("removeSchedule", args)) === 1;
    },
    async get(name) {
      const found = await connection.eval("getSchedule", [name]);
      return Array.isArray(found) ? rowOf(...(found as [string, string])) : null;
    },
    list: async (limit, after) =>
      ((await connection.eval("listSchedules", [String(limit), after ?? ""])) as [string, string][]).map((row) =>
        rowOf(...row),
      ),
    occurrences: async (jobs) => planned(await connection.eval("occurrences", [String(jobs.length), ...jobs])),
    fired: async (name, limit) => planned(await connection.eval("firedJobs", [name, String(limit)])),
    async declare(worker, declared) {
      await connection.eval("declareSchedules", [worker, JSON.stringify(declared)]);
    },
    declared: async () => (await noted(connection)).filter(({ schedule }) => schedule !== NO_SCHEDULE),
    async noteZoneData(worker, zoneData) {
      const note: Declared = { schedule: NO_SCHEDULE, digest: "", zoneData };
      await connection.eval("declareSchedules", [worker, JSON.stringify([note])]);
    },
    review: () => review(connection),
    now: async () => Number(await connection.eval("scheduleClock", [])),
  };
}

/** What one script reads and fires: of 1,000 schedules the first took 10 ms of the server, and the second 60. */
const READ_AT_ONCE = 400;
const FIRED_COST = 100;

async function dueSchedules(connection: Connection, limit: number): Promise<DueSchedules> {
  const due: DueSchedules["due"][number][] = [];
  for (;;) {
    const most = Math.min(READ_AT_ONCE, limit - due.length);
    const [at, rows, next] = (await connection.eval("schedulesDue", [String(due.length), String(most)])) as [
      string,
      [string, string, number][],
      string,
    ];
    for (const [version, body, paused] of rows) due.push({ row: rowOf(version, body), isKindPaused: paused === 1 });
    const [now, isLast] = [Number(at), rows.length < most];
    if (!isLast && due.length < limit) continue;
    // Of several pieces, one that another process fires meanwhile moves those behind it into the piece before.
    const mayHaveMore = !isLast || due.length >= READ_AT_ONCE;
    return { now, due, nextInMs: mayHaveMore ? 0 : next === "" ? null : Number(next) - now };
  }
}

async function fire(
  connection: Connection,
  firings: readonly Firing[],
  entry?: AuditEntry,
): Promise<readonly FiringAnswer[]> {
  const reply = await connection.eval("fireSchedules", [...entryArgs(entry), ...firingsArgs(firings)]);
  assertDeclared(reply);
  return (reply as Reply[]).map((one, at): FiringAnswer => {
    const drafts = firings[at]!.jobs.map(({ draft }) => draft);
    return Array.isArray(one) ? { is: "fired", enqueued: enqueuedOf(one, drafts) } : { is: "stale" };
  });
}

/** What live workers declare, and the notes of those that declare nothing. */
async function noted(connection: Connection): Promise<readonly (Declared & { readonly worker: string })[]> {
  const all = (await connection.eval("declaredSchedules", [])) as [string, string][];
  return all.flatMap(([worker, text]) => (JSON.parse(text) as Declared[]).map((one) => ({ worker, ...one })));
}

/** In pieces, because the server serves no other client while a script runs. */
const REVIEWED_AT_ONCE = 1_000;

async function review(connection: Connection): Promise<ScheduleReview> {
  const notes = await noted(connection);
  const declared = new Set(notes.map(({ schedule }) => schedule));
  const undeclared: string[] = [];
  let isAnyZoned = false;
  for (let after = ""; ;) {
    const args = [String(REVIEWED_AT_ONCE), after, IN_BODY.declared, IN_BODY.notZoned];
    const [last, names, zoned] = (await connection.eval("reviewSchedules", args)) as [string, string[], number];
    undeclared.push(...names.filter((name) => !declared.has(name)));
    isAnyZoned ||= zoned === 1;
    if (last === "") break;
    after = last;
  }
  return { undeclared, isAnyZoned, zoneData: byZoneData(notes) };
}

function rowOf(version: string, body: string): ScheduleRow {
  return { ...(JSON.parse(body) as ScheduleRow), version: Number(version) };
}

function rowArgs({ version, ...row }: ScheduleRow): string[] {
  const { name, kind, dueAt } = row;
  return [name, String(version), kind, dueAt === null ? "" : String(dueAt), JSON.stringify(row)];
}

function firingsArgs(firings: readonly Firing[]): string[] {
  const args = [String(firings.length)];
  for (const { row, jobs } of firings) {
    args.push(...rowArgs(row), String(jobs.length));
    for (const { at, caughtUp } of jobs) args.push(String(at), caughtUp ? "1" : "0");
  }
  return [...args, ...draftsArgs(firings.flatMap(({ jobs }) => jobs.map(({ draft }) => draft)))];
}

function planned(reply: Reply): PlannedJob[] {
  return (reply as [string, string, string, string][]).map(([job, schedule, at, caughtUp]) => ({
    job,
    schedule,
    at: Number(at),
    caughtUp: caughtUp === "1",
  }));
}
