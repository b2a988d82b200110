// How the end of an attempt that did not succeed becomes a change: what was thrown, together with why the attempt had been told to stop.
// The changes themselves are in transitions.ts.
import type { Random } from "./clock.ts";
import { ErrorCode, OutliveError, TerminalError, toStoredError } from "./errors.ts";
import type { Held } from "./held-jobs.ts";
import { backoffMs } from "./retry.ts";
import * as transitions from "./transitions.ts";

/** A held job as transitions look at it. */
export function viewOf(held: Held): transitions.JobView {
  return { id: held.run.id, state: "running", counters: held.job.counters };
}

/** The handler threw. If it had been told to stop, that is the reason, and not what it threw. A full or busy store costs the job nothing. */
export function changeOfThrown(held: Held, thrown: unknown, random: Random): transitions.Change {
  const trouble = troubleOfStore(thrown);
  switch (held.run.abortedBy) {
    case "shutdown":
      return transitions.release(viewOf(held), "its worker shut down");
    case "lease-lost":
      return transitions.release(viewOf(held), "its worker lost the lease");
    case "cancelled":
      return transitions.endCancelled(viewOf(held), "cancelled while it ran");
    case "timeout":
      // What it waited for in vain may have taken all of its time.
      return trouble === "busy" ? released(held, trouble, random) : timedOut(held, random);
    case undefined:
      return trouble ? released(held, trouble, random) : failed(held, thrown, random);
  }
}

/** The handler was told to stop and did not end within the grace. */
export function changeOfGivenUp(
  held: Held,
  why: NonNullable<Held["giveUp"]>["why"],
  random: Random,
): transitions.Change {
  const late = "its handler did not end within the grace";
  switch (why) {
    case "timeout":
      return timedOut(held, random);
    case "cancelled":
      return transitions.endCancelled(viewOf(held), `cancelled; ${late}`);
    case "lease-lost":
      return transitions.release(viewOf(held), `its worker lost the lease; ${late}`);
  }
}

/**
 * What the handler threw, or a cause of it, is the store's doing: a write was refused for lack of room, or something waited in vain
 * for the store (`data.costsAttempt` is false). Null: it is the handler's own.
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
/** A full or busy store is not the job's fault, and may be well again at any moment: the backoff grows no further than this. */
const MAX_WAIT_FOR_STORE_MS = 10_000;

function released(held: Held, trouble: "full" | "busy", random: Random): transitions.Change {
  const delayMs = usualDelayMs(held, held.job.counters.interruptions + 1, random);
  return transitions.release(viewOf(held), `the store was ${trouble}`, Math.min(delayMs, MAX_WAIT_FOR_STORE_MS));
}

function failed(held: Held, thrown: unknown, random: Random): transitions.Change {
  const { settings, delayMs: ownDelayMs } = held.kind;
  const terminal = thrown instanceof TerminalError;
  const failures = held.job.counters.errors + 1;
  let error = toStoredError(thrown);
  let delayMs = usualDelayMs(held, failures, random);
  try {
    if (ownDelayMs) delayMs = ownDelayMs(failures, error);
  } catch (ofBackoff) {
    // The user's own backoff failed: the default one stands in, and the error says so.
    const { message } = toStoredError(ofBackoff);
    error = { ...error, message: `${error.message} (and its backoff function threw: ${message})` };
  }
  return transitions.fail(viewOf(held), settings, error, delayMs, terminal);
}

function timedOut(held: Held, random: Random): transitions.Change {
  const delayMs = usualDelayMs(held, held.job.counters.timeouts + 1, random);
  return transitions.timeOut(viewOf(held), held.kind.settings, delayMs);
}

function usualDelayMs(held: Held, failures: number, random: Random): number {
  return backoffMs(held.kind.settings.backoff, failures, random.next());
}
