// Waiting: what an attempt waits for when it ends without holding a slot, a timer or memory. One mechanism for sleep, signals and other
// jobs. A wait is data: the store keeps it with the job, wakes the job when the time has come or the condition holds, and the next
// attempt replays the kept steps up to the same wait, whose outcome is kept as a step, too.
import type { Signal, SignalAnswer } from "../stores/port.ts";
import { assertKey } from "./enqueue.ts";
import { ErrorCode, OutliveError, type StoredError } from "./errors.ts";
import type { JobState } from "./job.ts";
import { encodeJson, type Json } from "./json.ts";
import { type Duration, durationMs } from "./time.ts";

export interface Wait {
  /** Which wait of the handler it is: the name of the step that keeps its outcome. */
  readonly step: string;
  /** When it ends by time, from now; null: never. */
  readonly forMs: number | null;
  /** What else ends it. Null: nothing, it is a sleep. */
  readonly until: WaitCondition | null;
}

/** A signal of this name, or the end of all these jobs. */
export type WaitCondition = { readonly signal: string } | { readonly jobs: readonly string[] };

/** The wait from which a job was claimed again. */
export interface KeptWait {
  readonly step: string;
  /** How long until it ends by time, by the store's clock; 0 or less: it has. Null: it never does. */
  readonly remainingMs: number | null;
}

/** At most this many jobs can be waited for at once. */
export const MAX_AWAITED = 100_000;
/** At most this many signals are kept for one job; a sender beyond it is refused. */
export const MAX_SIGNALS = 1_000;
/** Names that steps of waits have, and no step of a user's may begin with. */
export const WAIT_PREFIX = "run.";

/** The state of a job, for those that wait for its result. */
export interface JobOutcome {
  readonly id: string;
  /** "missing": there is no such job, or its retention has passed. */
  readonly state: JobState | "missing";
  /** JSON text of the result of a job that succeeded; null: it returned nothing. */
  readonly result: string | null;
  readonly error: StoredError | null;
}

/** A sentence about a wait, for history and `why`. */
export function waitText({ forMs, until }: Wait): string {
  const time = forMs === null ? "" : `${until === null ? "" : ", "}for ${until === null ? "" : "at most "}${forMs} ms`;
  if (until === null) return `sleeps ${time || "without an end"}`;
  if ("signal" in until) return `waits for the signal ${JSON.stringify(until.signal)}${time}`;
  return `waits for ${until.jobs.length === 1 ? "another job" : `${until.jobs.length} other jobs`}${time}`;
}

/** What a job waits for, by the step at which it waits: "run.sleep#1", "run.signal(approved)#1", "run.wait#1". */
export function awaitedAt(
  step: string,
): { readonly type: "sleep" } | { readonly type: "signal"; readonly name: string } | { readonly type: "jobs" } {
  const [, name] = /^run\.signal\((.*)\)#\d+$/.exec(step) ?? [];
  if (name !== undefined) return { type: "signal", name };
  return { type: step.startsWith(`${WAIT_PREFIX}wait#`) ? "jobs" : "sleep" };
}

/**
 * The step of a wait for other jobs says which jobs, whatever their order, so that a replay with other ids is found: "run.wait#1@1g2k9". A wait that an
 * earlier version began has no such mark.
 */
export function jobsWait(step: string, ids: readonly string[]): string {
  let sum = 0;
  for (const id of ids) {
    let [a, b] = [0x811c9dc5, 0x1b873593];
    for (let i = 0; i < id.length; i++) {
      a = Math.imul(a ^ id.charCodeAt(i), 0x01000193);
      b = Math.imul(b ^ id.charCodeAt(i), 0x5bd1e995) ^ (b >>> 15);
    }
    sum = (sum + (a >>> 0) * 2 ** 20 + (b >>> 12)) % 2 ** 52;
  }
  return `${step}@${sum.toString(36)}`;
}

/** The step of a wait as people know it. */
export function shownWait(step: string): string {
  return step.replace(/^(run\.wait#\d+)@\w+$/, "$1");
}

/** The handler's code is not the one that began the wait. */
export function waitMismatch(jobId: string, wait: string, found: string | null): OutliveError {
  const kept = shownWait(wait);
  const what =
    found === null
      ? "this attempt ended without coming to it"
      : shownWait(found) === kept
        ? "this attempt came to it with the ids of other jobs"
        : `this attempt came to ${shownWait(found)} first`;
  return new OutliveError(
    ErrorCode.waitMismatch,
    `Job ${jobId} waited at ${kept} and was woken, but ${what}.`,
    "A handler must reach the same waits in the same order in every attempt. Keep what it decides on in steps, and give a changed handler a new kind.",
    { jobId, kept, found: found === null ? null : shownWait(found) },
  );
}

/** Thrown by a handler to run the job again later. Nothing is counted toward its retry limits. */
export class RetryLater extends Error {
  override readonly name: string = "RetryLater";
  /** How long the job waits. */
  readonly delay: Duration;

  constructor(delay: Duration, reason = "the handler asked for it") {
    super(reason);
    durationMs(delay, "The delay of RetryLater");
    this.delay = delay;
  }
}

// From a call of `signal` to what is stored, and what came of it.

/** Options of a signal. */
export interface SentSignalOptions {
  /** Yours: sending it again with the same id adds nothing. Default: a new one. 1 to 255 characters. */
  readonly id?: string;
}

/** What came of a signal. */
export interface SentSignal {
  /** False: a signal with this id was kept before. */
  readonly created: boolean;
}

export function makeSignal(
  jobId: string,
  name: string,
  payload: Json | undefined,
  options: SentSignalOptions | undefined,
  newId: () => string,
): Signal {
  assertKey(jobId, "The job's id");
  assertKey(name, `The name of a signal to job ${jobId}`);
  const id = options?.id ?? newId();
  assertKey(id, `The id of a signal to job ${jobId}`);
  return { job: jobId, name, payload: encodeJson(payload ?? null, `The payload of a signal to job ${jobId}`), id };
}

/** Throws if it was refused. */
export function signalResult({ job: jobId, name }: Signal, answer: SignalAnswer): SentSignal {
  if (answer.is === "kept" || answer.is === "repeated") return { created: answer.is === "kept" };
  const [what, hint] =
    answer.is === "ended"
      ? [`it is ${answer.state}`, "Nothing was stored. Only unfinished jobs take signals."]
      : answer.is === "full"
        ? [
            `it has ${MAX_SIGNALS} unread signals`,
            "Nothing was stored. Send fewer, or have the job read them with `run.waitForSignal`.",
          ]
        : ["there is no such job", "Check the id; finished jobs are deleted after their retention."];
  const code = answer.is === "missing" ? ErrorCode.notFound : ErrorCode.signalRefused;
  throw new OutliveError(code, `The signal ${JSON.stringify(name)} to job ${jobId} was refused: ${what}.`, hint, {
    jobId,
    signal: name,
    why: answer.is,
  });
}
