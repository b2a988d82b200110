// The public surface: a list that somebody typed.
export { job } from "./contract.ts";
export { attach, open } from "./open.ts";
export type { Engine, Health } from "./engine.ts";
export type { RecoverOptions } from "./recoveries.ts";
export type { Explanation } from "./why.ts";
export type { WorkerHandle } from "./worker-host.ts";
export type { Client, ClientOptions, EnqueueManyOptions, ListOptions, Report } from "./client.ts";
export { defineConfig, type OutliveConfig } from "./engine/config.ts";
export type { EngineOptions, WorkOptions } from "./engine/options.ts";
export type { BackoffOptions, KindOptions, RetryOptions } from "./engine/kind-options.ts";
export type { Handler, JobContract, TypedRun as Run } from "./core/contract.ts";
export type { Duration } from "./core/duration.ts";
export type { EnqueueOptions } from "./core/enqueue.ts";
export { ErrorCode, Interruption, OutliveError, type StoredError, TerminalError } from "./core/errors.ts";
export type { EngineEvent, EventName, Events } from "./core/events.ts";
export type { IncidentSummary } from "./core/incident.ts";
export type {
  Inconsistency,
  IntegrityCheck,
  IntegrityReport,
  Repair,
  RepairMode,
  RepairStep,
  Salvage,
  StoreFindings,
  Verdict,
} from "./core/integrity.ts";
export type { Counters, CrashAction, Enqueued, HistoryEntry, JobDetails, JobInfo, JobState } from "./core/job.ts";
export type { Json } from "./core/json.ts";
export type { WorkerRow } from "./core/liveness.ts";
export type { RecoveryReport } from "./core/report.ts";
export type { Backup, BackupOptions, KindCounts, ListPage } from "./core/store.ts";
export type { Logger } from "./telemetry/log.ts";
