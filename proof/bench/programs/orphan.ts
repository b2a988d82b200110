// One worker that claims everything there is, far more than a worker's options allow, to be killed with all of it.
import { openSqlite } from "../../../src/stores/sqlite/open.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { newWorkerId, processIdentity } from "../../../src/platform/identity.ts";
import { given, serve } from "../program.ts";

const { path } = given<{ path: string }>();
const identity = processIdentity();
const events = { emit: () => {}, has: () => false };
const { store, liveness } = await openSqlite(
  { clock: systemClock, random: systemRandom, events, bootId: identity.bootId },
  { path },
);

// A lock that nothing refers to is closed by the garbage collector.
let held: Awaited<ReturnType<typeof liveness.take>>;

serve({
  claim: async ({ kind, count }: { kind: string; count: number }) => {
    const id = newWorkerId(identity, systemRandom);
    held = await liveness.take(id);
    await store.register({
      ...identity,
      predecessor: null,
      id,
      version: "bench",
      leaseMs: 90_000,
      concurrency: count,
      kinds: [kind],
      lock: held.evidence,
    });
    const room = { total: count, kinds: [{ kind, room: count }] };
    return (await store.turn(id, [], room)).claimed.length;
  },
});
