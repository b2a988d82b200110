// Prometheus metrics of an engine, in any prom-client registry: what this process did, counted from events, and the state of the store,
// read at each scrape. Names and meanings are listed in docs/telemetry.md; a test checks the list. The only
// file that loads `prom-client`.
import type { Counter, Gauge, Histogram, MetricObjectWithValues, MetricValue, Registry } from "prom-client";
import { type BatchState, doneKind } from "../job/batches.ts";
import { COLLECTION_STATES } from "../job/collections.ts";
import type { EngineEvent, EventName, Listener } from "../job/events.ts";
import type { IncidentSummary, RecoveryReport } from "../recovery/incident.ts";
import type { WorkerRow } from "../stores/liveness.ts";
import type { CollectionCount } from "../stores/collections.ts";
import type { KindCounts, StoreHealth, WorkerQuery } from "../stores/port.ts";
import type * as PromClient from "prom-client";
import { createRequire } from "node:module";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** What is measured: an engine. */
export type Measured = MeasuredProcess & MeasuredStore;

/** Options of the metrics. */
export interface MetricsOptions {
  /** Where the metrics go. Default: prom-client's global registry. One engine per registry. */
  readonly registry?: Registry;
  /** "process": what happened in this process. "store": what is in the store. Default: both. If several processes are scraped, one of them is enough for the store. */
  readonly only?: "process" | "store";
  /** Deaths before this instant (ms) are omitted from the times to detect and to resume. Default: now. */
  readonly incidentsSince?: number;
  /** What `onEvent` of `open` heard before: the recovery that `open` runs itself. Default: none. */
  readonly early?: readonly EngineEvent[];
}

/** Registers the metrics of an engine. Returns how to remove them again. Throws if `prom-client` is not installed. */
export function attachMetrics(engine: Measured, options: MetricsOptions = {}): () => void {
  const { registry = promClient().register, only, incidentsSince = Date.now(), early } = options;
  const detach = [
    only === "store" ? () => {} : processMetrics(engine, registry, early),
    only === "process" ? () => {} : storeMetrics(engine, registry, incidentsSince),
  ];
  return () => {
    for (const part of detach) part();
  };
}

/** One process's metrics as they cross a process boundary: what `registry.getMetricsAsJSON()` returns. */
export type MetricsSnapshot = readonly MetricObjectWithValues<MetricValue<string>>[];

/** The metrics of several processes as one text. Sums counters and histograms; gauges by their own aggregator. */
export function aggregatedText(snapshots: readonly MetricsSnapshot[]): Promise<string> {
  return promClient()
    .AggregatorRegistry.aggregate(snapshots.map((snapshot) => [...snapshot]))
    .metrics();
}

/** What a process that is gone leaves behind in the sums: a counter that fell would look like a restart of everything. */
export async function lasting(snapshots: readonly MetricsSnapshot[]): Promise<MetricsSnapshot> {
  const counted = snapshots.map((snapshot) =>
    snapshot.filter(({ type }) => String(type) === "counter" || String(type) === "histogram"),
  );
  return promClient().AggregatorRegistry.aggregate(counted).getMetricsAsJSON();
}

// What happened in this process, counted from the engine's events. Nothing is stored, and nothing is read from the store but its own
// numbers about group commits.

/** The part of `engine.operator` that is measured. */
interface MeasuredOperator {
  /** As `engine.operator.storeHealth`. */
  storeHealth(): Promise<StoreHealth>;
}

/** What is measured of a process: an engine. */
interface MeasuredProcess {
  /** As `engine.on`. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void;
  /** As `engine.operator`. */
  readonly operator: MeasuredOperator;
}

const ATTEMPT_SECONDS = [0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600];
const RECOVERY_SECONDS = [0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120];

/** `early`: events of the recovery in `open` itself, before a program could listen by name. They are counted too. */
function processMetrics(engine: MeasuredProcess, registry: Registry, early: readonly EngineEvent[] = []): () => void {
  const { Counter, Histogram } = promClient();
  const names: string[] = [];
  const counter = <Label extends string = never>(
    name: string,
    help: string,
    ...labelNames: Label[]
  ): Counter<Label> => {
    names.push(name);
    return new Counter({ name, help, labelNames, registers: [registry] });
  };
  const histogram = <Label extends string>(
    name: string,
    help: string,
    buckets: number[],
    ...labelNames: Label[]
  ): Histogram<Label> => {
    names.push(name);
    return new Histogram({ name, help, buckets, labelNames, registers: [registry] });
  };

  const heard: { readonly name: EventName; readonly listener: Listener<never> }[] = [];
  const on: On = (name, listener) => {
    heard.push({ name, listener });
    return engine.on(name, listener);
  };
  const stop = [
    ...attempts(on, counter, histogram),
    ...deaths(on, counter, histogram),
    ...batchEnds(on, counter),
    ...requests(on, counter),
    ...collectionEvents(on, counter),
    ...troubles(on, counter),
  ];
  for (const event of early) for (const { name, listener } of heard) if (name === event.name) listener(event as never);
  names.push(...groupCommits(engine, registry));
  return () => {
    for (const unhear of stop) unhear();
    for (const name of names) registry.removeSingleMetric(name);
  };
}

type On = MeasuredProcess["on"];
type MakeCounter = <Label extends string = never>(name: string, help: string, ...labels: Label[]) => Counter<Label>;
type MakeHistogram = <Label extends string>(
  name: string,
  help: string,
  buckets: number[],
  ...labels: Label[]
) => Histogram<Label>;

function attempts(on: On, counter: MakeCounter, histogram: MakeHistogram): (() => void)[] {
  const claims = counter("outlive_claims_total", "Jobs taken by workers", "kind");
  const ended = counter("outlive_attempts_total", "Attempts that ended, by how", "kind", "outcome");
  const seconds = histogram("outlive_attempt_duration_seconds", "How long attempts ran", ATTEMPT_SECONDS, "kind");
  const errors = counter("outlive_errors_total", "Attempts whose handler threw", "kind");
  const timeouts = counter("outlive_timeouts_total", "Attempts that passed their deadline", "kind");
  const retries = counter("outlive_retries_total", "Attempts that failed or timed out and will be made again", "kind");
  const dead = counter("outlive_dead_total", "Jobs that ended dead", "kind");
  return [
    on("job.claimed", ({ kind }) => claims.inc({ kind })),
    on("attempt.ended", ({ kind, outcome, to, durationMs }) => {
      ended.inc({ kind, outcome });
      seconds.observe({ kind }, durationMs / 1_000);
      if (outcome === "failed") errors.inc({ kind });
      if (outcome === "timed-out") timeouts.inc({ kind });
      if (to === "queued" && (outcome === "failed" || outcome === "timed-out")) retries.inc({ kind });
    }),
    // Another process fenced it out, not its own worker, so no `attempt.ended` comes.
    on("job.overdue", ({ kind, fencedOut }) => fencedOut && timeouts.inc({ kind })),
    on("job.dead", ({ kind }) => dead.inc({ kind })),
    on("job.recovered", ({ kind, decision, success }) => success && decision === "fail" && dead.inc({ kind })),
  ];
}

function deaths(on: On, counter: MakeCounter, histogram: MakeHistogram): (() => void)[] {
  const incidents = counter("outlive_incidents_total", "Deaths of workers that were found", "how");
  const recoveries = counter("outlive_recoveries_total", "Recovery passes that found a death");
  const seconds = histogram("outlive_recovery_duration_seconds", "How long those passes took", RECOVERY_SECONDS);
  const failed = counter(
    "outlive_recovery_failures_total",
    "Workers and jobs whose recovery failed and is tried again",
  );
  const crashes = counter("outlive_crashes_total", "Jobs that were in flight when their worker died", "kind");
  const quarantined = counter("outlive_quarantined_total", "Jobs that were quarantined", "kind");
  return [
    on("worker.gone", ({ how }) => incidents.inc({ how })),
    on("recovery.completed", ({ incidents: found, durationMs }) => {
      if (found.length === 0) return;
      recoveries.inc();
      seconds.observe(durationMs / 1_000);
    }),
    on("recovery.failed", () => failed.inc()),
    on("job.recovered", ({ kind, success }) => (success ? crashes.inc({ kind }) : failed.inc())),
    on("job.quarantined", ({ kind }) => quarantined.inc({ kind })),
  ];
}

/** Hosts that have a label of their own; others are "other". */
const MAX_HOSTS = 200;

function requests(on: On, counter: MakeCounter): (() => void)[] {
  const ended = counter(
    "outlive_requests_total",
    "Sendings of requests, by host and class of status; without an answer by what was wrong",
    "kind",
    "host",
    "class",
  );
  const recovered = counter(
    "outlive_requests_recovered_total",
    "Requests in flight when their worker died, by what was decided; failed: they could not be requeued yet",
    "kind",
    "decision",
  );
  const hosts = new Set<string>();
  const label = (host: string): string => {
    if (hosts.size < MAX_HOSTS) hosts.add(host);
    return hosts.has(host) ? host : "other";
  };
  return [
    on("request.ended", ({ kind, host, status, fault }) =>
      ended.inc({
        kind,
        host: label(host),
        class: status === null ? (fault ?? "none") : `${Math.floor(status / 100)}xx`,
      }),
    ),
    on("job.recovered", ({ kind, decision, success, isRequest }) => {
      if (isRequest && !success) recovered.inc({ kind, decision: "failed" });
      else if (REQUEST_DECISIONS.includes(decision)) recovered.inc({ kind, decision });
    }),
  ];
}

const REQUEST_DECISIONS: readonly string[] = ["resend", "unsent", "ask", "unknown"];

function collectionEvents(on: On, counter: MakeCounter): (() => void)[] {
  const changed = counter("outlive_collections_changed_total", "New states of collections", "kind", "state");
  const parts = counter("outlive_parts_total", "Parts of collections, by what became of them", "kind", "answer");
  const stored = counter("outlive_part_bytes_total", "Bytes of parts that were accepted", "kind");
  const parked = counter("outlive_messages_parked_total", "Messages that were put aside", "kind");
  return [
    on("collection.changed", ({ kind, state }) => changed.inc({ kind, state })),
    on("part.accepted", ({ kind, bytes }) => {
      parts.inc({ kind, answer: "accepted" });
      stored.inc({ kind }, bytes);
    }),
    on("part.skipped", ({ kind, answer }) => parts.inc({ kind, answer })),
    on("message.parked", ({ kind }) => parked.inc({ kind })),
  ];
}

function batchEnds(on: On, counter: MakeCounter): (() => void)[] {
  const ended = counter("outlive_batches_ended_total", "Rounds of batches that ended, by how", "kind", "state");
  const rows = counter(
    "outlive_batch_rows_total",
    "Rows of batches, when their round ended, by how",
    "kind",
    "outcome",
  );
  return [
    on("batch.ended", ({ kind, state, rows: { succeeded, failed, quarantined, aborted } }) => {
      ended.inc({ kind, state });
      const outcomes = { succeeded, failed, quarantined, aborted };
      for (const [outcome, count] of Object.entries(outcomes)) rows.inc({ kind, outcome }, count);
    }),
  ];
}

function troubles(on: On, counter: MakeCounter): (() => void)[] {
  const stale = counter(
    "outlive_stale_writes_total",
    "Writes refused because the attempt did not own its job any more",
    "tried",
  );
  const heartbeats = counter("outlive_heartbeat_failures_total", "Heartbeats that could not be written");
  const store = counter("outlive_store_failures_total", "Failures of the store that the engine tries again after");
  const leases = counter("outlive_leases_lost_total", "Pauses of this process that were longer than its lease allows");
  const disowned = counter(
    "outlive_disowned_total",
    "Times a worker of this process was declared dead although it was alive",
  );
  const blocked = counter("outlive_blocked_total", "Times the event loop was blocked for more than a second");
  const checks = counter("outlive_integrity_checks_total", "Integrity checks at an open, by verdict", "verdict");
  const repairs = counter(
    "outlive_repairs_total",
    "Repairs of a damaged store, by whether it was sound after",
    "sound",
  );
  const checkpoints = counter("outlive_checkpoint_failures_total", "Checkpoints at an open that were not finished");
  const walHeld = counter("outlive_wal_held_total", "Times a reader kept a large write-ahead log from shrinking");
  return [
    // The first word only: the name of a step is the user's, and a label must not grow without limit.
    on("write.rejected", ({ tried }) => stale.inc({ tried: tried.split(" ", 1)[0]! })),
    on("heartbeat.failed", () => heartbeats.inc()),
    on("store.failed", () => store.inc()),
    on("lease.lost", () => leases.inc()),
    on("worker.disowned", () => disowned.inc()),
    on("worker.blocked", () => blocked.inc()),
    on("integrity.checked", ({ verdict }) => checks.inc({ verdict })),
    on("store.repaired", ({ sound }) => repairs.inc({ sound: String(sound) })),
    on("store.upkeep", ({ what }) => {
      if (what === "checkpoint.failed") checkpoints.inc();
      if (what === "wal.held") walHeld.inc();
    }),
  ];
}

/** Average size of a group commit = writes / commits. */
function groupCommits(engine: MeasuredProcess, registry: Registry): string[] {
  const numbers = [
    ["outlive_group_commits_total", "groupCommits", "Write transactions of this process"],
    ["outlive_group_commit_writes_total", "groupedWrites", "Writes that shared those transactions"],
  ] as const;
  for (const [name, field, help] of numbers) {
    new (promClient().Counter)({
      name,
      help,
      registers: [registry],
      async collect() {
        const { detail } = await engine.operator.storeHealth().catch(() => ({ detail: {} as StoreHealth["detail"] }));
        const value = detail[field];
        if (typeof value !== "number") return;
        this.reset();
        this.inc(value);
      },
    });
  }
  return numbers.map(([name]) => name);
}

// The state of the store: one reading for all gauges of a scrape. A store that can't be read is reported by outlive_store_up and never
// fails the scrape.

/** What is measured of a store: an engine or a client. */
export interface MeasuredStore {
  /** As `engine.operator`. */
  readonly operator: MeasuredOperator;
  /** As `engine.counts`. */
  counts(): Promise<readonly KindCounts[]>;
  /** As `engine.workers`. */
  workers(query?: Pick<WorkerQuery, "which">): Promise<readonly WorkerRow[]>;
  /** As `engine.incidents`. */
  incidents(options?: {
    /** At most this many. */
    readonly limit?: number;
  }): Promise<readonly IncidentSummary[]>;
  /** As `engine.report`. */
  report(id: string): Promise<RecoveryReport | null>;
  /** As `engine.batches`. Omitted: it has none. */
  batches?(options: {
    /** Only batches in this state. */
    readonly state: BatchState;
    /** At most this many. */
    readonly limit: number;
  }): Promise<readonly MeasuredBatch[]>;
  /** As `engine.collectionCounts`. Omitted: it has none. */
  collectionCounts?(): Promise<readonly CollectionCount[]>;
}

/** What is measured of a batch. */
interface MeasuredBatch {
  /** The name of its kind. */
  readonly kind: string;
  /** Where it stands. */
  readonly state: BatchState;
  /** Its rows. */
  readonly rows: {
    /** Rows that have not ended. */
    readonly left: number;
  };
  /** When it was opened, in milliseconds since 1970. */
  readonly createdAt: number;
}

/** What one reading found. */
interface Reading {
  readonly up: boolean;
  readonly detail: StoreHealth["detail"];
  readonly counts: readonly KindCounts[];
  readonly workers: readonly WorkerRow[];
  /** Those that have not ended. */
  readonly batches: readonly MeasuredBatch[];
  readonly collections: readonly CollectionCount[];
  readonly now: number;
}

const STATES = ["ready", "delayed", "held", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
const DONE = doneKind("");
const UNFINISHED = ["open", "sealed", "aborting"] as const;
/** Unfinished batches of each state that are read with each scrape. */
const MAX_BATCHES = 1_000;
const DEATH_SECONDS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
/** Incidents read with each scrape. */
const MAX_INCIDENTS = 50;
/** A job that has not run again after this long is not waited for any more. */
const GIVE_UP_MS = 3_600_000;

export function storeMetrics(engine: MeasuredStore, registry: Registry, incidentsSince: number): () => void {
  const { Gauge } = promClient();
  const names: string[] = [];
  const read = oncePerScrape(() => reading(engine));

  const gauge = <Label extends string = never>(
    name: string,
    help: string,
    labelNames: Label[],
    tell: (gauge: Gauge<Label>, reading: Reading) => void,
  ): void => {
    names.push(name);
    // Several processes of one store say the same: of their answers the greatest is taken, never the sum.
    new Gauge({
      name,
      help,
      labelNames,
      aggregator: "max",
      registers: [registry],
      async collect() {
        const found = await read();
        this.reset();
        tell(this, found);
      },
    });
  };

  gauge("outlive_store_up", "1: the store could be read", [], (it, { up }) => it.set(up ? 1 : 0));
  gauge("outlive_jobs", "Jobs in the store", ["kind", "state"], (it, { counts }) => {
    for (const count of counts) for (const state of STATES) it.set({ kind: count.kind, state }, count[state]);
  });
  gauge("outlive_oldest_ready_seconds", "How long the oldest ready job has waited", ["kind"], (it, { counts }) => {
    for (const { kind, oldestReadyMs } of counts) it.set({ kind }, (oldestReadyMs ?? 0) / 1_000);
  });
  gauge("outlive_paused", "1: no worker claims jobs of this kind", ["kind"], (it, { counts }) => {
    for (const { kind, paused } of counts) it.set({ kind }, paused ? 1 : 0);
  });
  gauge("outlive_workers", "Workers that have not ended", ["state"], (it, { workers }) => {
    for (const state of ["live", "recovering"] as const)
      it.set({ state }, workers.filter((worker) => worker.state === state).length);
  });
  gauge("outlive_heartbeat_age_seconds", "The oldest heartbeat of a live worker", [], (it, { workers, now }) =>
    it.set(greatest(workers.filter(isLive).map(({ heartbeatAt }) => now - heartbeatAt)) / 1_000),
  );
  gauge(
    "outlive_loop_lag_seconds",
    "How long the slowest event loop had been blocked at its heartbeat",
    [],
    (it, { workers }) => it.set(greatest(workers.filter(isLive).map(({ loopLagMs }) => loopLagMs)) / 1_000),
  );
  gauge(
    "outlive_orphan_seconds",
    "How long jobs have been held by a worker that shows no life",
    [],
    (it, { workers, now }) =>
      it.set(
        greatest(workers.filter((worker) => isOrphaning(worker, now)).map(({ heartbeatAt }) => now - heartbeatAt)) /
          1_000,
      ),
  );
  // A wake is a row that says that something may have become possible. Every turn of a worker acts on them: an old one means that none does.
  gauge(
    "outlive_oldest_wake_seconds",
    "How long the oldest wake has waited for a worker's turn; 0: none waits",
    [],
    (it, { detail: { oldestWakeMs } }) =>
      oldestWakeMs === undefined ? it.remove() : it.set(Number(oldestWakeMs) / 1_000),
  );
  gauge(
    "outlive_oldest_signal_seconds",
    "How long the oldest signal has been kept that its unfinished job has not read; 0: none is",
    [],
    (it, { detail: { oldestSignalMs } }) =>
      oldestSignalMs === undefined ? it.remove() : it.set(Number(oldestSignalMs) / 1_000),
  );
  gauge("outlive_batches", "Batches that have not ended", ["kind", "state"], (it, { batches, counts }) => {
    const kinds = new Set(batches.map(({ kind }) => kind));
    // A kind whose last batch has ended has a 0, and not a gap.
    for (const { kind } of counts) if (kind.endsWith(DONE)) kinds.add(kind.slice(0, -DONE.length));
    for (const kind of kinds)
      for (const state of UNFINISHED)
        it.set({ kind, state }, batches.filter((batch) => batch.kind === kind && batch.state === state).length);
  });
  gauge("outlive_batch_rows_left", "Rows of those batches that have not ended", ["kind"], (it, { batches }) => {
    for (const { kind, rows } of batches) it.inc({ kind }, rows.left);
  });
  gauge("outlive_oldest_batch_seconds", "How long ago the oldest of them was opened", ["kind"], (it, found) => {
    const { batches, now } = found;
    for (const [kind, of] of Map.groupBy(batches, (batch) => batch.kind))
      it.set({ kind }, greatest(of.map(({ createdAt }) => now - createdAt)) / 1_000);
  });
  gauge("outlive_collections", "Collections in the store", ["kind", "state"], (it, { collections }) => {
    // A kind of which one is known has a 0 for each other state, and not a gap.
    for (const { kind } of collections) for (const state of COLLECTION_STATES) it.set({ kind, state }, 0);
    for (const { kind, state, count } of collections) it.set({ kind, state }, count);
  });
  // A server's files are not ours to measure: there is no sample then, and not a 0.
  gauge("outlive_database_bytes", "The size of the database", [], (it, { detail: { bytes } }) =>
    bytes === undefined ? it.remove() : it.set(Number(bytes)),
  );
  gauge("outlive_wal_bytes", "The size of the write-ahead log", [], (it, { detail: { walBytes } }) =>
    walBytes === undefined ? it.remove() : it.set(Number(walBytes)),
  );
  names.push(...deathTimes(engine, registry, incidentsSince));

  return () => {
    for (const name of names) registry.removeSingleMetric(name);
  };
}

/** From a worker's last sign of life to the discovery of its death, and from there to each of its jobs running again. */
function deathTimes(engine: MeasuredStore, registry: Registry, since: number): string[] {
  const over = new Set<string>();
  const known = new Set<string>();
  const look = oncePerScrape(async () => {
    const incidents = await engine.incidents({ limit: MAX_INCIDENTS }).catch(() => []);
    for (const { id, detectedAt } of incidents) {
      if (detectedAt < since || over.has(id)) continue;
      const report = await engine.report(id).catch(() => null);
      if (!report) continue;
      observe(report, Date.now() - detectedAt > GIVE_UP_MS);
    }
    if (over.size > 4 * MAX_INCIDENTS) for (const id of [...over].slice(0, over.size - MAX_INCIDENTS)) over.delete(id);
  });
  const { Histogram } = promClient();
  const options = { buckets: DEATH_SECONDS, registers: [registry], collect: () => look() };
  const detect = new Histogram({
    name: "outlive_time_to_detect_seconds",
    help: "From a worker's last sign of life to the discovery of its death",
    ...options,
  });
  const resume = new Histogram({
    name: "outlive_time_to_resume_seconds",
    help: "From the discovery of a death to its jobs running again, each",
    ...options,
  });
  const observe = ({ id, deadWorkers: [worker], recoveredJobs }: RecoveryReport, giveUp: boolean): void => {
    if (!worker) return;
    const { detectedAt } = worker;
    if (!known.has(id) && worker.lastSeenAliveAt !== null)
      detect.observe(Math.max(0, detectedAt - worker.lastSeenAliveAt) / 1_000);
    known.add(id);
    const goingOn = recoveredJobs.filter(({ decision }) => GOES_ON.includes(decision));
    if (!giveUp && (worker.recoveredAt === null || goingOn.some(({ resumedAt }) => resumedAt === null))) return;
    for (const { resumedAt } of goingOn)
      if (resumedAt !== null) resume.observe(Math.max(0, resumedAt - detectedAt) / 1_000);
    over.add(id);
    known.delete(id);
  };
  return ["outlive_time_to_detect_seconds", "outlive_time_to_resume_seconds"];
}

/** Decisions after which the job runs again. */
const GOES_ON: readonly string[] = ["retry", "requeue", "resend", "unsent", "ask", "unknown"];

async function reading(engine: MeasuredStore): Promise<Reading> {
  const now = Date.now();
  try {
    const [{ ok, detail }, counts, ...workers] = await Promise.all([
      engine.operator.storeHealth(),
      engine.counts(),
      engine.workers(),
      engine.workers({ which: "leftBehind" }),
    ]);
    const collections = (await engine.collectionCounts?.().catch(() => [])) ?? [];
    return {
      up: ok,
      detail,
      counts,
      workers: workers.flat(),
      batches: await unfinishedBatches(engine),
      collections,
      now,
    };
  } catch {
    return { up: false, detail: {}, counts: [], workers: [], batches: [], collections: [], now };
  }
}

/** None where the store has no batches. */
async function unfinishedBatches(engine: MeasuredStore): Promise<readonly MeasuredBatch[]> {
  const read = async (state: BatchState): Promise<readonly MeasuredBatch[]> =>
    (await engine.batches?.({ state, limit: MAX_BATCHES }).catch(() => [])) ?? [];
  return (await Promise.all(UNFINISHED.map(read))).flat();
}

/** The collectors of one scrape start together: they share one reading. */
function oncePerScrape<T>(read: () => Promise<T>): () => Promise<T> {
  let shared: Promise<T> | undefined;
  return () => (shared ??= read().finally(() => (shared = undefined)));
}

function isLive({ state }: WorkerRow): boolean {
  return state === "live";
}

/** It holds jobs and has ended, or has been silent for its lease. */
function isOrphaning(worker: WorkerRow, now: number): boolean {
  return worker.heldCount > 0 && (worker.state !== "live" || now - worker.heartbeatAt > worker.leaseMs);
}

function greatest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

// `prom-client` is an optional peer: it is loaded only when metrics are wanted.

const NAME = "prom-client";
const load = createRequire(import.meta.url);

/** Synchronous, because `attachMetrics` is. It is the instance that the program's own `import "prom-client"` gets. */
export function promClient(): typeof PromClient {
  try {
    return load(NAME) as typeof PromClient;
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
    throw new OutliveError(
      ErrorCode.driverMissing,
      `Metrics need the package \`${NAME}\`, which is not installed.`,
      `Run \`npm install ${NAME}\` in this program.`,
      {},
      { cause: thrown },
    );
  }
}

/** The package itself, and not something that it requires. */
function isMissing(thrown: unknown): boolean {
  const { code, message } = thrown as NodeJS.ErrnoException;
  return code === "MODULE_NOT_FOUND" && message.includes(`'${NAME}'`);
}
