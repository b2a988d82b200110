// Maintenance: what is long or stuck there delays nothing else.
import { pause } from "../../../src/job/time.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only } from "./mutant.ts";

/** How long a purge of a large store takes. */
const PURGE_MS = 20_000;

/** Nothing goes wrong, except that wake-ups get lost and workers die now and then. */
const QUIET = { workers: 3, slow: 0, stall: 0, requestLost: 0, answerLost: 0, faultsMs: 40_000 } as const;
const NOTHING = { now: false, nextInMs: null } as const;

export const maintenanceMutants: readonly Mutant[] = [
  {
    name: "nobodyPollsForAll",
    what: "the elected process shows that it polls, finds nothing, and work whose wake-up was lost waits for a worker's own poll",
    focus: only(["money"], {}, { ...QUIET, workers: 1, jobs: 4 }),
    asks: (store) => withVerbs(store, { upkeep: { pending: async () => NOTHING } }),
  },
  {
    name: "roleOfTheDead",
    what: "once a worker has died no process polls for all any more, and the proofs that one does go on",
    focus: only(
      ["money"],
      { kill: 1 },
      { ...QUIET, workers: 2, jobs: 6, nemesisEveryMs: 12_000, locksProve: true, sessions: false },
    ),
    asks: (store) =>
      withVerbs(store, {
        upkeep: {
          async pending(kinds) {
            const workers = await store.workers({ which: "all" });
            return workers.some(({ state }) => state === "gone") ? NOTHING : store.upkeep.pending!(kinds);
          },
        },
      }),
  },
  {
    name: "purgeDelaysDetection",
    what: "while a purge goes on, which takes long, no lock is checked",
    focus: only(
      ["money"],
      { kill: 1 },
      {
        workers: 3,
        faultsMs: 60_000,
        nemesisEveryMs: 8_000,
        locksProve: true,
        sessions: false,
        slow: 0,
        stall: 0,
        requestLost: 0,
        answerLost: 0,
      },
    ),
    store(store, _db, clock) {
      let purging: Promise<unknown> = Promise.resolve();
      return withVerbs(store, {
        purge(request) {
          const purged = pause(clock, PURGE_MS).then(() => store.purge(request));
          purging = purged.catch(() => {});
          return purged;
        },
        workers: (query) => purging.then(() => store.workers(query)),
      });
    },
  },
];
