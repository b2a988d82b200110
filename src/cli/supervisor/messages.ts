// What the supervisor and a worker process say to each other. Every message has `outlive`, so that what a user's handler sends over
// the same channel is never taken for one.
import type { EngineOptions } from "../../engine/options.ts";
import type { Events } from "../../job/events.ts";
import type { MetricsSnapshot } from "../../metrics.ts";

/** Patterns and the folder that they are relative to. */
export interface JobGlobs {
  readonly base: string;
  readonly patterns: readonly string[];
}

export type LogForm = "json" | "pretty";

/** What a worker process is told to do. Sent over the channel, because arguments are seen by every user of the machine. */
export interface WorkOrder {
  /** Which of the supervisor's places it fills: 1, 2, ... */
  readonly place: number;
  readonly store: string;
  readonly engine: Omit<EngineOptions, "jobs" | "logger" | "onEvent">;
  readonly globs: JobGlobs;
  readonly only: readonly string[] | null;
  readonly concurrency: number | Readonly<Record<string, number>> | null;
  /** How long running jobs may finish when nobody is left to say so (the supervisor died). */
  readonly graceMs: number;
  readonly log: LogForm;
  readonly colours: boolean;
  readonly metrics: boolean;
  /** Tell which files were loaded. */
  readonly watch: boolean;
}

/** A worker and the process that runs it, as that process knows itself. */
export type RegisteringWorker = Events["worker.registering"];

export type ToChild =
  | { readonly outlive: "work"; readonly order: WorkOrder }
  | { readonly outlive: "stop"; readonly graceMs: number }
  | { readonly outlive: "metrics"; readonly ask: number };

export type FromChild =
  /** It is about to register this worker. */
  | ({ readonly outlive: "registering" } & RegisteringWorker)
  /** The worker that it was about to register works. */
  | { readonly outlive: "registered" }
  | { readonly outlive: "ready"; readonly worker: string; readonly kinds: readonly string[] }
  /** It could not start, or can't go on; it ends now. `isFinal`: no other process of this supervisor would do better. */
  | { readonly outlive: "failed"; readonly message: string; readonly exitCode: number; readonly isFinal: boolean }
  | { readonly outlive: "loaded"; readonly files: readonly string[] }
  | { readonly outlive: "metrics"; readonly ask: number; readonly snapshot: MetricsSnapshot }
  /** It has drained and ends now; nothing was lost. */
  | { readonly outlive: "stopped"; readonly snapshot: MetricsSnapshot | null };

export function isFromChild(message: unknown): message is FromChild {
  return typeof message === "object" && message !== null && typeof (message as FromChild).outlive === "string";
}
