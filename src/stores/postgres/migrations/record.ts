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
