// The tables, as numbered migrations, each in one transaction, and all of a new store in one: killed half-way it has not happened. The file may be the user's
// own, so every name begins with outlive_ and nothing outside (user_version, application_id) is touched.
// A migration that is here is never changed: a change of the tables is a new migration at the end.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import {
  checksumRefused,
  columnDifferences,
  columnsRefused,
  type ComparedStep,
  differingStep,
  stepChecksum,
} from "../released-steps.ts";
import { Database } from "./database.ts";

/** Stands for "no worker yet" in the width of a worker's number. */
export const NO_WORKER = -1_000;

// Batches of rows. A block of rows is a job, so that jobs have no columns for this: `extras` of a block's job is 1, and its row here is found by
// the job's number. There is one writer at a time, so what rows came to is added to the row of the batch itself, in the transaction
// that ends them: where writers wait for each other's rows, deltas would be appended instead.
const BATCHES: Migration = {
  name: "batches",
  sql: `
  -- Small rows: one is written again in each turn that ends rows of it. The long texts are in a table of their own.
  CREATE TABLE outlive_batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: what is left of a deleted batch names it
    id TEXT NOT NULL UNIQUE,
    kind INTEGER NOT NULL,
    key TEXT,
    state INTEGER NOT NULL,                -- the place in BATCH_STATES
    held INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    block_rows INTEGER NOT NULL,
    tolerance TEXT,                        -- JSON
    round INTEGER NOT NULL DEFAULT 1,
    rows INTEGER NOT NULL DEFAULT 0,
    blocks INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0,
    aborted INTEGER NOT NULL DEFAULT 0,
    earlier_succeeded INTEGER NOT NULL DEFAULT 0,
    earlier_failed INTEGER NOT NULL DEFAULT 0,
    earlier_quarantined INTEGER NOT NULL DEFAULT 0,
    earlier_aborted INTEGER NOT NULL DEFAULT 0,
    touched INTEGER NOT NULL DEFAULT 0,    -- there may be something to decide; a batch that is complete stays touched until it ends
    tending INTEGER NOT NULL DEFAULT 0,    -- 1: its blocks are to be released, 2: cancelled
    tended INTEGER NOT NULL DEFAULT -1,    -- the number of the last block of which that was done
    created_at INTEGER NOT NULL,
    sealed_at INTEGER,
    ended_at INTEGER,
    pace_from_at INTEGER,
    pace_from_rows INTEGER,
    pace_to_at INTEGER,
    pace_to_rows INTEGER
  );
  CREATE UNIQUE INDEX outlive_batches_key ON outlive_batches (kind, key) WHERE key IS NOT NULL;
  CREATE INDEX outlive_batches_touched ON outlive_batches (seq) WHERE touched = 1;
  CREATE INDEX outlive_batches_tending ON outlive_batches (seq) WHERE tending > 0;
  CREATE INDEX outlive_batches_ended ON outlive_batches (ended_at) WHERE ended_at IS NOT NULL;
  CREATE TABLE outlive_batch_texts (
    batch INTEGER PRIMARY KEY,
    context TEXT NOT NULL,
    context_sum INTEGER NOT NULL,
    outputs TEXT
  );

  CREATE TABLE outlive_blocks (
    job INTEGER PRIMARY KEY,               -- below 0: it has none, for none of its rows fits the schema
    batch INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    rows INTEGER NOT NULL,                 -- rejected ones not included
    marks TEXT,                            -- 1 for each row that has ended, 0 for each that is left; null: none has
    begun INTEGER,                         -- the row that the attempt of this fence was about to begin
    begun_fence INTEGER,
    bad INTEGER NOT NULL DEFAULT 0         -- something of it failed
  );
  CREATE UNIQUE INDEX outlive_blocks_number ON outlive_blocks (batch, round, number);
  CREATE INDEX outlive_blocks_bad ON outlive_blocks (batch, round, number) WHERE bad = 1;

  CREATE TABLE outlive_row_failures (
    ord INTEGER PRIMARY KEY,
    batch INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    row INTEGER,                           -- null: it was rejected, and is none of the block's rows
    line INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    input TEXT NOT NULL,
    input_sum INTEGER NOT NULL,
    error TEXT NOT NULL
  );
  CREATE INDEX outlive_row_failures_block ON outlive_row_failures (batch, round, number, line);

  CREATE TABLE outlive_row_outputs (
    ord INTEGER PRIMARY KEY,
    batch INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    file TEXT NOT NULL,
    texts TEXT NOT NULL,
    texts_sum INTEGER NOT NULL
  );
  CREATE INDEX outlive_row_outputs_file ON outlive_row_outputs (batch, file, round, number, ord);

  -- Batches that were deleted, and of which blocks and their jobs are left.
  CREATE TABLE outlive_deleted_batches (batch INTEGER PRIMARY KEY);
  `,
};

/** Cancels that include the children of a job, until those are cancelled; and which kinds have limits, whose jobs only a program can enqueue. */
const FAMILY_CANCELS: Migration = {
  name: "family cancels",
  sql: `
  CREATE TABLE outlive_family_cancels (
    job INTEGER PRIMARY KEY,              -- the parent
    actor TEXT NOT NULL,
    cursor INTEGER NOT NULL DEFAULT 0,    -- the last child that was dealt with
    due INTEGER NOT NULL DEFAULT 1,       -- whether a turn has something to do; 0: the parent runs and may enqueue more
    at INTEGER NOT NULL
  );
  CREATE INDEX outlive_family_cancels_due ON outlive_family_cancels (job) WHERE due = 1;
  CREATE INDEX outlive_signals_oldest ON outlive_signals (at) WHERE read_at IS NULL;
  ALTER TABLE outlive_kinds ADD COLUMN keyed INTEGER NOT NULL DEFAULT 0; -- its jobs have keys, which a program computes
  `,
};

// Schedules. What is due is one index; the rest of a row is one JSON text, which the domain writes whole (job/schedules.ts). What a job was planned for is
// kept outside of the jobs, so that others have no column for it.
const SCHEDULES: Migration = {
  name: "schedules",
  sql: `
  CREATE TABLE outlive_schedules (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER,
    body TEXT NOT NULL,
    body_sum INTEGER NOT NULL
  );
  CREATE UNIQUE INDEX outlive_schedules_name ON outlive_schedules (name);
  CREATE INDEX outlive_schedules_due ON outlive_schedules (due_at) WHERE due_at IS NOT NULL;
  CREATE TABLE outlive_occurrences (
    seq INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    schedule TEXT NOT NULL,
    at INTEGER NOT NULL,
    caught_up INTEGER NOT NULL
  );
  CREATE UNIQUE INDEX outlive_occurrences_job ON outlive_occurrences (job);
  CREATE INDEX outlive_occurrences_schedule ON outlive_occurrences (schedule, at);
  CREATE TABLE outlive_declarations (
    seq INTEGER PRIMARY KEY,
    worker TEXT NOT NULL,
    schedule TEXT NOT NULL,
    digest TEXT NOT NULL,
    zone_data TEXT NOT NULL
  );
  CREATE INDEX outlive_declarations_worker ON outlive_declarations (worker);
  `,
};

// Collections of numbered messages. A part is found by (collection, series, ordinal) and by nothing else. There is one writer at a time, so how
// many parts a series has is added up in the transaction that keeps them.
const COLLECTIONS: Migration = {
  name: "collections",
  sql: `
  -- Small rows: one is written again in each turn that keeps parts of it. The long texts are in a table of their own.
  CREATE TABLE outlive_collections (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: what is left of a deleted collection names it
    id TEXT NOT NULL UNIQUE,
    kind INTEGER NOT NULL,
    state INTEGER NOT NULL,                -- the place in COLLECTION_STATES
    touched INTEGER NOT NULL DEFAULT 0,    -- it may be complete
    created_at INTEGER NOT NULL,
    active_at INTEGER NOT NULL,
    due_at INTEGER,                        -- when it is abandoned if nothing comes; null: it has ended
    idle_ms INTEGER NOT NULL,
    total_ms INTEGER NOT NULL,
    keep_ms INTEGER NOT NULL
  );
  CREATE INDEX outlive_collections_due ON outlive_collections (due_at) WHERE due_at IS NOT NULL;
  CREATE INDEX outlive_collections_touched ON outlive_collections (seq) WHERE touched = 1;
  CREATE INDEX outlive_collections_state ON outlive_collections (state, kind, seq);
  CREATE TABLE outlive_collection_texts (
    collection INTEGER PRIMARY KEY,
    input TEXT NOT NULL,                   -- JSON
    input_sum INTEGER NOT NULL,
    transitions TEXT NOT NULL,             -- STATE AT,STATE AT
    why TEXT
  );
  CREATE TABLE outlive_series (
    collection INTEGER NOT NULL,
    place INTEGER NOT NULL,                -- among the series of its kind
    name TEXT NOT NULL,
    expected INTEGER,                      -- null: not announced
    have INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (collection, place)
  ) WITHOUT ROWID;
  CREATE TABLE outlive_parts (
    collection INTEGER NOT NULL,
    series INTEGER NOT NULL,               -- its place
    ordinal INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    blob TEXT NOT NULL,
    PRIMARY KEY (collection, series, ordinal)
  ) WITHOUT ROWID;
  CREATE TABLE outlive_parked (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    collection TEXT,
    series TEXT,
    ordinal INTEGER,
    reason TEXT NOT NULL,
    blob TEXT,
    bytes INTEGER NOT NULL,
    at INTEGER NOT NULL
  ) WITHOUT ROWID;
  CREATE INDEX outlive_parked_collection ON outlive_parked (collection) WHERE collection IS NOT NULL;
  `,
};

// What waits at doors, outside of the extras. An admission clears the door in the extras, and its entry here goes later, together with those of
// the jobs that the same key admitted before and after it: keys lie far apart, so an entry that is removed alone writes a page of its own (keys.ts).
const DOORS: Migration = {
  name: "doors",
  sql: `
  CREATE TABLE outlive_doors (
    door INTEGER NOT NULL,
    ring INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    job INTEGER NOT NULL,
    PRIMARY KEY (door, ring, rank DESC, job)
  ) WITHOUT ROWID;
  INSERT INTO outlive_doors (door, ring, rank, job) SELECT door, ring, rank, job FROM outlive_extras WHERE door IS NOT NULL ORDER BY door, ring, rank DESC, job;
  DROP INDEX outlive_extras_door;
  `,
};

/** Pauses with a reason and an end, expiry, retention of kinds, and what people changed. */
const OPERATIONS: Migration = {
  name: "operations",
  sql: `
  ALTER TABLE outlive_kinds ADD COLUMN paused_at INTEGER;
  ALTER TABLE outlive_kinds ADD COLUMN paused_until INTEGER;   -- null: until it is resumed
  ALTER TABLE outlive_kinds ADD COLUMN paused_by TEXT;
  ALTER TABLE outlive_kinds ADD COLUMN paused_reason TEXT;
  ALTER TABLE outlive_kinds ADD COLUMN retention TEXT;         -- JSON: ms by state; null: that of the engine
  ALTER TABLE outlive_extras ADD COLUMN expires_at INTEGER;    -- it is cancelled if no attempt has begun by then
  CREATE INDEX outlive_extras_expiry ON outlive_extras (expires_at) WHERE expires_at IS NOT NULL;
  CREATE TABLE outlive_audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    reason TEXT,
    count INTEGER NOT NULL
  );
  CREATE UNIQUE INDEX outlive_audit_id ON outlive_audit (id);
  `,
};

// The trace contexts that came with enqueues, outside of the jobs and of their extras: a job of a program without tracing has no column for it, and one with
// it stays a plain job.
const TRACES: Migration = {
  name: "traces",
  sql: `
  CREATE TABLE outlive_traces (
    job INTEGER PRIMARY KEY,
    trace TEXT NOT NULL
  );
  `,
};

// A worker of many kinds finds its jobs without asking for each kind (Front in claim.ts).
const ALL_KINDS: Migration = {
  name: "order of all kinds",
  sql: `
  CREATE INDEX outlive_jobs_front ON outlive_jobs (priority DESC, seq, kind) WHERE state = 0 AND lane = 1;
  `,
};

// An entry of the history says when its attempt started, and who ran it: the job itself knows this only of its latest attempt.
const ATTEMPTS: Migration = {
  name: "attempts",
  sql: `
  ALTER TABLE outlive_history ADD COLUMN started_at INTEGER;
  ALTER TABLE outlive_history ADD COLUMN owner TEXT;
  `,
};

// How many parts a page of 64 ordinals has: a report of missing ordinals goes only through pages that are not full. A page may have more parts
// than are counted here, those from before this step, and is then gone through.
const PART_PAGES: Migration = {
  name: "pages of parts",
  sql: `
  CREATE TABLE outlive_part_pages (
    collection INTEGER NOT NULL,
    series INTEGER NOT NULL,               -- its place
    page INTEGER NOT NULL,
    have INTEGER NOT NULL,
    PRIMARY KEY (collection, series, page)
  ) WITHOUT ROWID;
  `,
};

// A key has one wake at a time (wakeKeys in keys.ts). Workers of earlier versions write more, so it is not unique.
const ONE_WAKE: Migration = {
  name: "one wake for each key",
  sql: `
  DELETE FROM outlive_key_wakes WHERE id NOT IN (SELECT min(id) FROM outlive_key_wakes GROUP BY key);
  CREATE INDEX outlive_key_wakes_key ON outlive_key_wakes (key);
  `,
};

// Whether a held job has a priority is asked in every turn that admits (areRanked in admission.ts). Its entries are removed at once, and not with others later.
const RANKED_DOORS: Migration = {
  name: "priorities at doors",
  sql: `
  DELETE FROM outlive_doors WHERE rank <> 0 AND NOT EXISTS (SELECT 1 FROM outlive_extras e
    WHERE e.job = outlive_doors.job AND e.door = outlive_doors.door AND e.ring = outlive_doors.ring AND e.rank = outlive_doors.rank);
  CREATE INDEX outlive_doors_ranked ON outlive_doors (rank) WHERE rank <> 0 AND rank < 1000000;
  `,
};

// A job with one key that is claimed at its door takes its slot with its own row: it runs, and its lane still says that it was held (door-visit.ts). Workers of
// earlier versions count other rows: while one of them is there, no slot is taken this way, and no other one may come. They could also remove the entry of a job
// that still waits, so held jobs without one get it again.
const SLOTS: Migration = {
  name: "slots of running jobs",
  sql: `
  ALTER TABLE outlive_jobs ADD COLUMN only_key INTEGER; -- the key that it counts against, if it has one and takes no turns
  UPDATE outlive_jobs SET only_key = (SELECT e.key1 FROM outlive_extras e WHERE e.job = seq)
    WHERE seq IN (SELECT job FROM outlive_extras WHERE ended = 0 AND key1 IS NOT NULL AND key2 IS NULL AND fair IS NULL);
  CREATE INDEX outlive_jobs_slots ON outlive_jobs (only_key) WHERE state = 1 AND lane = 3;
  ALTER TABLE outlive_workers ADD COLUMN counts_rows INTEGER NOT NULL DEFAULT 0; -- it knows of these slots
  CREATE TRIGGER outlive_workers_count_rows BEFORE INSERT ON outlive_workers WHEN NEW.counts_rows = 0 BEGIN
    SELECT RAISE(ABORT, 'this program is too old for the store; upgrade its outlive package');
  END;
  INSERT INTO outlive_key_wakes (key, at) SELECT DISTINCT e.door, 0 FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
    WHERE e.door > 0 AND j.state = 0 AND j.lane = 3 AND NOT EXISTS (SELECT 1 FROM outlive_key_wakes w WHERE w.key = e.door)
      AND NOT EXISTS (SELECT 1 FROM outlive_doors d WHERE d.door = e.door AND d.ring = e.ring AND d.rank = e.rank AND d.job = e.job);
  INSERT INTO outlive_doors (door, ring, rank, job) SELECT e.door, e.ring, e.rank, e.job FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
    WHERE e.door IS NOT NULL AND j.state = 0 AND j.lane = 3 ON CONFLICT DO NOTHING;
  `,
};

export const MIGRATIONS: readonly Migration[] = [
  {
    name: "core",
    sql: `
  CREATE TABLE outlive_kinds (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    timeout_ms INTEGER,
    max_runtime_ms INTEGER,
    grace_ms INTEGER NOT NULL,
    max_errors INTEGER NOT NULL,
    max_timeouts INTEGER NOT NULL,
    max_crashes INTEGER NOT NULL,
    backoff_type TEXT NOT NULL,
    backoff_base_ms INTEGER NOT NULL,
    backoff_max_ms INTEGER NOT NULL,
    backoff_jitter REAL NOT NULL,
    on_crash TEXT NOT NULL,
    jobs INTEGER NOT NULL DEFAULT 0 -- rows of this kind, kept in step by every transaction that adds or removes one
  );
  CREATE INDEX outlive_kinds_paused ON outlive_kinds (id) WHERE paused = 1;

  -- A row is inserted as wide as it will be: instants, epoch and worker have values of the later width from the start, which mean
  -- nothing before the first claim (fence 0) or the end (state < 2). A result makes its row grow, and may. Rows that grow on full pages split them: with
  -- this, and without a count kept at each settlement, a batch of 50 writes 6.8 pages instead of 10.0.
  CREATE TABLE outlive_jobs (
    seq INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    worker INTEGER NOT NULL,      -- of the latest attempt
    epoch INTEGER NOT NULL,
    fence INTEGER NOT NULL DEFAULT 0,
    errors INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    blamed INTEGER NOT NULL DEFAULT 0,
    timeouts INTEGER NOT NULL DEFAULT 0,
    interruptions INTEGER NOT NULL DEFAULT 0,
    outcome INTEGER,              -- of the latest attempt that ended
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    reserved_by INTEGER,          -- not used any more; the third migration says why it stays
    incident TEXT,                -- the incident that put it back, until it runs again
    created_at INTEGER NOT NULL,
    run_at INTEGER,
    started_at INTEGER NOT NULL,
    deadline_at INTEGER,          -- null while it runs: none
    finished_at INTEGER NOT NULL,
    input_sum INTEGER NOT NULL,   -- checksums.ts
    result_sum INTEGER,
    id TEXT NOT NULL,
    dedupe_key TEXT,
    input TEXT NOT NULL,
    result TEXT,
    error TEXT,
    progress TEXT
  );
  CREATE UNIQUE INDEX outlive_jobs_id ON outlive_jobs (id);
  -- Leads with the kind and holds only what can be claimed now.
  CREATE INDEX outlive_jobs_ready ON outlive_jobs (kind, priority DESC, seq) WHERE state = 0 AND lane = 1;
  CREATE INDEX outlive_jobs_alone ON outlive_jobs (crashes, seq) WHERE state = 0 AND lane = 2;
  CREATE INDEX outlive_jobs_delayed ON outlive_jobs (run_at, kind) WHERE state = 0 AND lane = 0;
  CREATE INDEX outlive_jobs_running ON outlive_jobs (worker) WHERE state = 1;
  -- Succeeded jobs are not in it: at 8 % of a drain's cost it was the dearest index. Their number is what is left of all.
  CREATE INDEX outlive_jobs_ended ON outlive_jobs (state, finished_at, kind) WHERE state > 2;
  CREATE UNIQUE INDEX outlive_jobs_dedupe ON outlive_jobs (kind, dedupe_key) WHERE dedupe_key IS NOT NULL AND state < 2;

  CREATE TABLE outlive_cancels (worker INTEGER NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (worker, job)) WITHOUT ROWID;

  CREATE TABLE outlive_steps (
    ord INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    result TEXT,
    result_sum INTEGER,
    at INTEGER NOT NULL,
    fence INTEGER NOT NULL
  );
  CREATE UNIQUE INDEX outlive_steps_name ON outlive_steps (job, name);

  CREATE TABLE outlive_history (
    ord INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    at INTEGER NOT NULL,
    event TEXT NOT NULL,
    from_state INTEGER NOT NULL,
    to_state INTEGER NOT NULL,
    actor TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    reason TEXT NOT NULL,
    incident TEXT
  );
  CREATE INDEX outlive_history_job ON outlive_history (job);

  CREATE TABLE outlive_logs (ord INTEGER PRIMARY KEY, job INTEGER NOT NULL, at INTEGER NOT NULL, fence INTEGER NOT NULL, message TEXT NOT NULL);
  CREATE INDEX outlive_logs_job ON outlive_logs (job);

  CREATE TABLE outlive_workers (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again: jobs name their owner by it
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    kinds TEXT NOT NULL,
    lock_name TEXT,
    lock_identity TEXT,
    started_at INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0,
    loop_lag_ms INTEGER NOT NULL DEFAULT 0,
    held TEXT NOT NULL DEFAULT '[]', -- ids of what it held at its latest heartbeat
    last_word TEXT,
    incident TEXT
  );
  CREATE INDEX outlive_workers_present ON outlive_workers (id) WHERE state IN ('live', 'recovering');

  CREATE TABLE outlive_incidents (
    id TEXT PRIMARY KEY,
    recovery TEXT NOT NULL,
    worker TEXT NOT NULL,
    how TEXT NOT NULL,
    evidence TEXT,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    worker_started_at INTEGER NOT NULL,
    last_heartbeat_at INTEGER NOT NULL,
    last_seen_alive_at INTEGER,
    loop_lag_ms INTEGER NOT NULL,
    detected_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    completed_at INTEGER,
    recovered_by TEXT NOT NULL,
    integrity TEXT NOT NULL,
    wal_frames INTEGER NOT NULL,
    held_at_death INTEGER NOT NULL,
    cursor INTEGER NOT NULL DEFAULT 0 -- the last job that was looked at: one that can't be recovered hides no other
  ) WITHOUT ROWID;
  CREATE INDEX outlive_incidents_recovery ON outlive_incidents (recovery);

  CREATE TABLE outlive_incident_jobs (
    incident TEXT NOT NULL,
    job INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    decision TEXT NOT NULL,
    counters TEXT NOT NULL,
    max_crashes INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    last_step TEXT,
    success INTEGER NOT NULL,
    error TEXT,
    resumed_at INTEGER,
    PRIMARY KEY (incident, job)
  ) WITHOUT ROWID;
  `,
  },
  // Proof of death, or contact lost: which process a worker is, and what became of the workers with which contact was lost.
  {
    name: "losses of contact",
    sql: `
  ALTER TABLE outlive_workers ADD COLUMN namespace TEXT;
  ALTER TABLE outlive_workers ADD COLUMN start_ticks TEXT;
  ALTER TABLE outlive_workers ADD COLUMN predecessor TEXT;
  ALTER TABLE outlive_jobs ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE outlive_incidents ADD COLUMN resolution TEXT;
  ALTER TABLE outlive_incidents ADD COLUMN judged_at INTEGER; -- when all jobs of a loss were judged
  ALTER TABLE outlive_incident_jobs ADD COLUMN judgement TEXT; -- what was decided about a lost job when its loss was resolved
  -- A silent worker was counted as dead at once.
  UPDATE outlive_incidents SET resolution = 'died', judged_at = completed_at WHERE how <> 'gone';
  CREATE INDEX outlive_incidents_open_losses ON outlive_incidents (id) WHERE how <> 'gone' AND judged_at IS NULL;
  `,
  },
  {
    name: "isolation by halving",
    sql: `
  -- With how many suspects, itself included, a suspect may run in one process; 0: with any number.
  ALTER TABLE outlive_jobs ADD COLUMN together INTEGER NOT NULL DEFAULT 0;
  -- No worker reserves a job any more. The column reserved_by stays, unused: SQLite would write the whole table again to drop it, and
  -- workers of 0.1.0 write it until their next heartbeat stops them.
  DROP INDEX outlive_jobs_alone;
  CREATE INDEX outlive_jobs_suspect ON outlive_jobs (kind, priority DESC, together DESC, seq) WHERE state = 0 AND lane = 2;
  -- How many of the jobs that were held at a death had an earlier crash, and whether a job was the only one of those.
  ALTER TABLE outlive_incidents ADD COLUMN suspects_at_death INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE outlive_incident_jobs ADD COLUMN alone INTEGER NOT NULL DEFAULT 0;
  UPDATE outlive_incident_jobs SET alone = 1 WHERE incident IN (SELECT id FROM outlive_incidents WHERE held_at_death = 1);
  `,
  },
  // Jobs that wait hold no slot. What only some jobs have is in a table of its own, and `extras` of the job says that there is a row: with the
  // columns and their indexes on the jobs themselves a drain cost 9 % more, with triggers 17 %.
  {
    name: "waiting",
    sql: `
  ALTER TABLE outlive_jobs ADD COLUMN extras INTEGER NOT NULL DEFAULT 0;
  CREATE TABLE outlive_extras (
    job INTEGER PRIMARY KEY,
    parent INTEGER,                       -- the job that enqueued it
    ended INTEGER NOT NULL DEFAULT 0,     -- whether the job has ended, for the index
    watched INTEGER NOT NULL DEFAULT 0    -- whether jobs wait for it that are not its parent
  );
  CREATE INDEX outlive_extras_parent ON outlive_extras (parent, ended) WHERE parent IS NOT NULL;
  -- The wait that a job's latest waiting attempt began.
  CREATE TABLE outlive_waits (
    job INTEGER PRIMARY KEY,
    step TEXT NOT NULL,
    due_at INTEGER,                       -- null: it does not end by time
    signal TEXT,
    jobs TEXT,                            -- a JSON array of ids
    children INTEGER NOT NULL DEFAULT 0   -- it waits for all its children
  );
  CREATE TABLE outlive_awaits (job INTEGER NOT NULL, waiter INTEGER NOT NULL, PRIMARY KEY (job, waiter)) WITHOUT ROWID;
  CREATE TABLE outlive_signals (
    ord INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL,
    payload_sum INTEGER NOT NULL,
    at INTEGER NOT NULL,
    read_at INTEGER
  );
  CREATE UNIQUE INDEX outlive_signals_id ON outlive_signals (job, id);
  CREATE INDEX outlive_signals_unread ON outlive_signals (job, name, ord) WHERE read_at IS NULL;
  CREATE TABLE outlive_wakes (id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, at INTEGER NOT NULL);
  `,
  },
  // Limits per key, and what comes after a job whose dedupe key was enqueued again.
  {
    name: "keys",
    sql: `
  ALTER TABLE outlive_extras ADD COLUMN key1 INTEGER;
  ALTER TABLE outlive_extras ADD COLUMN key2 INTEGER;
  ALTER TABLE outlive_extras ADD COLUMN key3 INTEGER;
  ALTER TABLE outlive_extras ADD COLUMN keys TEXT;                        -- JSON: limit and key of each
  ALTER TABLE outlive_extras ADD COLUMN strict INTEGER NOT NULL DEFAULT 0; -- one of its limits is strict
  ALTER TABLE outlive_extras ADD COLUMN place INTEGER NOT NULL DEFAULT 0;  -- 0 away, 1 held at a door, 2 admitted or running, 3 begun and away (strict), 4 held elsewhere, first of its strict key
  ALTER TABLE outlive_extras ADD COLUMN door INTEGER;                     -- the key at which it is held
  ALTER TABLE outlive_extras ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;   -- its order at the door, higher first
  ALTER TABLE outlive_extras ADD COLUMN latest_at INTEGER;                -- a debounced job is not moved beyond
  CREATE INDEX outlive_extras_key1 ON outlive_extras (key1, place) WHERE key1 IS NOT NULL AND place > 1;
  CREATE INDEX outlive_extras_key2 ON outlive_extras (key2, place) WHERE key2 IS NOT NULL AND place > 1;
  CREATE INDEX outlive_extras_key3 ON outlive_extras (key3, place) WHERE key3 IS NOT NULL AND place > 1;
  CREATE INDEX outlive_extras_door ON outlive_extras (door, rank DESC, job) WHERE door IS NOT NULL;
  CREATE TABLE outlive_limits (
    name TEXT PRIMARY KEY,
    running INTEGER,
    interval_ms REAL,
    burst INTEGER NOT NULL,
    strict INTEGER NOT NULL
  ) WITHOUT ROWID;
  -- Only keys that have something of their own: a rate, a hold-off, a limit that was set for them.
  CREATE TABLE outlive_keys (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    running INTEGER,
    interval_ms REAL,
    burst INTEGER,
    arrival_at REAL NOT NULL DEFAULT 0,
    held_off_until INTEGER NOT NULL DEFAULT 0,
    reason TEXT,
    due_at INTEGER                                                       -- when time gives it room
  );
  CREATE INDEX outlive_keys_due ON outlive_keys (due_at) WHERE due_at IS NOT NULL;
  CREATE TABLE outlive_key_wakes (id INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL, at INTEGER NOT NULL);
  -- A job that runs once more after it has ended: its latest draft.
  CREATE TABLE outlive_reruns (
    job INTEGER PRIMARY KEY,
    draft TEXT NOT NULL,                                                 -- JSON
    at INTEGER NOT NULL,
    latest_at INTEGER
  );
  `,
  },
  // Kinds whose keys take turns, and keys that are paused.
  {
    name: "fairness",
    sql: `
  ALTER TABLE outlive_kinds ADD COLUMN fair INTEGER NOT NULL DEFAULT 0;   -- a program has declared it fair: jobs may wait at its gate
  ALTER TABLE outlive_extras ADD COLUMN fair INTEGER;                     -- the one of its keys by which it takes turns
  ALTER TABLE outlive_extras ADD COLUMN gate INTEGER;                     -- where it does: the number of its kind, negative; null: nowhere
  ALTER TABLE outlive_extras ADD COLUMN ring INTEGER NOT NULL DEFAULT 0;  -- its key in the ring of the door at which it is held; 0: by rank alone
  DROP INDEX outlive_extras_door;
  CREATE INDEX outlive_extras_door ON outlive_extras (door, ring, rank DESC, job) WHERE door IS NOT NULL;
  ALTER TABLE outlive_keys ADD COLUMN weight INTEGER;
  ALTER TABLE outlive_keys ADD COLUMN paused_at INTEGER;                  -- the column reason says why
  ALTER TABLE outlive_keys ADD COLUMN paused_until INTEGER;               -- null: until it is resumed
  ALTER TABLE outlive_keys ADD COLUMN ring_at INTEGER NOT NULL DEFAULT 0; -- the key of its ring that was served last, and how often in its visit
  ALTER TABLE outlive_keys ADD COLUMN ring_served INTEGER NOT NULL DEFAULT 0;
  `,
  },
  FAMILY_CANCELS,
  BATCHES,
  SCHEDULES,
  COLLECTIONS,
  DOORS,
  OPERATIONS,
  TRACES,
  ALL_KINDS,
  ATTEMPTS,
  PART_PAGES,
  ONE_WAKE,
  RANKED_DOORS,
  SLOTS,
];

export const SCHEMA_VERSION = MIGRATIONS.length;

/** The version in the file; 0: none of our tables is there. */
export function schemaVersion(db: Database): number {
  const there = db
    .sql("SELECT count(*) AS n FROM sqlite_schema WHERE type = 'table' AND name = 'outlive_meta'")
    .get() as { n: number };
  if (there.n === 0) return 0;
  const row = db.sql("SELECT value FROM outlive_meta WHERE key = 'schema'").get() as { value: number } | undefined;
  return row?.value ?? 0;
}

/** The migrations that the file has, as far as this program knows them. */
function appliedTo(db: Database): readonly Migration[] {
  return MIGRATIONS.slice(0, schemaVersion(db));
}

/** Brings the file to this program's version. The caller holds no transaction and retries when the file is busy. */
export function migrate(db: Database): void {
  while (schemaVersion(db) < SCHEMA_VERSION || stepsOf(db).some(({ stored }) => stored === null)) {
    db.exec("BEGIN IMMEDIATE");
    try {
      assertReleased(db);
      appliedTo(db).forEach((migration, i) => keepChecksum(db, i + 1, migration));
      // Another process may have done it while this one waited for the lock.
      const version = schemaVersion(db);
      // A new store comes into being whole: a client creates one, but upgrades none that was left half-way.
      if (version === 0) for (let number = 1; number <= SCHEMA_VERSION; number++) apply(db, number);
      else if (version < SCHEMA_VERSION) apply(db, version + 1);
      db.exec("COMMIT");
    } catch (thrown) {
      if (db.inTransaction) db.exec("ROLLBACK");
      throw thrown;
    }
  }
}

/** One migration, in the caller's transaction. */
function apply(db: Database, number: number): void {
  if (number === 1)
    db.exec("CREATE TABLE IF NOT EXISTS outlive_meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID");
  const migration = MIGRATIONS[number - 1]!;
  db.exec(migration.sql);
  db.exec(
    `INSERT INTO outlive_meta (key, value) VALUES ('schema', ${number}) ON CONFLICT DO UPDATE SET value = excluded.value`,
  );
  keepChecksum(db, number, migration);
}

/** Every migration that the file has, with the checksum that it keeps of it. */
export function stepsOf(db: Database): readonly ComparedStep[] {
  return comparedSteps(db, appliedTo(db));
}

/** Refuses a file whose tables an unreleased build has made, before anything is changed. */
export function assertReleased(db: Database): void {
  refuseUnreleased(db, appliedTo(db));
}

/** The version whose columns these are, for a file that has lost its own word about it. */
export function versionByColumns(all: Parameters<typeof columnsOf>[0]): number {
  const found = columnsOf(all);
  const fits = (version: number): boolean =>
    columnDifferences(columnsMadeBy(MIGRATIONS.slice(0, version)), found).length === 0;
  const versions = MIGRATIONS.map((_, i) => i + 1);
  return versions.findLast(fits) ?? SCHEMA_VERSION;
}

export function assertSchema(db: Database): void {
  const version = schemaVersion(db);
  if (version > SCHEMA_VERSION) {
    throw new OutliveError(
      ErrorCode.schemaNewer,
      `${db.path} has schema ${version}; this version of Outlive knows ${SCHEMA_VERSION}.`,
      "Upgrade the outlive package in this program. Nothing was changed.",
      { path: db.path, found: version, known: SCHEMA_VERSION },
    );
  }
  assertReleased(db);
  if (version < SCHEMA_VERSION) {
    throw new OutliveError(
      ErrorCode.schemaMissing,
      version === 0
        ? `${db.path} holds no Outlive tables.`
        : `${db.path} has schema ${version}; ${SCHEMA_VERSION} is needed.`,
      "Run `outlive migrate up`, or start a worker of this version. Nothing was changed.",
      { path: db.path, found: version, known: SCHEMA_VERSION },
    );
  }
}

// Whether the migrations in a file are the released ones. `outlive_meta` holds the checksum of each migration that was applied. A file
// from before checksums were kept is judged by its columns: migration 1 was edited in place until then.

/** One step of the schema. */
export interface Migration {
  readonly name: string;
  readonly sql: string;
}

/** The migrations that were applied, next to what the file says of them. */
function comparedSteps(db: Database, applied: readonly Migration[]): ComparedStep[] {
  if (applied.length === 0) return [];
  const rows = db.sql("SELECT key, value FROM outlive_meta WHERE key LIKE 'checksum %'").all();
  const kept = new Map(rows.map(({ key, value }) => [key, String(value)]));
  return applied.map(({ name, sql }, i) => ({
    number: i + 1,
    name,
    checksum: stepChecksum(sql),
    stored: kept.get(`checksum ${i + 1}`) ?? null,
  }));
}

/** Refuses a file that was made by other migrations of the same numbers. Reads only. */
function refuseUnreleased(db: Database, applied: readonly Migration[]): void {
  const steps = comparedSteps(db, applied);
  const store = { store: db.path, instead: "move the file away and begin with a new one" };
  const differing = differingStep(steps);
  if (differing) throw checksumRefused(store, differing);
  if (steps.every(({ stored }) => stored !== null)) return;
  const differences = columnDifferences(
    columnsMadeBy(applied),
    columnsOf((sql) => db.sql(sql).all()),
  );
  if (differences.length > 0) throw columnsRefused(store, applied.length, differences);
}

function keepChecksum(db: Database, number: number, { sql }: Migration): void {
  db.sql("INSERT INTO outlive_meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING").run(
    `checksum ${number}`,
    stepChecksum(sql),
  );
}

/** Our columns in a database, one line each. */
export function columnsOf(all: (sql: string) => readonly Record<string, unknown>[]): ReadonlySet<string> {
  const rows = all(`SELECT t.name || '.' || c.name || ' ' || c.type || iif(c."notnull", ' NOT NULL', '') AS line
    FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name LIKE 'outlive\\_%' ESCAPE '\\'`);
  return new Set(rows.map(({ line }) => line as string));
}

/** The columns of a new file with these migrations. */
export function columnsMadeBy(migrations: readonly Migration[]): ReadonlySet<string> {
  const db = new Database({ path: ":memory:", allowUnsafeSqlite: true });
  try {
    for (const { sql } of migrations) db.exec(sql);
    return columnsOf((sql) => db.sql(sql).all());
  } finally {
    db.close();
  }
}
