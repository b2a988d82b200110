// Maintenance: what is long or stuck there delays nothing else.
import { pause } from "../../../src/job/time.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only } from "./mutant.ts";

/** How long a purge of a large store takes. */
const PURGE_MS = 20_000;

export const maintenanceMutants: readonly Mutant[] = [
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
