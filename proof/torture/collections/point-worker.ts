// A worker that stands still at one point of a collection's life, so that the rig can kill it, its broker or its store right there. It stands still once: a
// file says that it has been there, another one that it may go on. Nothing of the engine is changed: what it was given is wrapped (blob store, broker, the
// driver's confirmations), and its events are heard. Arguments: a JSON of PointTask.
import { appendFileSync, existsSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileSystem } from "../../../src/blobs.ts";
import { open } from "../../../src/index.ts";
import { rabbitmq } from "../../../src/rabbitmq.ts";
import type { Consumer, Delivery } from "../../../src/stores/broker.ts";
import { collectionOf, type Point, PARTS, type PointTask, resultsOf } from "./point-plan.ts";

const task = JSON.parse(process.argv[2]!) as PointTask;
const { folder, kind, point } = task;
const [at, go] = [join(folder, "at"), join(folder, "go")];

/** Holds the whole process: not even a timer runs. */
function stand(here: Point): void {
  if (here !== point || existsSync(at)) return;
  writeFileSync(at, String(process.pid));
  const cell = new Int32Array(new SharedArrayBuffer(4));
  while (!existsSync(go)) Atomics.wait(cell, 0, 0, 5);
}

const note = (line: string): void => appendFileSync(join(folder, "effects"), `${line}\n`);

/** As it is, but for these methods. */
function wrapped<T extends object>(target: T, methods: Partial<Record<string, (...args: never[]) => unknown>>): T {
  return new Proxy(target, {
    get(_, name) {
      const own = methods[String(name)];
      const value: unknown = own ?? Reflect.get(target, name);
      return typeof value === "function" ? (value as (...args: unknown[]) => unknown).bind(own ? null : target) : value;
    },
  });
}

const folderOfBlobs = fileSystem({ folder: join(folder, "blobs") });
const staging = folderOfBlobs as unknown as {
  stage(data: Uint8Array): unknown;
  sync(keys: readonly string[]): Promise<void>;
};
const blobs = wrapped(folderOfBlobs, {
  stage: (data: Uint8Array) => {
    if (Buffer.from(data).toString().startsWith("part 2 ")) stand("before put");
    return staging.stage(data);
  },
  sync: async (keys: readonly string[]) => {
    await staging.sync(keys);
    if (keys.some((key) => key.includes("/2-"))) stand("after put");
  },
  delete: async (keys: readonly string[]) => {
    await folderOfBlobs.delete(keys.slice(0, 1));
    stand("in clean-up");
    await folderOfBlobs.delete(keys.slice(1));
  },
});

const link = rabbitmq(task.broker);
const isSecond = ({ headers }: Delivery): boolean => Number(headers["outlive-ordinal"]) === 2;
const broker = wrapped(link, {
  publish: async (message: Parameters<typeof link.publish>[0]) => {
    await link.publish(message);
    stand("after confirm");
  },
  startConsuming: (...of: Parameters<typeof link.startConsuming>) => {
    const consumption = link.startConsuming(...of);
    return wrapped(consumption, {
      set: (consumers: readonly Consumer[]) =>
        consumption.set(
          consumers.map((consumer) => ({
            ...consumer,
            handle: async (deliveries) => {
              const verdicts = await consumer.handle(deliveries);
              if (deliveries.some(isSecond)) stand("before ack");
              return verdicts;
            },
          })),
        ),
    });
  },
});

// The broker has the message, and its confirmation is on the way. The driver does not export its class of channels.
type Publish = (
  exchange: string,
  key: string,
  body: Buffer,
  options: object,
  done: (error: unknown) => void,
) => boolean;
const require = createRequire(import.meta.url);
const { ConfirmChannel } = require(join(dirname(require.resolve("amqplib")), "lib/channel_model.js")) as {
  ConfirmChannel: { prototype: Record<"publish", Publish> };
};
const publish = ConfirmChannel.prototype["publish"];
ConfirmChannel.prototype.publish = function (exchange, key, body, options, done) {
  return publish.call(this, exchange, key, body, options, (error) => {
    stand("after publish");
    done(error);
  });
};

const scan = collectionOf(kind, point);
if (point === "in abandon" || point === "in clean-up")
  scan.abandoned(({ id, missing }) => {
    note(`abandoned ${id} ${missing["files"]}`);
    stand("in abandon");
  });
else
  scan.notify(resultsOf(kind)).done(async (collected) => {
    const ordinals: number[] = [];
    for await (const part of collected.parts("files")) {
      for await (const _ of part.stream());
      ordinals.push(part.ordinal);
    }
    note(`done ${collected.id} ${ordinals.join(" ")}`);
  });

const heartbeat = { interval: "200ms", lease: "30s", probe: "50ms", sweep: "1s" } as const;
const engine = await open(task.url, { jobs: [scan], blobs, broker, logger: false, heartbeat });
engine.on("part.accepted", ({ ordinal }) => {
  if (ordinal === 2) stand("after commit");
  if (ordinal === PARTS) stand("after the last commit");
});
engine.on("collection.changed", ({ state }) => {
  if (state === "complete") stand("after the end");
});
await engine.work();
