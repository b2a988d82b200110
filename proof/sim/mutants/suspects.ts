// With how many others suspects run.
import { instead, rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

/** Many deaths make many suspects. */
const SUSPECTS = only(
  ["money", "naps"],
  { kill: 2, killAll: 1 },
  {
    workers: 1,
    jobs: 30,
    faultsMs: 14_000,
    concurrency: 3,
    locksProve: true,
    sessions: false,
    nemesisEveryMs: 500,
    slow: 0,
    stall: 0,
    requestLost: 0,
    answerLost: 0,
  },
);

export const suspectMutants: readonly Mutant[] = [
  {
    name: "suspectsCrowded",
    what: "a worker is given suspects as if it held none",
    focus: SUSPECTS,
    store: (store) =>
      instead(store, {
        settleAndClaim: (worker, settlements, { total, kinds }) =>
          store.settleAndClaim(worker, settlements, { total, kinds }),
      }),
  },
  {
    name: "suspectsUnbounded",
    what: "the store gives out suspects however few others each may run with",
    focus: SUSPECTS,
    connection: rewriting(["WHEN together > 0 THEN together", "WHEN together > 0 THEN 99"]),
  },
];
