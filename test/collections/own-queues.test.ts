// Which queues are consumed where each collection has its own, on a real store with a broker that only notes what it is asked for.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Consuming, type ConsumingDeps } from "../../src/collections/consuming.ts";
import { EventBus } from "../../src/job/events.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { collection } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import type { Broker, Consumer } from "../../src/stores/broker.ts";
import { kind } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

const OPEN = 2_100;

test("with more open collections than a page has, the queues of each are consumed in its turn, the oldest first", async (t) => {
  const store = await openStore(systemClock, ":memory:");
  t.after(() => store.close());
  await store.declare([kind("scan")]);
  const collections = store.collections!;
  const scan = collection("scan", { series: ["files"], queues: "per-collection" });
  const { idleMs, totalMs, keepMs } = scan.settings;
  const ids = Array.from({ length: OPEN }, (_, n) => `tx-${n}`);
  const rest = { kind: "scan", input: "null", idleMs, totalMs, keepMs, follow: [] };
  await Promise.all(ids.map((id) => collections.open({ id, ...rest, series: [{ name: "files", expected: null }] })));
  const half = ids.slice(0, OPEN / 2);
  const toCollecting = { from: ["requested"], to: "collecting", why: null, follow: [] } as const;
  await Promise.all(half.map((id) => collections.step({ collection: id, ...toCollecting })));

  const sets: (readonly string[])[] = [];
  const first = Promise.withResolvers<void>();
  const broker = {
    place: "nowhere",
    consumes: [],
    wire: (kind: Parameters<Broker["wire"]>[0], id: string) => rabbitmq("amqp://nowhere").wire(kind, id),
    startConsuming: () => ({
      set: (consumers: readonly Consumer[]) => {
        const own = consumers.map(({ queue }) => queue).filter((queue) => queue.endsWith("-payload"));
        if (own.length === 0) return;
        sets.push(own.map((queue) => queue.slice("transaction-".length, -"-payload".length)));
        first.resolve();
      },
      stop: async () => {},
    }),
  };
  const turns: (() => void)[] = [];
  const readsAgain = Promise.withResolvers<number>();
  const clock = {
    after: (ms: number, then: () => void) => {
      if (ms < 1_000) turns.push(then);
      else readsAgain.resolve(ms);
      return () => {};
    },
  };
  const none = () => assert.fail("nothing comes");
  const deps = { broker, collections, blobs: {}, intake: () => ({}), events: new EventBus(toStoredError), clock };
  const unused = { enqueue: none, draft: none, newId: none, suspects: { areHeld: () => false, apart: none } };
  const consuming = new Consuming({ ...deps, ...unused } as unknown as ConsumingDeps, [scan as never]);
  await first.promise;
  assert.ok(sets[0]!.includes("tx-0"), "the oldest is among the first");
  for (let turn = 0; turn < Math.ceil(OPEN / sets[0]!.length); turn++) turns.pop()!();
  const seen = new Set(sets.flat());
  assert.deepEqual(
    ids.filter((id) => !seen.has(id)),
    [],
  );
  assert.equal(await readsAgain.promise, 2_000, "two full pages were read: as many rows in a second as with one");
  await consuming.stop();
});
