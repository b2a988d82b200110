// Many workers in one process, as far as the server can tell: rows, locks that are held, and heartbeats, as fast as they are asked for.
import { systemClock, systemRandom } from "../../../../src/platform/clock.ts";
import { checkProcess, newWorkerId, processIdentity } from "../../../../src/platform/identity.ts";
import { FailureDetector } from "../../../../src/recovery/failure-detector.ts";
import { addressOf } from "../../../../src/stores/postgres/address.ts";
import { Connection, newClient } from "../../../../src/stores/postgres/connection.ts";
import { DirectSession } from "../../../../src/stores/postgres/direct-session.ts";
import { AdvisoryLiveness } from "../../../../src/stores/postgres/liveness.ts";
import { openPostgres } from "../../../../src/stores/postgres/open.ts";
import { countPresent } from "../../../../src/stores/postgres/workers.ts";
import { given, serve } from "../../program.ts";

const { url } = given<{ url: string }>();
const identity = processIdentity();
const events = { emit: () => {}, has: () => false };
const address = addressOf(url);
const deps = { clock: systemClock, random: systemRandom };
const { store, liveness } = await openPostgres({ ...deps, events }, address, { durability: "full" });
const detector = new FailureDetector({
  clock: systemClock,
  liveness,
  bootId: identity.bootId,
  processState: checkProcess,
});
/** One of those that do not look for all. */
const { client, schema } = address;
const connection = await Connection.open({ client, schema, max: 1 });
const session = new DirectSession({ ...deps, connect: () => newClient(client) });
const countWorkers = (): Promise<number> => countPresent(connection);
/** With a die that always says: ask. */
const follower = new AdvisoryLiveness({
  ...deps,
  random: { ...systemRandom, next: () => 0 },
  session,
  schema,
  contactMs: 3_000,
  countWorkers,
});
const followersDetector = new FailureDetector({
  clock: systemClock,
  liveness: follower,
  bootId: identity.bootId,
  processState: checkProcess,
});
const NEIGHBOURS = 8;
const ids: string[] = [];
const held: unknown[] = [];

serve({
  register: async ({ count }: { count: number }) => {
    for (let n = 0; n < count; n++) {
      const id = newWorkerId(identity, systemRandom);
      const lock = await liveness.take(id);
      held.push(lock);
      const worker = {
        ...identity,
        id,
        predecessor: null,
        version: "bench",
        leaseMs: 30_000,
        concurrency: 10,
        kinds: ["noop"],
      };
      await store.register({ ...worker, lock: lock.evidence });
      ids.push(id);
    }
  },
  /** Every worker beats once. */
  beat: async () => {
    for (const id of ids)
      if (!(await store.beat(id, { loopLagMs: 1 })).live) throw new Error(`${id} is taken for dead`);
  },
  /** What the others do now and then: ask for the place of the one that looks for all. */
  ask: async ({ times }: { times: number }) => {
    await liveness.leads!();
    for (let n = 0; n < times; n++) if (await follower.leads()) throw new Error("two look for all");
  },
  /** What the one process that looks for all does every 250 ms. */
  probe: async ({ times }: { times: number }) => {
    for (let n = 0; n < times; n++) await detector.probe(await store.workers({}));
  },
  /** What each worker does every 7.5 s: its neighbours' locks. */
  look: async ({ times }: { times: number }) => {
    for (const id of ids.slice(0, times))
      await followersDetector.probe(await store.workers({ after: id, limit: NEIGHBOURS }));
  },
});
