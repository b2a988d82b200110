// What a consumption and a publisher do with a broker that does not respond, or that closes what it has just opened. A proxy in front of a real broker makes
// it do so.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import amqplib from "amqplib";
import { ErrorCode } from "../../src/index.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import { amqpProxy, closeFrame, type AmqpProxy } from "../support/amqp-proxy.ts";
import { freshKind, sharedRabbitmq } from "../support/rabbitmq.ts";

const [OPEN_OK, CHANNEL_OPEN_OK, CHANNEL_CLOSE_OK, CONSUME] = ["10.41", "20.11", "20.41", "60.20"];
const [QUEUE_DECLARE, RETURN, ACK] = ["50.10", "60.50", "60.80"];
const CALL_MS = 10_000;
const MAX_FIRST_PAUSE_MS = 150;

/** A queue with one message, consumed through the proxy. Resolves when the message has come. */
async function consumed(t: TestContext, proxy: AmqpProxy, meanwhile?: () => Promise<void>): Promise<void> {
  const queue = freshKind();
  const model = await amqplib.connect(await sharedRabbitmq());
  const channel = await model.createConfirmChannel();
  await channel.assertQueue(queue, { durable: true });
  channel.sendToQueue(queue, Buffer.from("one"));
  await channel.waitForConfirms();
  const came = Promise.withResolvers<string>();
  const link = rabbitmq(proxy.url);
  const consumption = link.startConsuming([], () => {});
  t.after(async () => {
    await consumption.stop();
    await link.close();
    await channel.deleteQueue(queue);
    await model.close();
  });
  const handle = async ([one]: readonly { body: Uint8Array }[]): Promise<readonly "ack"[]> => {
    came.resolve(Buffer.from(one!.body).toString());
    return ["ack"];
  };
  consumption.set([{ queue, kind: "a", prefetch: 1, handle }]);
  await meanwhile?.();
  assert.equal(await came.promise, "one");
}

test("a broker that does not respond to a consume in its time: the connection ends, and a new one consumes", async (t) => {
  const dropped = Promise.withResolvers<void>();
  const again = Promise.withResolvers<void>();
  const proxy = await amqpProxy(t, await sharedRabbitmq(), {
    fromClient: ({ method, bytes }, connection) => {
      if (connection > 1) again.resolve();
      if (method !== CONSUME || connection > 1) return [bytes];
      dropped.resolve();
      return [];
    },
  });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  await consumed(t, proxy, async () => {
    await dropped.promise;
    t.mock.timers.tick(CALL_MS);
    // What follows the deadline is a few callbacks, and then the pause before the next connection.
    for (let turns = 0; turns < 10; turns++) await new Promise(setImmediate);
    t.mock.timers.tick(MAX_FIRST_PAUSE_MS);
    await again.promise;
    t.mock.timers.reset();
  });
  assert.equal(proxy.connections(), 2);
});

test("a broker that closes a connection in the packet that opens it: a new one is made, and consumes", async (t) => {
  const proxy = await amqpProxy(t, await sharedRabbitmq(), {
    fromBroker: ({ method, bytes }, connection) =>
      method === OPEN_OK && connection === 1 ? [bytes, closeFrame(0, 320, "CONNECTION_FORCED")] : [bytes],
  });
  await consumed(t, proxy);
  assert.equal(proxy.connections(), 2);
});

test("a broker that closes a channel in the packet that opens it: the connection stays, and another channel consumes", async (t) => {
  let [opened, closed] = [0, 0];
  const proxy = await amqpProxy(t, await sharedRabbitmq(), {
    fromBroker: ({ method, channel, bytes }) => {
      if (method === CHANNEL_OPEN_OK && opened++ === 0) return [bytes, closeFrame(channel, 541, "INTERNAL_ERROR")];
      return method === CHANNEL_CLOSE_OK && closed++ === 0 ? [] : [bytes];
    },
    // The broker has closed nothing, so it is asked to: the number of the channel is used again.
    fromClient: ({ method, channel, bytes }) =>
      method === CHANNEL_CLOSE_OK ? [closeFrame(channel, 200, "")] : [bytes],
  });
  await consumed(t, proxy);
  assert.equal(proxy.connections(), 1);
});

/** A queue that is there, and what asks the broker itself. `kinds`: their queues go with the test, too. */
async function withQueue(t: TestContext, kinds: readonly string[] = []) {
  const queue = freshKind();
  const model = await amqplib.connect(await sharedRabbitmq());
  const channel = await model.createConfirmChannel();
  await channel.assertQueue(queue, { durable: true });
  t.after(async () => {
    for (const kind of kinds)
      for (const name of ["part", "header", "parked"]) await channel.deleteQueue(`outlive.${kind}.${name}`);
    await channel.deleteQueue(queue);
    await model.close();
  });
  return { queue, channel };
}

test("a kind whose queues the broker refuses, and one about whose queues it does not respond, hold up nothing that is published or declared meanwhile", async (t) => {
  const [refused, silent, good] = [freshKind(), freshKind(), freshKind()];
  const { queue, channel } = await withQueue(t, [refused, good]);
  await channel.assertQueue(`outlive.${refused}.part`, { durable: true });
  const held: Buffer[] = [];
  let holds = true;
  const acked = Promise.withResolvers<void>();
  const proxy = await amqpProxy(t, await sharedRabbitmq(), {
    fromClient: ({ method, bytes }) => (method === QUEUE_DECLARE && bytes.includes(silent) ? [] : [bytes]),
    fromBroker: ({ method, bytes }) => {
      if (!holds) return [...held.splice(0), bytes];
      if (method !== ACK) return [bytes];
      held.push(bytes);
      acked.resolve();
      return [];
    },
  });
  const link = rabbitmq(proxy.url);
  t.after(() => link.close());
  const published = link.publish({ target: queue, body: 1, messageId: "m", headers: {} });
  const waits = assert.rejects(link.prepare({ kind: silent, queues: "shared" }, ""));
  await acked.promise;
  await assert.rejects(link.prepare({ kind: refused, queues: "shared" }, ""), { code: ErrorCode.brokerRefused });
  holds = false;
  await link.prepare({ kind: good, queues: "shared" }, "");
  await published;
  assert.equal(proxy.connections(), 1);
  await link.close();
  await waits;
});

test("of messages with the same id, those that no queue takes fail, and the other one does not", async (t) => {
  const { queue } = await withQueue(t);
  const nowhere = freshKind();
  const held: Buffer[] = [];
  let returns = 0;
  const acked = Promise.withResolvers<void>();
  const proxy = await amqpProxy(t, await sharedRabbitmq(), {
    fromBroker: ({ method, bytes }) => {
      if (method === RETURN) returns++;
      if (method !== ACK) return [bytes];
      held.push(bytes);
      acked.resolve();
      // The confirmation of the first one comes when the others are returned and not yet confirmed.
      return returns < 2 ? [] : held.splice(0);
    },
  });
  const link = rabbitmq(proxy.url);
  t.after(() => link.close());
  const publish = (target: string): Promise<void> => link.publish({ target, body: 1, messageId: "m", headers: {} });
  const routed = publish(queue);
  await acked.promise;
  const lost = [publish(nowhere), publish(nowhere)];
  for (const one of lost) await assert.rejects(one, { code: ErrorCode.brokerUnroutable });
  await routed;
});
