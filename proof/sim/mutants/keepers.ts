// Keepers: the thread that has to end its own process if a job blocks the loop.
import { instead } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

export const keeperMutants: readonly Mutant[] = [
  {
    name: "keeperNeverKills",
    what: "a keeper does not hear that a job is overdue, and leaves the process alone whose loop that job blocks",
    focus: only(["blockers"], {}, { slow: 0, stall: 0, requestLost: 0, answerLost: 0 }),
    store: (store) =>
      instead(store, {
        beat: async (worker, beat) => ({ ...(await store.beat(worker, beat)), overdueMs: null, overdueJobId: null }),
      }),
  },
];
