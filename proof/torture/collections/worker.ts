// A process of the rig for collections: a worker that collects from RabbitMQ, or the producer that sends all parts of one collection after the
// other and begins again where it was killed. Arguments: a JSON of Task.
import { appendFileSync, existsSync } from "node:fs";
import { flushCompileCache } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import amqplib from "amqplib";
import { collection, type Engine, open } from "../../../src/index.ts";
import { rabbitmq } from "../../../src/rabbitmq.ts";
import { confirmedIn, contentOf, idOf, KIND, RESULTS } from "./plan.ts";

export interface Task {
  readonly role: "worker" | "producer";
  readonly url: string;
  readonly blobs: string;
  readonly broker: string;
  readonly parts: number;
  /** Where the producer notes what the broker has confirmed. */
  readonly acked: string;
  /** The producer ends when this file is there, it has sent so many collections, and none is sent in part. */
  readonly enough: string;
  readonly atLeast: number;
}

/** The producer waits while so many collections are open: each kill then strikes among work, and little is left after the last one. */
const MAX_OPEN = 30;

const task = JSON.parse(process.argv[2]!) as Task;

const scan = collection(KIND, {
  series: ["files"],
  retry: { attempts: 100, crashes: 100, backoff: { base: "10ms", max: "200ms" } },
});

let hasWorked = false;

if (task.role === "worker") {
  scan.notify(RESULTS).done(async (collected) => {
    for await (const part of collected.parts("files")) for await (const _ of part.stream());
  });
  const { url, blobs, broker } = task;
  const heartbeat = { interval: "200ms", lease: "5s", probe: "50ms", sweep: "1s" } as const;
  const engine = await open(url, { jobs: [scan], blobs, broker: rabbitmq(broker), logger: false, heartbeat });
  const working = (): void => {
    if (hasWorked) return;
    hasWorked = true;
    // A process that is killed does not write its compiled code for those after it.
    flushCompileCache();
    process.send?.("working");
  };
  engine.on("part.accepted", working);
  engine.on("job.succeeded", working);
  await engine.work();
}

if (task.role === "producer") {
  const { url, blobs, broker, parts, acked, enough, atLeast } = task;
  const engine = await open(url, { jobs: [scan], blobs, logger: false });
  // The rig starts it again until the broker is back.
  const model = await amqplib.connect(broker).catch(() => process.exit(1));
  model.on("error", () => process.exit(1));
  model.on("close", () => process.exit(1));
  const channel = await model.createConfirmChannel();
  channel.on("error", () => process.exit(1));
  channel.on("return", () => process.exit(1));
  for (let n = confirmedIn(acked); n < atLeast || !existsSync(enough) || (await isOpened(engine, n)); n++) {
    while ((await openOnes(engine)) >= MAX_OPEN && !existsSync(enough)) await pause(20);
    const id = idOf(n);
    await engine.collect(scan, null, { id });
    const options = { persistent: true, mandatory: true };
    const headers = { "outlive-collection": id };
    channel.publish("outlive.collections", `${KIND}.header`, Buffer.from(`{"series":{"files":${parts}}}`), {
      ...options,
      headers,
    });
    for (let ordinal = parts; ordinal >= 1; ordinal--)
      channel.publish("outlive.collections", `${KIND}.part`, contentOf(n, ordinal), {
        ...options,
        headers: { ...headers, "outlive-series": "files", "outlive-ordinal": ordinal },
      });
    await channel.waitForConfirms();
    appendFileSync(acked, `${id}\n`);
  }
  await engine.close();
  process.exit(0);
}

/** By this process, or by one that was killed while it sent the parts: without the rest nothing would ever complete it. */
async function isOpened(engine: Engine, n: number): Promise<boolean> {
  return (await engine.collection(idOf(n))) !== null;
}

async function openOnes(engine: Engine): Promise<number> {
  return (await engine.collectionCounts()).reduce(
    (sum, { state, count }) => sum + (state === "notified" ? 0 : count),
    0,
  );
}
