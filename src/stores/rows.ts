// Between the rows of a store's tables, whose columns have the same names in all of them, and core's forms. Nothing here reads or
// writes. What is read for people is shown as it is found, also where it is damaged.
import { ErrorCode, OutliveError, type StoredError } from "../job/errors.ts";
import { ANY_NUMBER, boundOf, isSuspect } from "../job/isolation.ts";
import {
  type Counters,
  type CrashAction,
  type HistoryEntry,
  isTerminal,
  JOB_STATES,
  type JobInfo,
  type JobState,
  type KindRetention,
  type KindSettings,
  NO_COUNTERS,
  type Outcome,
  OUTCOMES,
} from "../job/job.ts";
import { HASH, type Lease } from "../job/lease.ts";
import { type JobOutcome, shownWait } from "../job/waits.ts";
import type { KeptBlock } from "./batches.ts";
import { type ConfirmedTime, overdueBy } from "../recovery/confirmed-time.ts";
import type { Incident, IncidentJob, IncidentSummary } from "../recovery/incident.ts";
import type { HeldJob, KindCounts } from "./port.ts";
import type { StoreNote } from "./store-parts.ts";
import type { WorkerRow, WorkerState } from "./liveness.ts";

/** SQLite has no booleans: there it is 0 or 1. */
type Flag = boolean | number;

/** The columns are named after the counters. */
export type CounterColumns = Counters;

export function counters(row: CounterColumns): Counters {
  const { errors, crashes, blamed, timeouts, interruptions, losses } = row;
  return { errors, crashes, blamed, timeouts, interruptions, losses };
}

/** A running job as recovery reads it. */
export interface HeldColumns extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly deadline_at: number | null;
  readonly last_step: string | null;
  /** The row of a block that had begun. */
  readonly begun: number | null;
}

export function heldJob(
  row: HeldColumns,
  rest: Pick<HeldJob, "worker" | "kind" | "deathsElsewhere" | "begun">,
): HeldJob {
  return {
    id: row.id,
    row: row.seq,
    state: "running",
    epoch: row.epoch,
    fence: row.fence,
    counters: counters(row),
    deadlineAt: row.deadline_at,
    lastStep: row.last_step,
    ...rest,
  };
}

/** How a job ended, as those that wait for its result read it. */
export interface OutcomeColumns {
  readonly id: string;
  readonly state: number;
  readonly result: string | null;
  readonly error: string | null;
}

/** In the order of `ids`; a job that was not found is missing. */
export function jobOutcomes(ids: readonly string[], rows: readonly OutcomeColumns[]): JobOutcome[] {
  const found = new Map(rows.map((row) => [row.id, row]));
  return ids.map((id) => {
    const row = found.get(id);
    if (!row) return { id, state: "missing", result: null, error: null };
    const error = row.error === null ? null : storedError(row.error);
    return { id, state: JOB_STATES[row.state]!, result: row.result, error };
  });
}

/** The row of a job whose settlement was refused. */
export interface SettledColumns {
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
  readonly outcome: number | null;
  readonly worker: string | null;
}

/** Whether the job succeeded by the attempt of this lease, and nothing has run it since. */
export function succeededBy(lease: Lease, row: SettledColumns): boolean {
  return (
    row.epoch === lease.epoch &&
    row.fence === lease.fence &&
    row.state !== STATE.running &&
    row.worker === lease.worker &&
    row.outcome === OUTCOME.succeeded
  );
}

/** When a running job has to end; null: never. And how long its attempt may take in all. */
export interface ExpiryColumns {
  readonly id: string;
  readonly expires_at: number | null;
  readonly allowed_ms: number;
}

const mixed = `(((j.seq & ${HASH.mask}) * ${HASH.row} + (j.epoch & ${HASH.mask}) * ${HASH.epoch} + (CAST(j.fence AS bigint) & ${HASH.mask}) * ${HASH.fence}) & ${HASH.mask})`;
/** `leaseHash` of the row j of a job, as both stores compute it. Fences are 32 bits wide on PostgreSQL, and a product of them would not fit. */
export const LEASE_HASH = `((${mixed} * ${mixed}) >> ${HASH.shift})`;

/** What a heartbeat reads of the jobs that its worker holds. */
export interface HeldColumns {
  readonly count: number;
  readonly digest: number;
  /** The earliest deadline; null: none of them has one. */
  readonly deadline_at: number | null;
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

/**
 * A crash action or a decision as it is stored. "requeue" was called "pending" by the first versions, whose workers may share the
 * store, and the functions of released PostgreSQL migrations compare with that word. So it is still what is stored.
 */
export function toStored(word: string): string {
  return word === "requeue" ? "pending" : word;
}

export function fromStored(word: string): string {
  return word === "pending" ? "requeue" : word;
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
    onCrash: fromStored(row.on_crash) as CrashAction,
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
  /** The id of the job that enqueued it, and the wait that it began last: from the tables that only some jobs have rows in. */
  readonly parent: string | null;
  readonly wait_step: string | null;
  /** JSON: the limit and the key of each of its keys; and the door at which it waits, by its place among them, or from -1 downward if it waits for the turn of that key. */
  readonly keys: string | null;
  readonly door: number | null;
  /** Of a debounced job. */
  readonly latest_at: number | null;
  /** Of a job that no attempt has begun. */
  readonly expires_at: number | null;
}

export function jobInfo(row: JobColumns): JobInfo {
  // Before the first claim and before the end these columns only hold their place (the tables of each store say why).
  const claimed = row.fence > 0;
  const state = JOB_STATES[row.state]!;
  // A block of a batch that is held has the same due time, and was never claimed.
  const waitsForResolution = claimed && state === "queued" && row.run_at === NEVER_DUE;
  const waits = state === "queued" && row.outcome === OUTCOME.waiting && row.run_at !== null;
  return {
    id: row.id,
    kind: row.kind,
    state,
    priority: row.priority,
    dedupeKey: row.dedupe_key,
    createdAt: row.created_at,
    runAt: row.run_at === NEVER_DUE || row.run_at === NO_TIMEOUT ? null : row.run_at,
    startedAt: claimed ? row.started_at : null,
    deadlineAt: claimed ? row.deadline_at : null,
    finishedAt: isTerminal(state) ? row.finished_at : null,
    worker: row.worker,
    epoch: claimed ? row.epoch : 0,
    attempt: row.fence,
    counters: counters(row),
    together: isSuspect(row) && boundOf(row) < ANY_NUMBER ? boundOf(row) : 0,
    lastOutcome: row.outcome === null ? null : OUTCOMES[row.outcome]!,
    error: row.error === null ? null : storedError(row.error),
    cancelRequested: Boolean(row.cancel_requested),
    parent: row.parent,
    waitsAt: waits && row.wait_step !== null ? shownWait(row.wait_step) : null,
    ...keysOf(row),
    ...(row.expires_at !== null && { expiresAt: row.expires_at }),
    ...(row.latest_at !== null && { latestAt: row.latest_at }),
    waitsForResolution,
  };
}

function keysOf({ state, keys, door }: JobColumns): Pick<JobInfo, "keys" | "heldBy"> {
  if (keys === null) return { keys: [], heldBy: null };
  const own = (JSON.parse(keys) as [string, string][]).map(([limit, key]) => ({ limit, key }));
  if (state !== STATE.queued || door === null) return { keys: own, heldBy: null };
  const turn = door < 0 ? own[-1 - door] : undefined;
  return { keys: own, heldBy: turn === undefined ? (own[door] ?? null) : { ...turn, turn: true } };
}

/** Where a queued job waits, as far as a promotion asks. */
export interface DelayColumns {
  readonly lane: number;
  readonly run_at: number | null;
  readonly outcome: number | null;
}

/** Whether a queued job waits for its time and for nothing else. */
export function isDelayed({ lane, run_at: runAt, outcome }: DelayColumns): boolean {
  return lane === LANE.delayed && runAt !== NEVER_DUE && outcome !== OUTCOME.waiting;
}

/** The pause of a kind. It may have ended although the row says that it is paused. */
export interface PauseColumns {
  readonly paused: Flag;
  readonly paused_at: number | null;
  readonly paused_until: number | null;
  readonly paused_by: string | null;
  readonly paused_reason: string | null;
}

export function kindPaused(row: PauseColumns, now: number): Pick<KindCounts, "paused" | "pause"> {
  if (!row.paused || (row.paused_until !== null && row.paused_until <= now)) return { paused: false };
  const { paused_at: at, paused_until: until, paused_by: by, paused_reason: reason } = row;
  // A version that knew no reasons has paused it.
  if (at === null) return { paused: true };
  return { paused: true, pause: { by: by ?? "", reason, at, until } };
}

/** How long finished jobs of a kind are kept, by the number of the state. Stored as JSON; null: as all others. */
export function retentionMs(stored: string | null, state: number, ofAllMs: number): number {
  if (stored === null) return ofAllMs;
  return (JSON.parse(stored) as KindRetention)[JOB_STATES[state] as keyof KindRetention] ?? ofAllMs;
}

/** The shortest time for which any finished job is kept. */
export function shortestRetention(stored: readonly (string | null)[], ofAllMs: number): number {
  const own = stored.flatMap((text) => (text === null ? [] : Object.values(JSON.parse(text) as KindRetention)));
  return Math.min(ofAllMs, ...own);
}

/** A damaged one is shown as it is found: it must not hide its job, nor the others of a list. */
export function storedError(stored: unknown): StoredError {
  const text = asText(stored);
  try {
    const { name, message, ...more } = JSON.parse(text) as StoredError;
    if (typeof name === "string" && typeof message === "string") return { name, message, ...more };
  } catch {
    // Not JSON any more, or no object.
  }
  return { name: "Unreadable", message: `the stored error is damaged: ${text}` };
}

/** JSON that was stored, as its value; a text that is no longer JSON as it is. */
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

export type HistoryColumns = Omit<HistoryEntry, "from" | "to" | "startedAt"> & {
  readonly from_state: number;
  readonly to_state: number;
  readonly started_at: number | null;
};

export function historyEntry(row: HistoryColumns): HistoryEntry {
  const {
    at,
    event,
    from_state,
    to_state,
    actor,
    epoch,
    attempt,
    started_at: startedAt,
    owner,
    reason,
    incident,
  } = row;
  const states = { from: JOB_STATES[from_state]!, to: JOB_STATES[to_state]! };
  return { at, event, ...states, actor, epoch, attempt, startedAt, owner, reason, incident };
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
  /** A JSON array; only if it was asked for. */
  readonly held_ids?: string;
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
    ...(row.held_ids !== undefined && { heldIds: JSON.parse(row.held_ids) as string[] }),
    lastWord: row.last_word,
    ...(row.came_back ? { restored: true } : {}),
  };
}

// The codes that stand for states, outcomes and lanes in the tables of every store.

/** Codes of states and outcomes: their places in core's lists, which only ever grow at the end. */
export const STATE = Object.fromEntries(JOB_STATES.map((state, code) => [state, code])) as Readonly<
  Record<JobState, number>
>;
export const OUTCOME = Object.fromEntries(OUTCOMES.map((outcome, code) => [outcome, code])) as Readonly<
  Record<Outcome, number>
>;

/** Where a queued job waits: for its time, for any worker, for one that holds few enough suspects, or for room of a key. */
export const LANE = { delayed: 0, open: 1, suspect: 2, held: 3 } as const;

/**
 * The due time of a delayed job that waits for no time, but until it is known what happened to the workers that held it
 * (core's losses.ts): the last millisecond of the year 9999. A lane of its own would need an index, and building one stops all
 * writers of a large table.
 */
export const NEVER_DUE = 253_402_300_799_999;
/** The due time of a job that waits for a signal or for other jobs and for no time. */
export const NO_TIMEOUT = NEVER_DUE - 1;

/** As `boundOf` in core's isolation.ts. `job` is the name of the row, with a dot, or nothing. */
export const boundSql = (job: string): string =>
  `CASE WHEN ${job}together > 0 THEN ${job}together WHEN ${job}crashes + ${job}losses > 1 THEN 1 ELSE ${ANY_NUMBER} END`;

// The cursor of a list of jobs: the row of the last job that was shown. Callers pass it on and read nothing from it.

export function cursorAt(row: number): string {
  return Buffer.from(`jobs ${row}`).toString("base64url");
}

export function rowOfCursor(cursor: string): number {
  const [, row] = /^jobs (\d{1,16})$/.exec(Buffer.from(String(cursor), "base64url").toString()) ?? [];
  if (row !== undefined) return Number(row);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(cursor)} is not a cursor of this list.`,
    "Pass `next` of the page before.",
    { after: cursor },
  );
}

// The rows of incidents.

export interface SummaryColumns {
  readonly id: string;
  readonly recovery: string;
  readonly worker: string;
  readonly how: Incident["how"];
  readonly resolution: Incident["resolution"];
  readonly detected_at: number;
  readonly completed_at: number | null;
}

export interface IncidentColumns extends SummaryColumns {
  readonly evidence: string | null;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly worker_started_at: number;
  readonly last_heartbeat_at: number;
  readonly last_seen_alive_at: number | null;
  readonly loop_lag_ms: number;
  readonly started_at: number;
  readonly recovered_by: string;
  readonly integrity: string;
  readonly wal_frames: number;
  readonly held_at_death: number;
}

export interface IncidentJobColumns {
  readonly incident: string;
  readonly job_id: string;
  readonly kind: string;
  readonly decision: string;
  readonly counters: string;
  readonly max_crashes: number;
  readonly fence: number;
  readonly last_step: string | null;
  readonly alone: Flag;
  readonly success: Flag;
  readonly error: string | null;
  readonly resumed_at: number | null;
}

export function incidentSummary(row: SummaryColumns, jobCount: number): IncidentSummary {
  const { id, recovery, worker, how, resolution, detected_at: detectedAt, completed_at: completedAt } = row;
  return { id, recovery, worker, how, resolution, detectedAt, completedAt, jobCount };
}

/** `jobs`: those of this incident, in the order in which they are shown. */
export function wholeIncident(row: IncidentColumns, jobs: readonly IncidentJobColumns[]): Incident {
  return {
    ...incidentSummary(row, jobs.length),
    host: row.host,
    pid: row.pid,
    version: row.version,
    workerStartedAt: row.worker_started_at,
    lastHeartbeatAt: row.last_heartbeat_at,
    lastSeenAliveAt: row.last_seen_alive_at,
    loopLagMs: row.loop_lag_ms,
    evidence: row.evidence,
    startedAt: row.started_at,
    by: row.recovered_by,
    integrity: row.integrity,
    summary: flushed(row.wal_frames),
    heldAtDeath: row.held_at_death,
    jobs: jobs.map(incidentJob),
  };
}

/** What an incident keeps of the open that it belongs to: how many frames of the write-ahead log were flushed. */
export function flushed(frames: number): StoreNote {
  return { lines: [`WAL Checkpointed: ${frames} frames`], facts: { walFramesCheckpointed: frames } };
}

/** The frames that `flushed` named. */
export function flushedFrames(summary: StoreNote | null): number {
  return Number(summary?.facts["walFramesCheckpointed"] ?? 0);
}

function incidentJob(row: IncidentJobColumns): IncidentJob {
  return {
    jobId: row.job_id,
    kind: row.kind,
    decision: fromStored(row.decision) as IncidentJob["decision"],
    // Counters of before losses were counted have none.
    counters: { ...NO_COUNTERS, ...(JSON.parse(row.counters) as Counters) },
    limit: row.max_crashes,
    fence: row.fence,
    lastStep: row.last_step,
    alone: Boolean(row.alone),
    success: Boolean(row.success),
    error: row.error,
    resumedAt: row.resumed_at,
  };
}

/** The job of a block, for those that list the rows of a batch. */
export function keptJob(state: number, input: string, marks: string, error: string | null): KeptBlock["job"] {
  return { state: JOB_STATES[state]!, input, marks, error: error === null ? null : storedError(error) };
}
