// The way in: jobs are added, or an enqueue changes the unfinished job that has its dedupe key. Parts of scripts; each checks everything that can be
// wrong before its first write.
import { undeclaredKind } from "../../../src/job/errors.ts";
import { type Enqueued, isTerminal, type JobDraft, NO_COUNTERS } from "../../../src/job/job.ts";
import { type Data, isDue, isHeld, type JobRecord, NOT_ADMITTED, sumOf } from "./records.ts";

export function enqueue(data: Data, drafts: readonly JobDraft[]): Enqueued[] {
  assertDeclared(data, drafts);
  return insertJobs(data, drafts);
}

export function assertDeclared(data: Data, drafts: readonly { readonly kind: string }[]): void {
  for (const { kind } of drafts) if (data.kind(kind) === null) throw undeclaredKind(kind);
}

/** `parent`: the row of the job that enqueues them. */
export function insertJobs(data: Data, drafts: readonly JobDraft[], parent: number | null = null): Enqueued[] {
  return drafts.map((draft) => {
    const { id, kind, dedupeKey } = draft;
    if (data.jobById(id) !== null) return { id, created: false };
    const holder = data.keyHolder(kind, dedupeKey);
    if (holder !== null) return meet(data, holder, draft);
    insert(data, draft, parent, latestOf(draft, data.now));
    return { id, created: true };
  });
}

function insert(data: Data, draft: JobDraft, parent: number | null, latestAt: number | null): void {
  const { now } = data;
  const { id, kind, input, priority, dedupeKey, keys = [], fair = null, trace = null } = draft;
  const row = data.meta().lastRow + 1;
  data.putMeta({ lastRow: row });
  const runAt = runAtOf(draft, now, latestAt);
  data.putJob({
    row,
    id,
    kind,
    state: "queued",
    priority,
    dedupeKey,
    createdAt: now,
    runAt,
    startedAt: now,
    deadlineAt: null,
    finishedAt: now,
    worker: null,
    epoch: 0,
    fence: 0,
    counters: NO_COUNTERS,
    together: 0,
    outcome: null,
    error: null,
    cancelRequested: false,
    incident: null,
    input,
    inputSum: sumOf(input, id),
    result: null,
    resultSum: null,
    progress: null,
    parent,
    keys,
    fair,
    ...NOT_ADMITTED,
    latestAt,
    expiresAt: expiryOf(draft, runAt, now),
    trace,
  });
}

function expiryOf({ expiresMs }: JobDraft, runAt: number | null, now: number): number | null {
  return expiresMs === undefined ? null : Math.max(now, runAt ?? now) + expiresMs;
}

/** When a draft is due; null: at once. A debounced one waits again, but not beyond `latestAt`. */
function runAtOf({ dedupe, runAt, delayMs }: JobDraft, now: number, latestAt: number | null): number | null {
  if (dedupe?.debounce) return Math.min(now + dedupe.debounce.waitMs, latestAt ?? Number.MAX_SAFE_INTEGER);
  return runAt ?? (delayMs > 0 ? now + delayMs : null);
}

function latestOf({ dedupe }: JobDraft, now: number): number | null {
  const maxMs = dedupe?.debounce?.maxMs ?? null;
  return maxMs === null ? null : now + maxMs;
}

/** An unfinished job has the dedupe key of this draft. */
function meet(data: Data, holder: JobRecord, draft: JobDraft): Enqueued {
  const { id } = holder;
  if (draft.dedupe === undefined) return { id, created: false };
  if (holder.state === "queued" && holder.fence === 0) {
    replace(data, holder, draft);
    return { id, created: false, became: "replaced" };
  }
  if (draft.dedupe.then === "replace") return { id, created: false };
  markRerun(data, holder, draft);
  return { id, created: false, became: "rerun" };
}

/** The job has not begun: whatever runs it will see this input. It is admitted again. */
function replace(data: Data, holder: JobRecord, draft: JobDraft): void {
  const { now } = data;
  const { input, priority, keys = holder.keys } = draft;
  const fair = draft.keys === undefined ? holder.fair : (draft.fair ?? null);
  const latestAt = holder.latestAt ?? latestOf(draft, now);
  const runAt = runAtOf(draft, now, latestAt) ?? (isDue(holder, now) || isHeld(holder, now) ? null : holder.runAt);
  const inputSum = sumOf(input, holder.id);
  const expiresAt = expiryOf(draft, runAtOf(draft, now, latestAt), now);
  data.putJob({ ...holder, input, inputSum, priority, runAt, keys, fair, latestAt, expiresAt, ...NOT_ADMITTED });
}

/** The job has begun: it may have read an older state already. The latest draft is kept, and becomes a job when this one has ended. */
function markRerun(data: Data, { row }: JobRecord, draft: JobDraft): void {
  const latestAt = data.rerun(row)?.latestAt ?? latestOf(draft, data.now);
  const runAt = runAtOf(draft, data.now, latestAt);
  data.putRerun(row, { draft: { ...draft, runAt, delayMs: 0 }, latestAt });
}

/** A job that was enqueued again after it had begun, and has ended, runs again. Its key is free: nothing comes between. */
export function rerun(data: Data, row: number): void {
  const kept = data.rerun(row);
  if (kept === null || !isTerminal(data.job(row)!.state)) return;
  data.deleteRerun(row);
  const { dedupe: _, ...draft } = kept.draft;
  if (data.jobById(draft.id) === null) insert(data, draft, null, kept.latestAt);
}
