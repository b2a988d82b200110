// The public surface of `outlive/client`: what a web process needs, and nothing that works or recovers.

export type { BatchInfo, OpenBatch, SubmitOptions } from "./batches/batch-client.ts";
export type { BatchContract } from "./batches/contract.ts";
export type { FailedBatchRow, ListedBatchRow } from "./batches/rows.ts";
export type { Client, EnqueueManyOptions, ListOptions, Report } from "./engine/client.ts";
export { type ClientOptions, connect } from "./engine/connect.ts";
export { batch, type BatchOptions } from "./engine/batch.ts";
export type {
  AuditOptions,
  BulkChange,
  BulkOptions,
  BulkProgress,
  BulkResult,
  PauseOptions,
} from "./engine/changes.ts";
export { collection } from "./engine/collection.ts";
export type { OutliveConfig } from "./engine/config.ts";
export type { FollowedJob, FollowOptions } from "./engine/follow.ts";
export type { Middleware } from "./engine/middleware.ts";
export type { JobToEnqueue } from "./job/around.ts";
export { job } from "./engine/options.ts";
export type { AuditAction, AuditRecord, By } from "./job/audit.ts";
export type { BatchState } from "./job/batches.ts";
export type { EnqueueOptions } from "./job/enqueue.ts";
export { ErrorCode, OutliveError } from "./job/errors.ts";
export type { Submitted } from "./job/submit.ts";
export { schedule } from "./schedules/declaration.ts";
