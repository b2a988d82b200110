// graphile-worker as its documentation sets it up: `run` with a preset, `addJob` and `addJobs` of its utilities.
import { setTimeout as delay } from "node:timers/promises";
import { given, monoMs, serve } from "../../program.ts";
import { inFlight } from "./in-flight.ts";

/** As much of it as is used: the package is not there when this is type-checked. */
interface GraphileWorker {
  makeWorkerUtils(options: object): Promise<{
    addJob(task: string, payload: object): Promise<unknown>;
    addJobs(specs: readonly { identifier: string; payload: object }[]): Promise<unknown>;
    migrate(): Promise<void>;
    withPgClient<T>(
      work: (client: { query(sql: string): Promise<{ rows: { jobs: number }[] }> }) => Promise<T>,
    ): Promise<T>;
  }>;
  run(options: object): Promise<{ stop(): Promise<void> }>;
  Logger: new (make: () => () => void) => object;
}

const PACKAGE: string = "graphile-worker";
const graphile = (await import(PACKAGE)) as GraphileWorker;
const { url, settings, every } = given<{ url: string; settings: object; every: number }>();
const preset = { worker: { connectionString: url, ...settings, logger: new graphile.Logger(() => () => {}) } };
const utils = await graphile.makeWorkerUtils({ preset });
await utils.migrate();

const BULK = 10_000;

/** Completed jobs are deleted: none is left when the last completion is durable. */
async function left(): Promise<number> {
  const count = "SELECT count(*)::int AS jobs FROM graphile_worker.jobs";
  return utils.withPgClient(async (client) => {
    const { rows } = await client.query(count);
    return rows[0]!.jobs;
  });
}

serve({
  fill: async ({ count }: { count: number }) => {
    for (let from = 0; from < count; from += BULK)
      await utils.addJobs(
        Array.from({ length: Math.min(BULK, count - from) }, (_, i) => ({
          identifier: "noop",
          payload: { n: from + i },
        })),
      );
  },
  go: async () => {
    const marks: number[] = [];
    const count = await left();
    let handled = 0;
    const ended = Promise.withResolvers<void>();
    const noop = (): void => {
      if (++handled % every === 0) marks.push(monoMs());
      if (handled === count) ended.resolve();
    };
    const executor = await graphile.run({ preset, taskList: { noop }, noHandleSignals: true });
    await ended.promise;
    // A stop does not wait for the last completions: what it leaves stays locked for four hours.
    for (let tries = 0; (await left()) > 0; tries++) {
      if (tries > 5_000) throw new Error(`graphile-worker has left ${await left()} jobs`);
      await delay(2);
    }
    const endedMs = monoMs();
    await executor.stop();
    return { marks, endedMs };
  },
  inFlight: (asked: { count: number; width: number }) => inFlight(asked, (n) => utils.addJob("noop", { n })),
});
