// One liveness pass as a worker's keeper makes it: all rows, every lock, every heartbeat counter.
import { Lookout } from "../../../src/core/lookout.ts";
import { openSqlite } from "../../../src/stores/sqlite/open.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../../src/platform/identity.ts";
import { given, serve } from "../program.ts";

const { path } = given<{ path: string }>();
const { bootId } = processIdentity();
const events = { emit: () => {}, has: () => false };
const { store, liveness } = await openSqlite({ clock: systemClock, random: systemRandom, events, bootId }, { path });
const lookout = new Lookout({ clock: systemClock, liveness, processState: checkProcess, bootId });

export interface Pass {
  readonly tookMs: number;
  readonly readMs: number;
  readonly workers: number;
  readonly dead: number;
}

serve({
  look: async (): Promise<Pass> => {
    const from = performance.now();
    const workers = await store.workers({});
    const readMs = performance.now() - from;
    const dead = await lookout.look(workers, 22_500);
    return { tookMs: performance.now() - from, readMs, workers: workers.length, dead: dead.length };
  },
});
