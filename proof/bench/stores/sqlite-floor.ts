// The floor on SQLite: the least SQL that a durable batched claim and settle needs on node:sqlite. One narrow table, one partial
// index of what is ready, one transaction per batch: the last batch is settled row by row under its fence, then the next is
// claimed. Nothing else: no JSON, no promises, no handlers. It must stay as fast as it can be made, or our ratios lie.
import { DatabaseSync, type StatementSync } from "node:sqlite";

const TABLE = `
  CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    worker INTEGER,
    fence INTEGER NOT NULL,
    started_at INTEGER,
    deadline_at INTEGER,
    payload TEXT NOT NULL
  );
  CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (kind, priority DESC, seq) WHERE state = 0`;

const KIND = 1;
const WORKER = 1;
const TIMEOUT_MS = 900_000;
/** As wide as an instant: rows that grow on full pages split them, and the floor must not pay for that either. */
const PLACE = 1_700_000_000_000;

interface Claimed {
  readonly seq: number;
  readonly fence: number;
  readonly payload: string;
}

export class FloorQueue {
  readonly #db: DatabaseSync;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #insert: StatementSync;
  readonly #claim: StatementSync;
  readonly #settle: StatementSync;

  constructor(path: string) {
    this.#db = openFull(path);
    this.#db.exec(TABLE);
    this.#begin = this.#db.prepare("BEGIN IMMEDIATE");
    this.#commit = this.#db.prepare("COMMIT");
    this.#insert = this.#db
      .prepare(`INSERT INTO jobs (state, kind, priority, worker, fence, started_at, deadline_at, payload)
       VALUES (0, ?, 0, -1, 0, ${PLACE}, ${PLACE}, ?)`);
    this.#claim = this.#db.prepare(
      `UPDATE jobs SET state = 1, worker = ?, fence = fence + 1, started_at = ?, deadline_at = ?
       WHERE seq IN (SELECT seq FROM jobs WHERE kind = ? AND state = 0 ORDER BY priority DESC, seq LIMIT ? + 0)
       RETURNING seq, fence, payload`,
    );
    this.#settle = this.#db.prepare(
      "UPDATE jobs SET state = 2 WHERE seq = ? AND state = 1 AND fence = ? AND worker = ?",
    );
  }

  fill(count: number, payloadOf: (n: number) => string): void {
    this.#begin.run();
    for (let n = 0; n < count; n++) this.#insert.run(KIND, payloadOf(n));
    this.#commit.run();
  }

  /** Runs the queue empty; `done` hears the size of each batch when it is settled durably. */
  drain(batchSize: number, done: (count: number) => void): void {
    let held: Claimed[] = [];
    for (;;) {
      this.#begin.run();
      for (const { seq, fence } of held)
        if (this.#settle.run(seq, fence, WORKER).changes !== 1) throw new Error("the floor lost a job");
      const now = Date.now();
      const next = this.#claim.all(WORKER, now, now + TIMEOUT_MS, KIND, batchSize) as unknown as Claimed[];
      this.#commit.run();
      if (held.length > 0) done(held.length);
      if (next.length === 0) return;
      held = next;
    }
  }

  close(): void {
    this.#db.close();
  }
}

const INSERT_TABLE = `
  CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL
  );
  CREATE UNIQUE INDEX IF NOT EXISTS jobs_id ON jobs (id);
  CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (kind, priority DESC, seq) WHERE state = 0`;

/** Raw durable inserts of what a job needs: an id that is unique, and a place in the index of what is ready. */
export class FloorInserts {
  readonly #db: DatabaseSync;
  readonly #begin: StatementSync;
  readonly #commit: StatementSync;
  readonly #insert: StatementSync;
  #ids = 0;

  constructor(path: string) {
    this.#db = openFull(path);
    this.#db.exec(INSERT_TABLE);
    this.#begin = this.#db.prepare("BEGIN IMMEDIATE");
    this.#commit = this.#db.prepare("COMMIT");
    this.#insert = this.#db.prepare(
      "INSERT INTO jobs (state, kind, priority, created_at, id, payload) VALUES (0, ?, 0, ?, ?, ?)",
    );
  }

  /** `count` rows, `batchSize` of them in each transaction. Ids grow, as ours do, and are as long. */
  insert(count: number, batchSize: number, payloadOf: (n: number) => string): void {
    for (let from = 0; from < count; from += batchSize) {
      const now = Date.now();
      this.#begin.run();
      for (let n = from; n < Math.min(count, from + batchSize); n++)
        this.#insert.run(KIND, now, String(this.#ids++).padStart(22, "0"), payloadOf(n));
      this.#commit.run();
    }
  }

  close(): void {
    this.#db.close();
  }
}

function openFull(path: string): DatabaseSync {
  const db = new DatabaseSync(path);
  db.exec("PRAGMA journal_mode = WAL");
  db.exec("PRAGMA synchronous = FULL");
  return db;
}
