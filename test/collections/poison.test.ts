// A message that ends every process that handles it, on a real broker with real deaths: it is parked with a reason after its limit, and everything else is stored
// meanwhile. Deliveries that only raise a count are made by the test, which takes the message and returns it; each death that decides something is real.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout } from "node:timers/promises";
import amqplib, { type ConfirmChannel } from "amqplib";
import { POLL_MS } from "../../src/brokers/rabbitmq/pulling.ts";
import { ALONE_REST_MS, MAX_ALONE, MAX_IN_COMPANY, MAX_PARKINGS } from "../../src/collections/messages.ts";
import { collection, type Engine, job, type JobContract } from "../../src/index.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import { POISON } from "../support/collection-jobs.ts";
import { type Child, Place, untilTrue } from "../support/processes.ts";
import { freshKind, sharedRabbitmq } from "../support/rabbitmq.ts";

/** Less than a process holds: the first is the one that ends processes. */
const PARTS = 12;
const RESULTS = 3;

class Poisoned {
  readonly place: Place;
  readonly kind: string;
  readonly broker: string;
  readonly channel: ConfirmChannel;
  readonly engine: Engine;
  /** Of the collector: runs until it is released. */
  readonly held: JobContract;

  private constructor(
    place: Place,
    kind: string,
    broker: string,
    channel: ConfirmChannel,
    { engine, held }: { engine: Engine; held: JobContract },
  ) {
    [this.place, this.kind, this.broker, this.channel] = [place, kind, broker, channel];
    [this.engine, this.held] = [engine, held];
  }

  static async begin(t: TestContext): Promise<Poisoned> {
    const broker = await sharedRabbitmq();
    const [place, kind] = [new Place(t), freshKind()];
    const own = rabbitmq(broker);
    await own.prepare({ kind, queues: "shared" }, "");
    await own.close();
    const model = await amqplib.connect(broker);
    model.on("error", () => {});
    const channel = await model.createConfirmChannel();
    await channel.assertQueue(`${kind}.results`, { durable: true, arguments: { "x-queue-type": "quorum" } });
    t.after(async () => {
      for (const queue of ["part", "header", "parked"]) await channel.deleteQueue(`outlive.${kind}.${queue}`);
      await channel.deleteQueue(`${kind}.results`);
      await model.close();
    });
    const scan = collection(kind, { series: ["files"] });
    const held = job(`${kind}-held`);
    const jobs = [scan, job(`${kind}-result`), held];
    const engine = await place.engine({ jobs, blobs: join(place.folder, "blobs") });
    await engine.collect(scan, null, { id: "tx", expect: { files: PARTS + 1 } });
    return new Poisoned(place, kind, broker, channel, { engine, held });
  }

  async part(ordinal: number, body = `part ${ordinal}`, queue: "part" | "parked" = "part"): Promise<void> {
    this.channel.sendToQueue(`outlive.${this.kind}.${queue}`, Buffer.from(body), {
      persistent: true,
      mandatory: true,
      headers: { "outlive-collection": "tx", "outlive-series": "files", "outlive-ordinal": ordinal },
    });
    await this.channel.waitForConfirms();
  }

  /** Takes the first message of a queue and returns it, until it was delivered so often. */
  async raise(queue: "part" | "parked", times: number): Promise<void> {
    await untilTrue(
      async () => {
        const message = await this.channel.get(`outlive.${this.kind}.${queue}`);
        if (message === false) return -1;
        assert.equal(message.content.toString(), POISON);
        this.channel.nack(message, false, true);
        // This delivery is counted when it comes the next time.
        return Number(message.properties.headers?.["x-delivery-count"] ?? 0) + 1;
      },
      (counted) => counted === times,
      `it was delivered ${times} times`,
    );
  }

  collector(poison: "as a part" | "anywhere"): Child {
    return this.place.collector({ broker: this.broker, kind: this.kind, poison });
  }

  async dies(poison: "as a part" | "anywhere"): Promise<void> {
    assert.equal((await this.collector(poison).exited).signal, "SIGKILL", "it died of the message");
  }

  async have(): Promise<number> {
    return (await this.engine.collection("tx"))!.series["files"]!.have;
  }

  /** The other parts, and messages of another queue. */
  async sendOthers(): Promise<void> {
    for (let ordinal = 2; ordinal <= PARTS; ordinal++) await this.part(ordinal);
    for (let n = 1; n <= RESULTS; n++) {
      const options = { persistent: true, messageId: `r${n}` };
      this.channel.sendToQueue(`${this.kind}.results`, Buffer.from(`{"collection":"r${n}"}`), options);
    }
    await this.channel.waitForConfirms();
  }

  /** Up to where it is parked, with all that must be so on the way. */
  async untilGivenUp(poison: "as a part"): Promise<void> {
    const { engine, channel, kind } = this;
    await this.part(1, POISON);
    await this.raise("part", MAX_IN_COMPANY - 1);
    await this.sendOthers();
    await this.dies(poison);
    // It leaves the queue of parts, and ends a process alone.
    await this.dies(poison);
    const { messageCount } = await channel.checkQueue(`outlive.${kind}.part`);
    assert.equal(messageCount, 0, "it has left the queue of parts");
    await this.raise("parked", MAX_ALONE - 1);
    await this.dies(poison);
    assert.deepEqual(await engine.parked({ kind }), [], "not before its limit");
    assert.equal(await this.have(), PARTS - 1, "everything else was stored by processes that died of it");
  }

  /** Messages of other queues and new parts are handled. */
  async goesOn(): Promise<void> {
    await this.part(PARTS + 1);
    await untilTrue(
      () => this.have(),
      (have) => have === PARTS,
      "a new part is stored",
    );
    await untilTrue(
      () => this.engine.list({ kind: `${this.kind}-result` }),
      ({ jobs }) => jobs.length === RESULTS && jobs.every(({ state }) => state === "succeeded"),
      "messages of another queue became jobs, which have succeeded",
    );
    const { series, why } = (await this.engine.collection("tx"))!;
    assert.equal(series["files"]?.missing, "1");
    assert.match(why, /files lacks 1 of 13 \(1\); 1 message\(s\) of it are parked/);
  }
}

const untilParked = (engine: Engine, kind: string) =>
  untilTrue(
    () => engine.parked({ kind }),
    (all) => all.length > 0,
    "the message is parked",
  );

test("a message that ends every process that handles it is parked with its body and a reason, everything else is stored meanwhile, and it can be put again", async (t) => {
  const poisoned = await Poisoned.begin(t);
  const { engine, kind } = poisoned;
  await poisoned.untilGivenUp("as a part");
  poisoned.collector("as a part");
  const parked = await untilParked(engine, kind);
  assert.deepEqual(
    parked.map(({ collection: id, series, ordinal, bytes }) => [id, series, ordinal, bytes]),
    [["tx", "files", 1, POISON.length]],
  );
  assert.match(
    parked[0]!.reason,
    /^it was handled alone 14 times and never finished: its handling may end the process$/,
  );
  await poisoned.goesOn();
  assert.equal(await engine.retryParked(parked[0]!), "accepted", "with what was wrong repaired");
  assert.equal((await engine.collection("tx"))?.series["files"]?.missing, "");
});

test("a message whose body can't even be parked, because storing it ends the process, is shown with the reason, stays with the broker, and ends no more of them", async (t) => {
  const poisoned = await Poisoned.begin(t);
  const { engine, kind, channel } = poisoned;
  // As if it had left its queue, which the test before shows.
  await poisoned.part(1, POISON, "parked");
  await poisoned.raise("parked", MAX_ALONE + MAX_PARKINGS - 1);
  await poisoned.sendOthers();
  await poisoned.dies("anywhere");
  assert.deepEqual(await engine.parked({ kind }), [], "it died before it could say so");
  const last = poisoned.collector("anywhere");
  const [row] = await untilParked(engine, kind);
  assert.deepEqual([row!.ordinal, row!.blob], [1, null]);
  assert.match(row!.reason, /and so may storing its body: it is the first message of the broker's parked queue$/);
  await poisoned.goesOn();
  for (const behind of [7, 8]) {
    await poisoned.part(behind, "sent by hand", "parked");
    await untilTrue(
      () => engine.parked({ kind }),
      (rows) => rows.some(({ ordinal }) => ordinal === behind),
      "a message behind it in the parked queue is handled",
    );
  }
  last.kill();
  await last.exited;
  await poisoned.raise("parked", MAX_ALONE + MAX_PARKINGS + 2);
  // The acknowledgement of the last one may have died with its process; the one before it was acknowledged first.
  const { messageCount } = await channel.checkQueue(`outlive.${kind}.parked`);
  assert.ok(messageCount === 1 || messageCount === 2, `nothing of it is lost: ${messageCount} messages`);
});

test("a message that ends processes waits for the suspect job of its process, and the job is not blamed for it", async (t) => {
  const poisoned = await Poisoned.begin(t);
  const { engine, kind, channel, held } = poisoned;
  const { id } = await engine.enqueue(held, null);
  const first = poisoned.collector("anywhere");
  await first.untilFact("held");
  first.kill();
  await first.exited;
  const second = poisoned.collector("anywhere");
  await second.untilFact("held");
  await poisoned.part(1, POISON, "parked");
  // That it is not taken can only be shown by time: the process checks the queue twice.
  await setTimeout(2 * POLL_MS + ALONE_REST_MS);
  const { messageCount } = await channel.checkQueue(`outlive.${kind}.parked`);
  assert.equal(messageCount, 1, "a message in hand would be counted at a death that is not its own");
  second.process.send("release");
  assert.equal((await second.exited).signal, "SIGKILL", "it died of the message, after the job");
  const done = await engine.get(id);
  assert.deepEqual([done?.state, done?.counters.crashes, done?.counters.blamed], ["succeeded", 1, 0]);
});
