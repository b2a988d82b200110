// The rows of workers: registering, beating, leaving. One row per process and boot; a row that is not live never becomes so again.
import type { Lease } from "../../job/lease.ts";
import { withLastWord } from "../../recovery/incident.ts";
import type { WorkerRecord, WorkerRow } from "../liveness.ts";
import type { Beat, BeatAnswer, HeldLease, WorkerQuery } from "../port.ts";
import {
  type CounterColumns,
  counters,
  type ExpiryColumns,
  type HeldColumns,
  LEASE_HASH,
  longestOverdue,
  type WorkerColumns,
  workerRow,
} from "../rows.ts";
import type { Database } from "./database.ts";
import { type FilePlace, type Mark, whyRestored } from "./file-mark.ts";
import { resolveLoss } from "./losses.ts";
import { metaValue, schemaVersion, setMeta, storedEpoch } from "./schema.ts";

const WHICH = {
  present: "w.state IN ('live', 'recovering')",
  leftBehind: "w.state IN ('gone', 'stopped') AND w.seq IN (SELECT worker FROM outlive_jobs WHERE state = 1)",
  all: "1",
} as const;

/** Workers up to this number are from before the latest restore: their rows came back with a backup. */
const RESTORED = "ifnull((SELECT value FROM outlive_meta WHERE key = 'restored_workers'), 0)";
const OWN_ROW = `SELECT seq, state, beats FROM outlive_workers WHERE id = ? AND seq > ${RESTORED}`;

const HELD = `SELECT count(*) AS count, ifnull(sum(${LEASE_HASH}), 0) AS digest, min(j.deadline_at) AS deadline_at
  FROM outlive_jobs j WHERE j.state = 1 AND j.worker = ?`;
/** Of each kind the job whose deadline passed first: SQLite takes `id` of the row that has the minimum. */
const PAST_DEADLINE = `SELECT j.id, min(j.deadline_at) + k.grace_ms AS expires_at, ifnull(k.timeout_ms, 0) + k.grace_ms AS allowed_ms
  FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = ? AND j.deadline_at < ? GROUP BY j.kind`;
const LEASES = `SELECT j.seq, j.id AS jobId, k.name AS kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
  FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = ? ORDER BY j.seq`;

const HELD_IDS = `(SELECT json_group_array(id) FROM
  (SELECT j.id FROM outlive_jobs j WHERE j.state = 1 AND j.worker = w.seq ORDER BY j.seq LIMIT ? + 0)) AS held_ids, `;

/** A worker as its own row shows it. */
export interface OwnRow {
  readonly seq: number;
  readonly id: string;
  readonly live: boolean;
  /** The store's present one, not that of the worker's registration: another open may have raised it since, and fences must not fall. */
  readonly epoch: number;
  /** Why the rows are not those that this worker knew; null: nothing says so. */
  readonly replaced: string | null;
}

export class Workers {
  readonly #db: Database;
  /** The numbers that this transaction has read. */
  readonly #seqs = new Map<string, number>();
  /** What was seen here and never falls: the epoch, and the heartbeats of each worker of this process. */
  #epoch = 0;
  readonly #beats = new Map<string, number>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** The number that stands for a worker in the rows of jobs; 0 if it has none, which no job ever has. */
  seqOf(id: string): number {
    const row = this.#db.sql("SELECT seq FROM outlive_workers WHERE id = ?").get(id) as { seq: number } | undefined;
    return row?.seq ?? 0;
  }

  /** As `seqOf`, for the worker's own writes: 0 also if its row came back with a backup. Read once for each transaction (`begin`). */
  ownSeq(id: string): number {
    let seq = this.#seqs.get(id);
    if (seq === undefined) this.#seqs.set(id, (seq = this.#ownRow(id)?.seq ?? 0));
    return seq;
  }

  /** Before a worker's own writes: what is in the file may not be what it was. */
  begin(): void {
    this.#seqs.clear();
  }

  /** After a rollback: what was read may never have been there. */
  undone(): void {
    this.#seqs.clear();
    this.#beats.clear();
    this.#epoch = 0;
  }

  /** The row of a worker that has registered. That of a worker that has ended is kept for months. */
  own(id: string): OwnRow {
    this.begin();
    const row = this.#ownRow(id);
    const epoch = this.epoch();
    const replaced = row ? this.#whyFallen(id, row.beats, epoch) : `worker ${id} has no row in it`;
    const seq = row && replaced === null ? row.seq : 0;
    this.#seqs.set(id, seq);
    return { seq, id, live: seq > 0 && row?.state === "live", epoch, replaced };
  }

  #ownRow(id: string): { seq: number; state: string; beats: number } | undefined {
    return this.#db.sql(OWN_ROW).get(id) as { seq: number; state: string; beats: number } | undefined;
  }

  /** An older copy that was written over the file has an older epoch, or at least an older heartbeat. */
  #whyFallen(id: string, beats: number, epoch: number): string | null {
    const before = { epoch: this.#epoch, beats: this.#beats.get(id) ?? 0 };
    if (epoch < before.epoch) return `its epoch fell from ${before.epoch} to ${epoch}`;
    if (beats < before.beats) return `the heartbeats of worker ${id} fell from ${before.beats} to ${beats}`;
    this.#epoch = epoch;
    this.#beats.set(id, beats);
    return null;
  }

  /**
   * If the file is not the one that the mark speaks of, and no other process has noticed that: from here on the workers in it are
   * restored ones, and the epoch is above all that were issued. Inside a transaction.
   */
  noticeRestore(mark: Mark, place: FilePlace, now: number): { why: string | null; epoch: number } {
    const here = `${place.boot} ${place.inode}`;
    const epoch = this.epoch();
    const why = whyRestored(mark, place, epoch);
    const isNoticed = metaValue(this.#db, "restored_file") === here && epoch > mark.epoch;
    if (why === null || isNoticed) return { why: null, epoch };
    const last = this.#db.sql("SELECT ifnull(max(seq), 0) AS seq FROM outlive_workers").get() as { seq: number };
    setMeta(this.#db, "restored_workers", last.seq);
    setMeta(this.#db, "restored_file", here);
    return { why, epoch: this.raiseEpoch(now, mark.epoch) };
  }

  epoch(): number {
    return storedEpoch(this.#db);
  }

  /** `above`: an epoch that was issued, though this file may not know of it. */
  raiseEpoch(now: number, above = 0): number {
    const epoch = Math.max(this.epoch() + 1, above + 1, now);
    setMeta(this.#db, "epoch", epoch);
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
    // A salvage that lost the count of workers begins again after the last one that it found.
    this.#db
      .sql("UPDATE outlive_meta SET value = ?1 - 1 WHERE key = 'restored_workers' AND value >= ?1")
      .run(lastInsertRowid);
    if (worker.predecessor !== null) resolveLoss(this.#db, worker.predecessor, "returned");
    return { epoch, now };
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
    const { seq, live, replaced } = this.own(id);
    if (live)
      this.#db
        .sql("UPDATE outlive_workers SET beats = beats + 1, heartbeat_at = ?, loop_lag_ms = ? WHERE seq = ?")
        .run(now, beat.loopLagMs, seq);
    if (beat.lastWord !== undefined) this.note(id, beat.lastWord);
    const { count, digest, deadline_at: deadlineAt } = this.#db.sql(HELD).get(seq) as unknown as HeldColumns;
    const passed = deadlineAt !== null && deadlineAt < now;
    const late = passed ? (this.#db.sql(PAST_DEADLINE).all(seq, now) as unknown as ExpiryColumns[]) : [];
    const overdue = longestOverdue(late, now, beat.confirmed);
    return {
      live,
      ...(replaced !== null && { replaced }),
      now,
      held: { count, digest },
      ...(beat.leases && { leases: this.#leases(id, seq) }),
      overdueMs: overdue?.overdueMs ?? null,
      overdueJobId: overdue?.id ?? null,
      schemaVersion: schemaVersion(this.#db),
    };
  }

  #leases(worker: string, seq: number): HeldLease[] {
    const rows = this.#db.sql(LEASES).all(seq) as unknown as (CounterColumns & Omit<Lease, "row"> & { seq: number })[];
    return rows.map((row) => {
      const { jobId, kind, epoch, fence } = row;
      return { lease: { jobId, kind, row: row.seq, worker, epoch, fence }, counters: counters(row) };
    });
  }

  /** Whoever recovered it before this was known has written the incident without it: it is added there. */
  note(id: string, lastWord: string): void {
    const seq = this.seqOf(id);
    this.#db.sql("UPDATE outlive_workers SET last_word = ? WHERE seq = ?").run(lastWord, seq);
    const incident = this.#db
      .sql("SELECT id, evidence FROM outlive_incidents WHERE id = (SELECT incident FROM outlive_workers WHERE seq = ?)")
      .get(seq) as { id: string; evidence: string | null } | undefined;
    if (!incident) return;
    const evidence = withLastWord(incident.evidence, lastWord);
    this.#db.sql("UPDATE outlive_incidents SET evidence = ? WHERE id = ?").run(evidence, incident.id);
  }

  /** Stopped only if it holds nothing: a leftover of a shutdown stays with a worker that recovery looks at. */
  leave(id: string, now: number): boolean {
    const { seq, live } = this.own(id);
    if (!live) return false;
    const { changes } = this.#db
      .sql(
        `UPDATE outlive_workers SET state = 'stopped', heartbeat_at = ?, held = '[]' WHERE seq = ? AND NOT EXISTS (SELECT 1 FROM outlive_jobs WHERE state = 1 AND worker = ?)`,
      )
      .run(now, seq, seq);
    if (changes === 1) this.#db.sql("DELETE FROM outlive_cancels WHERE worker = ?").run(seq);
    return changes === 1;
  }

  list(query: WorkerQuery): WorkerRow[] {
    const { heldIds } = query;
    const rows = this.#db
      .sql(
        `SELECT w.*, ${heldIds === undefined ? "" : HELD_IDS}(SELECT count(*) FROM outlive_jobs j WHERE j.state = 1 AND j.worker = w.seq) AS held_count,
           w.seq <= ${RESTORED} AS came_back
         FROM outlive_workers w WHERE ${WHICH[query.which ?? "present"]} AND w.id > ? ORDER BY w.id LIMIT ? + 0`,
      )
      .all(
        ...(heldIds === undefined ? [] : [heldIds]),
        query.after ?? "",
        query.limit ?? -1,
      ) as unknown as WorkerColumns[];
    return rows.map(workerRow);
  }
}
