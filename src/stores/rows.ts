// Between the rows of a store's tables, whose columns have the same names in all of them, and core's forms. Nothing here reads or
// writes. What is read for people is shown as it is found, also where somebody damaged it.
import { type ConfirmedTime, overdueBy } from "../core/confirmed-time.ts";
import type { StoredError } from "../core/errors.ts";
import {
  type Counters,
  type CrashAction,
  type HistoryEntry,
  isTerminal,
  JOB_STATES,
  type JobInfo,
  type KindSettings,
  OUTCOMES,
} from "../core/job.ts";
import { ANY_NUMBER, boundOf, isSuspect } from "../core/isolation.ts";
import type { WorkerRow, WorkerState } from "../core/liveness.ts";
import { NEVER_DUE } from "./codes.ts";

/** SQLite has no booleans: there it is 0 or 1. */
export type Flag = boolean | number;

export interface CounterColumns {
  readonly errors: number;
  readonly crashes: number;
  readonly blamed: number;
  readonly timeouts: number;
  readonly interruptions: number;
  readonly losses: number;
}

export function counters(row: CounterColumns): Counters {
  const { errors, crashes, blamed, timeouts, interruptions, losses } = row;
  return { errors, crashes, blamed, timeouts, interruptions, losses };
}

/** When a running job has to end; null: never. And how long its attempt may take in all. */
export interface ExpiryColumns {
  readonly id: string;
  readonly expires_at: number | null;
  readonly allowed_ms: number;
}

/** The job that is past its deadline and grace by the longest time, as far as that is confirmed; null: none is. */
export function longestOverdue(
  rows: readonly ExpiryColumns[],
  now: number,
  confirmed: ConfirmedTime | undefined,
): { readonly id: string; readonly overdueMs: number } | null {
  let longest: { readonly id: string; readonly overdueMs: number } | null = null;
  for (const { id, expires_at: expiresAt, allowed_ms: allowedMs } of rows) {
    if (expiresAt === null) continue;
    const overdueMs = overdueBy({ expiresAt, allowedMs }, now, confirmed);
    if (overdueMs !== null && overdueMs > (longest?.overdueMs ?? 0)) longest = { id, overdueMs };
  }
  return longest;
}

export interface KindColumns {
  readonly id: number;
  readonly name: string;
  readonly timeout_ms: number | null;
  readonly max_runtime_ms: number | null;
  readonly grace_ms: number;
  readonly max_errors: number;
  readonly max_timeouts: number;
  readonly max_crashes: number;
  readonly backoff_type: string;
  readonly backoff_base_ms: number;
  readonly backoff_max_ms: number;
  readonly backoff_jitter: number;
  readonly on_crash: string;
}

export function kindSettings(row: KindColumns): KindSettings {
  return {
    name: row.name,
    timeoutMs: row.timeout_ms,
    maxRuntimeMs: row.max_runtime_ms,
    graceMs: row.grace_ms,
    limits: { errors: row.max_errors, timeouts: row.max_timeouts, crashes: row.max_crashes },
    backoff: {
      type: row.backoff_type as "exponential" | "linear",
      baseMs: row.backoff_base_ms,
      maxMs: row.backoff_max_ms,
      jitter: row.backoff_jitter,
    },
    onCrash: row.on_crash as CrashAction,
  };
}

/** The columns of `jobInfo`: of the jobs as j, the kinds as k and the workers as w. */
export const JOB_COLUMNS = `j.seq, j.id, k.name AS kind, j.state, j.priority, j.dedupe_key, j.created_at, j.run_at, j.started_at, j.deadline_at,
  j.finished_at, w.id AS worker, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.together, j.outcome, j.error, j.cancel_requested`;

export interface JobColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: string;
  readonly state: number;
  readonly priority: number;
  readonly dedupe_key: string | null;
  readonly created_at: number;
  readonly run_at: number | null;
  readonly started_at: number;
  readonly deadline_at: number | null;
  readonly finished_at: number;
  readonly worker: string | null;
  readonly epoch: number;
  readonly fence: number;
  readonly together: number;
  readonly outcome: number | null;
  readonly error: string | null;
  readonly cancel_requested: Flag;
}

export function jobInfo(row: JobColumns): JobInfo {
  // Before the first claim and before the end these columns only hold their place (the tables of each store say why).
  const claimed = row.fence > 0;
  const state = JOB_STATES[row.state]!;
  const waitsForResolution = state === "queued" && row.run_at === NEVER_DUE;
  return {
    id: row.id,
    kind: row.kind,
    state,
    priority: row.priority,
    dedupeKey: row.dedupe_key,
    createdAt: row.created_at,
    runAt: waitsForResolution ? null : row.run_at,
    startedAt: claimed ? row.started_at : null,
    deadlineAt: claimed ? row.deadline_at : null,
    finishedAt: isTerminal(state) ? row.finished_at : null,
    worker: row.worker,
    epoch: claimed ? row.epoch : 0,
    fence: row.fence,
    counters: counters(row),
    together: isSuspect(row) && boundOf(row) < ANY_NUMBER ? boundOf(row) : 0,
    lastOutcome: row.outcome === null ? null : OUTCOMES[row.outcome]!,
    error: row.error === null ? null : storedError(row.error),
    cancelRequested: Boolean(row.cancel_requested),
    waitsForResolution,
  };
}

/** A damaged one is shown as it is found: it must not hide its job, nor the others of a list. */
function storedError(stored: unknown): StoredError {
  const text = asText(stored);
  try {
    const { name, message, ...more } = JSON.parse(text) as StoredError;
    if (typeof name === "string" && typeof message === "string") return { name, message, ...more };
  } catch {
    // Not JSON any more, or no object.
  }
  return { name: "Unreadable", message: `the stored error is damaged: ${text}` };
}

/** JSON that was stored, as its value; what is none any more as its text. */
export function storedValue(stored: unknown): unknown {
  if (stored === null) return null;
  const text = asText(stored);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A text column of a damaged row may hold a blob or a number. */
function asText(stored: unknown): string {
  if (typeof stored === "string") return stored;
  return stored instanceof Uint8Array ? Buffer.from(stored).toString() : JSON.stringify(stored);
}

export type HistoryColumns = Omit<HistoryEntry, "from" | "to"> & {
  readonly from_state: number;
  readonly to_state: number;
};

export function historyEntry(row: HistoryColumns): HistoryEntry {
  const { at, event, from_state, to_state, actor, epoch, fence, reason, incident } = row;
  const states = { from: JOB_STATES[from_state]!, to: JOB_STATES[to_state]! };
  return { at, event, ...states, actor, epoch, fence, reason, incident };
}

export interface WorkerColumns {
  readonly seq: number;
  readonly id: string;
  readonly state: string;
  readonly host: string;
  readonly boot_id: string;
  readonly namespace: string | null;
  readonly pid: number;
  readonly start_ticks: string | null;
  readonly predecessor: string | null;
  readonly version: string;
  readonly lease_ms: number;
  readonly concurrency: number;
  readonly kinds: string;
  readonly lock_name: string | null;
  readonly lock_identity: string | null;
  readonly started_at: number;
  readonly heartbeat_at: number;
  readonly beats: number;
  readonly loop_lag_ms: number;
  readonly last_word: string | null;
  readonly held_count: number;
  /** It came back with a backup. */
  readonly came_back: Flag;
}

export function workerRow(row: WorkerColumns): WorkerRow {
  return {
    id: row.id,
    state: row.state as WorkerState,
    host: row.host,
    bootId: row.boot_id,
    namespace: row.namespace,
    pid: row.pid,
    startTicks: row.start_ticks,
    predecessor: row.predecessor,
    version: row.version,
    leaseMs: row.lease_ms,
    concurrency: row.concurrency,
    kinds: JSON.parse(row.kinds) as string[],
    lock: { name: row.lock_name, identity: row.lock_identity },
    startedAt: row.started_at,
    heartbeatAt: row.heartbeat_at,
    beats: row.beats,
    loopLagMs: row.loop_lag_ms,
    heldCount: row.held_count,
    lastWord: row.last_word,
    ...(row.came_back ? { restored: true } : {}),
  };
}
