// Recovery's transactions: one batch of a dead worker's jobs, and what is overdue. Each may be the last thing that this
// process does; the next one, here or elsewhere, goes on from the rows.
import { BACKGROUND_MS, isOnTrial } from "../../core/blame.ts";
import { type ConfirmedTime, TRUSTED } from "../../core/confirmed-time.ts";
import { toStoredError } from "../../core/errors.ts";
import type { KindSettings } from "../../core/job.ts";
import { isProof } from "../../core/liveness.ts";
import type { HeldJob, OverdueJob, RecoverAnswer, RecoveredJob, RecoverRequest } from "../../core/store.ts";
import type { Change, CrashVerdict } from "../../core/transitions.ts";
import type { Database } from "./database.ts";
import { isOfOneRow } from "./errors.ts";
import { closeIncident, type OpenIncident, openIncident, writeIncidentJob } from "./incident-writes.ts";
import type { Kinds } from "./kinds.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { applyChange, writeHistory } from "./settle.ts";
import type { Workers } from "./workers.ts";

interface HeldColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly cancel_requested: number;
  readonly last_step: string | null;
}

const HELD_COLUMNS = `j.seq, j.id, j.kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.cancel_requested,
  (SELECT name FROM outlive_steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1) AS last_step`;

// Deaths that this job had no part in. Asked only when the verdict depends on it, so no index is kept for it. The last `crashes`
// crashes in the history are those that count: a step or a retry by hand has set the counters back before them.
// A loss of contact counts once it has turned out to be a death.
const DEATHS_ELSEWHERE = `SELECT count(*) AS n FROM outlive_incidents i
  WHERE (i.how = 'gone' OR i.resolution IN ('died', 'away')) AND i.completed_at >= min(?1 - ${BACKGROUND_MS}, (SELECT ifnull(min(at), ?1) FROM (
    SELECT at FROM outlive_history WHERE job = ?2 AND event IN ('crash', 'countLoss') ORDER BY ord DESC LIMIT ?3)))
  AND NOT EXISTS (SELECT 1 FROM outlive_incident_jobs j WHERE j.incident = i.id AND j.job = ?2)`;

export class Recovering {
  readonly #db: Database;
  readonly #kinds: Kinds;
  readonly #workers: Workers;
  /** The settings of this transaction's kinds. */
  readonly #read = new Map<number, KindSettings>();

  constructor(db: Database, kinds: Kinds, workers: Workers) {
    this.#db = db;
    this.#kinds = kinds;
    this.#workers = workers;
  }

  /** A job whose own row the store refuses is found by a second try, in which each job can fail for itself; the first is faster. */
  recover(request: RecoverRequest, now: number): RecoverAnswer {
    this.#db.sql("SAVEPOINT outlive_recovery").run();
    let answer: RecoverAnswer;
    try {
      answer = this.#recover(request, now, false);
    } catch (thrown) {
      if (!isOfOneRow(thrown) || !this.#db.inTransaction) throw thrown;
      this.#db.sql("ROLLBACK TO outlive_recovery").run();
      answer = this.#recover(request, now, true);
    }
    this.#db.sql("RELEASE outlive_recovery").run();
    return answer;
  }

  #recover(request: RecoverRequest, now: number, each: boolean): RecoverAnswer {
    this.#read.clear();
    const worker = this.#workers.seqOf(request.worker.id);
    if (!this.#isDead(request, worker)) return { incident: null, jobs: [], done: true };
    const opened = openIncident(this.#db, request, worker, now);
    const { id: incident, cursor } = opened;
    const rows = this.#db
      .sql(
        `SELECT ${HELD_COLUMNS} FROM outlive_jobs j WHERE j.state = 1 AND j.worker = ? AND j.seq > ? ORDER BY j.seq LIMIT ? + 0`,
      )
      .all(worker, cursor, request.limit) as unknown as HeldColumns[];
    const jobs = rows.map((row) => this.#recoverJob(row, worker, opened, request, now, each));
    const last = rows.at(-1);
    if (last) this.#db.sql("UPDATE outlive_incidents SET cursor = ? WHERE id = ?").run(last.seq, incident);
    const done = rows.length < request.limit;
    if (done) closeIncident(this.#db, incident, worker, now);
    return { incident, jobs, done };
  }

  /**
   * Between the look and this transaction the worker may have left in peace, been recovered by somebody else, or, if it was
   * only silent, beaten again. Who is over and still holds jobs is recovered again: an earlier recovery could not.
   */
  #isDead({ worker: { beats, lock }, death }: RecoverRequest, worker: number): boolean {
    const row = this.#db.sql("SELECT state, beats, lock_identity FROM outlive_workers WHERE seq = ?").get(worker) as
      | { state: string; beats: number; lock_identity: string | null }
      | undefined;
    if (!row) return false;
    if (row.state === "live") return isProof(death.how) || (row.beats === beats && row.lock_identity === lock.identity);
    if (row.state === "recovering") return true;
    return this.#db.sql("SELECT 1 FROM outlive_jobs WHERE state = 1 AND worker = ?").get(worker) !== undefined;
  }

  #recoverJob(
    row: HeldColumns,
    worker: number,
    incident: OpenIncident,
    request: RecoverRequest,
    now: number,
    each: boolean,
  ): RecoveredJob {
    const kind = this.#settings(row.kind);
    const base = {
      jobId: row.id,
      kind: kind.name,
      limit: kind.limits.crashes,
      fence: row.fence,
      lastStep: row.last_step,
    };
    const job = { ...base, ...this.#decided(row, worker, incident, request, now, each) };
    writeIncidentJob(this.#db, incident.id, row.seq, job);
    return job;
  }

  /** `each`: what the store refuses for this job is its own failure and undoes nothing else. */
  #decided(
    row: HeldColumns,
    worker: number,
    { id: incident, heldAtDeath, how }: OpenIncident,
    request: RecoverRequest,
    now: number,
    each: boolean,
  ): Pick<RecoveredJob, "decision" | "counters" | "success" | "error"> {
    const failed = (thrown: unknown) =>
      ({ decision: "none", counters: counters(row), success: false, error: toStoredError(thrown).message }) as const;
    let verdict: CrashVerdict;
    try {
      const held = this.#held(row, this.deathsElsewhere(row, heldAtDeath, now));
      verdict = request.decide(held, heldAtDeath, how);
    } catch (thrown) {
      return failed(thrown);
    }
    if (each) this.#db.sql("SAVEPOINT outlive_job").run();
    try {
      this.#apply(row, worker, verdict.change, incident, now);
    } catch (thrown) {
      if (!each || !isOfOneRow(thrown) || !this.#db.inTransaction) throw thrown;
      this.#db.sql("ROLLBACK TO outlive_job").run();
      return failed(thrown);
    } finally {
      if (each && this.#db.inTransaction) this.#db.sql("RELEASE outlive_job").run();
    }
    return { decision: verdict.decision, counters: verdict.change.counters, success: true, error: null };
  }

  #apply(row: HeldColumns, worker: number, change: Change, incident: string | null, now: number): void {
    applyChange(
      this.#db,
      change,
      now,
      {
        sql: "seq = ? AND state = 1 AND fence = ? AND epoch = ? AND worker = ?",
        values: [row.seq, row.fence, row.epoch, worker],
      },
      incident,
    );
    writeHistory(this.#db, {
      job: row.seq,
      at: now,
      change,
      from: "running",
      actor: "system/recovery",
      epoch: row.epoch,
      fence: row.fence,
      incident,
    });
  }

  /** Read once per kind and transaction: it was a quarter of the cost of a large recovery. */
  #settings(kind: number): KindSettings {
    const known = this.#read.get(kind) ?? this.#kinds.settingsById(kind);
    this.#read.set(kind, known);
    return known;
  }

  deathsElsewhere(
    row: CounterColumns & { readonly seq: number; readonly kind: number },
    heldAtDeath: number,
    now: number,
  ): number {
    if (!isOnTrial(row, heldAtDeath, this.#settings(row.kind).limits)) return 0;
    return (this.#db.sql(DEATHS_ELSEWHERE).get(now, row.seq, row.crashes) as { n: number }).n;
  }

  #held(row: HeldColumns, deathsElsewhere = 0): HeldJob {
    return {
      id: row.id,
      state: "running",
      counters: counters(row),
      kind: this.#settings(row.kind),
      cancelRequested: row.cancel_requested === 1,
      deathsElsewhere,
    };
  }

  expire(
    marginMs: number,
    limit: number,
    decide: (job: HeldJob) => Change,
    now: number,
    confirmed?: ConfirmedTime,
  ): OverdueJob[] {
    this.#read.clear();
    const rows = this.overdue(marginMs, limit, now, confirmed);
    return rows.flatMap((row) => {
      let change: Change;
      try {
        change = decide(this.#held(row));
      } catch {
        return []; // Looked at again next time; it holds up nobody else.
      }
      this.#apply(row, row.worker, change, null, now);
      return [{ jobId: row.id, worker: row.worker_id, change }];
    });
  }

  /** What is past deadline, grace and margin. A read: most of the time it finds nothing, and then no write lock is taken. */
  overdue(
    marginMs: number,
    limit: number,
    now: number,
    { asOf, steadyMs }: ConfirmedTime = TRUSTED,
  ): (HeldColumns & { worker: number; worker_id: string })[] {
    return this.#db
      .sql(
        `SELECT ${HELD_COLUMNS}, j.worker, w.id AS worker_id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind JOIN outlive_workers w ON w.seq = j.worker
         WHERE j.state = 1 AND j.deadline_at + k.grace_ms + ?1 < ?2 AND ifnull(k.timeout_ms, 0) + k.grace_ms + ?1 < ?3 ORDER BY j.deadline_at LIMIT ?4 + 0`,
      )
      .all(marginMs, Math.min(now, asOf), steadyMs, limit) as unknown as (HeldColumns & {
      worker: number;
      worker_id: string;
    })[];
  }
}
