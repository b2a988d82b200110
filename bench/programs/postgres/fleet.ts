// Many workers in one process, as far as the server can tell: rows, locks that are held, and heartbeats, as fast as they are asked for.
import { Lookout } from "../../../src/core/lookout.ts";
import { expireOverdue } from "../../../src/core/recovery.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { newWorkerId, processIdentity } from "../../../src/platform/identity.ts";
import { addressOf } from "../../../src/stores/postgres/address.ts";
import { openPostgres } from "../../../src/stores/postgres/open.ts";
import { given, serve } from "../../program.ts";

const { url } = given<{ url: string }>();
const identity = processIdentity();
const events = { emit: () => {}, has: () => false };
const { store, liveness } = await openPostgres({ clock: systemClock, random: systemRandom, events }, addressOf(url), {
  durability: "full",
});
const lookout = new Lookout({ clock: systemClock, liveness, bootId: identity.bootId });
const ids: string[] = [];
const held: unknown[] = [];

serve({
  register: async ({ count }: { count: number }) => {
    for (let n = 0; n < count; n++) {
      const id = newWorkerId(identity, systemRandom);
      const lock = await liveness.take(id);
      held.push(lock);
      const worker = { ...identity, id, version: "bench", leaseMs: 30_000, concurrency: 10, kinds: ["noop"] };
      await store.register({ ...worker, lock: lock.evidence });
      ids.push(id);
    }
  },
  /** Every worker beats once. */
  beat: async () => {
    for (const id of ids)
      if (!(await store.beat(id, { loopLagMs: 1 })).live) throw new Error(`${id} is taken for dead`);
  },
  /** What the one process that looks for all does every 250 ms. */
  probe: async ({ times }: { times: number }) => {
    for (let n = 0; n < times; n++) await lookout.probe(await store.workers({}));
  },
  /** What each worker does every 7.5 s: its neighbours' locks, and jobs past their deadline. */
  look: async ({ times }: { times: number }) => {
    for (const id of ids.slice(0, times)) {
      await lookout.probe(await store.workers({ after: id, limit: 3 }));
      await expireOverdue({ store, events, random: systemRandom }, 0);
    }
  },
});
