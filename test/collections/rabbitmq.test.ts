// Collections from a real RabbitMQ: the wire as producers see it, every bad message with its reason, and what a consumer on Outlive gets.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import amqplib, { type ConfirmChannel } from "amqplib";
import { collection, type Engine, type EngineOptions, ErrorCode, job, open, TerminalError } from "../../src/index.ts";
import { keptInHandMs } from "../../src/brokers/rabbitmq/handling.ts";
import { fileSystem } from "../../src/blobs.ts";
import { MAX_ALONE, MAX_IN_COMPANY } from "../../src/collections/messages.ts";
import { type Rabbitmq, rabbitmq } from "../../src/rabbitmq.ts";
import { PATIENT, untilTrue } from "../support/processes.ts";
import { freshKind, sharedRabbitmq, untilGone } from "../support/rabbitmq.ts";
import { RedisServer } from "../support/redis.ts";
import { SmallDisk } from "../support/small-disk.ts";

const EXCHANGE = "outlive.collections";

/** A producer in another program: plain AMQP, persistent, mandatory, confirmed. */
class Producer {
  readonly channel: ConfirmChannel;
  readonly kind: string;

  constructor(channel: ConfirmChannel, kind: string) {
    this.channel = channel;
    this.kind = kind;
  }

  async send(key: string, body: Buffer, headers: Record<string, unknown>, exchange = EXCHANGE): Promise<void> {
    let returned = false;
    this.channel.once("return", () => (returned = true));
    this.channel.publish(exchange, key, body, { persistent: true, mandatory: true, headers });
    await this.channel.waitForConfirms();
    this.channel.removeAllListeners("return");
    assert.equal(returned, false, `${key} was routed`);
  }

  part(id: string, series: string, ordinal: unknown, text: string, more: Record<string, unknown> = {}): Promise<void> {
    const headers = { "outlive-collection": id, "outlive-series": series, "outlive-ordinal": ordinal, ...more };
    return this.send(`${this.kind}.part`, Buffer.from(text), headers);
  }

  header(id: string, series: Record<string, unknown>): Promise<void> {
    return this.send(`${this.kind}.header`, Buffer.from(JSON.stringify({ series })), { "outlive-collection": id });
  }
}

async function channelOf(t: TestContext): Promise<ConfirmChannel> {
  const model = await amqplib.connect(await sharedRabbitmq());
  model.on("error", () => {});
  t.after(() => model.close().catch(() => {}));
  const channel = await model.createConfirmChannel();
  channel.on("error", () => {});
  return channel;
}

async function place(t: TestContext, jobs: NonNullable<EngineOptions["jobs"]>, broker = rabbitmq, url?: string) {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const link = broker(url ?? (await sharedRabbitmq()));
  const engine = await open(`sqlite:${join(folder, "jobs.db")}`, {
    jobs,
    blobs: join(folder, "blobs"),
    broker: link,
    logger: false,
    heartbeat: PATIENT,
  });
  t.after(async () => {
    await engine.close({ grace: "0ms" });
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  return { engine, folder, link };
}

/** Resolves with its text. */
function untilBroker(engine: Engine, state: "connected" | "lost" | "refused"): Promise<string> {
  return new Promise((resolve) => {
    engine.on("broker.changed", (event) => event.state === state && resolve(event.text));
  });
}

const untilIs = (engine: Engine, id: string, state: string) =>
  untilTrue(
    () => engine.collection(id),
    (found) => found?.state === state,
    `collection ${id} is ${state}`,
  );

/** Queues of a test go with it. */
function cleaned(t: TestContext, channel: ConfirmChannel, kind: string): void {
  t.after(async () => {
    for (const queue of ["part", "header", "parked"])
      await channel.deleteQueue(`outlive.${kind}.${queue}`).catch(() => {});
  });
}

test("CR-07 a producer is asked with the names of the queues, sends header and parts in any order, and the notification comes with a stable id", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const asks = `${kind}.asks`;
  const results = `${kind}.results`;
  for (const queue of [asks, results]) {
    await channel.assertQueue(queue, { durable: true });
    t.after(() => channel.deleteQueue(queue).catch(() => {}));
  }
  const scan = collection(kind, { series: ["files", "notes"] });
  scan.request((input, run) => run.publish(asks, { input, wire: run.wire as never }));
  scan.notify(results);
  const { engine } = await place(t, [scan]);
  await engine.collect(scan, { share: "x" }, { id: "tx-1" });
  await engine.start();
  const asked = await untilTrue(
    () => channel.get(asks, { noAck: true }),
    (message) => message !== false,
    "the request came",
  );
  assert.ok(asked);
  const { wire } = JSON.parse(asked.content.toString()) as { wire: { exchange: string; part: string; header: string } };
  assert.deepEqual(
    [asked.properties.messageId, wire.exchange, wire.part],
    ["tx-1", EXCHANGE, `${kind}.part`],
    "the same after a crash: the id of the collection",
  );
  assert.deepEqual(asked.properties.headers, {
    "outlive-collection": "tx-1",
    "outlive-exchange": EXCHANGE,
    "outlive-header-key": `${kind}.header`,
    "outlive-part-key": `${kind}.part`,
    "outlive-header-queue": `outlive.${kind}.header`,
    "outlive-part-queue": `outlive.${kind}.part`,
  });
  const producer = new Producer(channel, kind);
  await producer.part("tx-1", "files", 2, "two");
  await producer.header("tx-1", { files: 2 });
  await producer.part("tx-1", "notes", "1", "note", { "outlive-last": "true" });
  await producer.part("tx-1", "files", 1, "one", {
    "outlive-sha256": createHash("sha256").update("one").digest("hex").toUpperCase(),
  });
  await producer.part("tx-1", "files", 1, "one");
  await untilIs(engine, "tx-1", "notified");
  const notified = await untilTrue(
    () => channel.get(results, { noAck: true }),
    (message) => message !== false,
    "the notification came",
  );
  assert.ok(notified);
  const body = JSON.parse(notified.content.toString()) as {
    collection: string;
    series: Record<string, { parts: { ordinal: number; bytes: number; sha256: string; uri: string }[] }>;
  };
  assert.equal(notified.properties.messageId, "tx-1:complete");
  assert.deepEqual(
    [body.collection, body.series["files"]!.parts.map(({ ordinal, bytes }) => [ordinal, bytes])],
    [
      "tx-1",
      [
        [1, 3],
        [2, 3],
      ],
    ],
  );
  const { sha256, uri } = body.series["files"]!.parts[0]!;
  assert.equal(sha256, createHash("sha256").update("one").digest("hex"));
  assert.equal(readFileSync(new URL(uri), "utf8"), "one", "its address can be read without Outlive");
});

test("a notification that would be longer than 1 MB names a manifest in the blob store, which lists every part in order", async (t) => {
  const PARTS = 6_000;
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const results = `${kind}.results`;
  await channel.assertQueue(results, { durable: true });
  t.after(() => channel.deleteQueue(results).catch(() => {}));
  const scan = collection(kind, { series: ["files"] }).notify(results);
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const files = fileSystem({ folder: join(folder, "blobs") });
  // Parts are not written: thousands of syncs show nothing here.
  const blobs = Object.assign(Object.create(files) as typeof files, {
    place: files.place,
    stage: undefined,
    put: async (...[key, data, expected]: Parameters<typeof files.put>) =>
      key.endsWith("manifest.json") ? files.put(key, data, expected) : { size: 1, sha256: expected!.sha256! },
  });
  const broker = rabbitmq(await sharedRabbitmq());
  const engine = await open(`sqlite:${join(folder, "jobs.db")}`, { jobs: [scan], blobs, broker, logger: false });
  t.after(async () => {
    await engine.close({ grace: "0ms" });
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  await engine.collect(scan, null, { id: "a", expect: { files: PARTS } });
  await Promise.all(Array.from({ length: PARTS }, (_, n) => engine.put(scan, "a", "files", n + 1, Buffer.from("x"))));
  await engine.start();
  await untilIs(engine, "a", "notified");
  const message = await channel.get(results, { noAck: true });
  assert.ok(message);
  assert.ok(message.content.length < 1_000);
  const note = JSON.parse(message.content.toString()) as {
    collection: string;
    series?: unknown;
    manifest: { blob: string; bytes: number; sha256: string };
  };
  assert.deepEqual([note.collection, note.series, message.properties.messageId], ["a", undefined, "a:complete"]);
  const chunks: Uint8Array[] = [];
  for await (const chunk of files.get(note.manifest.blob)) chunks.push(chunk);
  const whole = Buffer.concat(chunks);
  assert.equal(whole.length, note.manifest.bytes);
  assert.equal(createHash("sha256").update(whole).digest("hex"), note.manifest.sha256);
  const { series } = JSON.parse(whole.toString()) as { series: { files: { parts: { ordinal: number }[] } } };
  assert.deepEqual(
    series.files.parts.map(({ ordinal }) => ordinal),
    Array.from({ length: PARTS }, (_, n) => n + 1),
  );
});

test("each bad message is parked with its reason, stops no other, and one whose bytes were refused stays parked when it is handled again", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const scan = collection(kind, { series: ["files"], message: { max: 20 } }).done(() => {});
  // Nothing is attached, so it is not consumed.
  const neighbour = collection(freshKind(), { series: ["files"] });
  const { engine } = await place(t, [scan, neighbour]);
  const connected = untilBroker(engine, "connected");
  await engine.collect(scan, null, { id: "a", expect: { files: 3 } });
  await engine.start();
  await connected;
  const producer = new Producer(channel, kind);
  await producer.part("a", "files", 1, "one");
  await producer.part("a", "files", 1, "another");
  await producer.part("a", "others", 1, "x");
  await producer.part("a", "files", 0, "x");
  await producer.part("a", "files", "many", "x");
  await producer.part("a", "files", 4, "beyond");
  await producer.part("nobody", "files", 1, "x");
  // Of a kind whose queues these are not.
  await engine.collect(neighbour, null, { id: "b" });
  await producer.part("b", "files", 1, "x");
  await producer.header("b", { files: 1 });
  await producer.part("a", "files", 2, "more than twenty bytes");
  await producer.part("a", "files", 2, "two", { "outlive-sha256": "0".repeat(64) });
  await producer.send(`${kind}.part`, Buffer.from("no headers"), {});
  await producer.header("a", { files: 2 });
  await producer.header("a", { files: "x" });
  await producer.send(`${kind}.header`, Buffer.from("not json"), { "outlive-collection": "a" });
  await producer.part("a", "files", 3, "three");
  const parked = await untilTrue(
    () => engine.parked({ kind }),
    (rows) => rows.length === 14,
    "all bad messages are parked",
  );
  const reasons = parked.map(({ reason }) => reason).toSorted();
  for (const expected of [
    /is there with other bytes/,
    /its series others is not one of files/,
    /ordinal is 0/,
    /ordinal is "many"/,
    /there is no such collection/,
    /has 22 bytes, and at most 20/,
    /do not have the hash/,
    /no header outlive-collection/,
    /announced with 3 parts before/,
    /announces files with "x"/,
    /is not JSON/,
  ])
    assert.ok(
      reasons.some((reason) => expected.test(reason)),
      `${expected} in ${reasons.join("\n")}`,
    );
  const info = (await untilTrue(
    () => engine.collection("a"),
    (found) => found?.series["files"]?.have === 2,
    "the good parts came",
  ))!;
  assert.deepEqual([info.series["files"]?.have, info.series["files"]?.missing, info.state], [2, "2", "collecting"]);
  assert.ok(
    info.parked.some(({ ordinal }) => ordinal === 2),
    "what is missing is shown with the reason",
  );
  const { series } = (await engine.collection("b"))!;
  assert.deepEqual([series["files"]?.have, series["files"]?.expected], [0, null]);
  assert.match(info.why, /lacks 1 of 3 \(2\); \d+ message\(s\) of it are parked/);
  const two = parked.find(({ reason }) => /do not have the hash/.test(reason))!;
  const large = parked.find(({ reason }) => /has 22 bytes/.test(reason))!;
  for (const message of [two, large]) assert.equal(await engine.retryParked(message), "kept", "its bytes are the same");
  // Where the hash was wrong and not the bytes, a person can say so.
  assert.equal(await engine.put(scan, "a", "files", 2, Buffer.from("two")), "accepted");
  assert.notEqual((await engine.collection("a"))?.state, "collecting");
});

test("a header and a last part that came before their collection can be handled again, with what they announce, and each has its own body", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const scan = collection(kind, { series: ["files", "notes"] }).done(() => {});
  const { engine } = await place(t, [scan]);
  const connected = untilBroker(engine, "connected");
  await engine.start();
  await connected;
  const producer = new Producer(channel, kind);
  await producer.header("a", { files: 2 });
  for (const ordinal of [1, 2]) await producer.part("a", "files", ordinal, "the same bytes");
  await producer.part("a", "notes", 1, "note", { "outlive-last": true });
  const parked = await untilTrue(
    () => engine.parked({ collection: "a" }),
    (rows) => rows.length === 4,
    "all are parked: there is no such collection",
  );
  for (const message of parked) assert.equal(await engine.retryParked(message), "unknown", "nor is there yet");
  await engine.collect(scan, null, { id: "a" });
  for (const message of parked) assert.equal(await engine.retryParked(message), "accepted");
  assert.deepEqual(await engine.parked({ collection: "a" }), []);
  await untilIs(engine, "a", "notified");
});

test("two parts that say different totals, in one turn: the first holds, and the other one's is parked", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const scan = collection(kind, { series: ["files"] }).done(() => {});
  const { engine } = await place(t, [scan]);
  const connected = untilBroker(engine, "connected");
  await engine.collect(scan, null, { id: "a" });
  const first = await engine.start();
  await connected;
  await first.stop();
  const producer = new Producer(channel, kind);
  await producer.part("a", "files", 1, "one", { "outlive-total": 2 });
  await producer.part("a", "files", 2, "two", { "outlive-total": 3 });
  await engine.start();
  const [parked] = await untilTrue(
    () => engine.parked({ kind }),
    (rows) => rows.length > 0,
    "the one that contradicts is parked",
  );
  assert.match(parked!.reason, /announced with [23] parts before/);
});

test("messages of another queue become jobs by their message id, once, and what no job can be made of is parked", async (t) => {
  const kind = freshKind();
  const queue = `${kind}.results`;
  const channel = await channelOf(t);
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  const ran: unknown[] = [];
  const report = job("report").handle((input) => void ran.push(input));
  const { engine } = await place(t, [report], (url) => rabbitmq(url).consume(queue, report));
  const connected = untilBroker(engine, "connected");
  await engine.start();
  await connected;
  const send = (body: string, messageId: string): boolean =>
    channel.sendToQueue(queue, Buffer.from(body), { persistent: true, messageId });
  send('{"n":1}', "tx-1:complete");
  send('{"n":1}', "tx-1:complete");
  send("not json", "bad");
  send('{"n":2}', "tx-2:complete");
  await channel.waitForConfirms();
  await untilTrue(
    () => ran.length,
    (count) => count >= 2,
    "both jobs ran",
  );
  await untilTrue(
    () => engine.parked({ kind: "report" }),
    (rows) => rows.length === 1,
    "the bad one is parked",
  );
  const { jobs } = await engine.list({ kind: "report" });
  assert.deepEqual([jobs.length, ran.length], [2, 2]);
});

test("two equal messages of `consume` without a message id are two: each is parked, and each becomes a job", async (t) => {
  const queue = `${freshKind()}.results`;
  const channel = await channelOf(t);
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  let isStrict = true;
  const validate = (value: unknown) => (isStrict ? { issues: [{ message: "too early" }] } : { value: value as number });
  const report = job("report", { input: { "~standard": { version: 1 as const, vendor: "test", validate } } });
  report.handle(() => {});
  const { engine } = await place(t, [report], (url) => rabbitmq(url).consume(queue, report));
  await engine.start();
  for (let n = 1; n <= 2; n++) channel.sendToQueue(queue, Buffer.from("7"), { persistent: true });
  const parked = await untilTrue(
    () => engine.parked({ kind: "report" }),
    (rows) => rows.length === 2,
    "both are parked",
  );
  isStrict = false;
  for (const message of parked) assert.equal(await engine.retryParked(message), "accepted");
  assert.equal((await engine.list({ kind: "report" })).jobs.length, 2);
});

test("a parked message of `consume` becomes a job when its input fits by then, with the id that its message makes", async (t) => {
  const queue = `${freshKind()}.results`;
  const channel = await channelOf(t);
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  const ran: unknown[] = [];
  let isStrict = true;
  const input = {
    "~standard": {
      version: 1 as const,
      vendor: "test",
      validate: (value: unknown) => (isStrict ? { issues: [{ message: "too early" }] } : { value: value as number }),
    },
  };
  const report = job("report", { input }).handle((value) => void ran.push(value));
  const { engine } = await place(t, [report], (url) => rabbitmq(url).consume(queue, report));
  await engine.start();
  const send = (): boolean => channel.sendToQueue(queue, Buffer.from("7"), { persistent: true, messageId: "one" });
  send();
  const [parked] = await untilTrue(
    () => engine.parked({ kind: "report" }),
    (rows) => rows.length === 1,
    "it is parked",
  );
  assert.match(parked!.reason, /too early/);
  assert.equal(await engine.retryParked(parked!), "kept");
  isStrict = false;
  assert.equal(await engine.retryParked(parked!), "accepted");
  send();
  await untilTrue(
    () => channel.checkQueue(queue),
    ({ messageCount }) => messageCount === 0,
    "the message came again",
  );
  await untilTrue(
    () => ran,
    ([first]) => first === 7,
    "its job ran",
  );
  assert.deepEqual(await engine.parked({ kind: "report" }), []);
  assert.equal((await engine.list({ kind: "report" })).jobs.length, 1, "the message has one job");
});

test("of a queue whose messages become jobs, a process holds no more than its prefetch, and the broker keeps the others", async (t) => {
  const [PREFETCH, MESSAGES] = [3, 10];
  const queue = `${freshKind()}.results`;
  const channel = await channelOf(t);
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  for (let n = 1; n <= MESSAGES; n++) channel.sendToQueue(queue, Buffer.from(String(n)), { messageId: `m${n}` });
  await channel.waitForConfirms();
  const [checking, gate] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const validate = async (value: unknown): Promise<{ value: number }> => {
    checking.resolve();
    await gate.promise;
    return { value: value as number };
  };
  const report = job("report", { input: { "~standard": { version: 1 as const, vendor: "test", validate } } }).handle(
    () => {},
  );
  assert.throws(() => rabbitmq("amqp://x").consume(queue, report, { prefetch: 0 }), { code: ErrorCode.optionInvalid });
  const { engine } = await place(t, [report], (url) => rabbitmq(url).consume(queue, report, { prefetch: PREFETCH }));
  await engine.start();
  await checking.promise;
  await untilTrue(
    () => channel.checkQueue(queue),
    ({ messageCount }) => messageCount === MESSAGES - PREFETCH,
    "the broker keeps the others",
  );
  gate.resolve();
  await untilTrue(
    () => engine.list({ kind: "report" }),
    ({ jobs }) => jobs.length === MESSAGES,
    "all became jobs",
  );
});

test("without a blob store, messages that no job can be made of stay in their queue, and stop no other", async (t) => {
  const queue = `${freshKind()}.results`;
  const channel = await channelOf(t);
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  const ran: unknown[] = [];
  const report = job("report").handle((input) => void ran.push(input));
  const broker = rabbitmq(await sharedRabbitmq()).consume(queue, report);
  const engine = await open("sqlite::memory:", { jobs: [report], broker, logger: false, heartbeat: PATIENT });
  t.after(() => engine.close());
  // More than a process holds at once.
  const BAD = 120;
  for (let n = 1; n <= BAD; n++)
    channel.sendToQueue(queue, Buffer.from("not json"), { persistent: true, messageId: `bad-${n}` });
  channel.sendToQueue(queue, Buffer.from('{"n":1}'), { persistent: true, messageId: "good" });
  await channel.waitForConfirms();
  const worker = await engine.start();
  await untilTrue(
    () => ran.length,
    (count) => count === 1,
    "the message behind them became a job",
  );
  const [row] = await engine.parked({ kind: "report" });
  assert.equal(row!.blob, null);
  assert.match(row!.reason, /\(it stays in the queue t\w+\.results: its worker has no blob store to keep its body\)$/);
  await worker.stop();
  await engine.close();
  await untilTrue(
    () => channel.checkQueue(queue),
    ({ messageCount }) => messageCount === BAD,
    "nothing of them is lost",
  );
});

test("stopped while it declares its queues, a consumption ends", async (t) => {
  const channel = await channelOf(t);
  const kinds = Array.from({ length: 20 }, () => ({ kind: freshKind(), queues: "per-collection" as const }));
  const link = rabbitmq(await sharedRabbitmq());
  const consumption = link.startConsuming(kinds, () => {});
  await untilTrue(
    async () => {
      // Sending to a queue that is not there returns the message.
      let isThere = true;
      channel.once("return", () => (isThere = false));
      channel.sendToQueue(`outlive.${kinds[0]!.kind}.parked`, Buffer.from(""), { mandatory: true });
      // A queue that is being made refuses it.
      await channel.waitForConfirms().catch(() => (isThere = false));
      channel.removeAllListeners("return");
      return isThere;
    },
    (isThere) => isThere,
    "its first queue is there",
  );
  await consumption.stop();
  await link.close();
  for (const { kind } of kinds) await channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {});
});

test("a queue that does not exist is named and tried again, and is consumed once when it exists", async (t) => {
  const queue = `${freshKind()}.results`;
  const channel = await channelOf(t);
  const ran: unknown[] = [];
  const report = job("report").handle((input) => void ran.push(input));
  const { engine } = await place(t, [report], (url) => rabbitmq(url).consume(queue, report));
  const refused = untilBroker(engine, "refused");
  await engine.start();
  assert.match(await refused, new RegExp(`${queue} is not consumed.*NOT_FOUND`));
  await channel.assertQueue(queue, { durable: true });
  t.after(() => channel.deleteQueue(queue).catch(() => {}));
  channel.sendToQueue(queue, Buffer.from('{"n":1}'), { persistent: true, messageId: "one" });
  await untilTrue(
    () => ran.length,
    (count) => count === 1,
    "the message became a job",
  );
  assert.equal((await channel.checkQueue(queue)).consumerCount, 1);
});

test("CR-05 CR-09 with queues of their own, collections use the names of the seed, and the queues go when they have ended", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  t.after(() => channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {}));
  const scan = collection(kind, { series: ["files"], queues: "per-collection" }).done(() => {});
  const { engine } = await place(t, [scan]);
  const id = freshKind();
  await engine.collect(scan, null, { id });
  await engine.start();
  await untilIs(engine, id, "collecting");
  const producer = new Producer(channel, kind);
  const headers = { "outlive-collection": id, "outlive-series": "files", "outlive-ordinal": 1 };
  await producer.send(`transaction-${id}-payload`, Buffer.from("one"), headers, "");
  await producer.send(
    `transaction-${id}-header`,
    Buffer.from('{"series":{"files":1}}'),
    { "outlive-collection": id },
    "",
  );
  await untilIs(engine, id, "notified");
  await untilGone(t, id);
});

test("CR-19 a queue without a consumer does not expire, and neither do its messages: only the end of its collection deletes it", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  const id = freshKind();
  const link = rabbitmq(await sharedRabbitmq());
  await link.prepare({ kind, queues: "per-collection" }, id);
  t.after(async () => {
    await link.discard({ kind, queues: "per-collection" }, id);
    await link.close();
    await channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {});
  });
  // A broker refuses other arguments than those of the queue that is there: with a time after which it expires, too.
  const known = {
    "x-queue-type": "quorum",
    "x-delivery-limit": 50,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": `outlive.${kind}.parked`,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
  };
  for (const queue of ["header", "payload"])
    await channel.assertQueue(`transaction-${id}-${queue}`, { durable: true, arguments: known });
  const expiring = { durable: true, arguments: { ...known, "x-expires": 60_000 } };
  const refused = await channelOf(t);
  await assert.rejects(refused.assertQueue(`transaction-${id}-payload`, expiring), /PRECONDITION/);
});

test("the queues of a collection are deleted after `notified` is written, and again by another attempt if the first one failed", async (t) => {
  const kind = freshKind();
  const channel = await channelOf(t);
  t.after(() => channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {}));
  const states: unknown[] = [];
  let engine: Engine | null = null;
  const failing = (url: string): Rabbitmq => {
    const link = rabbitmq(url);
    const discard = link.discard.bind(link);
    link.discard = async (wired, id) => {
      states.push((await engine!.collection(id))?.state);
      if (states.length === 1) throw new Error("not now");
      return discard(wired, id);
    };
    return link;
  };
  const scan = collection(kind, { series: ["files"], queues: "per-collection" }).done(() => {});
  ({ engine } = await place(t, [scan], failing));
  const id = freshKind();
  await engine.collect(scan, null, { id, expect: { files: 1 } });
  await engine.start();
  await untilIs(engine, id, "collecting");
  await engine.put(scan, id, "files", 1, Buffer.from("one"));
  await untilGone(t, id);
  assert.deepEqual(states, ["notified", "notified"]);
});

for (const [state, keep] of [
  ["abandoned", "1h"],
  ["cancelled", "1ms"],
] as const)
  test(`CR-26 with queues of its own, a collection that is ${state} reports what is missing, and loses its queues even if its handler fails for good: ${keep === "1h" ? "at once" : "with its clean-up if the broker fails first"}`, async (t) => {
    const kind = freshKind();
    const channel = await channelOf(t);
    t.after(() => channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {}));
    const reported: unknown[] = [];
    const scan = collection(kind, { series: ["files"], queues: "per-collection", keep }).abandoned(
      ({ state: ended, missing }) => {
        reported.push([ended, missing]);
        throw new TerminalError("for good");
      },
    );
    let fails = keep === "1ms";
    const failingOnce = (url: string): Rabbitmq => {
      const link = rabbitmq(url);
      const discard = link.discard.bind(link);
      link.discard = async (...of) => {
        if (!fails) return discard(...of);
        fails = false;
        throw new Error("not now");
      };
      return link;
    };
    const { engine, folder } = await place(t, [scan], failingOnce);
    const id = freshKind();
    await engine.collect(scan, null, { id, expect: { files: 2 } });
    await engine.start();
    await untilIs(engine, id, "collecting");
    await engine.put(scan, id, "files", 1, Buffer.from("one"));
    for (const queue of ["header", "payload"]) await channel.checkQueue(`transaction-${id}-${queue}`);
    await (state === "abandoned" ? engine.abandonCollection(id) : engine.cancelCollection(id));
    await untilGone(t, id);
    assert.deepEqual([reported, fails], [[[state, { files: "2" }]], false]);
    if (keep === "1h") return assert.equal((await engine.collection(id))?.state, state, "its clean-up is not due");
    await untilTrue(
      () => engine.collection(id),
      (found) => found === null,
      "it is cleaned up",
    );
    const blobs = readdirSync(join(folder, "blobs"), { recursive: true, withFileTypes: true });
    assert.deepEqual(
      blobs.filter((entry) => entry.isFile()).map(({ name }) => name),
      [],
    );
  });

test("queues of their own: all collections together hold no more than the memory of their kind, those that do not fit take turns, and all end", async (t) => {
  const [COLLECTIONS, PARTS, ROOM] = [6, 3, 4];
  const kind = freshKind();
  const channel = await channelOf(t);
  t.after(() => channel.deleteQueue(`outlive.${kind}.parked`).catch(() => {}));
  const settings = { series: ["files"], message: { max: 100 }, memory: ROOM * 100, queues: "per-collection" } as const;
  const scan = collection(kind, settings).done(() => {});
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  // Parts are being stored until the test lets them.
  const gate = Promise.withResolvers<void>();
  let [storing, most] = [0, 0];
  const disk = fileSystem({ folder: join(folder, "blobs") });
  const put: typeof disk.put = async (...args) => {
    most = Math.max(most, ++storing);
    await gate.promise;
    try {
      return await disk.put(...args);
    } finally {
      storing--;
    }
  };
  const slow = new Proxy(disk, {
    get: (of, verb) =>
      verb === "put" ? put : verb === "stage" ? undefined : (Reflect.get(of, verb).bind?.(of) ?? Reflect.get(of, verb)),
  });
  const engine = await open(`sqlite:${join(folder, "jobs.db")}`, {
    jobs: [scan],
    blobs: slow,
    broker: rabbitmq(await sharedRabbitmq()),
    logger: false,
    heartbeat: PATIENT,
  });
  t.after(() => engine.close({ grace: "0ms" }));
  const ids = Array.from({ length: COLLECTIONS }, () => freshKind());
  for (const id of ids) await engine.collect(scan, null, { id, expect: { files: PARTS } });
  await engine.start();
  for (const id of ids) await untilIs(engine, id, "collecting");
  const producer = new Producer(channel, kind);
  for (const id of ids)
    for (let ordinal = 1; ordinal <= PARTS; ordinal++) {
      const headers = { "outlive-collection": id, "outlive-series": "files", "outlive-ordinal": ordinal };
      await producer.send(`transaction-${id}-payload`, Buffer.from(`${id} ${ordinal}`), headers, "");
    }
  const ready = async (): Promise<number> => {
    let sum = 0;
    for (const id of ids) sum += (await channel.checkQueue(`transaction-${id}-payload`)).messageCount;
    return sum;
  };
  await untilTrue(
    () => storing,
    (count) => count >= 2,
    "parts are in hand",
  );
  assert.ok((await ready()) >= COLLECTIONS * PARTS - ROOM, "the broker keeps what does not fit");
  gate.resolve();
  for (const id of ids) await untilIs(engine, id, "notified");
  assert.ok(most <= ROOM, `${most} were in hand at once`);
  assert.deepEqual(await engine.parked({ kind }), []);
});

test("a message that no queue takes fails its job with a reason, and so do a wrong password and a wrong virtual host", async (t) => {
  const url = new URL(await sharedRabbitmq());
  const good = rabbitmq(url.href);
  t.after(() => good.close());
  const message = { body: { n: 1 }, messageId: "m", headers: {} };
  await assert.rejects(good.publish({ ...message, target: `nowhere-${freshKind()}` }), {
    code: ErrorCode.brokerUnroutable,
  });
  url.password = "wrong";
  const wrong = rabbitmq(url.href);
  t.after(() => wrong.close());
  await assert.rejects(wrong.publish({ ...message, target: "x" }), { code: ErrorCode.brokerRefused });
  assert.doesNotMatch(wrong.place, /wrong/, "no secret in what is shown");
  url.password = "guest";
  url.pathname = "/nothing";
  const hostless = rabbitmq(url.href);
  t.after(() => hostless.close());
  await assert.rejects(hostless.publish({ ...message, target: "x" }), { code: ErrorCode.brokerRefused });
});

test("a queue that exists with other arguments is named, its kind is tried again, and another kind of the same process is consumed", async (t) => {
  const [wrong, good] = [freshKind(), freshKind()];
  const channel = await channelOf(t);
  for (const kind of [wrong, good]) cleaned(t, channel, kind);
  await channel.assertQueue(`outlive.${wrong}.part`, { durable: true });
  const [scan, other] = [wrong, good].map((kind) => collection(kind, { series: ["files"] }).done(() => {}));
  const { engine } = await place(t, [scan!, other!]);
  const refused = untilBroker(engine, "refused");
  const connected = untilBroker(engine, "connected");
  await engine.start();
  assert.match(await refused, new RegExp(`outlive.${wrong}.part.*inequivalent arg`));
  await connected;
  for (const [kind, id] of [
    [scan!, "a"],
    [other!, "b"],
  ] as const)
    await engine.collect(kind, null, { id, expect: { files: 1 } });
  assert.equal(await engine.put(scan!, "a", "files", 1, Buffer.from("one")), "accepted");
  await new Producer(channel, good).part("b", "files", 1, "one");
  await untilIs(engine, "b", "notified");
  const again = untilBroker(engine, "connected");
  await channel.deleteQueue(`outlive.${wrong}.part`);
  assert.match(await again, new RegExp(wrong));
});

test("a full blob store: nothing is acknowledged, no more is taken than fits, it is reported, others go on, and with room all parts are stored", async (t) => {
  const PARTS = 10;
  const [full, other] = [freshKind(), freshKind()];
  const channel = await channelOf(t);
  for (const kind of [full, other]) cleaned(t, channel, kind);
  const disk = new SmallDisk(t, "1m");
  // Room for two messages at once.
  const small = collection(full, { series: ["files"], message: { max: 100 }, memory: 200 }).done(() => {});
  const engine = await open(`sqlite:${join(mkdtempSync(join(tmpdir(), "outlive-test-")), "jobs.db")}`, {
    jobs: [small],
    blobs: join(disk.folder, "blobs"),
    broker: rabbitmq(await sharedRabbitmq()),
    logger: false,
    heartbeat: PATIENT,
  });
  t.after(() => engine.close({ grace: "0ms" }));
  const elsewhere = collection(other, { series: ["files"] }).done(() => {});
  const { engine: neighbour } = await place(t, [elsewhere]);
  for (const [of, kind, parts] of [
    [engine, small, PARTS],
    [neighbour, elsewhere, 1],
  ] as const) {
    const connected = untilBroker(of, "connected");
    await of.collect(kind, null, { id: "a", expect: { files: parts } });
    await of.start();
    await connected;
  }
  const failures: string[] = [];
  engine.on("store.failed", ({ doing, error }) => failures.push(`${doing}: ${error.message}`));
  disk.fill();
  await assert.rejects(engine.put(small, "a", "files", 1, Buffer.from("one")), { code: ErrorCode.blobsFull });
  const producer = new Producer(channel, full);
  for (let ordinal = 1; ordinal <= PARTS; ordinal++) await producer.part("a", "files", ordinal, `part ${ordinal}`);
  await new Producer(channel, other).part("a", "files", 1, "one");
  await untilIs(neighbour, "a", "notified");
  await untilTrue(
    () => failures.filter((text) => text.includes(`outlive.${full}.part`) && /Free disk space/.test(text)).length,
    (count) => count >= 3,
    "it is tried again and again, and reported",
  );
  const { messageCount } = await channel.checkQueue(`outlive.${full}.part`);
  assert.equal(messageCount, PARTS - 2, "the broker keeps what does not fit into the memory of the kind");
  assert.equal((await engine.collection("a"))?.series["files"]?.have, 0);
  disk.makeRoom();
  await untilIs(engine, "a", "notified");
  assert.deepEqual(await engine.parked({ kind: full }), []);
});

test("a store that is away: nothing is acknowledged, no more is taken than fits, it is reported, and afterwards all parts are stored", async (t) => {
  const PARTS = 10;
  const kind = freshKind();
  const channel = await channelOf(t);
  cleaned(t, channel, kind);
  const store = await RedisServer.create({ fsync: "always" });
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  // Room for two messages at once.
  const small = collection(kind, { series: ["files"], message: { max: 100 }, memory: 200 }).done(() => {});
  const engine = await open(store.url(), {
    jobs: [small],
    blobs: join(folder, "blobs"),
    broker: rabbitmq(await sharedRabbitmq()),
    logger: false,
    heartbeat: PATIENT,
  });
  t.after(async () => {
    await engine.close({ grace: "0ms" });
    await store.destroy();
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  const connected = untilBroker(engine, "connected");
  await engine.collect(small, null, { id: "a", expect: { files: PARTS } });
  await engine.start();
  await connected;
  const failed = new Promise<void>((resolve) =>
    engine.on("store.failed", ({ doing }) => doing.includes(`outlive.${kind}.part`) && resolve()),
  );
  await store.kill();
  const producer = new Producer(channel, kind);
  for (let ordinal = 1; ordinal <= PARTS; ordinal++) await producer.part("a", "files", ordinal, `part ${ordinal}`);
  await failed;
  const { messageCount } = await channel.checkQueue(`outlive.${kind}.part`);
  assert.equal(messageCount, PARTS - 2, "the broker keeps what does not fit into the memory of the kind");
  await store.start();
  await untilIs(engine, "a", "notified");
  assert.deepEqual(await engine.parked({ kind }), []);
});

test("a delivery that can't be handled is handed on a few times, and then kept: an outage of hours does not use up its count", () => {
  const spentIn = (deliveries: number): number =>
    Array.from({ length: deliveries }, (_, times) => keptInHandMs(times)).reduce((sum, ms) => sum + ms, 0);
  const spentMs = spentIn(MAX_IN_COMPANY) + spentIn(MAX_ALONE);
  assert.ok(keptInHandMs(0) <= 60_000, "another process may be able to");
  assert.ok(spentMs > 4 * 3_600_000, `it would be parked after ${spentMs} ms`);
  assert.ok(keptInHandMs(19) < 30 * 60_000, "RabbitMQ closes a channel after half an hour");
});
