// The parts of scripts that are about waiting jobs. There are no wakes to act on later: a script that ends a job or keeps a signal also makes
// ready what waited for it, because nothing can come between.
import type { AuditEntry } from "../../../src/job/audit.ts";
import { isSuspect } from "../../../src/job/isolation.ts";
import { isTerminal } from "../../../src/job/job.ts";
import { type JobOutcome, type KeptWait, MAX_SIGNALS, type Wait } from "../../../src/job/waits.ts";
import type { AttemptWrite, ReadSignal, Signal, SignalAnswer } from "../../../src/stores/port.ts";
import { NO_TIMEOUT } from "../../../src/stores/rows.ts";
import { audit } from "./audit.ts";
import { rerun } from "./enqueue.ts";
import { type Data, type JobRecord, stepOwner, sumOf } from "./records.ts";

/** When a job that begins to wait is due: the wait's end by time, or never. */
export function waitDueAt({ forMs }: Wait, now: number): number {
  return forMs === null ? NO_TIMEOUT : now + forMs;
}

/** The job has just been queued as waiting. What it waits for may have come before. */
export function beginWait(data: Data, row: number, { step, forMs, until }: Wait): void {
  forgetAwaited(data, row);
  const signal = until !== null && "signal" in until ? until.signal : null;
  const jobs = until !== null && "jobs" in until ? until.jobs : null;
  const dueAt = forMs === null ? null : data.now + forMs;
  const awaited = (jobs ?? []).flatMap((id) => data.jobById(id)?.row ?? []);
  data.putWait(row, { step, dueAt, signal, awaited: jobs && awaited });
  for (const one of awaited) data.addWaiter(one, row, !isTerminal(data.job(one)!.state));
  if (until !== null) wakeIfEnded(data, row);
}

/** A job has ended, or was taken out of its end again. Every change of a job's state comes through here. */
export function consequences(data: Data, row: number, ended: boolean): void {
  if (ended) rerun(data, row);
  for (const waiter of data.waiters(row)) {
    data.addWaiter(row, waiter, !ended);
    if (ended) wakeIfEnded(data, waiter);
  }
}

/** Makes the job ready if what it waits for has come. A job that does not wait stays as it is: it may be in backoff. */
function wakeIfEnded(data: Data, row: number): void {
  const job = data.job(row);
  const wait = data.wait(row);
  if (job === null || wait === null || waitsAt(data, job) === null) return;
  const { signal, awaited } = wait;
  const hasEnded =
    signal === null
      ? awaited !== null && !data.awaitsAny(row)
      : data.signals(row).some(({ name, readAt }) => name === signal && readAt === null);
  if (hasEnded) data.putJob({ ...job, runAt: null });
}

/** The step at which the job waits; null: it does not wait, or has been woken. */
export function waitsAt(data: Data, { row, state, outcome, runAt }: JobRecord): string | null {
  return state === "queued" && outcome === "waiting" && runAt !== null ? (data.wait(row)?.step ?? null) : null;
}

/** The wait that the job's latest attempt began, if its outcome is not kept yet. */
export function keptWait(data: Data, row: number): KeptWait | null {
  const wait = data.wait(row);
  if (wait === null || data.steps(row).some(({ name }) => name === wait.step)) return null;
  return { step: wait.step, remainingMs: wait.dueAt === null ? null : wait.dueAt - data.now };
}

/** Removes what belongs to a job that is deleted. */
export function forgetWaits(data: Data, row: number): void {
  forgetAwaited(data, row);
  for (const waiter of data.waiters(row)) data.removeWaiter(row, waiter);
  // One that is due stays until the children are cancelled, also without the record of their parent.
  if (data.family(row)?.due === false) data.deleteFamily(row);
}

function forgetAwaited(data: Data, row: number): void {
  for (const one of data.wait(row)?.awaited ?? []) data.removeWaiter(one, row);
}

export function sendSignal(
  data: Data,
  { job: to, name, payload, id }: Signal,
  entry?: AuditEntry | null,
): SignalAnswer {
  const job = data.jobById(to);
  if (job === null) return { is: "missing" };
  const { row, state } = job;
  const signals = data.signals(row);
  if (signals.some((one) => one.id === id)) return { is: "repeated" };
  if (isTerminal(state)) return { is: "ended", state };
  if (signals.filter(({ readAt }) => readAt === null).length >= MAX_SIGNALS) return { is: "full" };
  data.putSignals(row, [...signals, { name, id, payload, readAt: null }]);
  wakeIfEnded(data, row);
  audit(data, entry, 1);
  return { is: "kept" };
}

/** By the attempt that owns the job. The signal is marked and its step is kept in one script, so it is read once. */
export function readSignal(
  data: Data,
  job: JobRecord,
  { step, name, hasEnded }: AttemptWrite & { type: "signal" },
): ReadSignal {
  const { now } = data;
  const { id, row, fence: attempt } = job;
  const steps = data.steps(row);
  // Its reply was lost, and it is asked again.
  const kept = steps.find((one) => one.name === step);
  if (kept) return { kept: true, payload: kept.result };
  const signals = data.signals(row);
  const found = signals.find((one) => one.name === name && one.readAt === null);
  if (!found && !hasEnded) return { kept: false };
  const payload = found?.payload ?? null;
  if (found)
    data.putSignals(
      row,
      signals.map((one) => (one === found ? { ...one, readAt: now } : one)),
    );
  data.putSteps(row, [
    ...steps,
    { name: step, result: payload, sum: sumOf(payload, stepOwner(id, step)), at: now, attempt },
  ]);
  if (isSuspect(job.counters)) data.putJob({ ...job, counters: { ...job.counters, crashes: 0, blamed: 0, losses: 0 } });
  return { kept: true, payload };
}

export function outcomes(data: Data, ids: readonly string[]): JobOutcome[] {
  return ids.map((id) => {
    const job = data.jobById(id);
    if (job === null) return { id, state: "missing", result: null, error: null };
    return { id, state: job.state, result: job.result, error: job.error };
  });
}
