// What attempts come to: counted wrongly, told wrongly, remembered wrongly.
import { APPLIED, type Settlement, type WriteAnswer } from "../../src/core/store.ts";
import { afterTurns, instead } from "./instead.ts";
import type { Mutant, StoreMutation } from "./mutant.ts";

/** A turn whose answers about settlements are told differently. */
function telling(tell: (answer: WriteAnswer, settlement: Settlement) => WriteAnswer): StoreMutation {
  return afterTurns((answer, _db, settlements) => ({
    ...answer,
    settled: answer.settled.map((one, i) => tell(one, settlements[i]!)),
  }));
}

export const attemptMutants: readonly Mutant[] = [
  {
    name: "staleSaidApplied",
    what: "a stale settlement is answered as applied: the worker believes that its work counted",
    store: telling((answer) => (answer.is === "stale" ? APPLIED : answer)),
  },
  {
    name: "settleNotIdempotent",
    what: "a settlement that was accepted before is accepted again",
    store: telling((answer) => (answer.is === "repeated" ? APPLIED : answer)),
  },
  {
    name: "repeatSaidStale",
    what: "a repeated settlement is called stale, although it was this worker's own",
    store: telling((answer, { lease, change }) =>
      answer.is === "repeated"
        ? {
            is: "stale",
            stale: {
              lease,
              tried: change.name,
              state: "missing",
              worker: null,
              epoch: 0,
              fence: 0,
            },
          }
        : answer,
    ),
  },
  {
    name: "errorsNotCounted",
    what: "a failure is not counted: the job is tried for ever",
    store: (store) =>
      instead(store, {
        settleAndClaim: (worker, settlements, room) =>
          store.settleAndClaim(
            worker,
            settlements.map((one) => {
              const { change } = one;
              if (change.name !== "fail") return one;
              const counters = { ...change.counters, errors: change.counters.errors - 1 };
              return { ...one, change: { ...change, counters } };
            }),
            room,
          ),
      }),
  },
  {
    name: "countedAtTheClaim",
    what: "an attempt is counted when it is claimed, and again when it fails",
    store: afterTurns(({ claimed }, db) => {
      for (const { lease } of claimed)
        db.sql("UPDATE outlive_jobs SET errors = errors + 1 WHERE seq = ?").run(lease.row);
    }),
  },
  {
    name: "stepsForgotten",
    what: "a later attempt is not given the steps of the earlier ones",
    store: afterTurns((answer) => ({ ...answer, claimed: answer.claimed.map((job) => ({ ...job, steps: [] })) })),
  },
  {
    name: "refusalNotRecorded",
    what: "a refused write leaves no trace",
    store: afterTurns(({ settled }, db) => {
      if (settled.some(({ is }) => is === "stale"))
        db.exec("DELETE FROM outlive_history WHERE event = 'write.rejected'");
    }),
  },
];
