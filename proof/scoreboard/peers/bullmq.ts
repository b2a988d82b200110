// BullMQ on Redis, as its guide says: a Queue, a Worker, connection options. Its stalled check is its recovery.
import type { Found, Input, Mode, Open, Session } from "../adapter.ts";
import { load } from "./load.ts";

interface Job {
  readonly id: string;
  readonly data: Input;
  readonly progress: unknown;
  readonly attemptsMade: number;
  readonly stalledCounter: number;
  readonly failedReason?: string;
  updateProgress(value: unknown): Promise<void>;
  getState(): Promise<string>;
}
interface Bullmq {
  readonly Queue: new (
    name: string,
    options: object,
  ) => {
    add(name: string, data: Input): Promise<Job>;
    addBulk(jobs: readonly { name: string; data: Input }[]): Promise<unknown>;
    getJob(id: string): Promise<Job | undefined>;
    getJobCountByTypes(...types: readonly string[]): Promise<number>;
    on(name: string, listener: () => void): void;
    close(): Promise<void>;
  };
  readonly Worker: new (
    name: string,
    handler: (job: Job) => Promise<void>,
    options: object,
  ) => { on(name: string, listener: () => void): void; waitUntilReady(): Promise<unknown>; close(): Promise<void> };
}

const TIMES: Readonly<Record<Mode, object>> = {
  default: {},
  fastest: { lockDuration: 1_000, stalledInterval: 1_000 },
  throughput: {},
};

const STATES: Readonly<Record<string, Found["state"]>> = {
  active: "running",
  completed: "done",
  failed: "failed",
  unknown: "missing",
};

export const open: Open = async ({ address }, mode): Promise<Session> => {
  const { Queue, Worker } = await load<Bullmq>("bullmq");
  const { hostname, port, pathname } = new URL(address);
  const options = { connection: { host: hostname, port: Number(port) }, prefix: pathname.slice(1) };
  const queue = new Queue("task", options);
  queue.on("error", () => {});
  let worker: InstanceType<typeof Worker> | undefined;
  return {
    add: async (data) => (await queue.add("task", data)).id,
    addMany: (inputs) => queue.addBulk(inputs.map((data) => ({ name: "task", data }))),
    async work(concurrency, handler) {
      const process = (job: Job): Promise<void> =>
        handler({ input: job.data, note: (word) => job.updateProgress(word) });
      worker = new Worker("task", process, { ...options, concurrency, ...TIMES[mode] });
      worker.on("error", () => {});
      await worker.waitUntilReady();
    },
    stop: async () => {
      await worker?.close();
      await queue.close();
    },
    unfinished: () => queue.getJobCountByTypes("waiting", "active", "delayed", "prioritized", "paused"),
    async find(id) {
      const job = await queue.getJob(id);
      if (!job) return { state: "missing", note: null, detail: "no such job" };
      const state = await job.getState();
      return {
        state: STATES[state] ?? "waiting",
        note: typeof job.progress === "string" ? job.progress : null,
        detail: `${state}, ${job.attemptsMade} attempts made, stalled ${job.stalledCounter} times${job.failedReason ? `: ${job.failedReason}` : ""}`,
      };
    },
  };
};
