// What happened in this process, counted from the engine's events. Nothing is stored and nothing is asked of the store but its
// own numbers about group commits.
import type { Counter, Histogram, Registry } from "prom-client";
import type { EngineEvent, EventName, Listener } from "../job/events.ts";
import type { StoreHealth } from "../stores/port.ts";
import { promClient } from "./prom-client.ts";

export interface MeasuredProcess {
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void;
  readonly operator: { storeHealth(): Promise<StoreHealth> };
}

const ATTEMPT_SECONDS = [0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600];
const RECOVERY_SECONDS = [0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120];

/** `early`: what was told before anybody could listen by name, by the recovery of `open` itself. It is counted too. */
export function processMetrics(
  engine: MeasuredProcess,
  registry: Registry,
  early: readonly EngineEvent[] = [],
): () => void {
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
  const stop = [...attempts(on, counter, histogram), ...deaths(on, counter, histogram), ...troubles(on, counter)];
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
    // Fenced out by somebody else: its own worker did not do it, so no `attempt.ended` comes.
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

function troubles(on: On, counter: MakeCounter): (() => void)[] {
  const stale = counter(
    "outlive_stale_writes_total",
    "Writes refused because the attempt did not own its job any more",
    "tried",
  );
  const heartbeats = counter("outlive_heartbeat_failures_total", "Heartbeats that could not be written");
  const store = counter("outlive_store_failures_total", "Failures of the store that the engine tries again after");
  const leases = counter("outlive_leases_lost_total", "Pauses of this process that were longer than its lease allows");
  const disowned = counter("outlive_disowned_total", "Times a worker of this process was taken for dead and lived");
  const blocked = counter("outlive_blocked_total", "Times the main loop stood still for more than a second");
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
