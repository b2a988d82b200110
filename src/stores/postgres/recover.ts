// Recovery's transactions: one batch of a dead worker's jobs, and what is overdue. Each may be the last thing that this
// process does; the next one, here or elsewhere, goes on from the rows.
import { type ConfirmedTime, TRUSTED } from "../../core/confirmed-time.ts";
import { isOnTrial } from "../../core/blame.ts";
import { toStoredError } from "../../core/errors.ts";
import type { KindSettings } from "../../core/job.ts";
import { isProof } from "../../core/liveness.ts";
import type { HeldJob, OverdueJob, RecoverAnswer, RecoveredJob, RecoverRequest } from "../../core/store.ts";
import type { Change, CrashVerdict } from "../../core/transitions.ts";
import type { Session } from "./connection.ts";
import { deathsElsewhere } from "./deaths-elsewhere.ts";
import { isOfOneRow } from "./errors.ts";
import {
  type DeadWorker,
  insertIncidentJobs,
  type OpenIncident,
  openIncident,
  stampResumed,
} from "./incident-writes.ts";
import type { Kinds } from "./kinds.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { type AppliedChange, applyChanges } from "./settle.ts";

export interface HeldColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly cancel_requested: boolean;
  /** The incident that put it back before, if nobody has noted that it ran again since. */
  readonly incident: string | null;
  readonly last_step: string | null;
}

interface OverdueColumns extends HeldColumns {
  readonly worker_id: string;
}

const HELD_COLUMNS = `j.seq, j.id, j.kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.cancel_requested, j.incident,
  (SELECT name FROM outlive.steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1) AS last_step`;

const OVERDUE = `FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind JOIN outlive.fleet w ON w.seq = j.worker
  WHERE j.state = 1 AND j.deadline_at + k.grace_ms + $1 < (SELECT least(outlive.now_ms(), $3)) AND coalesce(k.timeout_ms, 0) + k.grace_ms + $1 < $4
  ORDER BY j.deadline_at, j.seq LIMIT $2`;

const DEATHS_ELSEWHERE = `SELECT ${deathsElsewhere("outlive", "$1", "$2", "outlive.now_ms()")} AS n`;

export class Recovering {
  readonly #kinds: Kinds;

  constructor(kinds: Kinds) {
    this.#kinds = kinds;
  }

  /**
   * Inside a transaction, with as few statements as it takes: each is a round trip between a death and the next run of its jobs. `each`:
   * job by job, after a first try that failed because the store refused the row of one of them.
   */
  async recover(session: Session, request: RecoverRequest, bell: string, each = false): Promise<RecoverAnswer> {
    const dead = await lockDead(session, request);
    if (dead === null) return { incident: null, jobs: [], done: true };
    const worker = dead.seq;
    const incident = await openIncident(session, request, dead);
    const rows = await session.rows<HeldColumns>(
      `SELECT ${HELD_COLUMNS} FROM outlive.jobs j WHERE j.state = 1 AND j.worker = $1 AND j.seq > $2 ORDER BY j.seq LIMIT $3 FOR UPDATE OF j SKIP LOCKED`,
      [worker, incident.cursor, request.limit],
    );
    const jobs = await this.#recoverJobs(session, rows, incident, request, each);
    const done = rows.length < request.limit;
    const cursor = rows.at(-1)?.seq ?? incident.cursor;
    let locked = 0;
    if (done) [{ locked }] = (await session.rows<{ locked: number }>(CLOSE, [worker, incident.id, cursor])) as [Closed];
    else await session.run("UPDATE outlive.incidents SET cursor = $1 WHERE id = $2", [cursor, incident.id]);
    // Heard at the commit: by the time the others look, the jobs are there.
    if (jobs.length > 0) await session.run("SELECT pg_notify($1, '')", [bell]);
    return { incident: incident.id, jobs, done, ...(locked > 0 && { locked }) };
  }

  /** `each`: what the store refuses for one job is that job's own failure and undoes nothing else. */
  async #recoverJobs(
    session: Session,
    rows: readonly HeldColumns[],
    incident: OpenIncident,
    request: RecoverRequest,
    each: boolean,
  ): Promise<RecoveredJob[]> {
    if (rows.length === 0) return [];
    const settings = await this.#kinds.settings(
      session,
      rows.map(({ kind }) => kind),
    );
    const elsewhere = await this.#deathsElsewhere(session, rows, incident, settings);
    const applied: AppliedChange[] = [];
    let jobs = rows.map((row): RecoveredJob => {
      const kind = settings.get(row.kind)!;
      const base = {
        jobId: row.id,
        kind: kind.name,
        limit: kind.limits.crashes,
        fence: row.fence,
        lastStep: row.last_step,
      };
      let verdict: CrashVerdict;
      try {
        verdict = request.decide(heldJob(row, kind, elsewhere), incident.heldAtDeath, incident.how);
      } catch (thrown) {
        const error = toStoredError(thrown).message;
        return { ...base, decision: "none", counters: counters(row), success: false, error };
      }
      applied.push(byRecovery(row, verdict.change, incident.id));
      const { decision, change } = verdict;
      return { ...base, decision, counters: change.counters, success: true, error: null };
    });
    // Before the rows name this incident instead.
    if (rows.some((row) => row.incident !== null)) await stampResumed(session, rows);
    if (each) {
      const refused = await applyEach(session, applied);
      jobs = jobs.map((job, at) => {
        const error = refused.get(rows[at]!.seq);
        if (error === undefined) return job;
        return { ...job, decision: "none", counters: counters(rows[at]!), success: false, error };
      });
    } else await applyChanges(session, applied, "running");
    await insertIncidentJobs(session, incident.id, rows, jobs);
    return jobs;
  }

  /** Asked only if the verdict depends on it; then there is one job. */
  async #deathsElsewhere(
    session: Session,
    [row]: readonly HeldColumns[],
    { heldAtDeath }: OpenIncident,
    settings: ReadonlyMap<number, KindSettings>,
  ): Promise<number> {
    if (!row || !isOnTrial(row, heldAtDeath, settings.get(row.kind)!.limits)) return 0;
    const [found] = await session.rows<{ n: number }>(DEATHS_ELSEWHERE, [row.seq, row.crashes]);
    return found!.n;
  }

  /** What is past deadline, grace and margin. A read: most of the time it finds nothing, and then no transaction is needed. */
  async anyOverdue(session: Session, marginMs: number, confirmed: ConfirmedTime = TRUSTED): Promise<boolean> {
    const { asOf, steadyMs } = confirmed;
    return (await session.rows(`SELECT 1 ${OVERDUE}`, [marginMs, 1, asOf, steadyMs])).length > 0;
  }

  /** Inside a transaction. Another process may do the same just now: what it has locked is its own. */
  async expire(
    session: Session,
    marginMs: number,
    limit: number,
    decide: (job: HeldJob) => Change,
    { asOf, steadyMs }: ConfirmedTime = TRUSTED,
  ): Promise<OverdueJob[]> {
    const rows = await session.rows<OverdueColumns>(
      `SELECT ${HELD_COLUMNS}, w.id AS worker_id ${OVERDUE} FOR UPDATE OF j SKIP LOCKED`,
      [marginMs, limit, asOf, steadyMs],
    );
    if (rows.length === 0) return [];
    const settings = await this.#kinds.settings(
      session,
      rows.map(({ kind }) => kind),
    );
    const applied: AppliedChange[] = [];
    const overdue = rows.flatMap((row) => {
      let change: Change;
      try {
        change = decide(heldJob(row, settings.get(row.kind)!));
      } catch {
        return []; // Looked at again next time; it holds up nobody else.
      }
      applied.push(byRecovery(row, change, null));
      return [{ jobId: row.id, worker: row.worker_id, change }];
    });
    await applyChanges(session, applied, "running");
    return overdue;
  }
}

/** Returns what the store said of each row that it refused, by the row's number. */
async function applyEach(session: Session, changes: readonly AppliedChange[]): Promise<ReadonlyMap<number, string>> {
  const refused = new Map<number, string>();
  for (const change of changes) {
    await session.run("SAVEPOINT outlive_job");
    try {
      await applyChanges(session, [change], "running");
    } catch (thrown) {
      if (!isOfOneRow(thrown)) throw thrown;
      await session.run("ROLLBACK TO SAVEPOINT outlive_job");
      refused.set(change.seq, toStoredError(thrown).message);
    }
    await session.run("RELEASE SAVEPOINT outlive_job");
  }
  return refused;
}

/**
 * The dead worker, whose row is locked from here on: a claim of it that is in flight was waited for, and none begins.
 * Null: between the look and this transaction it left in peace, was recovered by somebody else, or, if it was only silent, has
 * beaten again. Who is over and still holds jobs is recovered again: an earlier recovery could not.
 */
async function lockDead(session: Session, { worker, death }: RecoverRequest): Promise<DeadWorker | null> {
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

interface Closed {
  readonly locked: number;
}

// Closes only if nothing was left out. A job whose decision failed does not count as left out: it is in the incident, and a sweep tries
// it again.
const CLOSE = `WITH left_out AS MATERIALIZED (
    SELECT count(*) AS n, min(j.seq) AS first FROM outlive.jobs j WHERE j.state = 1 AND j.worker = $1
      AND NOT EXISTS (SELECT 1 FROM outlive.incident_jobs i WHERE i.incident = $2 AND i.job = j.seq AND NOT i.success)),
  closed AS (UPDATE outlive.incidents i SET cursor = coalesce(o.first - 1, $3),
      completed_at = CASE WHEN o.n = 0 THEN coalesce(i.completed_at, outlive.now_ms()) END FROM left_out o WHERE i.id = $2),
  cancels AS (DELETE FROM outlive.cancels c USING left_out o WHERE c.worker = $1 AND o.n = 0),
  finished AS (UPDATE outlive.fleet f SET state = 'gone' FROM left_out o WHERE f.seq = $1 AND o.n = 0)
  SELECT n AS locked FROM left_out`;

function heldJob(row: HeldColumns, kind: KindSettings, elsewhere = 0): HeldJob {
  return {
    id: row.id,
    state: "running",
    counters: counters(row),
    kind,
    cancelRequested: row.cancel_requested,
    deathsElsewhere: elsewhere,
  };
}

function byRecovery({ seq, epoch, fence }: HeldColumns, change: Change, incident: string | null): AppliedChange {
  return { seq, change, incident, epoch, fence, actor: "system/recovery" };
}
