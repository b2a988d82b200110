// Migration 1: the tables of the engine and the store's one clock. `now_ms()` is the only source of time in all SQL, so that
// a test can steer it by replacing one function.
import type { Migration } from "../migrate.ts";
import { dropEnqueue, enqueueFunctions } from "./enqueue.ts";

export const core: Migration = {
  name: "core",
  drops: "all jobs with their steps, history and logs, all kinds, workers and incidents, and the function enqueue",
  up: (schema) => `
  CREATE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$;

  --- Whether the server may have forgotten something. A busy worker does not wait until its claims are on disk, and a server that has
  --- crashed comes back without the last of them: also without this row, for it empties what is unlogged. Whoever claims first after
  --- that raises the epoch, so that no fence is given twice. The number tells servers apart: a dump is restored with its rows.
  CREATE FUNCTION ${schema}.server_start() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint $$;
  CREATE UNLOGGED TABLE ${schema}.server_run (one boolean PRIMARY KEY DEFAULT true CHECK (one), started bigint NOT NULL);
  INSERT INTO ${schema}.server_run (started) VALUES (${schema}.server_start());

  -- Workers raise the epoch; the number of the schema is the owner's.
  CREATE FUNCTION ${schema}.guard_meta() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
  BEGIN
    IF coalesce(OLD.key, NEW.key) <> 'epoch' AND NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER') THEN
      RAISE EXCEPTION 'only the owner may change "%" of %', coalesce(OLD.key, NEW.key), TG_RELID::regclass USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN coalesce(NEW, OLD);
  END $$;
  CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON ${schema}.meta FOR EACH ROW EXECUTE FUNCTION ${schema}.guard_meta();

  CREATE TABLE ${schema}.kinds (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    paused boolean NOT NULL DEFAULT false,
    -- The defaults are those of engine/settings.ts: a kind that somebody enqueued by name before any program declared it has a timeout, too.
    timeout_ms bigint DEFAULT 900000,        -- null, which a program must have said: none
    max_runtime_ms bigint,
    grace_ms bigint NOT NULL DEFAULT 5000,
    max_errors integer NOT NULL DEFAULT 10,
    max_timeouts integer NOT NULL DEFAULT 10,
    max_crashes integer NOT NULL DEFAULT 3,
    backoff_type text NOT NULL DEFAULT 'exponential',
    backoff_base_ms bigint NOT NULL DEFAULT 1000,
    backoff_max_ms bigint NOT NULL DEFAULT 3600000,
    backoff_jitter double precision NOT NULL DEFAULT 0.5,
    on_crash text NOT NULL DEFAULT 'retry',
    jobs bigint NOT NULL DEFAULT 0 -- rows of this kind, as of the latest fold of kind_deltas
  );

  --- Every transaction that adds or removes jobs says here how many: a counter in the row of the kind would be a lock that all
  --- enqueuers wait for. Rows of a kind = kinds.jobs + the sum of its deltas; the sweep folds the one into the other.
  CREATE TABLE ${schema}.kind_deltas (kind integer NOT NULL, jobs bigint NOT NULL);

  --- Which ids there are. Written at the enqueue and at the end of retention only: an index of ids on jobs would get an entry for each
  --- claim and each end, too, and cost a third of what the server spends on a job. Who has the id of a job finds its row by its number.
  CREATE TABLE ${schema}.job_ids (id text COLLATE "C" PRIMARY KEY, seq bigint NOT NULL);

  --- What is never null comes first and in the order of its width: behind a null, each column is found by walking through all before
  --- it, which every index entry pays for. epoch, worker and started_at mean nothing before the first claim (fence 0), finished_at
  --- nothing before the end (state < 2).
  CREATE TABLE ${schema}.jobs (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    worker bigint NOT NULL DEFAULT 0,        -- fleet.seq of the latest attempt
    epoch bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL,
    started_at bigint NOT NULL DEFAULT 0,
    finished_at bigint NOT NULL DEFAULT 0,
    kind integer NOT NULL,
    priority integer NOT NULL,
    fence integer NOT NULL DEFAULT 0,
    errors integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    blamed integer NOT NULL DEFAULT 0,
    timeouts integer NOT NULL DEFAULT 0,
    interruptions integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,       -- place in core's JOB_STATES
    lane smallint NOT NULL DEFAULT 1,        -- 0 delayed, 1 open, 2 suspect
    cancel_requested boolean NOT NULL DEFAULT false,
    id text COLLATE "C" NOT NULL,
    input text NOT NULL,                     -- JSON
    dedupe_key text COLLATE "C",
    deadline_at bigint,                      -- null while it runs: none
    run_at bigint,
    reserved_by bigint,                      -- not used any more; migration 8 says why it stays
    outcome smallint,                        -- place in core's OUTCOMES, of the latest attempt that ended
    result text,                             -- JSON
    error text,                              -- JSON
    progress text,                           -- JSON
    incident text                            -- the incident that put it back, until it runs again
  ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
  ALTER TABLE ${schema}.jobs ADD CONSTRAINT jobs_pkey PRIMARY KEY (seq);
  --- Leads with the kind and holds only what can be claimed now.
  CREATE INDEX jobs_ready ON ${schema}.jobs (kind, priority DESC, seq) WHERE state = 0 AND lane = 1;
  CREATE INDEX jobs_alone ON ${schema}.jobs (crashes, seq) WHERE state = 0 AND lane = 2;
  CREATE INDEX jobs_delayed ON ${schema}.jobs (run_at, kind) WHERE state = 0 AND lane = 0;
  CREATE INDEX jobs_running ON ${schema}.jobs (worker) WHERE state = 1;
  --- Succeeded jobs are not in it: their number is what is left of all.
  CREATE INDEX jobs_ended ON ${schema}.jobs (state, finished_at, kind) WHERE state > 2;
  CREATE UNIQUE INDEX jobs_dedupe ON ${schema}.jobs (kind, dedupe_key) WHERE dedupe_key IS NOT NULL AND state < 2;

  CREATE TABLE ${schema}.cancels (worker bigint NOT NULL, job bigint NOT NULL, PRIMARY KEY (worker, job));

  CREATE TABLE ${schema}.steps (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL,
    fence integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    result text
  );
  CREATE UNIQUE INDEX steps_name ON ${schema}.steps (job, name);

  CREATE TABLE ${schema}.history (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL,
    epoch bigint NOT NULL,
    fence integer NOT NULL,
    from_state smallint NOT NULL,
    to_state smallint NOT NULL,
    event text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    incident text
  );
  CREATE INDEX history_job ON ${schema}.history (job);

  CREATE TABLE ${schema}.logs (
    ord bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    at bigint NOT NULL,
    fence integer NOT NULL,
    message text NOT NULL
  );
  CREATE INDEX logs_job ON ${schema}.logs (job);

  --- The workers. Nothing that a heartbeat writes is in an index, and pages have room, so a heartbeat is a HOT update.
  CREATE TABLE ${schema}.fleet (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    state text NOT NULL,
    host text NOT NULL,
    boot_id text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    epoch bigint NOT NULL,
    lease_ms bigint NOT NULL,
    concurrency integer NOT NULL,
    kinds text NOT NULL,
    lock_name text,
    lock_identity text,
    started_at bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    loop_lag_ms bigint NOT NULL DEFAULT 0,
    held text NOT NULL DEFAULT '[]', -- ids of what it held at its latest heartbeat
    last_word text,
    incident text
  ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
  CREATE INDEX fleet_present ON ${schema}.fleet (id) WHERE state IN ('live', 'recovering');

  CREATE TABLE ${schema}.incidents (
    id text COLLATE "C" PRIMARY KEY,
    recovery text COLLATE "C" NOT NULL,
    worker text NOT NULL,
    how text NOT NULL,
    evidence text,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    worker_started_at bigint NOT NULL,
    last_heartbeat_at bigint NOT NULL,
    last_seen_alive_at bigint,
    loop_lag_ms bigint NOT NULL,
    detected_at bigint NOT NULL,
    started_at bigint NOT NULL,
    completed_at bigint,
    recovered_by text NOT NULL,
    integrity text NOT NULL,
    wal_frames bigint NOT NULL,
    held_at_death bigint NOT NULL,
    cursor bigint NOT NULL DEFAULT 0 -- the last job that was looked at: one that can't be recovered hides no other
  );
  CREATE INDEX incidents_recovery ON ${schema}.incidents (recovery);

  CREATE TABLE ${schema}.incident_jobs (
    incident text COLLATE "C" NOT NULL,
    job bigint NOT NULL,
    job_id text NOT NULL,
    kind text NOT NULL,
    decision text NOT NULL,
    counters text NOT NULL,
    max_crashes integer NOT NULL,
    fence integer NOT NULL,
    last_step text,
    success boolean NOT NULL,
    error text,
    resumed_at bigint,
    PRIMARY KEY (incident, job)
  );
  ${enqueueFunctions(schema)}
  `,
  down: (schema) => `${dropEnqueue(schema)}
  DROP TABLE ${[
    "incident_jobs",
    "incidents",
    "fleet",
    "logs",
    "history",
    "steps",
    "cancels",
    "jobs",
    "job_ids",
    "kind_deltas",
    "kinds",
    "server_run",
  ]
    .map((table) => `${schema}.${table}`)
    .join(", ")};
  DROP TRIGGER guard ON ${schema}.meta;
  DROP FUNCTION ${schema}.guard_meta();
  DROP FUNCTION ${schema}.server_start();
  DROP FUNCTION ${schema}.now_ms();
  `,
};

// The columns of a schema from before checksums of migrations were kept: of migrations 1 and 2. The third makes views, which no worker
// needs. Nothing is ever added here: what comes later has a checksum.

/** By migration and table. `!` stands for NOT NULL. */
const TABLES: readonly Readonly<Record<string, string>>[] = [
  // 1: core
  {
    meta: "key text!, value bigint!",
    server_run: "one boolean!, started bigint!",
    kinds: `id integer!, name text!, paused boolean!, timeout_ms bigint, max_runtime_ms bigint, grace_ms bigint!,
      max_errors integer!, max_timeouts integer!, max_crashes integer!, backoff_type text!,
      backoff_base_ms bigint!, backoff_max_ms bigint!, backoff_jitter double precision!, on_crash text!,
      jobs bigint!`,
    kind_deltas: "kind integer!, jobs bigint!",
    job_ids: "id text!, seq bigint!",
    jobs: `seq bigint!, worker bigint!, epoch bigint!, created_at bigint!, started_at bigint!, finished_at bigint!,
      kind integer!, priority integer!, fence integer!, errors integer!, crashes integer!, blamed integer!,
      timeouts integer!, interruptions integer!, state smallint!, lane smallint!, cancel_requested boolean!,
      id text!, input text!, dedupe_key text, deadline_at bigint, run_at bigint, reserved_by bigint,
      outcome smallint, result text, error text, progress text, incident text`,
    cancels: "worker bigint!, job bigint!",
    steps: "ord bigint!, job bigint!, at bigint!, fence integer!, name text!, result text",
    history: `ord bigint!, job bigint!, at bigint!, epoch bigint!, fence integer!, from_state smallint!,
      to_state smallint!, event text!, actor text!, reason text!, incident text`,
    logs: "ord bigint!, job bigint!, at bigint!, fence integer!, message text!",
    fleet: `seq bigint!, id text!, state text!, host text!, boot_id text!, pid integer!, version text!, epoch bigint!,
      lease_ms bigint!, concurrency integer!, kinds text!, lock_name text, lock_identity text,
      started_at bigint!, heartbeat_at bigint!, beats bigint!, loop_lag_ms bigint!, held text!, last_word text,
      incident text`,
    incidents: `id text!, recovery text!, worker text!, how text!, evidence text, host text!, pid integer!, version text!,
      worker_started_at bigint!, last_heartbeat_at bigint!, last_seen_alive_at bigint, loop_lag_ms bigint!,
      detected_at bigint!, started_at bigint!, completed_at bigint, recovered_by text!, integrity text!,
      wal_frames bigint!, held_at_death bigint!, cursor bigint!`,
    incident_jobs: `incident text!, job bigint!, job_id text!, kind text!, decision text!, counters text!,
      max_crashes integer!, fence integer!, last_step text, success boolean!, error text, resumed_at bigint`,
  },
  // 2: heartbeats and reclaim
  {
    history: "worker text, decision text, attempts integer, age_ms bigint",
    ticks: `one boolean!, at bigint!, gap_ms bigint, held boolean!, reclaimed integer!, caller text!,
      server_run timestamp with time zone!, error text`,
  },
];

/** How many migrations a schema may have whose checksums are not kept. */
export const WITHOUT_CHECKSUMS = 3;

/** The columns of a schema with that many migrations, one line each. */
export function columnsOfRecord(version: number): ReadonlySet<string> {
  const lines = TABLES.slice(0, version).flatMap((tables) =>
    Object.entries(tables).flatMap(([table, columns]) =>
      columns.split(/,\s+/).map((column) => `${table}.${column.replace("!", " NOT NULL")}`),
    ),
  );
  return new Set(lines);
}
