// A worker process that runs the kinds of commit-jobs.ts, on connections of its own or on a pool of the user's. Arguments: the
// address, then a JSON of { schema, concurrency, heartbeat, grace, pool }. SIGTERM stops it within the grace.
import pg from "pg";
import { type EngineOptions, open } from "../../src/index.ts";
import { tell } from "../support/jobs.ts";
import { jobs, useEngine } from "./commit-jobs.ts";

export interface CommitWorkerOptions {
  readonly schema: string;
  readonly concurrency?: number;
  readonly heartbeat: NonNullable<EngineOptions["heartbeat"]>;
  readonly grace?: `${number}ms`;
  /** The user's own pool; left out: the engine's. */
  readonly pool?: { readonly max: number; readonly connectionTimeoutMillis?: number };
}

const [url, given] = process.argv.slice(2);
const { schema, concurrency = 10, heartbeat, grace = "5000ms", pool } = JSON.parse(given!) as CommitWorkerOptions;
const own = pool && new pg.Pool({ connectionString: url, ...pool });
own?.on("error", () => {});

const engine = await open(own ? "postgres:" : url!, {
  jobs,
  logger: false,
  heartbeat,
  poll: "200ms",
  postgres: { schema, ...(own && { pool: own }) },
  onEvent: (event) => tell("event", { event }),
});
useEngine(engine);
const starting = engine.start({ concurrency });
process.on("SIGTERM", () => {
  void starting
    .then((worker) => worker.stop({ grace }))
    .then(() => engine.close())
    .then(() => process.send?.({ fact: "stopped" }, () => process.exit(0)));
});
tell("working", { worker: (await starting).id });
