// Writes without a fence: a zombie's write ends, or adds to, an attempt that is not its own.
import type { AttemptWrite } from "../../../src/stores/port.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { present, refenced, refencing, rewriting } from "./instead.ts";
import { type Mutant, only, type StoreMutation, zombies } from "./mutant.ts";

/** A small write of this type is sent with a lease that fits. */
export function unfencedWrite(type: AttemptWrite["type"]): StoreMutation {
  return (store, db) =>
    withVerbs(store, {
      write: (writes) =>
        store.write(writes.map((one) => (one.write.type === type ? { ...one, lease: present(db, one.lease) } : one))),
    });
}

export const fenceMutants: readonly Mutant[] = [
  {
    name: "completeWithoutFence",
    what: "a success is written whichever worker owns the job by now",
    focus: { ...zombies("failures"), stall: 0.1 },
    store: refencing(({ name }) => name === "succeed"),
  },
  {
    name: "neighboursWithoutFence",
    what: "successes of neighbours are written together, whichever worker owns the jobs by now",
    focus: { ...zombies("ticks"), stall: 0.1, jobs: 200, concurrency: 20 },
    connection: rewriting([
      "AND state = 1 AND fence = ? AND epoch = ? AND worker = ? AND extras = ?",
      "AND state = 1 AND ? + ? + ? > 0 AND extras = ?",
    ]),
  },
  {
    name: "failWithoutFence",
    what: "a failure is written whichever worker owns the job by now",
    focus: zombies("failures"),
    store: refencing(({ name }) => name === "fail"),
  },
  {
    name: "releaseWithoutFence",
    what: "a release takes the job from whichever worker owns it by now",
    store: refencing(({ name }) => name === "release"),
  },
  {
    name: "commitWithoutFence",
    what: "the user's rows of a zombie appear",
    focus: zombies("money"),
    store: (store, db) =>
      withVerbs(store, {
        transactions: {
          commit: (settlement, ...rest) => store.transactions!.commit(refenced(db, settlement), ...rest),
        },
      }),
  },
  {
    name: "stepWithoutFence",
    what: "a zombie's step is kept",
    focus: zombies("steps"),
    store: unfencedWrite("step"),
  },
  {
    name: "progressWithoutFence",
    what: "a zombie's progress is shown",
    focus: zombies("steps"),
    store: unfencedWrite("progress"),
  },
  {
    name: "childWithoutFence",
    what: "a zombie enqueues children",
    focus: zombies("family"),
    store: unfencedWrite("enqueue"),
  },
  {
    name: "epochNotRaised",
    what: "an open that finds no live worker leaves the epoch as it is, so a lost fence is issued again",
    focus: only(["money"], { powerLoss: 1, kill: 0.3 }, { durability: "relaxed", nemesisEveryMs: 1_500 }),
    store: (store) => withVerbs(store, { upkeep: { raiseEpoch: async () => 0 } }),
  },
];
