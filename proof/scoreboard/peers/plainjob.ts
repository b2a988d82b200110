// plainjob on SQLite through better-sqlite3. Its worker runs one job at a time, so a concurrency is that many workers in the process.
// Its timeout counts from the time a job was scheduled for, whether or not it still runs.
import type { Found, Mode, Open, Session } from "../adapter.ts";
import { load } from "./load.ts";

interface Plainjob {
  readonly better: (database: object) => object;
  readonly defineQueue: (options: object) => Queue;
  readonly defineWorker: (
    type: string,
    handler: (job: { readonly data: string }) => Promise<void>,
    options: object,
  ) => { start(): Promise<void>; stop(): Promise<void> };
}
interface Queue {
  add(type: string, data: unknown): { id: number };
  addMany(type: string, data: readonly unknown[]): unknown;
  countJobs(options: { status: number }): number;
  getJobById(id: number): { readonly status: number; readonly error?: string } | undefined;
  close(): void;
}

const TIMES: Readonly<Record<Mode, object>> = {
  default: {},
  fastest: { timeout: 5_000, maintenanceInterval: 1_000 },
  throughput: {},
};
const STATES: readonly Found["state"][] = ["waiting", "running", "done", "failed"];
const silent = { error() {}, warn() {}, info() {}, debug() {} };

export const open: Open = async ({ address }, mode): Promise<Session> => {
  const { better, defineQueue, defineWorker } = await load<Plainjob>("plainjob");
  const { default: Database } = await load<{ default: new (path: string) => object }>("better-sqlite3");
  const queue = defineQueue({ connection: better(new Database(address)), logger: silent, ...TIMES[mode] });
  const workers: ReturnType<Plainjob["defineWorker"]>[] = [];
  return {
    add: (input) => Promise.resolve(String(queue.add("task", input).id)),
    addMany: (inputs) => Promise.resolve(queue.addMany("task", inputs)),
    work(concurrency, handler) {
      const options = { queue, logger: silent, ...(mode === "fastest" ? { pollIntervall: 100 } : {}) };
      const handle = ({ data }: { readonly data: string }): Promise<void> =>
        handler({ input: JSON.parse(data), note: null });
      for (let n = 0; n < concurrency; n++) workers.push(defineWorker("task", handle, options));
      for (const worker of workers) void worker.start();
      return Promise.resolve();
    },
    stop: async () => {
      await Promise.all(workers.map((worker) => worker.stop()));
      queue.close();
    },
    unfinished: () => Promise.resolve(queue.countJobs({ status: 0 }) + queue.countJobs({ status: 1 })),
    find(id) {
      const job = queue.getJobById(Number(id));
      if (!job) return Promise.resolve({ state: "missing", note: null, detail: "no row" });
      const state = STATES[job.status] ?? "failed";
      return Promise.resolve({ state, note: null, detail: `status ${job.status} (${state})` });
    },
  };
};
