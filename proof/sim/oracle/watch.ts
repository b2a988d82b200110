// Reads the database with SQL of its own: triggers write down every change of every row that a promise speaks of, inside the
// transaction that makes it. What the engine says about its own writes is never asked here.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { Disk } from "../world/disk.ts";

export interface JobRow {
  readonly seq: number;
  readonly id: string;
  readonly kind: string;
  readonly state: number;
  readonly lane: number;
  readonly worker: number | null;
  readonly epoch: number;
  readonly fence: number;
  readonly errors: number;
  readonly crashes: number;
  readonly blamed: number;
  readonly timeouts: number;
  readonly interruptions: number;
  readonly losses: number;
  readonly together: number;
  readonly outcome: number | null;
  readonly deadline: number | null;
  readonly runAt: number | null;
  readonly key: string | null;
  readonly result: string | null;
  /** Only of jobs with a dedupe key, whose input an enqueue may change. */
  readonly input: string | null;
  /** 1: its cancel was asked for while it ran. */
  readonly cancel: number;
}

export interface WorkerRow {
  readonly seq: number;
  readonly id: string;
  readonly state: string;
  readonly beats: number;
  readonly lease: number;
  readonly pid: number;
  readonly predecessor: string | null;
}

export interface HistoryRow {
  readonly job: number;
  readonly event: string;
  readonly from: number;
  readonly to: number;
  readonly actor: string;
  readonly epoch: number;
  readonly fence: number;
  readonly incident: string | null;
}

export interface StepRow {
  readonly job: number;
  readonly name: string;
  readonly result: string | null;
  readonly fence: number;
}

export interface LedgerRow {
  readonly job: string;
  readonly fence: number;
}

export interface IncidentRow {
  readonly id: string;
  readonly worker: string;
  readonly how: string;
  readonly resolution: string | null;
  readonly held: number;
  readonly suspects: number;
  readonly completed: number | null;
}

export interface SignalRow {
  readonly ord: number;
  readonly job: number;
  readonly name: string;
  readonly id: string;
  readonly payload: string;
  readonly readAt: number | null;
}

/** What a job counts against, as JSON: limit and key of each; null: nothing. */
export interface KeyedRow {
  readonly job: number;
  readonly keys: string | null;
  /** The number of the key by which it takes turns. */
  readonly fair: number | null;
}

/** What a key has of its own. */
export interface KeyRow {
  readonly name: string;
  readonly key: string;
  readonly running: number | null;
  readonly intervalMs: number | null;
  readonly burst: number | null;
  readonly arrivalAt: number;
  readonly heldOffUntil: number;
  readonly weight: number | null;
  readonly pausedAt: number | null;
  readonly pausedUntil: number | null;
}

export interface LogRow {
  readonly job: number;
  readonly fence: number;
  readonly message: string;
}

export interface BatchRow {
  readonly seq: number;
  readonly id: string;
  readonly key: string | null;
  readonly state: number;
  readonly round: number;
  readonly rows: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly quarantined: number;
  readonly aborted: number;
  readonly tending: number;
}

export interface BlockRow {
  readonly job: number;
  readonly batch: number;
  readonly round: number;
  readonly number: number;
  readonly rows: number;
  readonly marks: string | null;
}

export interface FailureRow {
  readonly batch: number;
  readonly round: number;
  readonly number: number;
  readonly line: number;
  readonly quarantined: number;
}

export interface KeyWakeRow {
  readonly id: number;
  readonly key: number;
}

interface Rows {
  readonly job: JobRow;
  readonly worker: WorkerRow;
  readonly history: HistoryRow;
  readonly step: StepRow;
  readonly log: LogRow;
  readonly ledger: LedgerRow;
  readonly incident: IncidentRow;
  readonly signal: SignalRow;
  readonly keyed: KeyedRow;
  readonly key: KeyRow;
  readonly keyWake: KeyWakeRow;
  readonly batch: BatchRow;
  readonly block: BlockRow;
  readonly failure: FailureRow;
}

/** One row that was written: what it was before (null: it is new), what it is now (null: it is gone). */
export type Seen = {
  [Subject in keyof Rows]: {
    readonly subject: Subject;
    readonly was: Rows[Subject] | null;
    readonly is: Rows[Subject] | null;
  };
}[keyof Rows];

const COLUMNS: Readonly<Record<keyof Rows, readonly [table: string, columns: string]>> = {
  job: [
    "outlive_jobs",
    `'seq', @.seq, 'id', @.id, 'kind', (SELECT name FROM outlive_kinds WHERE id = @.kind), 'state', @.state, 'lane', @.lane, 'worker', @.worker,
     'epoch', @.epoch, 'fence', @.fence, 'errors', @.errors, 'crashes', @.crashes, 'blamed', @.blamed, 'timeouts', @.timeouts,
     'interruptions', @.interruptions, 'losses', @.losses, 'together', @.together, 'outcome', @.outcome, 'deadline', @.deadline_at, 'runAt', @.run_at, 'key', @.dedupe_key, 'result', @.result, 'input', CASE WHEN @.dedupe_key IS NULL THEN NULL ELSE @.input END, 'cancel', @.cancel_requested`,
  ],
  worker: [
    "outlive_workers",
    "'seq', @.seq, 'id', @.id, 'state', @.state, 'beats', @.beats, 'lease', @.lease_ms, 'pid', @.pid, 'predecessor', @.predecessor",
  ],
  history: [
    "outlive_history",
    `'job', @.job, 'event', @.event, 'from', @.from_state, 'to', @.to_state, 'actor', @.actor, 'epoch', @.epoch,
     'fence', @.fence, 'incident', @.incident`,
  ],
  step: ["outlive_steps", "'job', @.job, 'name', @.name, 'result', @.result, 'fence', @.fence"],
  log: ["outlive_logs", "'job', @.job, 'fence', @.fence, 'message', @.message"],
  ledger: ["ledger", "'job', @.job, 'fence', @.fence"],
  signal: [
    "outlive_signals",
    "'ord', @.ord, 'job', @.job, 'name', @.name, 'id', @.id, 'payload', @.payload, 'readAt', @.read_at",
  ],
  keyed: ["outlive_extras", "'job', @.job, 'keys', @.keys, 'fair', @.fair"],
  key: [
    "outlive_keys",
    "'name', @.name, 'key', @.key, 'running', @.running, 'intervalMs', @.interval_ms, 'burst', @.burst, 'arrivalAt', @.arrival_at, 'heldOffUntil', @.held_off_until, 'weight', @.weight, 'pausedAt', @.paused_at, 'pausedUntil', @.paused_until",
  ],
  keyWake: ["outlive_key_wakes", "'id', @.id, 'key', @.key"],
  batch: [
    "outlive_batches",
    "'seq', @.seq, 'id', @.id, 'key', @.key, 'state', @.state, 'round', @.round, 'rows', @.rows, 'succeeded', @.succeeded, 'failed', @.failed, 'quarantined', @.quarantined, 'aborted', @.aborted, 'tending', @.tending",
  ],
  block: [
    "outlive_blocks",
    "'job', @.job, 'batch', @.batch, 'round', @.round, 'number', @.number, 'rows', @.rows, 'marks', @.marks",
  ],
  failure: [
    "outlive_row_failures",
    "'batch', @.batch, 'round', @.round, 'number', @.number, 'line', @.line, 'quarantined', @.quarantined",
  ],
  incident: [
    "outlive_incidents",
    "'id', @.id, 'worker', @.worker, 'how', @.how, 'resolution', @.resolution, 'held', @.held_at_death, 'suspects', @.suspects_at_death, 'completed', @.completed_at",
  ],
};

export class Watch {
  readonly #disk: Disk;
  readonly #db: Database;
  #commits = 0;

  constructor(disk: Disk) {
    this.#disk = disk;
    this.#db = disk.db;
  }

  /** Once for each database, after the tables of the engine and of the workload are there. */
  static install(db: Database): void {
    db.exec("CREATE TABLE sim_seen (ord INTEGER PRIMARY KEY, subject TEXT NOT NULL, was TEXT, now TEXT)");
    for (const [subject, [table, columns]] of Object.entries(COLUMNS)) {
      const was = `json_object(${columns.replaceAll("@", "OLD")})`;
      const is = `json_object(${columns.replaceAll("@", "NEW")})`;
      const parts: readonly [string, string, string][] = [
        ["INSERT", "NULL", is],
        ["UPDATE", was, is],
        ["DELETE", was, "NULL"],
      ];
      for (const [verb, before, after] of parts) {
        db.exec(
          `CREATE TRIGGER sim_${subject}_${verb} AFTER ${verb} ON ${table} BEGIN
             INSERT INTO sim_seen (subject, was, now) VALUES ('${subject}', ${before}, ${after});
           END`,
        );
      }
    }
  }

  /** What has been committed since the last call, in its order. */
  read(): readonly Seen[] {
    if (this.#disk.commitCount === this.#commits) return NOTHING;
    this.#commits = this.#disk.commitCount;
    const rows = this.#db.sql("SELECT subject, was, now FROM sim_seen ORDER BY ord").all() as unknown as {
      subject: string;
      was: string | null;
      now: string | null;
    }[];
    if (rows.length > 0) this.#db.sql("DELETE FROM sim_seen").run();
    return rows.map(
      ({ subject, was, now }) =>
        ({
          subject,
          was: was === null ? null : JSON.parse(was),
          is: now === null ? null : JSON.parse(now),
        }) as Seen,
    );
  }

  /** All rows of a table as they are now. */
  all<Subject extends keyof Rows>(subject: Subject): readonly Rows[Subject][] {
    const [table, columns] = COLUMNS[subject];
    const rows = this.#db.sql(`SELECT json_object(${columns.replaceAll("@", "t")}) AS row FROM ${table} t`).all();
    return rows.map(({ row }) => JSON.parse(row as string) as Rows[Subject]);
  }
}

const NOTHING: readonly Seen[] = [];
