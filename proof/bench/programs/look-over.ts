// One liveness pass as a worker's maintenance makes it: all rows, every lock, every heartbeat counter.
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../../src/platform/identity.ts";
import { FailureDetector } from "../../../src/recovery/failure-detector.ts";
import { openSqlite } from "../../../src/stores/sqlite/open.ts";
import { given, serve } from "../program.ts";

const { path } = given<{ path: string }>();
const { bootId } = processIdentity();
const events = { emit: () => {}, has: () => false };
const { store, liveness } = await openSqlite({ clock: systemClock, random: systemRandom, events, bootId }, { path });
const detector = new FailureDetector({ clock: systemClock, liveness, processState: checkProcess, bootId });

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
    const dead = await detector.check(workers, 22_500);
    return { tookMs: performance.now() - from, readMs, workers: workers.length, dead: dead.length };
  },
});
