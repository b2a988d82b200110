// pg-boss on PostgreSQL. Its heartbeat is off by default, then a job's expiration (15 min) is its recovery; with it the monitor fails
// and retries what has been silent for `heartbeatSeconds`, whose least value is 10.
import type { Found, Input, Mode, Open, Session } from "../adapter.ts";
import { load } from "./load.ts";

interface Job {
  readonly id: string;
  readonly data: Input;
  readonly state: string;
  readonly retryCount: number;
}
interface Boss {
  on(name: string, listener: (error: Error) => void): void;
  start(): Promise<unknown>;
  stop(): Promise<void>;
  createQueue(name: string, options: object): Promise<void>;
  send(name: string, data: Input): Promise<string | null>;
  insert(name: string, jobs: readonly { data: Input }[]): Promise<unknown>;
  work(name: string, options: object, handler: (jobs: readonly Job[]) => Promise<void>): Promise<string>;
  findJobs(name: string, options: { id: string }): Promise<readonly Job[]>;
  getDb(): { executeSql(text: string): Promise<{ rows: readonly { unfinished: number }[] }> };
}

const BOSS: Readonly<Record<Mode, object>> = {
  default: {},
  fastest: { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1, useListenNotify: true },
  throughput: {},
};
const QUEUE: Readonly<Record<Mode, object>> = {
  default: {},
  fastest: { heartbeatSeconds: 10, notify: true },
  throughput: {},
};

const STATES: Readonly<Record<string, Found["state"]>> = {
  created: "waiting",
  retry: "waiting",
  active: "running",
  completed: "done",
  failed: "failed",
  cancelled: "failed",
};

export const open: Open = async ({ address }, mode): Promise<Session> => {
  const { PgBoss } = await load<{ PgBoss: new (options: object) => Boss }>("pg-boss");
  const boss = new PgBoss({ connectionString: address, ...BOSS[mode] });
  boss.on("error", () => {});
  boss.on("warning", () => {});
  await boss.start();
  await boss.createQueue("task", QUEUE[mode]);
  return {
    async add(input) {
      const id = await boss.send("task", input);
      if (id === null) throw new Error("pg-boss refused the job");
      return id;
    },
    addMany: (inputs) =>
      boss.insert(
        "task",
        inputs.map((data) => ({ data })),
      ),
    work: (concurrency, handler) =>
      boss.work("task", workOptions(mode, concurrency), async (jobs) => {
        await Promise.all(jobs.map(({ data }) => handler({ input: data, note: null })));
      }),
    stop: () => boss.stop(),
    async unfinished() {
      // Its getQueueStats() may be a minute old.
      const text = "SELECT count(*)::int AS unfinished FROM pgboss.job WHERE name = 'task' AND state < 'completed'";
      return (await boss.getDb().executeSql(text)).rows[0]!.unfinished;
    },
    async find(id) {
      const [job] = await boss.findJobs("task", { id });
      if (!job) return { state: "missing", note: null, detail: "no row" };
      return {
        state: STATES[job.state] ?? "failed",
        note: null,
        detail: `${job.state}, retry count ${job.retryCount}`,
      };
    },
  };
};

function workOptions(mode: Mode, concurrency: number): object {
  if (mode === "throughput")
    return { batchSize: concurrency, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  const polling = mode === "fastest" ? { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 } : {};
  return { localConcurrency: concurrency, ...polling };
}
