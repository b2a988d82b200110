// How workers on Redis hear of work, and of which process checks all of them.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { connect, type Wire } from "../../src/stores/redis/driver.ts";
import { SubscriptionLiveness } from "../../src/stores/redis/liveness.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { messageOf, wakeupChannel } from "../../src/stores/redis/wakeup.ts";
import { draft, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { job, open } from "../../src/index.ts";
import { untilTrue } from "../support/processes.ts";
import { ownRedis } from "../support/redis.ts";

function connectionTo(t: TestContext, url: string, luaClock?: string): Connection {
  const deps = { address: redisAddress(url), random: systemRandom, clock: systemClock };
  const connection = new Connection(luaClock === undefined ? deps : { ...deps, luaClock });
  t.after(() => connection.close());
  return connection;
}

/** What a process writes that is killed before it could send a wake-up. */
function silentStore(connection: Connection): Store {
  return redisStore({ connection, clock: systemClock, wakeups: null });
}

async function plain(t: TestContext, url: string): Promise<Wire> {
  const wire = await connect(redisAddress(url).wire);
  t.after(() => wire.close());
  return wire;
}

test("a worker that sleeps is woken by the write itself, although the process that wrote sends nothing", async (t) => {
  const server = await ownRedis(t);
  const mail = job<object>("mail");
  mail.handle(() => {});
  const engine = await open(server.url(), { jobs: [mail], logger: false, poll: "10m" });
  t.after(() => engine.close());
  await engine.start();
  const connection = connectionTo(t, server.url());
  const store = silentStore(connection);
  const sleeps = (): Promise<unknown> => connection.command("HGET", `${connection.tag}meta`, "asleep");
  for (const [id, delayMs] of [
    ["at-once", 0],
    ["later", 200],
  ] as const) {
    await untilTrue(sleeps, (asleep) => asleep === "1", "the worker sleeps");
    await store.enqueue([{ ...draft(id), delayMs }]);
    await untilTrue(
      () => engine.get(id),
      (job) => job?.state === "succeeded",
      `${id} has run`,
    );
  }
});

const SET_CLOCK = "local function NOW() return tonumber(redis.call('GET', 'clock')) end";

test("many small writes wake the workers that sleep once in 10 ms, and what comes in between is found by a turn that follows", async (t) => {
  const server = await ownRedis(t);
  const wire = await plain(t, server.url());
  const at = (ms: number): Promise<unknown> => wire.call(["SET", "clock", String(1_800_000_000_000 + ms)], 5_000);
  await at(0);
  const connection = connectionTo(t, server.url(), SET_CLOCK);
  const store = silentStore(connection);
  const heard: string[] = [];
  const ears = await plain(t, server.url());
  await ears.subscribe(wakeupChannel(connection.tag), (text) => heard.push(messageOf(text).is));
  /** A message that was sent before this one has arrived when this one has. */
  const wakes = async (): Promise<number> => {
    const before = heard.filter((one) => one === "proof").length;
    await wire.call(["PUBLISH", wakeupChannel(connection.tag), "proof 1"], 5_000);
    await untilTrue(
      async () => heard.filter((one) => one === "proof").length,
      (count) => count > before,
      "messages arrive",
    );
    return heard.filter((one) => one === "wake").length;
  };
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const turn = async () => store.turn("w", [], roomFor(9));

  await store.enqueue([draft("a")]);
  assert.equal(await wakes(), 0, "no worker sleeps yet");
  assert.equal((await turn()).claimed.length, 1);
  // It has room for more, and says that it sleeps.
  await store.enqueue([draft("b")]);
  assert.equal(await wakes(), 1);
  await at(3);
  const second = await turn();
  assert.deepEqual([second.claimed.length, second.nextDueInMs], [1, 7], "it comes back 10 ms after the wake-up");
  await store.enqueue([draft("c")]);
  await store.enqueue([draft("d")]);
  assert.equal(await wakes(), 1);
  await at(10);
  const third = await turn();
  assert.deepEqual([third.claimed.length, third.nextDueInMs], [2, null], "and sleeps after that");
  const released = await store.turn("w", [SETTLE.release(third.claimed[0]!)], roomFor(0));
  assert.equal(released.settled[0]!.is, "applied");
  assert.equal(await wakes(), 2, "what a turn queues again may be for another worker");
  await store.beat("w", { loopLagMs: 0 });
  assert.equal(await wakes(), 2);
});

test("the place of the process that checks all workers is free as soon as its subscription is gone, and others do not ask while they hear of it", async (t) => {
  const server = await ownRedis(t);
  const wire = await plain(t, server.url());
  const watcher = async (worker: string) => {
    const connection = connectionTo(t, server.url());
    const common = { connection, clock: systemClock, random: systemRandom, contactMs: 3_000 };
    const liveness = new SubscriptionLiveness({ ...common, ownWorker: worker });
    await connection.subscribe(wakeupChannel(connection.tag), (text) => {
      const message = messageOf(text);
      if (message.is === "proof") liveness.heardProof(message.forMs);
    });
    await liveness.take(worker);
    return { connection, liveness };
  };
  const [first, second] = [await watcher("w1"), await watcher("w2")];
  assert.equal(await first.liveness.leads(true), true);
  // It says so to the others, for three times as long as it takes to say so again.
  assert.ok(Number(await wire.call(["PTTL", "o:{outlive}:detector"], 5_000)) > 20_000);
  second.liveness.heardProof(30_000);
  const lead = async () =>
    String(await wire.call(["INFO", "commandstats"], 5_000)).match(/cmdstat_set:calls=(\d+)/)![1];
  const asked = await lead();
  assert.equal(await second.liveness.leads(), false);
  assert.equal(await lead(), asked, "nothing was sent");
  second.liveness.fleetChanged();
  assert.equal(await second.liveness.leads(), false, "the first one lives");
  await first.connection.close();
  await untilTrue(
    async () => {
      second.liveness.fleetChanged();
      return second.liveness.leads();
    },
    (leads) => leads,
    "the second one has the place",
  );
});
