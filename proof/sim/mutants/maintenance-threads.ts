// MaintenanceDeps: the thread that has to end its own process if a job blocks the loop.
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only } from "./mutant.ts";

export const threadMutants: readonly Mutant[] = [
  {
    name: "maintenanceNeverKills",
    what: "maintenance does not hear that a job is overdue, and leaves the process alone whose loop that job blocks",
    focus: only(["blockers"], {}, { slow: 0, stall: 0, requestLost: 0, answerLost: 0 }),
    store: (store) =>
      withVerbs(store, {
        beat: async (worker, beat) => ({ ...(await store.beat(worker, beat)), overdueMs: null, overdueJobId: null }),
      }),
  },
];
