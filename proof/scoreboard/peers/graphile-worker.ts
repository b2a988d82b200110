// graphile-worker on PostgreSQL. A lock of a dead worker ends after four hours, written in its SQL: where an experiment can't wait for
// that, the lock is made four hours older in the table.
import type { Mode, Open, Session } from "../adapter.ts";
import { load } from "./load.ts";

interface Utils {
  migrate(): Promise<void>;
  addJob(name: string, payload: unknown): Promise<{ id: string }>;
  addJobs(jobs: readonly { identifier: string; payload: unknown }[]): Promise<unknown>;
  withPgClient<T>(use: (client: Client) => Promise<T>): Promise<T>;
}
interface Client {
  query(text: string, values?: readonly unknown[]): Promise<{ rows: readonly Row[] }>;
}
interface Row {
  readonly attempts: number;
  readonly max_attempts: number;
  readonly locked: boolean;
  readonly unfinished: number;
}
interface GraphileWorker {
  readonly Logger: new (make: () => () => void) => object;
  readonly run: (options: object) => Promise<unknown>;
  readonly makeWorkerUtils: (options: object) => Promise<Utils>;
}

const WORKER: Readonly<Record<Mode, object>> = {
  default: {},
  // The locks are looked over every second instead of every 8 to 10 minutes; their four hours can't be set.
  fastest: { minResetLockedInterval: 1_000, maxResetLockedInterval: 1_000, pollInterval: 500 },
  throughput: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
};

export const open: Open = async ({ address }, mode): Promise<Session> => {
  const { Logger, makeWorkerUtils, run } = await load<GraphileWorker>("graphile-worker");
  const shared = { connectionString: address, logger: new Logger(() => () => {}) };
  const utils = await makeWorkerUtils(shared);
  await utils.migrate();
  const query = (text: string, values: readonly unknown[] = []): Promise<{ rows: readonly Row[] }> =>
    utils.withPgClient((client) => client.query(text, values));
  return {
    add: async (input) => String((await utils.addJob("task", input)).id),
    addMany: (inputs) => utils.addJobs(inputs.map((payload) => ({ identifier: "task", payload }))),
    work: (concurrency, handler) =>
      run({
        logger: shared.logger,
        preset: {
          worker: {
            connectionString: address,
            concurrentJobs: concurrency,
            maxPoolSize: concurrency + 1,
            ...WORKER[mode],
          },
        },
        taskList: { task: (input: never) => handler({ input, note: null }) },
      }),
    stop: undefined,
    async unfinished() {
      const { rows } = await query(
        "SELECT count(*)::int AS unfinished FROM graphile_worker._private_jobs WHERE attempts < max_attempts OR locked_at IS NOT NULL",
      );
      return rows[0]!.unfinished;
    },
    async find(id) {
      const { rows } = await query(
        "SELECT attempts, max_attempts, locked_at IS NOT NULL AS locked FROM graphile_worker._private_jobs WHERE id = $1",
        [id],
      );
      const [row] = rows;
      // A job that succeeded is deleted; one that was never there has no row either.
      if (!row) return { state: "done", note: null, detail: "no row: completed jobs are deleted" };
      const { attempts, max_attempts: most, locked } = row;
      const state = locked ? "running" : attempts >= most ? "failed" : "waiting";
      return { state, note: null, detail: `${locked ? "locked" : "not locked"}, attempt ${attempts} of ${most}` };
    },
    pretendLeaseIsOver: () =>
      query(
        "UPDATE graphile_worker._private_jobs SET locked_at = locked_at - interval '4 hours' WHERE locked_at > now() - interval '4 hours'",
      ),
  };
};
