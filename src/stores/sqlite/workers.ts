// The worker rows: registering, heartbeats, leaving; the epoch under which workers claim; and the mark that identifies
// a restored file. One row per process and boot; a row that is not live never becomes live again.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
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
import { type Database, metaValue, setMeta, storedEpoch } from "./database.ts";
import { sideFolder } from "./lock.ts";
import { resolveLoss } from "./incidents.ts";
import { schemaVersion } from "./schema.ts";

const WHICH = {
  present: "w.state IN ('live', 'recovering')",
  leftBehind: "w.state IN ('gone', 'stopped') AND w.seq IN (SELECT worker FROM outlive_jobs WHERE state = 1)",
  all: "1",
} as const;

/** Workers up to this number predate the latest restore: their rows came back with a backup. */
const RESTORED = "ifnull((SELECT value FROM outlive_meta WHERE key = 'restored_workers'), 0)";
const OWN_ROW = `SELECT seq, state, beats FROM outlive_workers WHERE id = ? AND seq > ${RESTORED}`;

const HELD = `SELECT count(*) AS count, ifnull(sum(${LEASE_HASH}), 0) AS digest, min(j.deadline_at) AS deadline_at
  FROM outlive_jobs j WHERE j.state = 1 AND j.worker = ?`;
/** For each kind, the job whose deadline passed first: SQLite takes `id` from the row that has the minimum. */
const PAST_DEADLINE = `SELECT j.id, min(j.deadline_at) + k.grace_ms AS expires_at, ifnull(k.timeout_ms, 0) + k.grace_ms AS allowed_ms
  FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = ? AND j.deadline_at < ? GROUP BY j.kind`;
const LEASES = `SELECT j.seq, j.id AS jobId, k.name AS kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
  FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = ? ORDER BY j.seq`;

const HELD_IDS = `(SELECT json_group_array(id) FROM
  (SELECT j.id FROM outlive_jobs j WHERE j.state = 1 AND j.worker = w.seq ORDER BY j.seq LIMIT ? + 0)) AS held_ids, `;

/** A worker as its own row shows it. */
interface OwnRow {
  readonly seq: number;
  readonly id: string;
  readonly live: boolean;
  /**
   * The store's current epoch, not the one at the worker's registration: another open may have raised it since, and
   * fences must not decrease.
   */
  readonly epoch: number;
  /** Why these rows are not the ones this worker knew; null: no sign of that. */
  readonly replaced: string | null;
}

export class Workers {
  readonly #db: Database;
  /** The worker numbers read in this transaction. */
  readonly #seqs = new Map<string, number>();
  /**
   * The highest values seen here, which never decrease: the epoch, and the heartbeats of each worker of this process.
   */
  #epoch = 0;
  readonly #beats = new Map<string, number>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** The number that represents a worker in job rows; 0 if it has none, which no job ever has. */
  seqOf(id: string): number {
    const row = this.#db.sql("SELECT seq FROM outlive_workers WHERE id = ?").get(id) as { seq: number } | undefined;
    return row?.seq ?? 0;
  }

  /**
   * As `seqOf`, for the worker's own writes: 0 also if its row came back with a backup. Read once per transaction
   * (`begin`).
   */
  ownSeq(id: string): number {
    let seq = this.#seqs.get(id);
    if (seq === undefined) this.#seqs.set(id, (seq = this.#ownRow(id)?.seq ?? 0));
    return seq;
  }

  /** Called before a worker's own writes, because the file's content may have changed. */
  begin(): void {
    this.#seqs.clear();
  }

  /** Called after a rollback: what was read may never have been committed. */
  undone(): void {
    this.#seqs.clear();
    this.#beats.clear();
    this.#epoch = 0;
  }

  /** The row of a registered worker. The row of a finished worker is kept for months. */
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

  /** An older copy written over the file has an older epoch, or at least an older heartbeat. */
  #whyFallen(id: string, beats: number, epoch: number): string | null {
    const before = { epoch: this.#epoch, beats: this.#beats.get(id) ?? 0 };
    if (epoch < before.epoch) return `its epoch fell from ${before.epoch} to ${epoch}`;
    if (beats < before.beats) return `the heartbeats of worker ${id} fell from ${before.beats} to ${beats}`;
    this.#epoch = epoch;
    this.#beats.set(id, beats);
    return null;
  }

  /**
   * If the file is not the one the mark describes, and no other process has noticed that yet: marks the workers in it
   * as restored, and raises the epoch above all that were issued. Inside a transaction.
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

  /** `above`: an epoch that was issued, even if this file does not know it. */
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
           lock_name, lock_identity, started_at, heartbeat_at, counts_rows) VALUES (?, 'live', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)`,
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
    // A salvage that lost the worker counter continues after the highest worker number it found.
    this.#db
      .sql("UPDATE outlive_meta SET value = ?1 - 1 WHERE key = 'restored_workers' AND value >= ?1")
      .run(lastInsertRowid);
    if (worker.predecessor !== null) resolveLoss(this.#db, worker.predecessor, "returned");
    return { epoch, now };
  }

  /**
   * Jobs of this worker with a requested cancel. They are returned by every check until the attempt has ended, because
   * one response may be lost. A cancel of an earlier attempt, whose mark on the job is gone, is not returned for a
   * later one.
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

  /** If a recovery wrote the incident before this was known, the last word is added to it. */
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

  /** Stopped only if it holds nothing: a leftover of a shutdown stays with a worker that recovery checks. */
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

// The mark that distinguishes a restored copy from the original file: which file was last opened here, and the highest
// epoch issued on it. It is stored next to the locks, not in the file, so no copy of the file can bring it back.

/** Where the rows are: a file, as the kernel of one boot identifies it. */
export interface FilePlace {
  /** An inode is meaningful during one boot only: some file systems renumber their files when they are mounted. */
  readonly boot: string;
  /** Excludes the device, whose number changes when a container's file system is mounted again. */
  readonly inode: string;
}

export interface Mark extends FilePlace {
  readonly epoch: number;
}

/** Where the mark of one database is kept. */
export interface MarkFile {
  read(): Mark | null;
  write(mark: Mark): void;
}

export function markFile(databasePath: string): MarkFile {
  return { read: () => readMark(databasePath), write: (mark) => writeMark(databasePath, mark) };
}

/**
 * Null: there is no mark yet, or it can't be read. Nothing is known then, and the next open that finds no active worker
 * raises the epoch.
 */
export function readMark(databasePath: string): Mark | null {
  try {
    const { boot, inode, epoch } = JSON.parse(readFileSync(markPath(databasePath), "utf8")) as Mark;
    const isMark = typeof boot === "string" && typeof inode === "string" && Number.isSafeInteger(epoch);
    return isMark ? { boot, inode, epoch } : null;
  } catch {
    return null;
  }
}

/** Atomic. A folder that can't be written to costs this safety net and nothing else. */
export function writeMark(databasePath: string, mark: Mark): void {
  const path = markPath(databasePath);
  const draft = `${path}.${process.pid}`;
  try {
    writeFileSync(draft, `${JSON.stringify(mark)}\n`, { mode: 0o600 });
    renameSync(draft, path);
  } catch {
    // The open itself reports an unusable folder.
  }
}

/** Why the file is not the one the mark describes; null: no sign of that. */
export function whyRestored(mark: Mark | null, { boot, inode }: FilePlace, epoch: number): string | null {
  if (mark === null) return null;
  if (mark.boot === boot && mark.inode !== inode) return "the file is another one than was opened here before";
  if (epoch < mark.epoch) return `its epoch is ${epoch}, and ${mark.epoch} was issued before`;
  return null;
}

function markPath(databasePath: string): string {
  return join(sideFolder(databasePath), "mark.json");
}
