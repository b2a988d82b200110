// Collects parts from RabbitMQ and by `put`, or, with `bare`, does the least that a program without Outlive would do for the same: consume, hash,
// write a file with fsync, acknowledge. It also sends the messages, so that nothing else has to be started for that.
import { createHash } from "node:crypto";
import { mkdirSync } from "node:fs";
import { open as openFile, readdir, truncate } from "node:fs/promises";
import { join } from "node:path";
import amqplib from "amqplib";
import { fileSystem } from "../../../src/blobs.ts";
import { collection, open } from "../../../src/index.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import type { Emitter } from "../../../src/job/events.ts";
import { rabbitmq } from "../../../src/rabbitmq.ts";
import { tendCollections } from "../../../src/recovery/collection-ends.ts";
import { BATCHES_MS } from "../../../src/recovery/maintenance.ts";
import type { Collections } from "../../../src/stores/collections.ts";
import { storeAt } from "../../../src/stores/registry.ts";
import { given, monoMs, serve, tell } from "../program.ts";

const { url, folder, broker, bare, holds, kind, messageMax } = given<{
  url: string;
  folder: string;
  broker: string;
  bare: boolean;
  /** Never finishes a part, so that it keeps its messages. */
  holds: boolean;
  kind: string;
  messageMax: number;
}>();

const MEMORY = 256_000_000;
/** What Outlive takes for this size of messages. */
const PREFETCH = Math.min(256, Math.max(1, Math.floor(MEMORY / messageMax)));

const scan = collection(kind, { series: ["files"], message: { max: messageMax }, memory: MEMORY });
// Something attached: a worker consumes only what it could also finish.
scan.done(() => {});
const blobs = fileSystem({ folder });
if (holds) Object.assign(blobs, { put: () => new Promise(() => {}), stage: undefined });
const engine = bare
  ? null
  : await open(url, { jobs: [scan], blobs, broker: rabbitmq(broker), logger: false, heartbeat: { probe: "50ms" } });
if (bare) mkdirSync(folder, { recursive: true });

let beganAt = 0;
let before = process.cpuUsage();
function begin(): void {
  before = process.cpuUsage();
  beganAt = monoMs();
}
function ended(): { seconds: number; cpuMs: number } {
  const { user, system } = process.cpuUsage(before);
  return { seconds: (monoMs() - beganAt) / 1_000, cpuMs: (user + system) / 1_000 };
}

const accepted: number[] = [];
let peakRss = 0;
let hear: (() => void) | null = null;
engine?.on("part.accepted", () => {
  accepted.push(monoMs());
  peakRss = Math.max(peakRss, process.memoryUsage.rss());
  hear?.();
});
engine?.on("broker.changed", ({ state }) => {
  if (state === "connected") begin();
  tell(state, null);
});

function untilAccepted(count: number): Promise<void> {
  return new Promise((resolve) => {
    hear = (): void => {
      if (accepted.length >= count) resolve();
    };
    hear();
  });
}

async function writeFile(name: string, data: Uint8Array): Promise<void> {
  const handle = await openFile(join(folder, name), "w", 0o600);
  try {
    await handle.write(data);
    await handle.sync();
  } finally {
    await handle.close();
  }
}

interface Put {
  id: string;
  count: number;
  bytes: number;
  lanes: number;
  /** Of a bare file: it is named by the SHA-256 of its bytes. */
  hashes?: boolean;
}

/** As many messages in hand as ours; each is written as soon as it comes. */
async function bareConsume(queue: string, count: number): Promise<void> {
  const model = await amqplib.connect(broker);
  const channel = await model.createChannel();
  await channel.prefetch(PREFETCH);
  let done = 0;
  begin();
  await new Promise<void>((resolve, reject) => {
    const take = async (message: amqplib.ConsumeMessage): Promise<void> => {
      const hash = createHash("sha256").update(message.content).digest("hex");
      await writeFile(hash, message.content);
      channel.ack(message);
      if (++done === count) resolve();
    };
    channel.consume(queue, (message) => void (message && take(message).catch(reject)), {}).catch(reject);
  });
  const ran = ended();
  await channel.close();
  await model.close();
  bareRan = ran;
}
let bareRan = { seconds: 0, cpuMs: 0 };

function contentOf(n: number, bytes: number): Buffer {
  const content = Buffer.alloc(bytes, createHash("sha256").update(String(n)).digest());
  content.writeDoubleLE(n + Math.random(), 0);
  return content;
}

/** `each` for 1 to `count`, so many at once. */
async function atOnce(count: number, lanes: number, each: (n: number) => Promise<unknown>): Promise<void> {
  let next = 1;
  await Promise.all(
    Array.from({ length: lanes }, async () => {
      while (next <= count) await each(next++);
    }),
  );
}

let worker: { stop(options: { grace: "0s" }): Promise<unknown> } | null = null;

serve({
  collect: async ({ id, parts }: { id: string; parts: number }) => {
    await engine!.collect(scan, null, { id, expect: { files: parts } });
  },
  /** To a queue by its name, or to a collection. */
  send: async ({ queue, id, count, bytes }: { queue?: string; id: string; count: number; bytes: number }) => {
    const model = await amqplib.connect(broker);
    const channel = await model.createConfirmChannel();
    if (queue !== undefined)
      await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
    for (let n = 1; n <= count; n++) {
      const headers = { "outlive-collection": id, "outlive-series": "files", "outlive-ordinal": n };
      const [exchange, key] = queue === undefined ? ["outlive.collections", `${kind}.part`] : ["", queue];
      channel.publish(exchange, key, contentOf(n, bytes), { persistent: true, mandatory: true, headers });
      // What is not confirmed is in this process's memory.
      if (n % 16 === 0) await channel.waitForConfirms();
    }
    await channel.waitForConfirms();
    await model.close();
  },
  start: async () => {
    worker = await engine!.start();
  },
  stop: async () => {
    await worker?.stop({ grace: "0s" });
  },
  /** Consumes what was sent. The time begins with the connection. */
  run: async ({ queue, count }: { queue?: string; count: number }) => {
    if (queue !== undefined) {
      await bareConsume(queue, count);
      return bareRan;
    }
    accepted.length = 0;
    peakRss = 0;
    worker = await engine!.start();
    await untilAccepted(count);
    const ran = ended();
    await worker.stop({ grace: "0s" });
    return { ...ran, peakRss };
  },
  put: async ({ id, count, bytes, lanes, hashes = false }: Put) => {
    const contents = Array.from({ length: count }, (_, n) => contentOf(n, bytes));
    begin();
    await atOnce(count, lanes, (n) => {
      const content = contents[n - 1]!;
      const name = hashes ? createHash("sha256").update(content).digest("hex") : `${id}-${n}`;
      return bare ? writeFile(name, content) : engine!.put(scan, id, "files", n, content);
    });
    return ended();
  },
  accepted: () => accepted,
  forget: () => {
    accepted.length = 0;
  },
  openMany: async ({ count }: { count: number }) => {
    await atOnce(count, 50, (n) => engine!.collect(scan, null, { id: `open-${n}` }));
  },
  /** Rows of parts without blobs: all but one of every `every`. */
  fillParts: async ({ id, parts, every }: { id: string; parts: number; every: number }) => {
    const store = await storeAt(url).client(url, {}).open({ clock: systemClock, random: systemRandom });
    const sha256 = "0".repeat(64);
    for (let from = 1; from <= parts; from += 5_000) {
      const piece = Array.from({ length: Math.min(5_000, parts - from + 1) }, (_, n) => from + n);
      await store.collections!.put(
        piece
          .filter((ordinal) => ordinal % every !== 0)
          .map((ordinal) => {
            const blob = `collections/${kind}/${id}/files/${ordinal}-${sha256.slice(0, 16)}`;
            return { collection: id, series: "files", ordinal, bytes: 1, sha256, blob };
          }),
      );
    }
    await store.close();
  },
  /** Calls about collections in one pass of the maintenance that finds nothing to do, and how many passes a second has. */
  idlePass: async () => {
    worker = await engine!.start();
    // Requests of all of them run first.
    for (;;) {
      const counts = await engine!.collectionCounts();
      if (counts.every(({ state }) => state === "collecting")) break;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await worker.stop({ grace: "0s" });
    const store = await storeAt(url).client(url, {}).open({ clock: systemClock, random: systemRandom });
    let calls = 0;
    const counted = new Proxy(store.collections!, {
      get(target, verb: keyof Collections) {
        calls++;
        return target[verb];
      },
    });
    const silent = { emit: () => {}, has: () => false } as unknown as Emitter;
    await tendCollections(counted, silent, () => true);
    calls = 0;
    const from = performance.now();
    await tendCollections(counted, silent, () => true);
    const ms = performance.now() - from;
    await store.close();
    return { calls, perSecond: 1_000 / BATCHES_MS, ms };
  },
  report: async ({ id }: { id: string }) => {
    const from = performance.now();
    const found = await engine!.collection(id);
    return { ms: performance.now() - from, missing: found!.series["files"]!.missing };
  },
  /** Empties the files. */
  clear: async () => {
    for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }))
      if (entry.isFile()) await truncate(join(entry.parentPath, entry.name));
  },
});
tell("started", null);
