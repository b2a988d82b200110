// Suspects that wait to run alone, and the workers that make room for them.
import { instead, rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

/** Many deaths make many suspects, and long jobs keep workers from becoming idle. */
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
    name: "suspectsFirstForever",
    what: "a worker stops claiming for a suspect until it is idle, however long its other jobs take",
    focus: SUSPECTS,
    asks: (store) =>
      instead(store, {
        settleAndClaim: (worker, settlements, { total, kinds, idle }) =>
          store.settleAndClaim(worker, settlements, { total, kinds, idle }),
      }),
  },
  {
    name: "reservationKept",
    what: "a worker that did not become idle in time claims other work and keeps the suspect reserved, so no other busy worker turns to it",
    focus: SUSPECTS,
    connection: rewriting(["SET reserved_by = NULL WHERE state = 0", "SET reserved_by = reserved_by WHERE state = 0"]),
  },
];
