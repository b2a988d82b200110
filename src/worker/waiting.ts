// The waits of one attempt: `run.sleep`, `run.waitForSignal` and `run.wait`. Each has a position or a name in its handler, and its outcome is kept as
// a step. A wait that has not ended yet ends the attempt: its promise never settles, later calls of `run` reject, and the attempt ends
// when no call is under way. The next attempt comes to the same wait again and goes on after it.
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { isTerminal, type ClaimedJob } from "../job/job.ts";
import { durationMs } from "../job/time.ts";
import {
  type JobOutcome,
  jobsWait,
  type KeptWait,
  MAX_AWAITED,
  shownWait,
  type Wait,
  waitMismatch,
  WAIT_PREFIX,
} from "../job/waits.ts";
import type { AttemptWrite, ReadSignal } from "../stores/port.ts";
import { type AwaitedJob, awaitedJob, type SignalOptions, type WaitOptions } from "./run.ts";

/** What the waits ask of their attempt. */
export interface WaitingAttempt {
  readonly job: ClaimedJob;
  /** Under the attempt's lease. */
  write(write: AttemptWrite): Promise<ReadSignal | undefined>;
  outcomes(ids: readonly string[]): Promise<readonly JobOutcome[]>;
  /** Ends the attempt as waiting, at the end of this turn of the event loop at the earliest, when no call of `run` is under way. */
  end(): void;
}

/** Outcomes of other jobs are kept as a step up to this size. Of larger ones only which had not ended is kept (`unfinishedBits`), and each attempt reads the others again; the jobs stay as long as their parent is unfinished. */
const MAX_KEPT = 256 << 10;

export class Waits {
  readonly #attempt: WaitingAttempt;
  /** How many waits of each name the handler came to. */
  readonly #positions = new Map<string, number>();
  /** The wait from which the job was woken, until the handler has passed it. */
  #kept: KeptWait | null;
  /** The handler came to that wait. */
  #reached = false;
  #begun: Wait | null = null;

  constructor(attempt: WaitingAttempt) {
    this.#attempt = attempt;
    this.#kept = attempt.job.wait ?? null;
  }

  /** The attempt is about to end as waiting. */
  get begun(): Wait | null {
    return this.#begun;
  }

  /** The wait from which the job was woken, if the handler has not come to it; null: it has, or there was none. */
  get missed(): string | null {
    return this.#reached ? null : (this.#kept?.step ?? null);
  }

  /** The handler ended first: it did not await its wait. */
  drop(): void {
    this.#begun = null;
  }

  /** Refuses a call of `run` once a wait has begun. */
  assertNone(): void {
    if (this.#begun) throw afterWait(this.#id, this.#begun.step);
  }

  async sleep(forMs: number, name: string | undefined): Promise<void> {
    const step = this.#next(name === undefined ? "sleep" : `sleep(${name})`);
    if (this.#isKept(step)) return;
    const kept = this.#wokenFrom(step);
    if (!hasEnded(kept)) return this.#begin({ step, forMs: kept ? kept.remainingMs : forMs, until: null });
    await this.#attempt.write({ type: "step", name: step, result: null });
    this.#kept = null;
  }

  /** Null: it ended by time. */
  async signal<T>(name: string, timeoutMs: number | null, schema: SignalOptions<T>["schema"]): Promise<T | null> {
    const payload = await this.#signal(name, timeoutMs);
    return payload === null ? null : checkedSignal(schema, JSON.parse(payload), name, this.#id);
  }

  async #signal(name: string, timeoutMs: number | null): Promise<string | null> {
    const step = this.#next(`signal(${name})`);
    const before = this.#attempt.job.steps.find((one) => one.name === step);
    if (before) return before.result;
    const kept = this.#wokenFrom(step);
    const read = await this.#attempt.write({ type: "signal", step, name, hasEnded: hasEnded(kept) });
    if (!read?.kept) return this.#begin({ step, forMs: kept ? kept.remainingMs : timeoutMs, until: { signal: name } });
    this.#kept = null;
    return read.payload;
  }

  async jobs<R>(ids: readonly string[], timeoutMs: number | null): Promise<readonly AwaitedJob<R>[]> {
    return (await this.#outcomes(ids, timeoutMs)).map((one) => awaitedJob<R>(one));
  }

  async #outcomes(ids: readonly string[], timeoutMs: number | null): Promise<readonly JobOutcome[]> {
    if (ids.length > MAX_AWAITED)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Job ${this.#id} waits for ${ids.length} jobs at once, and at most ${MAX_AWAITED} are allowed.`,
        "Wait for them in parts.",
        { jobId: this.#id, jobs: ids.length },
      );
    const name = this.#next("wait");
    const step = jobsWait(name, ids);
    const before = this.#attempt.job.steps.find((one) => one.name === name || one.name.startsWith(`${name}@`));
    if (before) return this.#keptOutcomes(before as { name: string; result: string }, step, ids);
    const kept = this.#wokenFrom(step, name);
    const outcomes = await this.#attempt.outcomes(ids);
    if (outcomes.some(isUnfinished) && !hasEnded(kept))
      return this.#begin({ step, forMs: kept ? kept.remainingMs : timeoutMs, until: { jobs: ids } });
    const all = JSON.stringify(outcomes);
    const result = all.length <= MAX_KEPT ? all : JSON.stringify(unfinishedBits(outcomes));
    await this.#attempt.write({ type: "step", name: kept?.step ?? step, result });
    this.#kept = null;
    return outcomes;
  }

  async #keptOutcomes(
    { name, result }: { readonly name: string; readonly result: string },
    step: string,
    ids: readonly string[],
  ): Promise<readonly JobOutcome[]> {
    const kept = JSON.parse(result) as JobOutcome[] | string;
    const known = typeof kept === "string" ? ids : kept.map(({ id }) => id);
    // What an earlier version kept has the ids, and no mark in its name.
    if ((name.includes("@") ? name : jobsWait(shownWait(step), known)) !== step)
      throw waitMismatch(this.#id, name, step);
    if (typeof kept === "string") return asKept(kept, await this.#attempt.outcomes(ids));
    const byId = new Map(kept.map((one) => [one.id, one]));
    return ids.map((id) => byId.get(id)!);
  }

  get #id(): string {
    return this.#attempt.job.lease.jobId;
  }

  /** The step of the next wait of this sort. */
  #next(what: string): string {
    if (this.#begun) throw twoWaits(this.#id, this.#begun.step, `${WAIT_PREFIX}${what}`);
    const position = (this.#positions.get(what) ?? 0) + 1;
    this.#positions.set(what, position);
    return `${WAIT_PREFIX}${what}#${position}`;
  }

  #isKept(step: string): boolean {
    return this.#attempt.job.steps.some(({ name }) => name === step);
  }

  /** The wait that the job was woken from, which must be this one; null: it was not woken from a wait that is still to be passed. */
  #wokenFrom(step: string, earlierName = step): KeptWait | null {
    const kept = this.#kept;
    if (kept && kept.step !== step && kept.step !== earlierName) throw waitMismatch(this.#id, kept.step, step);
    this.#reached = true;
    return kept;
  }

  #begin(wait: Wait): Promise<never> {
    if (this.#begun) throw twoWaits(this.#id, this.#begun.step, wait.step);
    this.#begun = wait;
    this.#attempt.end();
    return new Promise<never>(() => {});
  }
}

/** The option `timeout` of a wait; null: none. */
export function timeoutOf({ timeout }: WaitOptions, jobId: string): number | null {
  return timeout === undefined ? null : durationMs(timeout, `The timeout of a wait of job ${jobId}`);
}

export function assertStepName(name: string, jobId: string): void {
  assertKey(name, `The step name of job ${jobId}`);
  if (!name.startsWith(WAIT_PREFIX)) return;
  throw new OutliveError(
    ErrorCode.keyInvalid,
    `The step ${JSON.stringify(name)} of job ${jobId} begins with "${WAIT_PREFIX}", which names the waits of a job.`,
    "Give the step another name.",
    { jobId, step: name },
  );
}

async function checkedSignal<T>(
  schema: SignalOptions<T>["schema"],
  payload: unknown,
  name: string,
  jobId: string,
): Promise<T> {
  if (schema === undefined) return payload as T;
  const checked = await schema["~standard"].validate(payload);
  if (checked.issues === undefined) return checked.value;
  throw new OutliveError(
    ErrorCode.inputInvalid,
    `The signal ${JSON.stringify(name)} of job ${jobId} does not fit its schema: ${checked.issues.map(({ message }) => message).join("; ")}.`,
    "It is kept as the outcome of this wait. Correct the schema, or cancel the job.",
    { jobId, signal: name },
  );
}

/** The moment of `run.sleepUntil`, in ms. */
export function instantOf(date: Date, jobId: string): number {
  if (date instanceof Date && Number.isFinite(date.getTime())) return date.getTime();
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `Job ${jobId} sleeps until ${String(date)}, which is not a date.`,
    "Pass a valid Date.",
    { jobId },
  );
}

/** What `run.results` returns. Throws if one of the jobs did not succeed. */
export function resultsOf<R>(jobId: string, jobs: readonly AwaitedJob<R>[]): readonly R[] {
  return jobs.map((one) => {
    if (one.state === "succeeded") return one.result;
    throw childFailed(jobId, one);
  });
}

function childFailed(jobId: string, child: AwaitedJob<unknown>): OutliveError {
  const error = "error" in child ? child.error : null;
  return new OutliveError(
    ErrorCode.childFailed,
    `Job ${jobId} waited for job ${child.id}, which is ${child.state}${error === null ? "" : `: ${error.message}`}.`,
    "Use `run.wait` to see how each job ended and go on without it.",
    { jobId, child: child.id, state: child.state, error },
  );
}

function isUnfinished({ state }: JobOutcome): boolean {
  return state !== "missing" && !isTerminal(state);
}

/** Which of them had not ended when the wait did, 24 in four characters, in the order of their ids: a replay may name them in another one. */
function unfinishedBits(outcomes: readonly JobOutcome[]): string {
  const bits = Buffer.alloc(Math.ceil(outcomes.length / 8));
  for (const [n, one] of inOrder(outcomes).entries()) if (isUnfinished(one)) bits[n >> 3]! |= 1 << (n & 7);
  return bits.toString("base64");
}

/** What is read now, with those as unfinished that were so when the wait ended: what a handler decided on stays the same. */
function asKept(bits: string, outcomes: readonly JobOutcome[]): readonly JobOutcome[] {
  const kept = Buffer.from(bits, "base64");
  const unfinished = new Set(inOrder(outcomes).flatMap(({ id }, n) => (kept[n >> 3]! & (1 << (n & 7)) ? [id] : [])));
  return outcomes.map((one) =>
    unfinished.has(one.id) ? { id: one.id, state: "queued", result: null, error: null } : one,
  );
}

function inOrder(outcomes: readonly JobOutcome[]): readonly JobOutcome[] {
  return outcomes.toSorted((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));
}

function hasEnded(kept: KeptWait | null): boolean {
  return kept !== null && kept.remainingMs !== null && kept.remainingMs <= 0;
}

function afterWait(jobId: string, step: string): OutliveError {
  return new OutliveError(
    ErrorCode.attemptWaits,
    `Job ${jobId} waits at ${shownWait(step)}, and its handler continued.`,
    "Await each wait before the next call of `run`. To stop waiting after a time, use the option `timeout`.",
    { jobId, step },
  );
}

function twoWaits(jobId: string, first: string, second: string): OutliveError {
  return new OutliveError(
    ErrorCode.waitMismatch,
    `Job ${jobId} began two waits at once: ${shownWait(first)} and ${shownWait(second)}.`,
    "Await one wait after the other. To stop waiting after a time, use the option `timeout`.",
    { jobId, first, second },
  );
}
