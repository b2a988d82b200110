// The parked queue of a kind, whose messages a process takes one at a time: when it takes one, what happens while one can't be handled, and how the queues
// of several kinds wait for each other.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import amqplib, { type ConfirmChannel } from "amqplib";
import { Consuming, type ConsumingDeps } from "../../src/collections/consuming.ts";
import { collection } from "../../src/index.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import type { Broker, BrokerNews, Consumer } from "../../src/stores/broker.ts";
import { untilTrue } from "../support/processes.ts";
import { freshKind, sharedRabbitmq } from "../support/rabbitmq.ts";

/** This queue goes with the test. */
async function channelOf(t: TestContext, queue: string): Promise<ConfirmChannel> {
  const model = await amqplib.connect(await sharedRabbitmq());
  const channel = await model.createConfirmChannel();
  t.after(async () => {
    await channel.deleteQueue(queue);
    await model.close();
  });
  return channel;
}

async function consumed(t: TestContext, consumer: Consumer, news: (news: BrokerNews) => void = () => {}) {
  const link = rabbitmq(await sharedRabbitmq());
  const consumption = link.startConsuming([], news);
  t.after(async () => {
    await consumption.stop();
    await link.close();
  });
  consumption.set([consumer]);
  return consumption;
}

/** One after the other. */
function oneByOne(): NonNullable<Consumer["pulls"]>["whenFree"] {
  let last: Promise<unknown> = Promise.resolve();
  return (work) => {
    const working = last.then(work);
    last = working.catch(() => {});
    return working;
  };
}

test("a message that can't be handled stays in hand, at no cost to its count, and a suspect job has its turn between two attempts", async (t) => {
  const queue = freshKind();
  const channel = await channelOf(t, queue);
  await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
  channel.sendToQueue(queue, Buffer.from("one"), { persistent: true });
  await channel.waitForConfirms();
  const did: string[] = [];
  const [failing, handled] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const whenFree = oneByOne();
  const consumption = await consumed(t, {
    queue,
    kind: "a",
    prefetch: 1,
    pulls: { restMs: 0, whenFree },
    handle: async ([one]) => {
      did.push(`attempt, delivered ${one!.redelivered} times before`);
      failing.resolve();
      // Without its turn, the job would begin after the last of these.
      if (did.length < 4 && !did.includes("suspect job")) throw new Error("the blob store is away");
      handled.resolve();
      return ["ack"];
    },
  });
  await failing.promise;
  await whenFree(async () => void did.push("suspect job"));
  await handled.promise;
  const attempt = "attempt, delivered 0 times before";
  assert.deepEqual(did, [attempt, "suspect job", attempt]);
  await consumption.stop();
  assert.equal((await channel.checkQueue(queue)).messageCount, 0, "it was acknowledged");
});

test("a parked queue that the broker refuses is reported, and so is that it is consumed again", async (t) => {
  const queue = freshKind();
  const channel = await channelOf(t, queue);
  const news: string[] = [];
  const pulls = { restMs: 0, whenFree: oneByOne() };
  const consumer: Consumer = { queue, kind: "a", prefetch: 1, pulls, handle: async () => ["ack"] };
  await consumed(t, consumer, ({ state, text }) => text.includes(queue) && news.push(state));
  await untilTrue(
    () => news,
    ([first]) => first === "refused",
    "it is reported",
  );
  await channel.assertQueue(queue, { durable: true });
  await untilTrue(
    () => news,
    (all) => all.at(-1) === "connected",
    "so is its end",
  );
  assert.deepEqual(news, ["refused", "connected"]);
});

test("messages of the parked queues of two kinds are handled one after the other: the death of a process counts for one of them", async () => {
  let consumers: readonly Consumer[] = [];
  const broker = {
    place: "nowhere",
    consumes: [],
    wire: (...of: Parameters<Broker["wire"]>) => rabbitmq("amqp://nowhere").wire(...of),
    startConsuming: () => ({ set: (all: readonly Consumer[]) => (consumers = all), stop: async () => {} }),
  };
  const pauses: (() => void)[] = [];
  const clock = {
    after: (_ms: number, then: () => void) => {
      pauses.push(then);
      return () => {};
    },
  };
  const suspects = { areHeld: () => false, apart: <T>(_alone: boolean, work: () => Promise<T>) => work() };
  const unused = { collections: {}, blobs: {}, intake: () => ({}), events: new EventBus(toStoredError) };
  const kinds = ["a", "b"].map((name) => collection(name, { series: ["files"] }) as never);
  const consuming = new Consuming({ broker, clock, suspects, ...unused } as unknown as ConsumingDeps, kinds);
  const [first, second] = consumers.flatMap(({ pulls }) => pulls ?? []);
  const did: string[] = [];
  const [begun, gate] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const ofFirst = first!.whenFree(async () => {
    did.push("the first begins");
    begun.resolve();
    await gate.promise;
    did.push("the first fails");
    throw new Error("the blob store is away");
  });
  const ofSecond = second!.whenFree(async () => void did.push("the second begins"));
  await begun.promise;
  await new Promise(setImmediate);
  assert.deepEqual(did, ["the first begins"]);
  gate.resolve();
  await assert.rejects(ofFirst);
  await new Promise(setImmediate);
  assert.deepEqual([did.at(-1), pauses.length], ["the first fails", 1], "suspect jobs are claimed meanwhile");
  pauses[0]!();
  await ofSecond;
  assert.equal(did.at(-1), "the second begins");
  await consuming.stop();
  assert.equal(await second!.whenFree(async () => did.push("after the stop")), null);
});
