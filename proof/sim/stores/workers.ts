// The scripts about workers and about the store's own run: epoch, registering, beating, leaving.
import { leaseHash } from "../../../src/job/lease.ts";
import { withLastWord } from "../../../src/recovery/incident.ts";
import type { Resolution } from "../../../src/recovery/losses.ts";
import { isProof, type WorkerRecord as RegisteredWorker, type WorkerRow } from "../../../src/stores/liveness.ts";
import type { Beat, BeatAnswer, WorkerQuery } from "../../../src/stores/port.ts";
import { longestOverdue } from "../../../src/stores/rows.ts";
import type { Data, IncidentRecord, WorkerRecord } from "./records.ts";

/** There are no earlier versions of these records. */
export const SCHEMA_VERSION = 1;

/** What a connection got last, and passes with its next call. */
export interface Seen {
  readonly run: string | null;
  readonly epoch: number;
  readonly writes: number;
}

export function seenOf(data: Data): Seen {
  const { run, epoch, writes } = data.meta();
  return { run, epoch, writes };
}

/** Whether `begin` was called in this run of the server. Until then every script that writes is refused. */
export function hasBegun(data: Data): boolean {
  return data.meta().run === data.keys.run;
}

/**
 * A script of its own, called before the first one of a run of the server that writes: scripts of the former run may be lost, so the epoch
 * rises above all that any living process got, and the workers of that run are no longer live. An epoch that was issued and that
 * no living process knows of lies in the past of the server's clock, because a restart takes longer than epochs run ahead of it.
 */
export function begin(data: Data, seen: Seen): void {
  const { run, epoch, writes } = data.meta();
  if (hasBegun(data)) return;
  const isNew = run === null && seen.run === null;
  const behind = Math.max(0, seen.writes - writes);
  const lost = behind > 0 ? `, ${behind} write(s) behind what this process got as an answer` : "";
  data.putMeta({
    run: data.keys.run,
    epoch: Math.max(epoch + 1, seen.epoch + 1, data.now),
    writes: Math.max(writes, seen.writes),
    unreported: isNew ? null : `the server started again (${data.keys.run} after ${run ?? seen.run})${lost}`,
  });
}

export function raiseEpoch(data: Data): number {
  const epoch = Math.max(data.meta().epoch + 1, data.now);
  data.putMeta({ epoch });
  return epoch;
}

export function noticeRestore(data: Data): string | null {
  const { unreported } = data.meta();
  if (unreported !== null) data.putMeta({ unreported: null });
  return unreported;
}

/** Why the store is not the one that this worker registered with; null: it is. */
export function whyReplaced(data: Data, id: string): string | null {
  const worker = data.worker(id);
  if (worker === null) return `worker ${id} has no row in it`;
  const { run } = data.meta();
  return worker.run === run ? null : `the server started again (${run}) since worker ${id} registered (${worker.run})`;
}

/** The row of a worker as far as it may write; null: it has none in this run of the server. */
export function ownRow(data: Data, id: string): WorkerRecord | null {
  return whyReplaced(data, id) === null ? data.worker(id) : null;
}

export function register(data: Data, worker: RegisteredWorker): { epoch: number; now: number } {
  if (data.worker(worker.id) !== null) throw new Error(`Worker ${worker.id} has registered before.`);
  const { run, epoch } = data.meta();
  const { now } = data;
  const fresh = { beats: 0, loopLagMs: 0, lastWord: null, incident: null };
  data.putWorker({ ...worker, ...fresh, state: "live", startedAt: now, heartbeatAt: now, run: run! });
  if (worker.predecessor !== null) resolveLoss(data, worker.predecessor, "returned");
  return { epoch, now };
}

export function beat(data: Data, id: string, said: Beat): BeatAnswer {
  const { now } = data;
  const replaced = whyReplaced(data, id);
  const own = ownRow(data, id);
  const live = own?.state === "live";
  if (live) data.putWorker({ ...own, beats: own.beats + 1, heartbeatAt: now, loopLagMs: said.loopLagMs });
  if (said.lastWord !== undefined) noteDeath(data, id, said.lastWord);
  const held = own === null ? [] : data.held(id);
  const expiries = held.map((job) => {
    const { graceMs, timeoutMs } = data.kind(job.kind)!.settings;
    const expiresAt = job.deadlineAt === null ? null : job.deadlineAt + graceMs;
    return { id: job.id, expires_at: expiresAt, allowed_ms: (timeoutMs ?? 0) + graceMs };
  });
  const overdue = longestOverdue(expiries, now, said.confirmed);
  const leases = held.map(({ id: jobId, kind, row, epoch, fence, counters }) => ({
    lease: { jobId, kind, row, worker: id, epoch, fence },
    counters,
  }));
  return {
    live,
    ...(replaced !== null && { replaced }),
    now,
    held: { count: held.length, digest: held.reduce((sum, job) => sum + leaseHash(job), 0) },
    ...(said.leases && { leases }),
    overdueMs: overdue?.overdueMs ?? null,
    overdueJobId: overdue?.id ?? null,
    schemaVersion: SCHEMA_VERSION,
  };
}

/** In the worker's row, and in the evidence of its incident if there is one. */
export function noteDeath(data: Data, id: string, words: string): void {
  const worker = data.worker(id);
  if (worker === null) return;
  data.putWorker({ ...worker, lastWord: words });
  const incident = worker.incident === null ? null : data.incident(worker.incident);
  if (incident) data.putIncident({ ...incident, evidence: withLastWord(incident.evidence, words) });
}

export function leave(data: Data, id: string): boolean {
  const own = ownRow(data, id);
  if (own?.state !== "live" || data.holds(id)) return false;
  data.putWorker({ ...own, state: "stopped", heartbeatAt: data.now });
  return true;
}

export function listWorkers(data: Data, query: WorkerQuery): WorkerRow[] {
  const { which = "present", after = "", limit = Number.POSITIVE_INFINITY, heldIds } = query;
  const asked = data.workers().filter(({ id, state }) => {
    const isOver = state === "gone" || state === "stopped";
    const isAsked = which === "all" || (which === "present" ? !isOver : isOver && data.holds(id));
    return isAsked && id > after;
  });
  return asked.slice(0, limit).map((worker) => workerRow(data, worker, heldIds));
}

export function workerRow(data: Data, worker: WorkerRecord, heldIds?: number): WorkerRow {
  const { run, incident: _, ...row } = worker;
  const held = data.held(row.id);
  return {
    ...row,
    heldCount: held.length,
    ...(heldIds !== undefined && { heldIds: held.slice(0, heldIds).map(({ id }) => id) }),
    ...(run !== data.meta().run && { restored: true as const }),
  };
}

/** A loss of contact whose jobs are not all judged. */
export function isOpenLoss({ how, judgedAt }: IncidentRecord): boolean {
  return !isProof(how) && judgedAt === null;
}

/** The first resolution stands. */
export function resolveLoss(data: Data, worker: string, resolution: Resolution): Resolution | null {
  const open = data.incidents().filter((incident) => incident.worker === worker && isOpenLoss(incident));
  for (const incident of open) if (incident.resolution === null) data.putIncident({ ...incident, resolution });
  return open.length === 0 ? null : (open[0]!.resolution ?? resolution);
}
