// Recovery's operations: condemn a worker, read what it holds, and write the decisions. This process may die after any
// write; the next recovery, here or elsewhere, continues from the rows.
import { toStoredError } from "../../job/errors.ts";
import { BACKGROUND_MS, isOnTrial, ranAlone } from "../../job/isolation.ts";
import type { KindSettings } from "../../job/job.ts";
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
  type TakeBackAnswer,
  type TakeBackRequest,
  type Taken,
  type Verdict,
} from "../port.ts";
import { type CounterColumns, type HeldColumns, heldJob } from "../rows.ts";
import { BEGUN, begunRow } from "./blocks.ts";
import type { Database } from "./database.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { isOfOneRow } from "./errors.ts";
import { closeIncident, openIncident, writeIncidentJob } from "./incidents.ts";
import { applyChange, OWNED } from "./settle.ts";
import type { Workers } from "./workers.ts";

const HELD_COLUMNS = `j.seq, j.id, j.kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.deadline_at,
  (SELECT name FROM outlive_steps s WHERE s.job = j.seq ORDER BY s.ord DESC LIMIT 1) AS last_step, ${BEGUN} AS begun`;

// Deaths that this job had no part in. Queried only when the verdict depends on it, so there is no index for it. Only
// the last `crashes` crashes in the history count: a step or a manual retry reset the counters before them. A loss of
// contact counts once it has turned out to be a death, and a death counts from the moment its worker is condemned.
const DEATHS_ELSEWHERE = `SELECT count(*) AS n FROM outlive_incidents i
  WHERE i.id <> ?4 AND (i.how = 'gone' OR i.resolution IN ('died', 'away'))
  AND (i.completed_at IS NULL OR i.completed_at >= min(?1 - ${BACKGROUND_MS}, (SELECT ifnull(min(at), ?1) FROM (
    SELECT at FROM outlive_history WHERE job = ?2 AND event IN ('crash', 'countLoss') ORDER BY ord DESC LIMIT ?3))))
  AND NOT EXISTS (SELECT 1 FROM outlive_incident_jobs j WHERE j.incident = i.id AND j.job = ?2)`;

/** If a heartbeat has moved an attempt's deadline since it was read, the attempt is no longer overdue. */
const STILL_OVERDUE = `${OWNED} AND deadline_at = ?`;

export class Recovering {
  readonly #db: Database;
  readonly #kinds: Kinds;
  readonly #workers: Workers;

  constructor(db: Database, kinds: Kinds, workers: Workers) {
    this.#db = db;
    this.#kinds = kinds;
    this.#workers = workers;
  }

  condemn(request: CondemnRequest, now: number): Condemned | null {
    const worker = this.#workers.seqOf(request.worker.id);
    return this.#isDead(request, worker) ? openIncident(this.#db, request, worker, now) : null;
  }

  /**
   * Between the check and this transaction the worker may have left cleanly, been recovered by another process or, if
   * it was only silent, sent a heartbeat. A finished worker that still holds jobs is recovered again, because an
   * earlier recovery could not take them.
   */
  #isDead({ worker: { beats, lock }, death }: CondemnRequest, worker: number): boolean {
    const row = this.#db.sql("SELECT state, beats, lock_identity FROM outlive_workers WHERE seq = ?").get(worker) as
      | { state: string; beats: number; lock_identity: string | null }
      | undefined;
    if (!row) return false;
    if (row.state === "live") return isProof(death.how) || (row.beats === beats && row.lock_identity === lock.identity);
    if (row.state === "recovering") return true;
    return this.#db.sql("SELECT 1 FROM outlive_jobs WHERE state = 1 AND worker = ?").get(worker) !== undefined;
  }

  heldBy(query: HeldQuery, now: number): HeldJobs {
    return "condemned" in query
      ? this.#heldByCondemned(query.condemned, query.limit, now)
      : this.#overdue(query.overdue, query.limit, now);
  }

  #heldByCondemned(condemned: Condemned, limit: number, now: number): HeldJobs {
    const { worker, cursor } = condemned;
    const rows = this.#db
      .sql(
        `SELECT ${HELD_COLUMNS} FROM outlive_jobs j WHERE j.state = 1 AND j.worker = ? AND j.seq > ? ORDER BY j.seq LIMIT ? + 0`,
      )
      .all(this.#workers.seqOf(worker), cursor, limit) as unknown as HeldColumns[];
    const jobs = this.#held(rows, (row) => ({
      worker,
      deathsElsewhere: this.deathsElsewhere(row, ranAlone(row, condemned), condemned.incident, now),
    }));
    return { jobs, more: rows.length === limit };
  }

  #overdue({ marginMs, confirmed = TRUSTED }: Overdue, limit: number, now: number): HeldJobs {
    const rows = this.#db
      .sql(
        `SELECT ${HELD_COLUMNS}, w.id AS worker_id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind JOIN outlive_workers w ON w.seq = j.worker
         WHERE j.state = 1 AND j.deadline_at + k.grace_ms + ?1 < ?2 AND ifnull(k.timeout_ms, 0) + k.grace_ms + ?1 < ?3 ORDER BY j.deadline_at LIMIT ?4 + 0`,
      )
      .all(marginMs, Math.min(now, confirmed.asOf), confirmed.steadyMs, limit) as unknown as (HeldColumns & {
      worker_id: string;
    })[];
    const jobs = this.#held(rows, ({ worker_id: worker }) => ({ worker, deathsElsewhere: 0 }));
    return { jobs, more: rows.length === limit };
  }

  #held<R extends HeldColumns>(
    rows: readonly R[],
    more: (row: R) => Pick<HeldJob, "worker" | "deathsElsewhere">,
  ): HeldJob[] {
    // Read once per kind: it was a quarter of the cost of a large recovery.
    const settings = new Map<number, KindSettings>();
    return rows.map((row) => {
      const kind = settings.get(row.kind) ?? this.#kinds.settingsById(row.kind);
      settings.set(row.kind, kind);
      const begun = row.begun === null ? null : begunRow(this.#db, row.seq, row.begun);
      return heldJob(row, { kind, ...more(row), ...(begun && { begun }) });
    });
  }

  deathsElsewhere(
    row: CounterColumns & { readonly seq: number; readonly kind: number },
    alone: boolean,
    incident: string,
    now: number,
  ): number {
    if (!isOnTrial(row, alone, this.#kinds.settingsById(row.kind).limits)) return 0;
    return (this.#db.sql(DEATHS_ELSEWHERE).get(now, row.seq, row.crashes, incident) as { n: number }).n;
  }

  /**
   * If the store refuses a job's own row, a second try finds that job by letting each job fail individually; the first
   * try is faster.
   */
  takeBack(request: TakeBackRequest, now: number): TakeBackAnswer {
    this.#db.sql("SAVEPOINT outlive_recovery").run();
    let taken: Taken[];
    try {
      taken = this.#takeAll(request, now, false);
    } catch (thrown) {
      if (!isOfOneRow(thrown) || !this.#db.inTransaction) throw thrown;
      this.#db.sql("ROLLBACK TO outlive_recovery").run();
      taken = this.#takeAll(request, now, true);
    }
    this.#db.sql("RELEASE outlive_recovery").run();
    return { taken };
  }

  #takeAll({ verdicts, of, last }: TakeBackRequest, now: number, each: boolean): Taken[] {
    if (of && !this.#isCondemned(of)) return verdicts.map(() => "moved");
    const incident = of?.incident ?? null;
    const taken = verdicts.map((verdict) => {
      const one = each ? this.#takeOrRefuse(verdict, incident, now) : this.#take(verdict, incident, now);
      const job = recoveredJob(verdict, one);
      if (incident !== null && job) writeIncidentJob(this.#db, incident, verdict.job.row, job);
      return one;
    });
    if (of) {
      const cursor = verdicts.at(-1)?.job.row ?? of.cursor;
      this.#db.sql("UPDATE outlive_incidents SET cursor = max(cursor, ?) WHERE id = ?").run(cursor, of.incident);
      if (last) closeIncident(this.#db, of.incident, this.#workers.seqOf(of.worker), now);
    }
    return taken;
  }

  /** False in an older copy that was restored since. */
  #isCondemned({ worker, incident }: Condemned): boolean {
    return (
      this.#db.sql("SELECT 1 FROM outlive_workers WHERE id = ? AND incident = ?").get(worker, incident) !== undefined
    );
  }

  #take({ job, change }: Verdict, incident: string | null, now: number): Taken {
    if (change === null) return "taken";
    const owner = [job.row, job.fence, job.epoch, this.#workers.seqOf(job.worker)];
    const where =
      incident === null ? { sql: STILL_OVERDUE, values: [...owner, job.deadlineAt] } : { sql: OWNED, values: owner };
    const { row, epoch, fence } = job;
    const of = { job: row, from: "running", actor: "system/recovery", epoch, fence, incident } as const;
    const written = applyChange(this.#db, change, now, where, of);
    if (written?.follow !== undefined) insertFollowing(this.#db, this.#kinds, [written], now);
    return written === null ? "moved" : written === change ? "taken" : "cancelled";
  }

  /** A refusal by the store fails only this job and undoes nothing else. */
  #takeOrRefuse(verdict: Verdict, incident: string | null, now: number): Taken {
    this.#db.sql("SAVEPOINT outlive_job").run();
    try {
      return this.#take(verdict, incident, now);
    } catch (thrown) {
      if (!isOfOneRow(thrown) || !this.#db.inTransaction) throw thrown;
      this.#db.sql("ROLLBACK TO outlive_job").run();
      return { refused: toStoredError(thrown).message };
    } finally {
      if (this.#db.inTransaction) this.#db.sql("RELEASE outlive_job").run();
    }
  }
}
