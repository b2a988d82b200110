// The public surface, as a list of names.

export type { Client, ClientOptions, EnqueueManyOptions, ListOptions, Report } from "./client.ts";
export type { BatchInfo, OpenBatch, SubmitOptions } from "./batches/batch-client.ts";
export type { Ingested } from "./batches/batch-worker.ts";
export type {
  BatchContract,
  BatchEnded,
  BlockRun,
  OutputFile,
  Row,
  RowRun,
  ScheduledFile,
} from "./batches/contract.ts";
export type { FailedBatchRow, ListedBatchRow } from "./batches/rows.ts";
export { batch, type BatchOptions } from "./engine/batch.ts";
export type { CollectionInfo, CollectionStarted, CollectOptions, SeriesInfo } from "./collections/collection-client.ts";
export type {
  Collected,
  CollectedPart,
  CollectionContract,
  CollectionEnded,
  RequestRun,
} from "./collections/contract.ts";
export { type Bytes, collection, type CollectionOptions } from "./engine/collection.ts";
export { defineConfig, type OutliveConfig } from "./engine/config.ts";
export type { Engine, Health } from "./engine/engine.ts";
export type {
  AuditOptions,
  BulkChange,
  BulkOptions,
  BulkProgress,
  BulkResult,
  PauseOptions,
} from "./engine/changes.ts";
export type { FollowedJob, FollowOptions } from "./engine/follow.ts";
export type { KeyLimits } from "./engine/key-limits.ts";
export {
  type BackoffOptions,
  job,
  type KeyLimitOptions,
  type KeyPauseOptions,
  type KindOptions,
  type LimitOptions,
  RELAXED_HEARTBEAT,
  type RetentionByState,
  type RetryOptions,
} from "./engine/options.ts";
export type { AttemptEnd, AttemptToRun, Middleware } from "./engine/middleware.ts";
export { attach, open } from "./engine/open.ts";
export type { Operator } from "./engine/operator.ts";
export type { Declared, EngineOptions, WorkOptions } from "./engine/options.ts";
export type { RecoverOptions } from "./engine/operator.ts";
export type { Explanation } from "./engine/why.ts";
export type { WorkerHandle } from "./engine/work.ts";
export type { Handler, JobContract, TypedRun as Run } from "./job/contract.ts";
export {
  type PlannedFor,
  schedule,
  type ScheduleDeclaration,
  type ScheduleOptions,
  type Scheduling,
} from "./schedules/declaration.ts";
export type {
  PreviewedOccurrence,
  ScheduleClient,
  ScheduleInfo,
  SchedulePauseOptions,
  SchedulesReview,
} from "./schedules/schedules.ts";
export type { AuditAction, AuditRecord, By } from "./job/audit.ts";
export type { Duration } from "./job/time.ts";
export type { JobToEnqueue } from "./job/around.ts";
export type { EnqueueOptions } from "./job/enqueue.ts";
export { ErrorCode, Interruption, OutliveError, type StoredError, TerminalError } from "./job/errors.ts";
export type { EngineEvent, EventName, Events } from "./job/events.ts";
export type { BatchState } from "./job/batches.ts";
export type { CollectionState, ParkedRow as ParkedMessage, PutAnswer } from "./job/collections.ts";
export type { Counters, CrashAction, Enqueued, HistoryEntry, JobDetails, JobId, JobInfo, JobState } from "./job/job.ts";
export type { Json } from "./job/json.ts";
export type { KeyState } from "./job/limits.ts";
export { RetryLater } from "./job/waits.ts";
export type { SubmittableBatch, Submitted, SubmittedWith } from "./job/submit.ts";
export type { IncidentSummary } from "./recovery/incident.ts";
export type { RecoveryReport } from "./recovery/incident.ts";
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
} from "./stores/store-parts.ts";
export type { WorkerRow } from "./stores/liveness.ts";
export type { Backup, BackupOptions, KindCounts, ListPage } from "./stores/port.ts";
export type { Logger } from "./telemetry/log.ts";
export type { AwaitedJob, FetchOptions, Scheduled, SignalOptions, SleepOptions, WaitOptions } from "./worker/run.ts";
