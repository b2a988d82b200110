// BullMQ as its guide sets it up: a Queue with `addBulk` to fill it and `add` for single jobs, and a Worker.
import { given, monoMs, serve } from "../../program.ts";
import { inFlight } from "./in-flight.ts";

interface Bullmq {
  readonly Queue: new (
    name: string,
    options: object,
  ) => {
    add(name: string, data: object): Promise<{ id: string }>;
    addBulk(jobs: readonly { name: string; data: object }[]): Promise<unknown>;
    on(name: string, listener: () => void): void;
  };
  readonly Worker: new (
    name: string,
    handler: () => Promise<void>,
    options: object,
  ) => {
    on(name: string, listener: () => void): void;
    close(): Promise<void>;
  };
}

const PACKAGE: string = "bullmq";
const { Queue, Worker } = (await import(PACKAGE)) as Bullmq;
const { url, settings, every } = given<{ url: string; settings: { concurrency: number }; every: number }>();
const { hostname, port, searchParams } = new URL(url);
const options = { connection: { host: hostname, port: Number(port) }, prefix: searchParams.get("store") ?? "bench" };
const queue = new Queue("noop", options);
queue.on("error", () => {});

const BULK = 1_000;
let filled = 0;

serve({
  fill: async ({ count, inputBytes }: { count: number; inputBytes?: number }) => {
    filled = count;
    const given = inputBytes === undefined ? null : { text: "x".repeat(inputBytes - `{"text":""}`.length) };
    for (let from = 0; from < count; from += BULK)
      await queue.addBulk(
        Array.from({ length: Math.min(BULK, count - from) }, (_, i) => ({
          name: "noop",
          data: given ?? { n: from + i },
        })),
      );
  },
  go: async () => {
    const marks: number[] = [];
    let ended = 0;
    const all = Promise.withResolvers<void>();
    const worker = new Worker("noop", async () => {}, { ...options, ...settings });
    worker.on("error", () => {});
    worker.on("completed", () => {
      if (++ended % every === 0) marks.push(monoMs());
      if (ended >= filled) all.resolve();
    });
    await all.promise;
    await worker.close();
    return { marks };
  },
  inFlight: (asked: { count: number; width: number }) => inFlight(asked, (n) => queue.add("noop", { n })),
});
