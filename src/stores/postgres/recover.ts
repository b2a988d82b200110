// Recovery's operations: condemn a worker, read what it holds, and write the decisions. This process may die after any
// write; the next recovery, here or elsewhere, continues from the rows.
import { toStoredError } from "../../job/errors.ts";
import { isOnTrial, ranAlone } from "../../job/isolation.ts";
import type { Change } from "../../job/transitions.ts";
import { TRUSTED } from "../../recovery/confirmed-time.ts";
import { isProof } from "../liveness.ts";
import {
  type Condemned,
  type CondemnRequest,
  type HeldJob,
  type HeldJobs,
  type HeldQuery,
  type Overdue,
  recoveredJob,
  type RecoveredJob,
  type TakeBackAnswer,
  type TakeBackRequest,
  type Taken,
  type Verdict,
} from "../port.ts";
import { type HeldColumns, heldJob } from "../rows.ts";
import { BEGUN, begunRows } from "./blocks.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { isOfOneRow } from "./errors.ts";
import { type DeadWorker, insertIncidentJobs, openIncident, stampResumed } from "./incidents.ts";
import { type AppliedChange, applyChanges, deathsElsewhere } from "./settle.ts";
import { list, type Session, texts } from "./statements.ts";

const HELD_COLUMNS = `j.seq, j.id, j.kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.deadline_at,
  (SELECT name FROM outlive.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1) AS last_step, ${BEGUN} AS begun`;

const HELD = `SELECT ${HELD_COLUMNS} FROM outlive.jobs j JOIN outlive.fleet w ON w.seq = j.worker
  WHERE j.state = 1 AND w.id = $1 AND j.seq > $2 ORDER BY j.seq LIMIT $3`;

const OVERDUE = `SELECT ${HELD_COLUMNS}, w.id AS worker_id FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind JOIN outlive.fleet w ON w.seq = j.worker
  WHERE j.state = 1 AND j.deadline_at + k.grace_ms + $1 < (SELECT least(outlive.now_ms(), $3)) AND coalesce(k.timeout_ms, 0) + k.grace_ms + $1 < $4
  ORDER BY j.deadline_at, j.seq LIMIT $2`;

const DEATHS_ELSEWHERE = `SELECT ${deathsElsewhere("outlive", "$1", "$2", "outlive.now_ms()", "$3")} AS n`;

/** Selects the attempts that still own their jobs; an overdue one only if its deadline has not moved. */
const owned = (
  deadline: string,
): string => `FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[], $5::bigint[]) AS a (seq, fence, epoch, worker, deadline_at)
  JOIN outlive.fleet w ON w.id = a.worker
  JOIN outlive.jobs j ON j.seq = a.seq AND j.state + 0 = 1 AND j.fence = a.fence AND j.epoch = a.epoch AND j.worker + 0 = w.seq${deadline}`;
const OF_THE_DEAD = owned("");
const STILL_OVERDUE = owned(" AND j.deadline_at = a.deadline_at");

export class Recovering {
  readonly #kinds: Kinds;

  constructor(kinds: Kinds) {
    this.#kinds = kinds;
  }

  /** Inside a transaction. */
  async condemn(session: Session, request: CondemnRequest): Promise<Condemned | null> {
    const dead = await lockDead(session, request);
    return dead === null ? null : openIncident(session, request, dead);
  }

  heldBy(session: Session, query: HeldQuery): Promise<HeldJobs> {
    return "condemned" in query
      ? this.#heldByCondemned(session, query.condemned, query.limit)
      : this.#overdue(session, query.overdue, query.limit);
  }

  async #heldByCondemned(session: Session, condemned: Condemned, limit: number): Promise<HeldJobs> {
    const { worker, cursor } = condemned;
    const rows = await session.rows<HeldColumns>(HELD, [worker, cursor, limit]);
    const held = await this.#held(session, rows, () => worker);
    const more = rows.length === limit;
    // At most one job ran alone, and only its verdict may depend on the deaths of others.
    const at = held.findIndex(({ counters: before, kind }) =>
      isOnTrial(before, ranAlone(before, condemned), kind.limits),
    );
    const tried = held[at];
    if (!tried) return { jobs: held, more };
    const [found] = await session.rows<{ n: number }>(DEATHS_ELSEWHERE, [
      tried.row,
      tried.counters.crashes,
      condemned.incident,
    ]);
    return { jobs: held.with(at, { ...tried, deathsElsewhere: found!.n }), more };
  }

  async #overdue(session: Session, { marginMs, confirmed = TRUSTED }: Overdue, limit: number): Promise<HeldJobs> {
    const { asOf, steadyMs } = confirmed;
    const rows = await session.rows<HeldColumns & { readonly worker_id: string }>(OVERDUE, [
      marginMs,
      limit,
      asOf,
      steadyMs,
    ]);
    const jobs = await this.#held(session, rows, ({ worker_id }) => worker_id);
    return { jobs, more: rows.length === limit };
  }

  async #held<R extends HeldColumns>(
    session: Session,
    rows: readonly R[],
    workerOf: (row: R) => string,
  ): Promise<HeldJob[]> {
    if (rows.length === 0) return [];
    const settings = await this.#kinds.settings(
      session,
      rows.map(({ kind }) => kind),
    );
    const begun = await begunRows(session, rows);
    return rows.map((row) =>
      heldJob(row, {
        worker: workerOf(row),
        kind: settings.get(row.kind)!,
        deathsElsewhere: 0,
        ...begun.get(row.seq),
      }),
    );
  }

  /**
   * Inside a transaction, with as few statements as possible: each is a round trip between a death and the next run of
   * its jobs. `each`: job by job, after a first try failed because the store refused one job's row.
   */
  async takeBack(session: Session, request: TakeBackRequest, wakeup: string, each = false): Promise<TakeBackAnswer> {
    const { verdicts, of, last } = request;
    const incident = of?.incident ?? null;
    if (of !== null && !(await lockCondemned(session, of))) return { taken: verdicts.map(() => "moved") };
    const taken = await takeAll(session, this.#kinds, verdicts, incident, each);
    if (of !== null) await keepJobs(session, of.incident, verdicts, taken);
    // Delivered at the commit: by the time the other workers check, the jobs are there.
    if (verdicts.length > 0) await session.run("SELECT pg_notify($1, '')", [wakeup]);
    if (of === null) return { taken };
    const cursor = verdicts.at(-1)?.job.row ?? of.cursor;
    if (!last) {
      await session.run("UPDATE outlive.incidents SET cursor = greatest(cursor, $1) WHERE id = $2", [
        cursor,
        of.incident,
      ]);
      return { taken };
    }
    const [closed] = await session.rows<{ locked: number }>(CLOSE, [of.worker, of.incident, cursor]);
    return { taken, ...(closed!.locked > 0 && { locked: closed!.locked }) };
  }
}

/**
 * Recoveries of one worker run one after the other: uncommitted work of one would look locked by another session to the
 * next, which would leave the incident open. False: the worker belongs to another store, which replaced the one that
 * condemned it.
 */
async function lockCondemned(session: Session, { worker, incident }: Condemned): Promise<boolean> {
  const rows = await session.rows("SELECT 1 FROM outlive.fleet WHERE id = $1 AND incident = $2 FOR UPDATE", [
    worker,
    incident,
  ]);
  return rows.length > 0;
}

async function takeAll(
  session: Session,
  kinds: Kinds,
  verdicts: readonly Verdict[],
  incident: string | null,
  each: boolean,
): Promise<Taken[]> {
  const decided = verdicts.filter(({ change }) => change !== null);
  if (decided.length === 0) return verdicts.map(() => "taken");
  const guard = incident === null ? STILL_OVERDUE : OF_THE_DEAD;
  const attempts = attemptsOf(decided);
  const locked = await session.rows<{ seq: number; incident: string | null }>(
    `SELECT j.seq, j.incident ${guard} ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED`,
    attempts,
  );
  const own = new Set(locked.map(({ seq }) => seq));
  // Before the rows name this incident instead.
  if (locked.some((row) => row.incident !== null)) await stampResumed(session, locked);
  const applied = decided.filter(({ job }) => own.has(job.row)).map((verdict) => byRecovery(verdict, incident));
  const refused = new Map<number, string>();
  const written = each ? await applyEach(session, kinds, applied, refused) : await applyAll(session, kinds, applied);
  const elsewhere =
    own.size < decided.length ? await session.rows<{ seq: number }>(`SELECT j.seq ${guard}`, attempts) : [];
  const heldElsewhere = new Set(elsewhere.map(({ seq }) => seq));
  return verdicts.map(({ job, change }) => {
    if (change === null) return "taken";
    const error = refused.get(job.row);
    if (error !== undefined) return { refused: error };
    const is = written.get(job.row);
    if (is !== undefined) return is === change ? "taken" : "cancelled";
    return heldElsewhere.has(job.row) ? "locked" : "moved";
  });
}

function attemptsOf(verdicts: readonly Verdict[]): string[] {
  const jobs = verdicts.map(({ job }) => job);
  return [
    list(jobs.map(({ row }) => row)),
    list(jobs.map(({ fence }) => fence)),
    list(jobs.map(({ epoch }) => epoch)),
    texts(jobs.map(({ worker }) => worker)),
    list(jobs.map(({ deadlineAt }) => deadlineAt)),
  ];
}

async function keepJobs(
  session: Session,
  incident: string,
  verdicts: readonly Verdict[],
  taken: readonly Taken[],
): Promise<void> {
  const rows: { readonly seq: number }[] = [];
  const jobs: RecoveredJob[] = [];
  verdicts.forEach((verdict, at) => {
    const job = recoveredJob(verdict, taken[at]!);
    if (job === null) return;
    rows.push({ seq: verdict.job.row });
    jobs.push(job);
  });
  if (jobs.length > 0) await insertIncidentJobs(session, incident, rows, jobs);
}

/** Including their follow-ups. */
async function applyAll(
  session: Session,
  kinds: Kinds,
  changes: readonly AppliedChange[],
): Promise<ReadonlyMap<number, Change>> {
  const written = await applyChanges(session, changes, "running");
  await insertFollowing(session, kinds, written.values());
  return written;
}

/** Job by job. Collects the store's error for each row that it refused. */
async function applyEach(
  session: Session,
  kinds: Kinds,
  changes: readonly AppliedChange[],
  refused: Map<number, string>,
): Promise<ReadonlyMap<number, Change>> {
  const written = new Map<number, Change>();
  for (const change of changes) {
    await session.run("SAVEPOINT outlive_job");
    try {
      for (const [seq, is] of await applyAll(session, kinds, [change])) written.set(seq, is);
    } catch (thrown) {
      if (!isOfOneRow(thrown)) throw thrown;
      await session.run("ROLLBACK TO SAVEPOINT outlive_job");
      refused.set(change.seq, toStoredError(thrown).message);
    }
    await session.run("RELEASE SAVEPOINT outlive_job");
  }
  return written;
}

/**
 * The dead worker. Its row is locked from here on: a claim in flight was waited for, and no new one begins. Null:
 * between the check and this transaction the worker left cleanly, was recovered by another process or, if it was only
 * silent, sent a heartbeat. A finished worker that still holds jobs is recovered again, because an earlier recovery
 * could not take them.
 */
async function lockDead(session: Session, { worker, death }: CondemnRequest): Promise<DeadWorker | null> {
  const [row] = await session.rows<DeadWorker & { state: string; beats: number; lock_identity: string | null }>(
    "SELECT seq, state, beats, lock_identity, last_word, incident FROM outlive.fleet WHERE id = $1 FOR UPDATE",
    [worker.id],
  );
  if (!row) return null;
  const unchanged = row.beats === worker.beats && row.lock_identity === worker.lock.identity;
  if (row.state === "live") return isProof(death.how) || unchanged ? row : null;
  if (row.state === "recovering") return row;
  const held = await session.rows("SELECT 1 FROM outlive.jobs WHERE state = 1 AND worker = $1 LIMIT 1", [row.seq]);
  return held.length > 0 ? row : null;
}

// Closes only if no job was skipped. A job whose decision failed does not count as skipped: it is in the incident, and
// a sweep tries it again.
const CLOSE = `WITH dead AS (SELECT f.seq FROM outlive.fleet f WHERE f.id = $1 AND f.incident = $2),
  left_out AS MATERIALIZED (
    SELECT count(*) AS n, min(j.seq) AS first FROM outlive.jobs j WHERE j.state = 1 AND j.worker = (SELECT seq FROM dead)
      AND NOT EXISTS (SELECT 1 FROM outlive.incident_jobs i WHERE i.incident = $2 AND i.job = j.seq AND NOT i.success)),
  closed AS (UPDATE outlive.incidents i SET cursor = coalesce(o.first - 1, $3),
      completed_at = CASE WHEN o.n = 0 THEN coalesce(i.completed_at, outlive.now_ms()) END FROM left_out o WHERE i.id = $2),
  cancels AS (DELETE FROM outlive.cancels c USING left_out o, dead d WHERE c.worker = d.seq AND o.n = 0),
  finished AS (UPDATE outlive.fleet f SET state = 'gone' FROM left_out o WHERE f.id = $1 AND f.incident = $2 AND o.n = 0)
  SELECT n AS locked FROM left_out`;

function byRecovery({ job, change }: Verdict, incident: string | null): AppliedChange {
  const { row: seq, epoch, fence } = job;
  return { seq, change: change!, incident, epoch, fence, actor: "system/recovery" };
}
