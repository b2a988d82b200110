// Turns the end of an attempt that did not succeed into a change: what the handler threw, and why the attempt had been
// asked to stop. The changes themselves are in transitions.ts.
import { NO_ENDS, RowsFailed } from "../job/batches.ts";
import { ErrorCode, OutliveError, TerminalError, toStoredError } from "../job/errors.ts";
import { backoffMs } from "../job/job.ts";
import { storableText } from "../job/text.ts";
import { durationMs, type Random } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import { RetryLater } from "../job/waits.ts";
import type { Attempt } from "./attempt.ts";

/** The part of an attempt that decides how it ends. */
type Ending = Pick<Attempt, "id" | "job" | "kind" | "abortedBy">;

/**
 * The handler threw. If it had been asked to stop, that is the reason, not what it threw. A full or busy store costs
 * the job nothing.
 */
export function changeOfThrown(attempt: Ending, thrown: unknown, random: Random): transitions.Change {
  const trouble = troubleOfStore(thrown);
  switch (attempt.abortedBy) {
    case "shutdown":
      return transitions.release(transitions.runningView(attempt.job), "its worker shut down");
    case "lease-lost":
      return transitions.release(transitions.runningView(attempt.job), "its worker lost the lease");
    case "cancelled":
      return transitions.endCancelled(transitions.runningView(attempt.job), "cancelled while it ran");
    case "timeout":
      // Waiting for a busy store may have used up all of its time.
      return trouble === "busy" ? released(attempt, trouble, random) : timedOut(attempt, random);
    case undefined:
      if (thrown instanceof RetryLater) return retriedLater(attempt, thrown);
      return trouble ? released(attempt, trouble, random) : failed(attempt, thrown, random);
  }
}

/** The handler was asked to stop and did not end within the grace. */
export function changeOfGivenUp(
  attempt: Ending,
  why: "timeout" | "cancelled" | "lease-lost",
  random: Random,
): transitions.Change {
  const late = "its handler did not end within the grace";
  switch (why) {
    case "timeout":
      return timedOut(attempt, random);
    case "cancelled":
      return transitions.endCancelled(transitions.runningView(attempt.job), `cancelled; ${late}`);
    case "lease-lost":
      return transitions.release(transitions.runningView(attempt.job), `its worker lost the lease; ${late}`);
  }
}

/**
 * The handler's error, or one of its causes, comes from the store: a write failed for lack of space, or a call timed
 * out waiting for the store (`data.costsAttempt` is false). Null: the error is the handler's own.
 */
export function troubleOfStore(thrown: unknown): "full" | "busy" | null {
  if (thrown instanceof TerminalError) return null;
  let error = thrown;
  for (let depth = 0; depth < MAX_CAUSES && error instanceof Error; depth++) {
    if (error instanceof OutliveError) {
      if (error.code === ErrorCode.storeFull) return "full";
      if (error.data["costsAttempt"] === false) return "busy";
    }
    error = error.cause;
  }
  return null;
}

const MAX_CAUSES = 10;
/**
 * A full or busy store is not the job's fault and may recover at any moment, so the backoff grows no further than this.
 */
const MAX_WAIT_FOR_STORE_MS = 10_000;

function released(attempt: Ending, trouble: "full" | "busy", random: Random): transitions.Change {
  const delayMs = usualDelayMs(attempt, attempt.job.counters.interruptions + 1, random);
  return transitions.release(
    transitions.runningView(attempt.job),
    `the store was ${trouble}`,
    Math.min(delayMs, MAX_WAIT_FOR_STORE_MS),
  );
}

function retriedLater(attempt: Ending, { delay, message }: RetryLater): transitions.Change {
  const delayMs = durationMs(delay, "The delay of RetryLater");
  return transitions.release(
    transitions.runningView(attempt.job),
    `runs again later: ${storableText(message, 500)}`,
    delayMs,
  );
}

function failed(attempt: Ending, thrown: unknown, random: Random): transitions.Change {
  const { settings, delayMs: ownDelayMs } = attempt.kind;
  const terminal = thrown instanceof TerminalError;
  const failures = attempt.job.counters.errors + 1;
  let error = toStoredError(thrown);
  let delayMs = usualDelayMs(attempt, failures, random);
  try {
    if (ownDelayMs) delayMs = ownDelayMs(failures, error);
  } catch (ofBackoff) {
    // The user's own backoff function threw: the default is used instead, and the error says so.
    const { message } = toStoredError(ofBackoff);
    error = { ...error, message: `${error.message} (and its backoff function threw: ${message})` };
  }
  const change = transitions.fail(transitions.runningView(attempt.job), settings, error, delayMs, terminal);
  // These rows had their last try. Every other row of the block has ended, so the block has done its work.
  if (thrown instanceof RowsFailed && change.to === "dead")
    return {
      ...transitions.succeed(transitions.runningView(attempt.job), null),
      rows: { ...NO_ENDS, failed: thrown.rows },
    };
  return change;
}

function timedOut(attempt: Ending, random: Random): transitions.Change {
  const delayMs = usualDelayMs(attempt, attempt.job.counters.timeouts + 1, random);
  return transitions.timeOut(transitions.runningView(attempt.job), attempt.kind.settings, delayMs);
}

function usualDelayMs(attempt: Ending, failures: number, random: Random): number {
  return backoffMs(attempt.kind.settings.backoff, failures, random.next());
}
