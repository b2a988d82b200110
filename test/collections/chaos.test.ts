// The crashes that seed 002 lists, on a real broker with real kills: its five test cases and its four scenarios by name, and the death of the broker.
// A part may be uploaded twice, and counts once: its blob has the same name.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { after, test, type TestContext } from "node:test";
import amqplib, { type ConfirmChannel } from "amqplib";
import { collection, type Engine, job } from "../../src/index.ts";
import { type Child, Place, untilTrue } from "../support/processes.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import type { CollectorProcess } from "../support/collector-process.ts";
import { freshKind, RabbitmqServer, sharedRabbitmq, untilGone } from "../support/rabbitmq.ts";

const PARTS = 8;

/** A broker of this file's own, which its tests may kill. */
let own: Promise<RabbitmqServer> | undefined;
const ownBroker = (): Promise<RabbitmqServer> =>
  (own ??= RabbitmqServer.create().then((server) => {
    process.once("exit", () => server.destroyNow());
    return server;
  }));
after(async () => (await own)?.destroy());

class Transaction {
  readonly place: Place;
  readonly kind: string;
  readonly broker: string;
  channel: ConfirmChannel;
  engine: Engine;

  private constructor(place: Place, kind: string, broker: string, channel: ConfirmChannel, engine: Engine) {
    this.place = place;
    this.kind = kind;
    this.broker = broker;
    this.channel = channel;
    this.engine = engine;
  }

  static async begin(t: TestContext, broker: string): Promise<Transaction> {
    const place = new Place(t);
    const kind = freshKind();
    const channel = await channelAt(t, broker);
    for (const queue of ["asks", "results"])
      await channel.assertQueue(`${kind}.${queue}`, { durable: true, arguments: { "x-queue-type": "quorum" } });
    const jobs = [collection(kind, { series: ["files"] }), job(`${kind}-result`)];
    const engine = await place.engine({ jobs, blobs: join(place.folder, "blobs") });
    t.after(async () => {
      const model = await amqplib.connect(broker).catch(() => null);
      if (!model) return;
      model.on("error", () => {});
      const last = await model.createChannel();
      for (const queue of ["asks", "results"]) await last.deleteQueue(`${kind}.${queue}`).catch(() => {});
      for (const queue of ["part", "header", "parked"])
        await last.deleteQueue(`outlive.${kind}.${queue}`).catch(() => {});
      await model.close().catch(() => {});
    });
    return new Transaction(place, kind, broker, channel, engine);
  }

  collector(more: Omit<CollectorProcess, "broker" | "kind"> = {}, killAt?: string): Child {
    return this.place.collector({ broker: this.broker, kind: this.kind, ...more }, killAt);
  }

  async died(child: Child): Promise<void> {
    assert.equal((await child.exited).signal, "SIGKILL", "it died at the point");
  }

  /** As a producer: waits for its request, then sends the header and all parts, confirmed. */
  async produce(): Promise<void> {
    const asked = await untilTrue(
      () => this.channel.get(`${this.kind}.asks`, { noAck: true }),
      (message) => message !== false,
      "the producer is asked",
    );
    assert.ok(asked);
    assert.equal(asked.properties.messageId, "tx", "by the id of the collection, in every attempt");
    await this.send();
  }

  async send(from = 1): Promise<void> {
    const headers = { "outlive-collection": "tx" };
    const options = { persistent: true, mandatory: true };
    this.channel.publish("outlive.collections", `${this.kind}.header`, Buffer.from(`{"series":{"files":${PARTS}}}`), {
      ...options,
      headers,
    });
    for (let ordinal = from; ordinal <= PARTS; ordinal++)
      this.channel.publish("outlive.collections", `${this.kind}.part`, Buffer.from(`part ${ordinal}`), {
        ...options,
        headers: { ...headers, "outlive-series": "files", "outlive-ordinal": ordinal },
      });
    await this.channel.waitForConfirms();
  }

  /** As `ended`, and no handler was killed after its work: its consumer has run once, too. */
  async completed(): Promise<void> {
    await this.ended();
    assert.equal(this.place.effects().get("result tx"), 1, "its consumer has the notification once");
  }

  /** No loss, no double, one end, one notification for who counts by its id. */
  async ended(): Promise<void> {
    const { engine, kind, place } = this;
    await untilTrue(
      () => engine.collection("tx"),
      (found) => found?.state === "notified",
      "the transaction is notified",
    );
    const { series, transitions, parked } = (await engine.collection("tx"))!;
    assert.deepEqual([series["files"]?.have, series["files"]?.missing, parked], [PARTS, "", []]);
    assert.deepEqual(
      transitions.map(({ state }) => state),
      ["requested", "collecting", "complete", "notified"],
      "each state is written once",
    );
    const blobs = readdirSync(join(place.folder, "blobs"), { recursive: true, withFileTypes: true }).filter(
      (entry) => entry.isFile() && !entry.parentPath.includes(".incoming"),
    );
    assert.equal(blobs.length, PARTS, "as many blobs as parts");
    await untilTrue(
      () => place.effects(),
      (effects) => effects.has("done tx") && effects.has("result tx"),
      "what follows and the consumer of the notification have run",
    );
    assert.equal((await engine.list({ kind: `${kind}-result` })).jobs.length, 1);
    assert.equal((await engine.list({ kind })).jobs.length, 1);
  }
}

async function channelAt(t: TestContext | null, broker: string): Promise<ConfirmChannel> {
  const model = await amqplib.connect(broker);
  model.on("error", () => {});
  t?.after(() => model.close().catch(() => {}));
  const channel = await model.createConfirmChannel();
  channel.on("error", () => {});
  return channel;
}

test("CR-10 CR-11 CR-27 a crash in state 0, before the producer's request: the next worker asks it, under the same id", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  await tx.died(tx.collector({ collect: "tx", dies: "in request" }));
  assert.equal(
    (await tx.engine.collection("tx"))?.state,
    "requested",
    "the state was durable before anything went out",
  );
  tx.collector();
  await tx.produce();
  await tx.completed();
});

test("CR-03 CR-12 CR-21 CR-28 CR-29 CR-30 scenario 2: a crash in state 1, after some messages were stored and before they were acknowledged", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const first = tx.collector({ collect: "tx" }, "after:INSERT INTO outlive_parts");
  await tx.produce();
  await tx.died(first);
  assert.ok(((await tx.engine.collection("tx"))?.series["files"]?.have ?? 0) > 0, "progress was kept");
  tx.collector();
  await tx.completed();
});

test("CR-13 CR-27 a crash in state 2, before the notification was sent", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const first = tx.collector({ collect: "tx" }, "after:INSERT INTO outlive_jobs .*#2");
  await tx.produce();
  await tx.died(first);
  assert.equal((await tx.engine.collection("tx"))?.state, "complete");
  tx.collector();
  await tx.completed();
});

test("CR-14 CR-22 CR-30 scenario 3: many crashes in a row during one transaction: each one keeps what was stored", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  await tx.died(tx.collector({ collect: "tx", dies: "in request" }));
  const second = tx.collector({}, "after:INSERT INTO outlive_parts");
  await tx.produce();
  await tx.died(second);
  let have = 0;
  for (const point of [
    "before:INSERT INTO outlive_parts",
    "after:INSERT INTO outlive_parts",
    "before:INSERT INTO outlive_parts",
  ]) {
    const child = tx.collector({}, point);
    const exit = await Promise.race([
      child.exited,
      tx.completed().then(
        () => null,
        () => null,
      ),
    ]);
    const now = (await tx.engine.collection("tx"))?.series["files"]?.have ?? 0;
    assert.ok(now >= have, "nothing that was stored is lost");
    have = now;
    if (exit === null) return;
  }
  await tx.died(tx.collector({ dies: "in done" }));
  tx.collector();
  await tx.completed();
});

test("CR-33 a worker is killed at random points of a transaction, and started again each time: nothing is lost, nothing is there twice, and it completes", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const produced = tx.produce();
  produced.catch(() => {});
  const notified = untilTrue(
    () => tx.engine.collection("tx"),
    (found) => found?.state === "notified",
    "the transaction is notified",
  );
  notified.catch(() => {});
  for (let kill = 1; kill <= 4; kill++) {
    // By the number of its transactions, of whatever kind: which part of the work that is differs from run to run.
    const point = `${Math.random() < 0.5 ? "before" : "after"}:.*#${1 + Math.floor(Math.random() * 15)}`;
    t.diagnostic(`killed ${point}`);
    // A caller that does not know whether its transaction is there opens it again.
    const child = tx.collector({ collect: "tx" }, point);
    await Promise.race([child.exited, notified]);
  }
  tx.collector({ collect: "tx" });
  await produced;
  await tx.ended();
});

test("CR-15 a crash during a write of the database: nothing of it is there, and it is done again", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const first = tx.collector({ collect: "tx" }, "before:INSERT INTO outlive_parts");
  await tx.produce();
  await tx.died(first);
  assert.equal((await tx.engine.collection("tx"))?.series["files"]?.have, 0);
  tx.collector();
  await tx.completed();
});

test("CR-20 scenario 1: a crash before anything is stored leaves nothing, and the caller's retry begins a new transaction", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  await tx.died(tx.collector({ collect: "tx" }, "before:INSERT INTO outlive_collections"));
  assert.equal(await tx.engine.collection("tx"), null);
  tx.collector({ collect: "tx" });
  await tx.produce();
  await tx.completed();
});

test("CR-23 CR-32 scenario 4: a crash after the notification was sent sends it again, with the same id, and its consumer has it once", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  // Killed in the transaction that writes `notified`, after the broker has confirmed.
  const first = tx.collector({ collect: "tx", leavesResults: true }, "before:VALUES \\(0, \\?7");
  await tx.produce();
  await tx.died(first);
  assert.equal((await tx.engine.collection("tx"))?.state, "complete");
  const second = tx.collector({ leavesResults: true });
  await untilTrue(
    () => tx.engine.collection("tx"),
    (found) => found?.state === "notified",
    "the transaction is notified",
  );
  const { messageCount } = await tx.channel.checkQueue(`${tx.kind}.results`);
  assert.equal(messageCount, 2, "the notification is there twice");
  second.kill();
  tx.collector();
  await tx.completed();
});

test("CR-24 CR-25 with queues of its own: a crash leaves the queues of a transaction, the next worker uses them with what they hold, and deletes them when it has completed", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const [id, queues] = [freshKind(), "per-collection" as const];
  await tx.died(tx.collector({ collect: id, dies: "in request", queues }));
  const options = { persistent: true, mandatory: true };
  for (let ordinal = 1; ordinal <= PARTS; ordinal++)
    tx.channel.sendToQueue(`transaction-${id}-payload`, Buffer.from(`part ${ordinal}`), {
      ...options,
      headers: { "outlive-collection": id, "outlive-series": "files", "outlive-ordinal": ordinal },
    });
  const headers = { "outlive-collection": id };
  tx.channel.sendToQueue(`transaction-${id}-header`, Buffer.from(`{"series":{"files":${PARTS}}}`), {
    ...options,
    headers,
  });
  await tx.channel.waitForConfirms();
  const { messageCount } = await tx.channel.checkQueue(`transaction-${id}-payload`);
  assert.equal(messageCount, PARTS, "they wait for the next worker");
  tx.collector({ queues });
  await untilTrue(
    () => tx.engine.collection(id),
    (found) => found?.state === "notified",
    "the transaction is notified",
  );
  assert.equal((await tx.engine.collection(id))?.series["files"]?.have, PARTS);
  await untilGone(t, id);
});

test("CR-16 CR-31 a worker that is killed while it holds messages gives them to another one, which needs nothing from it", async (t) => {
  const tx = await Transaction.begin(t, await sharedRabbitmq());
  const first = tx.collector({ collect: "tx" });
  await tx.produce();
  await first.untilFact("accepted");
  first.kill();
  tx.collector();
  await tx.completed();
});

test("CR-17 CR-18 the broker is killed in the middle, alone and together with the worker: what it confirmed comes, once", async (t) => {
  const server = await ownBroker();
  const tx = await Transaction.begin(t, server.url());
  const first = tx.collector({ collect: "tx" });
  await first.untilFact("connected");
  const asked = await untilTrue(
    () => tx.channel.get(`${tx.kind}.asks`, { noAck: true }),
    (message) => message !== false,
    "the producer is asked",
  );
  assert.ok(asked);
  // A quorum queue younger than a second may lose confirmed messages when its broker is killed: a known fault of RabbitMQ (docs/collections.md).
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  const half = { persistent: true, mandatory: true };
  for (let ordinal = 1; ordinal <= 4; ordinal++)
    tx.channel.publish("outlive.collections", `${tx.kind}.part`, Buffer.from(`part ${ordinal}`), {
      ...half,
      headers: { "outlive-collection": "tx", "outlive-series": "files", "outlive-ordinal": ordinal },
    });
  await tx.channel.waitForConfirms();
  await first.untilFact("accepted");
  await server.kill();
  await first.untilFact("lost");
  await server.start();
  const second = tx.collector();
  await second.untilFact("connected");
  tx.channel = await channelAt(t, server.url());
  // The producer repeats the last part that it is not sure about: it counts once.
  await tx.send(4);
  await untilTrue(
    () => tx.engine.collection("tx"),
    (found) => (found?.series["files"]?.have ?? 0) >= 5,
    "parts come again",
  );
  first.kill();
  second.kill();
  await server.kill();
  await server.start();
  tx.collector();
  await tx.completed();
});

test("a hundred collections of a kind have three queues in the broker, with two bindings to one exchange", async (t) => {
  const server = await ownBroker();
  const place = new Place(t);
  const scan = collection(freshKind(), { series: ["files"] }).done(() => {});
  const broker = rabbitmq(server.url());
  const engine = await place.engine({ jobs: [scan], blobs: join(place.folder, "blobs"), broker });
  const connected = new Promise<void>((resolve) =>
    engine.on("broker.changed", ({ state }) => state === "connected" && resolve()),
  );
  await Promise.all(Array.from({ length: 100 }, (_, n) => engine.collect(scan, null, { id: `tx-${n}` })));
  await engine.start();
  await connected;
  await untilTrue(
    () => engine.collectionCounts(),
    (counts) => counts.every(({ state }) => state === "collecting"),
    "each has asked its producer",
  );
  const named = (...of: readonly string[]): string[] =>
    server
      .control(...of)
      .split("\n")
      .filter((line) => line.includes(scan.name))
      .toSorted();
  const queues = ["header", "parked", "part"].map((name) => `outlive.${scan.name}.${name}`);
  assert.deepEqual(named("list_queues", "name"), queues);
  const bindings = named("list_bindings", "source_name", "routing_key").filter((line) => line.startsWith("outlive"));
  assert.deepEqual(bindings, [`outlive.collections\t${scan.name}.header`, `outlive.collections\t${scan.name}.part`]);
});

test("a user without the permission to declare queues is named with what it needs, parts can be put meanwhile, and consuming begins when it may", async (t) => {
  const server = await ownBroker();
  server.control("add_user", "limited", "limited");
  server.control("set_permissions", "limited", "^$", ".*", ".*");
  const place = new Place(t);
  const scan = collection(freshKind(), { series: ["files"] }).done(() => {});
  const broker = server.url({ user: "limited", password: "limited" });
  const engine = await place.engine({ jobs: [scan], blobs: join(place.folder, "blobs"), broker: rabbitmq(broker) });
  const until = (state: string): Promise<string> =>
    new Promise((resolve) => engine.on("broker.changed", (event) => event.state === state && resolve(event.text)));
  const [refused, connected] = [until("refused"), until("connected")];
  await engine.start();
  assert.match(await refused, /ACCESS_REFUSED.*Check user, password and permissions: configure, write and read/);
  await engine.collect(scan, null, { id: "a", expect: { files: 1 } });
  assert.equal(await engine.put(scan, "a", "files", 1, Buffer.from("one")), "accepted");
  server.control("set_permissions", "limited", ".*", ".*", ".*");
  assert.match(await connected, new RegExp(scan.name));
});
