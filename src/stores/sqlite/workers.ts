// The rows of workers: registering, beating, leaving. One row per process and boot; a row that is not live never becomes so again.
import { PROCESS_IS_GONE } from "../../core/incident.ts";
import type { Counters } from "../../core/job.ts";
import type { WorkerRecord, WorkerRow } from "../../core/liveness.ts";
import type { Beat, BeatAnswer, WorkerQuery } from "../../core/store.ts";
import type { Database } from "./database.ts";
import { type CounterColumns, counters, longestOverdue, type WorkerColumns, workerRow } from "../rows.ts";
import { resolveLoss } from "./losses.ts";
import { schemaVersion, storedEpoch } from "./schema.ts";

const WHICH = {
  present: "w.state IN ('live', 'recovering')",
  leftBehind: "w.state IN ('gone', 'stopped') AND w.seq IN (SELECT worker FROM outlive_jobs WHERE state = 1)",
  all: "1",
} as const;

export class Workers {
  readonly #db: Database;
  readonly #seqs = new Map<string, number>();
  /** The highest epoch that was seen here. */
  #highestEpoch = 0;

  constructor(db: Database) {
    this.#db = db;
  }

  /** The number that stands for a worker in the rows of jobs; 0 if it has none, which no job ever has. */
  seqOf(id: string): number {
    const known = this.#seqs.get(id);
    if (known !== undefined) return known;
    const row = this.#db.sql("SELECT seq FROM outlive_workers WHERE id = ?").get(id) as { seq: number } | undefined;
    if (row) this.#seqs.set(id, row.seq);
    return row?.seq ?? 0;
  }

  /** After a rollback: the same numbers may be given to other workers. */
  forgetSeqs(): void {
    this.#seqs.clear();
  }

  /** Reads the number of this worker again: what is in the file may not be what it was. Inside the transaction that depends on it. */
  recheck(id: string): void {
    this.#seqs.delete(id);
  }

  /**
   * Why the rows are not those that this worker, which has registered, knew: an older copy was written over the file. Null: nothing says
   * so. The row of a worker that has ended is kept for months.
   */
  whyReplaced(id: string): string | null {
    if (this.seqOf(id) === 0) return `worker ${id} has no row in it`;
    const epoch = this.epoch();
    if (epoch < this.#highestEpoch) return `its epoch fell from ${this.#highestEpoch} to ${epoch}`;
    this.#highestEpoch = epoch;
    return null;
  }

  epoch(): number {
    return storedEpoch(this.#db);
  }

  /** `above`: an epoch that was issued, though this file may not know of it. */
  raiseEpoch(now: number, above = 0): number {
    const epoch = Math.max(this.epoch() + 1, above + 1, now);
    this.#db
      .sql(
        "INSERT INTO outlive_meta (key, value) VALUES ('epoch', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
      )
      .run(epoch);
    return epoch;
  }

  register(worker: WorkerRecord, now: number): { epoch: number; now: number } {
    const epoch = this.epoch();
    const { lastInsertRowid } = this.#db
      .sql(
        `INSERT INTO outlive_workers (id, state, host, boot_id, namespace, pid, start_ticks, predecessor, version, epoch, lease_ms, concurrency, kinds,
           lock_name, lock_identity, started_at, heartbeat_at) VALUES (?, 'live', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
      )
      .run(
        worker.id,
        worker.host,
        worker.bootId,
        worker.namespace,
        worker.pid,
        worker.startTicks,
        worker.predecessor,
        worker.version,
        epoch,
        worker.leaseMs,
        worker.concurrency,
        JSON.stringify(worker.kinds),
        worker.lock.name,
        worker.lock.identity,
        now,
        now,
      );
    this.#seqs.set(worker.id, Number(lastInsertRowid));
    if (worker.predecessor !== null) resolveLoss(this.#db, worker.predecessor, "returned");
    return { epoch, now };
  }

  /**
   * The worker as it may claim, or null if its row is not live. The epoch is the store's present one, not that of the worker's
   * registration: another open may have raised it since (two that start at once), and (epoch, fence) of a job must not fall.
   */
  live(id: string): { seq: number; id: string; epoch: number } | null {
    const row = this.#db.sql("SELECT seq FROM outlive_workers WHERE seq = ? AND state = 'live'").get(this.seqOf(id)) as
      | { seq: number }
      | undefined;
    return row ? { seq: row.seq, id, epoch: this.epoch() } : null;
  }

  /**
   * Jobs of this worker whose cancel was asked for. Told again at every look until the attempt is over: the answer of one look
   * may be lost. A cancel of an earlier attempt (its mark on the job is gone) is not told to a later one.
   */
  takeCancels(seq: number): string[] {
    const rows = this.#db
      .sql(
        `SELECT j.id, j.state = 1 AND j.worker = c.worker AND j.cancel_requested = 1 AS runs FROM outlive_cancels c LEFT JOIN outlive_jobs j ON j.seq = c.job WHERE c.worker = ?`,
      )
      .all(seq) as { id: string; runs: number | null }[];
    if (rows.some(({ runs }) => runs !== 1))
      this.#db
        .sql(
          `DELETE FROM outlive_cancels WHERE worker = ?1 AND NOT EXISTS
             (SELECT 1 FROM outlive_jobs j WHERE j.seq = job AND j.state = 1 AND j.worker = ?1 AND j.cancel_requested = 1)`,
        )
        .run(seq);
    return rows.filter(({ runs }) => runs === 1).map(({ id }) => id);
  }

  beat(id: string, beat: Beat, now: number): BeatAnswer {
    this.recheck(id);
    const seq = this.seqOf(id);
    const rows = this.#db
      .sql(
        `SELECT j.seq, j.id, k.name AS kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses,
           j.deadline_at + k.grace_ms AS expires_at, ifnull(k.timeout_ms, 0) + k.grace_ms AS allowed_ms
         FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = ?`,
      )
      .all(seq) as unknown as (CounterColumns & {
      seq: number;
      id: string;
      kind: string;
      epoch: number;
      fence: number;
      expires_at: number | null;
      allowed_ms: number;
    })[];
    const replaced = this.whyReplaced(id);
    const held = JSON.stringify(rows.map((row) => row.id));
    const { changes } = this.#db
      .sql(
        "UPDATE outlive_workers SET beats = beats + 1, heartbeat_at = ?, loop_lag_ms = ?, held = ? WHERE seq = ? AND state = 'live'",
      )
      .run(now, beat.loopLagMs, held, seq);
    const overdue = longestOverdue(rows, now, beat.confirmed);
    return {
      live: changes === 1,
      ...(replaced !== null && { replaced }),
      now,
      held: rows.map((row) => ({
        lease: { jobId: row.id, kind: row.kind, row: row.seq, worker: id, epoch: row.epoch, fence: row.fence },
        counters: counters(row) satisfies Counters,
      })),
      overdueMs: overdue?.overdueMs ?? null,
      overdueJobId: overdue?.id ?? null,
      schemaVersion: schemaVersion(this.#db),
    };
  }

  /** Whoever recovered it before this was known has written the incident without it: it is added there. */
  note(id: string, lastWord: string): void {
    const seq = this.seqOf(id);
    this.#db.sql("UPDATE outlive_workers SET last_word = ? WHERE seq = ?").run(lastWord, seq);
    this.#db
      .sql(
        `UPDATE outlive_incidents SET evidence = iif(evidence IS NULL OR instr(?1, evidence) OR evidence LIKE '${PROCESS_IS_GONE} (%)', ?1, evidence || '; ' || ?1)
         WHERE id = (SELECT incident FROM outlive_workers WHERE seq = ?2) AND NOT ifnull(instr(evidence, ?1), 0)`,
      )
      .run(lastWord, seq);
  }

  /** Stopped only if it holds nothing: a leftover of a shutdown stays with a worker that recovery looks at. */
  deregister(id: string, now: number): boolean {
    const { changes } = this.#db
      .sql(
        `UPDATE outlive_workers SET state = 'stopped', heartbeat_at = ?, held = '[]' WHERE seq = ? AND state = 'live' AND NOT EXISTS (SELECT 1 FROM outlive_jobs WHERE state = 1 AND worker = ?)`,
      )
      .run(now, this.seqOf(id), this.seqOf(id));
    if (changes === 1) this.#db.sql("DELETE FROM outlive_cancels WHERE worker = ?").run(this.seqOf(id));
    return changes === 1;
  }

  list(query: WorkerQuery): WorkerRow[] {
    const rows = this.#db
      .sql(
        `SELECT w.*, (SELECT count(*) FROM outlive_jobs j WHERE j.state = 1 AND j.worker = w.seq) AS held_count
         FROM outlive_workers w WHERE ${WHICH[query.which ?? "present"]} AND w.id > ? ORDER BY w.id LIMIT ? + 0`,
      )
      .all(query.after ?? "", query.limit ?? -1) as unknown as WorkerColumns[];
    return rows.map(workerRow);
  }
}
