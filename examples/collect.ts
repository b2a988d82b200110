// A scan that another program sends in numbered parts over RabbitMQ. Kill the worker or the producer with SIGKILL in any state, and start it again: no
// part is lost, none counts twice, and the result comes once.
//
//   npm install outlive amqplib
//   export OUTLIVE_BROKER=amqp://localhost
//   node collect.ts work            a worker; start as many as you like
//   node collect.ts scan tx-1       asks for a scan
//   node collect.ts produce         the producer: any program in any language that knows the wire (docs/collections.md)
//
// In your program the imports are
//   import { collection, job, open } from "outlive";
//   import { connect } from "outlive/client";
//   import { rabbitmq } from "outlive/rabbitmq";
import amqplib from "amqplib";
import { connect } from "../src/client.ts";
import { collection, job, open } from "../src/index.ts";
import { rabbitmq } from "../src/rabbitmq.ts";

const store = process.env["OUTLIVE_STORE"] ?? "sqlite:./scans.db";
const broker = process.env["OUTLIVE_BROKER"] ?? "amqp://localhost";
const PARTS = 12;

const scan = collection("example-scan", { series: ["files"], abandonAfter: { idle: "30m", total: "24h" } });
// Each of these is a job: after a crash it runs again, so its receiver gets the same id again.
scan.request(async (_input, run) => {
  console.log(`asks for ${run.collection}`);
  await run.publish("example-scanners", {
    exchange: run.wire!.exchange,
    header: run.wire!.header,
    part: run.wire!.part,
  });
});
scan.done(async (collected) => {
  console.log(`loads ${collected.id}`);
  const ordinals: number[] = [];
  for await (const part of collected.parts("files")) {
    for await (const _ of part.stream()); // verified while it is read
    ordinals.push(part.ordinal);
  }
  console.log(`loaded ${collected.id}: ${ordinals.join(" ")}`);
});
scan.notify("example-results");

// The receiver of the notification. Its message id makes it one job, however often it comes.
const result = job<{ collection: string }>("example-result").handle(({ collection: id }) => {
  console.log(`result of ${id}`);
});

const [role, id = "tx-1"] = process.argv.slice(2);

if (role === "work") {
  await declareQueues();
  const link = rabbitmq(broker).consume("example-results", result);
  const engine = await open(store, { jobs: [scan, result], blobs: "./blobs", broker: link, logger: false });
  engine.on("part.accepted", ({ ordinal }) => console.log(`part ${ordinal}`));
  engine.on("collection.changed", ({ collection: of, state }) => console.log(`${of} is ${state}`));
  console.log("working");
  await engine.work();
}

if (role === "scan") {
  const client = await connect(store, { jobs: [scan] });
  const { created } = await client.collect(scan, null, { id });
  console.log(created ? `${id} is requested` : `${id} was requested before`);
  await client.close();
}

if (role === "produce") {
  await declareQueues();
  const model = await amqplib.connect(broker);
  const channel = await model.createConfirmChannel();
  await channel.prefetch(1);
  // The request is acknowledged when all parts are confirmed. Killed before, this begins again, and sends the same parts.
  async function produce(message: amqplib.ConsumeMessage): Promise<void> {
    const wire = JSON.parse(message.content.toString()) as { exchange: string; header: string; part: string };
    const headers = { "outlive-collection": String(message.properties.messageId) };
    const sent = { persistent: true, mandatory: true };
    for (let ordinal = PARTS; ordinal >= 1; ordinal--) {
      const of = { ...headers, "outlive-series": "files", "outlive-ordinal": ordinal };
      channel.publish(wire.exchange, wire.part, Buffer.from(`bytes of ${ordinal}`), { ...sent, headers: of });
      await channel.waitForConfirms();
      console.log(`sent ${ordinal}`);
    }
    const series = Buffer.from(JSON.stringify({ series: { files: PARTS } }));
    channel.publish(wire.exchange, wire.header, series, { ...sent, headers });
    await channel.waitForConfirms();
    channel.ack(message);
    console.log("sent all");
  }

  await channel.consume("example-scanners", (message) => {
    if (message) void produce(message).catch(() => process.exit(1));
  });
  console.log("producing");
}

/** Queues of this example's own; those of the collection are made by Outlive. */
async function declareQueues(): Promise<void> {
  const model = await amqplib.connect(broker);
  const channel = await model.createChannel();
  for (const queue of ["example-scanners", "example-results"])
    await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
  await model.close();
}
