// The independent judge: what the processes wrote down, the ledger and the jobs, each held against the others. An enqueue that was never
// answered may have happened or not; nothing else may differ.
import type { Engine, JobInfo } from "../../../src/index.ts";
import type { Ledger } from "./ledger.ts";
import { chargedWithoutDeath } from "./charges.ts";
import { attemptOf, wrongFences } from "./fences.ts";
import type { Line, Ordered } from "./history.ts";
import { GUILTY, STEPS, stepped, transfer } from "./jobs.ts";

export interface Judgement {
  readonly enqueued: number;
  readonly lost: number;
  readonly committedTwice: number;
  readonly quarantined: number;
  /** Those among them that never ended a worker. */
  readonly quarantinedInnocents: number;
  readonly poison: number;
  /** Jobs that were charged a crash for a worker whose process had not died. */
  readonly blamedWithoutDeath: number;
  readonly staleWritesRejected: number;
  readonly violations: readonly string[];
}

export async function judge(engine: Engine, ledger: Ledger, lines: readonly Line[]): Promise<Judgement> {
  const jobs = await allJobs(engine);
  const missing = promised(lines).filter((id) => !jobs.has(id));
  const unanswered = swallowed(lines);
  const unfinished = [...jobs.values()].filter(({ state }) => state === "queued" || state === "running");
  const rows = Map.groupBy(await ledger.entries(engine), ({ job }) => job);
  const twice = [...rows].filter(([, entries]) => entries.length > 1);
  const all = [...jobs.values()];
  const count = await ledger.jobCount(engine);
  const quarantined = all.filter(({ state }) => state === "quarantined");
  const blamed = await chargedWithoutDeath(engine, all);
  return {
    enqueued: jobs.size,
    lost: missing.length + unanswered.length + unfinished.length,
    committedTwice: twice.length,
    quarantined: quarantined.length,
    quarantinedInnocents: quarantined.filter(({ kind }) => !GUILTY.has(kind)).length,
    poison: all.filter(({ kind }) => GUILTY.has(kind)).length,
    blamedWithoutDeath: blamed.length,
    staleWritesRejected: lines.filter(({ what }) => what === "rejected").length,
    violations: [
      ...missing.map((id) => `job ${id} was acknowledged and is not in the store`),
      ...unanswered,
      ...unfinished.map(({ id, state }) => `job ${id} is still ${state}`),
      ...twice.map(([id, entries]) => `job ${id} has ${entries.length} rows in the ledger`),
      ...(count === jobs.size ? [] : [`the list has ${jobs.size} jobs and the table ${count}`]),
      ...all.flatMap(wrongEnd),
      ...all.flatMap(timedOut),
      ...blamed,
      ...wrongLedger(jobs, rows),
      ...orders(lines, jobs, rows),
      ...unfounded(lines, all),
      ...(await wrongFences(engine, lines, jobs)),
      ...ends(lines, rows),
      ...steps(lines),
    ],
  };
}

/** What an answered enqueue named. */
function promised(lines: readonly Line[]): string[] {
  return [...new Set(lines.flatMap((line) => (line.what === "ack" ? [line.got] : [])))];
}

/**
 * An order may be answered with another job only if that one was ordered under the same kind and dedupe key, and had not ended when this
 * one was asked for.
 */
function swallowed(lines: readonly Line[]): string[] {
  const orders = ordersIn(lines);
  const over = new Map<string, number>();
  const askedAt = new Map<string, number>();
  return lines.flatMap((line) => {
    if (line.what === "ask") askedAt.set(line.id, line.at);
    if (line.what === "committed") over.set(line.id, line.at);
    if (line.what !== "ack" || line.got === line.id) return [];
    const [order, other] = [orders.get(line.id), orders.get(line.got)];
    const answer = `job ${line.id} was answered with job ${line.got}`;
    if (order?.dedupeKey === undefined || order.kind !== other?.kind || order.dedupeKey !== other.dedupeKey)
      return [`${answer}, which was not ordered under the same kind and dedupe key`];
    return (over.get(line.got) ?? Infinity) < askedAt.get(line.id)!
      ? [`${answer}, which had ended before it was asked for`]
      : [];
  });
}

function ordersIn(lines: readonly Line[]): ReadonlyMap<string, Ordered> {
  return new Map(lines.flatMap((line) => (line.what === "ask" ? [[line.id, line] as const] : [])));
}

/** A job that has ended as it should not. */
export function wrongEnd({ id, kind, state, error }: JobInfo): string[] {
  if (state === "queued" || state === "running") return [];
  const right = GUILTY.has(kind) ? "quarantined" : "succeeded";
  return state === right ? [] : [`job ${id} (${kind}) is ${state}, not ${right}${error ? `: ${error.message}` : ""}`];
}

/** No job of a run takes as long as a timeout: whatever expired an attempt, time did not. */
function timedOut({ id, kind, counters: { timeouts } }: JobInfo): string[] {
  return timeouts === 0 ? [] : [`job ${id} (${kind}) timed out ${timeouts} time(s), long before its timeout`];
}

/** A row if and only if the job succeeded, and of the attempt that owned the job in the end. */
export function wrongLedger(
  jobs: ReadonlyMap<string, JobInfo>,
  rows: ReadonlyMap<string, readonly { readonly fence: string }[]>,
): string[] {
  const without = [...jobs.values()].filter(
    ({ id, kind, state }) => kind === transfer.name && state === "succeeded" && !rows.has(id),
  );
  const beyond = [...rows.keys()].filter((id) => jobs.get(id)?.state !== "succeeded");
  const stale = [...jobs.values()].flatMap(({ id, state, epoch, attempt: fence }) => {
    const [row, ...more] = rows.get(id) ?? [];
    return state !== "succeeded" || !row || more.length > 0 || row.fence === `${epoch}.${fence}`
      ? []
      : [`job ${id} was owned by attempt ${epoch}.${fence} and committed by attempt ${row.fence}`];
  });
  return [
    ...without.map(({ id }) => `job ${id} succeeded and has no row in the ledger`),
    ...beyond.map((id) => `job ${id} has a row in the ledger and is ${jobs.get(id)?.state ?? "not in the store"}`),
    ...stale,
  ];
}

/** Nothing that was not ordered, and what was ordered as it was ordered. */
function orders(
  lines: readonly Line[],
  jobs: ReadonlyMap<string, JobInfo>,
  rows: ReadonlyMap<string, readonly { readonly amount: number }[]>,
): string[] {
  const asked = ordersIn(lines);
  const phantoms = [...jobs.keys()].filter((id) => !asked.has(id));
  const others = [...rows].flatMap(([id, entries]) =>
    entries.filter(({ amount }) => asked.has(id) && amount !== asked.get(id)!.amount).map(({ amount }) => [id, amount]),
  );
  return [
    ...phantoms.map((id) => `job ${id} is in the store and was never ordered`),
    ...others.map(
      ([id, amount]) => `job ${id} was to transfer ${asked.get(`${id}`)!.amount} and its row has ${amount}`,
    ),
  ];
}

/** Who succeeded did run, failed as often as it was to fail, and kept all of its steps. */
function unfounded(lines: readonly Line[], jobs: readonly JobInfo[]): string[] {
  const asked = ordersIn(lines);
  const started = new Map<string, number>();
  for (const line of lines)
    if (line.what === "start") started.set(line.id, Math.max(attemptOf(line), started.get(line.id) ?? 0));
  const kept = new Set(lines.flatMap((line) => (line.what === "kept" ? [`${line.id} ${line.name}`] : [])));
  return jobs
    .filter(({ state }) => state === "succeeded")
    .flatMap(({ id, kind }) => {
      const latest = started.get(id);
      if (latest === undefined) return [`job ${id} succeeded and was never started`];
      // Attempts that were killed before they started, or before they failed, count as failures: the job goes by their number.
      const failures = asked.get(id)?.failures ?? 0;
      if (latest <= failures) return [`job ${id} was to fail ${failures} times and succeeded in attempt ${latest}`];
      const without = kind === stepped.name ? STEPS.filter((name) => !kept.has(`${id} ${name}`)) : [];
      return without.map((name) => `job ${id} succeeded and never kept its step ${name}`);
    });
}

/** An attempt whose commit resolved is the one whose row is there. */
function ends(lines: readonly Line[], rows: ReadonlyMap<string, readonly { readonly fence: string }[]>): string[] {
  return lines.flatMap((line) =>
    line.what === "committed" && !rows.get(line.id)?.some(({ fence }) => fence === line.fence)
      ? [`attempt ${line.fence} of job ${line.id} had its commit resolved, and its row is not there`]
      : [],
  );
}

/** A step that was kept is not run by a later attempt; an earlier one, a zombie's, may still be at it. */
function steps(lines: readonly Line[]): string[] {
  const kept = new Map<string, number>();
  return lines.flatMap((line) => {
    if (line.what === "kept") {
      const key = `${line.id} ${line.name}`;
      kept.set(key, Math.min(line.attempt, kept.get(key) ?? Infinity));
    }
    if (line.what !== "step") return [];
    const by = kept.get(`${line.id} ${line.name}`);
    return by !== undefined && by < line.attempt
      ? [`step ${line.name} of job ${line.id} was kept by attempt ${by} and run again by attempt ${line.attempt}`]
      : [];
  });
}

export async function allJobs(engine: Engine): Promise<Map<string, JobInfo>> {
  const jobs = new Map<string, JobInfo>();
  for (let after: string | undefined; ;) {
    const page = await engine.list({ limit: 1_000, ...(after === undefined ? {} : { after }) });
    for (const job of page.jobs) jobs.set(job.id, job);
    if (page.next === null) return jobs;
    after = page.next;
  }
}
