// How attempts end: what the engine asks for is not what happened, or the store writes something else than it was asked for.
import type { Lease } from "../../../src/job/lease.ts";
import type { Change } from "../../../src/job/transitions.ts";
import type { Settlement, Store, Verdict } from "../../../src/stores/port.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only } from "./mutant.ts";

/** Every end of an attempt that its own worker settles is another one. */
export function settling(end: (change: Change, lease: Lease) => Change): (store: Store) => Store {
  return (store) =>
    withVerbs(store, {
      turn: (worker, settlements, room) =>
        store.turn(
          worker,
          settlements.map((one): Settlement => ({ ...one, change: end(one.change, one.lease) })),
          room,
        ),
    });
}

function dead(change: Change): Change {
  return { ...change, to: "dead", delayMs: 0 };
}

/** The same job is dead. */
function ended(verdict: Verdict): Verdict {
  return { ...verdict, decision: "fail", change: verdict.change && dead(verdict.change) };
}

/** Whether this is a failure after which the job would be tried again. */
function isRetryable({ name, to }: Change): boolean {
  return name === "fail" && to === "queued";
}

export const endMutants: readonly Mutant[] = [
  {
    name: "failureWrittenDead",
    what: "a job is dead after its first failure, whatever its limit is",
    asks: settling((change) => (isRetryable(change) ? dead(change) : change)),
  },
  {
    name: "failureWrittenSucceeded",
    what: "a failure ends a job as a success",
    // Not those that commit: their ledger would tell.
    asks: settling((change, { jobId }) =>
      isRetryable(change) && jobId.startsWith("flaky")
        ? {
            ...change,
            name: "succeed",
            to: "succeeded",
            outcome: "succeeded",
            add: {},
            error: null,
            reason: null,
          }
        : change,
    ),
  },
  {
    name: "successWrittenFailed",
    what: "an attempt whose handler returned is counted as a failure, and the job runs again",
    // Once: a job that can't succeed at all is found by its limit.
    asks: settling((change, { fence }) =>
      change.name === "succeed" && fence === 1
        ? {
            ...change,
            name: "fail",
            to: "queued",
            outcome: "failed",
            add: { errors: 1 },
            result: null,
            reason: "it did not fail",
          }
        : change,
    ),
  },
  {
    name: "hopelessTriedAgain",
    what: "a terminal error is retried like any other",
    focus: only(["failures"], {}, {}),
    asks: settling((change) =>
      change.to === "dead" && change.reason?.startsWith("terminal") ? { ...change, to: "queued" } : change,
    ),
  },
  {
    name: "timeoutWrittenDead",
    what: "a job is dead after its first timeout, whatever ends the attempt",
    focus: only(["deadlines"], {}, {}),
    asks: (store) =>
      withVerbs(settling((change) => (change.name === "timeOut" ? dead(change) : change))(store), {
        takeBack: (request) =>
          store.takeBack(request.of ? request : { ...request, verdicts: request.verdicts.map(ended) }),
      }),
  },
  {
    name: "releaseWrittenDead",
    what: "a job that is released, as at every deploy, is dead",
    asks: settling((change) => (change.name === "release" ? dead(change) : change)),
  },
  {
    name: "crashWrittenDead",
    what: "an innocent job whose worker died is dead, although its kind says that it is tried again",
    asks: (store) =>
      withVerbs(store, {
        takeBack: (request) =>
          store.takeBack({
            ...request,
            verdicts: request.verdicts.map((verdict) =>
              request.of && verdict.decision === "retry" && !verdict.job.id.startsWith("poison")
                ? ended(verdict)
                : verdict,
            ),
          }),
      }),
  },
  {
    name: "successWrittenReleased",
    what: "a success is reported as applied, and the job is requeued",
    store: settling((change, { fence }) =>
      change.name === "succeed" && fence === 1
        ? {
            ...change,
            name: "release",
            to: "queued",
            outcome: "released",
            add: { interruptions: 1 },
            result: null,
            reason: "it was not released",
          }
        : change,
    ),
  },
  {
    name: "backoffForgotten",
    what: "a job that failed is ready at once, whatever its backoff says",
    store: settling((change) => ({ ...change, delayMs: 0 })),
  },
];
