// How the store is, read when somebody scrapes: one reading for all gauges of a scrape. A store that can't be read is told by
// outlive_store_up and never fails the scrape.
import type { Gauge, Registry } from "prom-client";
import type { IncidentSummary, RecoveryReport } from "../recovery/incident.ts";
import type { WorkerRow } from "../stores/liveness.ts";
import type { KindCounts, StoreHealth, WorkerQuery } from "../stores/port.ts";
import { promClient } from "./prom-client.ts";

export interface MeasuredStore {
  readonly operator: { storeHealth(): Promise<StoreHealth> };
  counts(): Promise<readonly KindCounts[]>;
  workers(query?: Pick<WorkerQuery, "which">): Promise<readonly WorkerRow[]>;
  incidents(options?: { readonly limit?: number }): Promise<readonly IncidentSummary[]>;
  report(id: string): Promise<RecoveryReport | null>;
}

/** What one reading found. */
interface Reading {
  readonly up: boolean;
  readonly detail: StoreHealth["detail"];
  readonly counts: readonly KindCounts[];
  readonly workers: readonly WorkerRow[];
  readonly now: number;
}

const STATES = ["ready", "delayed", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
const DEATH_SECONDS = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300];
/** Incidents looked at with each scrape. */
const MOST_INCIDENTS = 50;
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
  gauge("outlive_paused", "1: nobody claims jobs of this kind", ["kind"], (it, { counts }) => {
    for (const { kind, paused } of counts) it.set({ kind }, paused ? 1 : 0);
  });
  gauge("outlive_workers", "Workers that are not over", ["state"], (it, { workers }) => {
    for (const state of ["live", "recovering"] as const)
      it.set({ state }, workers.filter((worker) => worker.state === state).length);
  });
  gauge("outlive_heartbeat_age_seconds", "The oldest heartbeat of a live worker", [], (it, { workers, now }) =>
    it.set(greatest(workers.filter(isLive).map(({ heartbeatAt }) => now - heartbeatAt)) / 1_000),
  );
  gauge(
    "outlive_loop_lag_seconds",
    "How long the slowest main loop had stood still at its heartbeat",
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
    const incidents = await engine.incidents({ limit: MOST_INCIDENTS }).catch(() => []);
    for (const { id, detectedAt } of incidents) {
      if (detectedAt < since || over.has(id)) continue;
      const report = await engine.report(id).catch(() => null);
      if (!report) continue;
      observe(report, Date.now() - detectedAt > GIVE_UP_MS);
    }
    if (over.size > 4 * MOST_INCIDENTS)
      for (const id of [...over].slice(0, over.size - MOST_INCIDENTS)) over.delete(id);
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
    const goingOn = recoveredJobs.filter(({ decision }) => decision === "retry" || decision === "requeue");
    if (!giveUp && (worker.recoveredAt === null || goingOn.some(({ resumedAt }) => resumedAt === null))) return;
    for (const { resumedAt } of goingOn)
      if (resumedAt !== null) resume.observe(Math.max(0, resumedAt - detectedAt) / 1_000);
    over.add(id);
    known.delete(id);
  };
  return ["outlive_time_to_detect_seconds", "outlive_time_to_resume_seconds"];
}

async function reading(engine: MeasuredStore): Promise<Reading> {
  const now = Date.now();
  try {
    const [{ ok, detail }, counts, ...workers] = await Promise.all([
      engine.operator.storeHealth(),
      engine.counts(),
      engine.workers(),
      engine.workers({ which: "leftBehind" }),
    ]);
    return { up: ok, detail, counts, workers: workers.flat(), now };
  } catch {
    return { up: false, detail: {}, counts: [], workers: [], now };
  }
}

/** The collectors of one scrape start together: they share one reading. */
function oncePerScrape<T>(read: () => Promise<T>): () => Promise<T> {
  let shared: Promise<T> | undefined;
  return () => (shared ??= read().finally(() => (shared = undefined)));
}

function isLive({ state }: WorkerRow): boolean {
  return state === "live";
}

/** It holds jobs and is over, or has been silent for its lease. */
function isOrphaning(worker: WorkerRow, now: number): boolean {
  return worker.heldCount > 0 && (worker.state !== "live" || now - worker.heartbeatAt > worker.leaseMs);
}

function greatest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}
