// What attempts come to: counted wrongly, reported wrongly, remembered wrongly.
import type { Lease } from "../../../src/job/lease.ts";
import type { Change } from "../../../src/job/transitions.ts";
import { APPLIED, type Settlement, type WriteAnswer } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { applyChange } from "../../../src/stores/sqlite/settle.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { afterTurns } from "./instead.ts";
import { type Mutant, only, type StoreMutation } from "./mutant.ts";

/** A turn whose answers about settlements are changed. */
function telling(tell: (answer: WriteAnswer, settlement: Settlement) => WriteAnswer): StoreMutation {
  return afterTurns((answer, _db, settlements) => ({
    ...answer,
    settled: answer.settled.map((one, i) => tell(one, settlements[i]!)),
  }));
}

/** What the store writes for a failure, without asking whether it has written it before. */
function failAgain(db: Database, lease: Lease, change: Change, at: number): void {
  const { row: job, epoch, fence, worker } = lease;
  const of = { job, from: "running", actor: `worker/${worker}`, epoch, fence, incident: null } as const;
  applyChange(db, change, at, { sql: "seq = ?", values: [job] }, of);
}

export const attemptMutants: readonly Mutant[] = [
  {
    name: "staleSaidApplied",
    what: "a stale settlement is answered as applied: the worker believes that its work counted",
    store: telling((answer) => (answer.is === "stale" ? APPLIED : answer)),
  },
  {
    name: "settleNotIdempotent",
    what: "a failure whose answer was lost is counted and written again when it is repeated, whichever worker has the job by now",
    focus: only(["failures"], {}, { answerLost: 0.1, durability: "full" }),
    store: (store, db, clock) =>
      afterTurns((answer, _db, settlements) => ({
        ...answer,
        settled: answer.settled.map((one, i) => {
          const { lease, change } = settlements[i]!;
          if (one.is !== "repeated" || change.name !== "fail") return one;
          failAgain(db, lease, change, clock.now());
          return APPLIED;
        }),
      }))(store, db),
  },
  {
    name: "errorsNotCounted",
    what: "a failure is not counted: the job is tried forever",
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(
            worker,
            settlements.map((one) => {
              const { change } = one;
              return change.name === "fail" ? { ...one, change: { ...change, add: {} } } : one;
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
];
