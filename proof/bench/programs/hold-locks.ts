// Many live workers in one process, as far as others can tell: real locks that are held, and rows that name them.
import { openSqlite } from "../../../src/stores/sqlite/open.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { newWorkerId, processIdentity } from "../../../src/platform/identity.ts";
import { given, serve } from "../program.ts";

const { path } = given<{ path: string }>();
const identity = processIdentity();
const events = { emit: () => {}, has: () => false };
const { store, liveness } = await openSqlite(
  { clock: systemClock, random: systemRandom, events, bootId: identity.bootId },
  { path, durability: "relaxed" },
);

// A lock that nothing refers to is closed by the garbage collector.
const held: unknown[] = [];

serve({
  hold: async ({ count }: { count: number }) => {
    const registered: Promise<unknown>[] = [];
    for (let n = 0; n < count; n++) {
      const id = newWorkerId(identity, systemRandom);
      const lock = await liveness.take(id);
      held.push(lock);
      const worker = {
        ...identity,
        id,
        predecessor: null,
        version: "bench",
        leaseMs: 90_000,
        concurrency: 10,
        kinds: ["noop"],
      };
      registered.push(store.register({ ...worker, lock: lock.evidence }));
    }
    await Promise.all(registered);
  },
});
