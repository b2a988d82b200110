// The contenders: who they are, where they live, and what is quoted of them instead of measured. The order here is the order of the
// columns of docs/scoreboard.md. Nothing here loads a contender.
import type { Mode } from "./adapter.ts";

export type Home = "sqlite" | "postgres" | "redis";

export interface Contender {
  readonly id: string;
  readonly name: string;
  readonly home: Home;
  /** Its adapter, next to program.ts. */
  readonly adapter: string;
  /** The npm package that is measured; null: this repository. */
  readonly package: string | null;
  /** Built as a native add-on for the machine's own Node, which then runs it. */
  readonly native: boolean;
  /** What is set in each mode, as printed in the document; everything else is the contender's default. */
  readonly settings: Readonly<Record<Mode, string>>;
  /** Times from a death to the rerun that no run can wait for, with their source. */
  readonly quoted: Partial<Readonly<Record<"default" | "fastest", Quote>>>;
  /** What its cells have no room for, printed below the table. */
  readonly remarks?: Partial<Readonly<Record<"afterDeath" | "speed", string>>>;
  readonly durability: string;
  readonly better: readonly string[];
}

export interface Quote {
  readonly ms: number;
  readonly text: string;
  readonly source: string;
}

const MINUTE = 60_000;

const OUTLIVE_FASTEST =
  '`heartbeat: { interval: "500ms", lease: "1500ms", sweep: "1s", probe: "10ms" }` (the probe, which finds the killed, is at its least value; a lease, which finds the frozen, may be as short as 100 ms: 1.5 s is ours, near what BullMQ is given)';

const GRAPHILE_LOCK: Quote = {
  ms: 240 * MINUTE,
  text: "4 h",
  source:
    "`locked_at < now() - interval '4 hours'` in `dist/sql/resetLockedAt.js`, looked at every 8 to 10 minutes by default; no option changes the hours",
};

export const contenders: readonly Contender[] = [
  {
    id: "outlive-sqlite",
    name: "Outlive on SQLite",
    home: "sqlite",
    adapter: "./peers/outlive.ts",
    package: null,
    native: false,
    settings: {
      default: "none",
      fastest: OUTLIVE_FASTEST,
      throughput: "none",
    },
    quoted: {},
    durability: "WAL, `synchronous=FULL`: each acknowledged write is on disk",
    better: [],
  },
  {
    id: "outlive-postgres",
    name: "Outlive on PostgreSQL",
    home: "postgres",
    adapter: "./peers/outlive.ts",
    package: null,
    native: false,
    settings: {
      default: "none",
      fastest: OUTLIVE_FASTEST,
      throughput: "none",
    },
    quoted: {},
    durability: "`fsync` and `synchronous_commit` on: each acknowledged write is on disk",
    better: [],
  },
  {
    id: "outlive-redis",
    name: "Outlive on Redis",
    home: "redis",
    adapter: "./peers/outlive.ts",
    package: null,
    native: false,
    settings: {
      default: "none",
      fastest: OUTLIVE_FASTEST,
      throughput: "none",
    },
    quoted: {},
    durability:
      "the same Redis as BullMQ's: a power loss may take the last second, which is then detected, counted and, as far as a process that knows of it lives, sent again",
    better: [],
  },
  {
    id: "bullmq",
    name: "BullMQ",
    home: "redis",
    adapter: "./peers/bullmq.ts",
    package: "bullmq",
    native: false,
    settings: {
      default: "none",
      fastest:
        "`lockDuration: 1000, stalledInterval: 1000` (no least value is documented, and 1 s is a floor of ours: the lock is renewed from the event loop, and what holds that up for longer loses its jobs; with less it would be faster)",
      throughput: "none",
    },
    quoted: {},
    durability:
      "Redis with `appendonly yes`, `appendfsync everysec` as its guide recommends: a power loss may take the last second (Redis as installed: no log at all, see the kill of the server)",
    better: [
      "Many machines by design, also Redis Cluster, Dragonfly, Valkey; since version 6 PostgreSQL as a second backend.",
      "Flows are declared as a whole tree up front; in Outlive a handler enqueues its children and waits for them.",
      "Years in production in many companies; a NestJS module, ports to Python, Elixir, PHP, Rust and .NET, several dashboards, OpenTelemetry.",
      "Sandboxed processors run a handler in a separate process, so that a crash or a blocked loop there costs the worker nothing (not what is measured here).",
    ],
  },
  {
    id: "pg-boss",
    name: "pg-boss",
    home: "postgres",
    adapter: "./peers/pg-boss.ts",
    package: "pg-boss",
    native: false,
    settings: {
      default: "none",
      fastest:
        "`superviseIntervalSeconds: 1, monitorIntervalSeconds: 1, useListenNotify: true`; queue `heartbeatSeconds: 10` (its least value), `notify: true`; worker `pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5` (their least value)",
      throughput:
        "worker `batchSize: 50, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5`: up to 200 jobs at once, not 50; a batch is settled as a whole",
    },
    quoted: {
      default: {
        ms: 15 * MINUTE,
        text: "15-16 min",
        source:
          "`expire_seconds: FIFTEEN_MINUTES` in `dist/plans.js`, counted from the start of the attempt and looked at every `superviseIntervalSeconds` and `monitorIntervalSeconds` (60 s each); its heartbeat is off by default",
      },
    },
    remarks: {
      speed:
        "its documentation gives the default of `work()` as 1 job every 2 seconds, so 50 workers come to 25 a second. A window of 4 s holds three such looks in two intervals, which counts in its favour. That it is so slow without settings is its choice of load, not its limit; the next row is nearer to that.",
    },
    durability: "the same PostgreSQL: each acknowledged write is on disk",
    better: [
      "The strongest peer on correctness: completion is fenced, workers can be transactional, handlers get an AbortSignal.",
      "Also on CockroachDB, Citus and PGlite; dead letter queues, singleton and throttling policies, pub/sub, cron, queue partitions, a dashboard.",
      "Ten years old, many users; adapters for the transactions of Knex, Kysely, Drizzle and Prisma, and SQL for other languages.",
    ],
  },
  {
    id: "graphile-worker",
    name: "graphile-worker",
    home: "postgres",
    adapter: "./peers/graphile-worker.ts",
    package: "graphile-worker",
    native: false,
    settings: {
      default: "none",
      fastest:
        "`minResetLockedInterval: 1000, maxResetLockedInterval: 1000, pollInterval: 500`; where an experiment needs a lost lock, `locked_at` is made 4 hours older by SQL. In all modes a connection more than jobs (`maxPoolSize`)",
      throughput:
        "`localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0`, as its page on performance",
    },
    quoted: { default: GRAPHILE_LOCK, fastest: GRAPHILE_LOCK },
    remarks: {
      afterDeath:
        "the job that ran at the SIGTERM was done, which it also logs, and its row stays locked, so that the job runs again when the lock has expired, after 4 h. `completeJob(job)` in `dist/worker.js` of 0.18.0 is not awaited, and the process ends before the row is deleted. It is not the adapter: without it, it was the same with the `run()` of its documentation, with its own command line, and with `runner.stop()` before `process.exit()`, for jobs of 3 s and of 15 s. With `completeJobBatchDelay: 0` the shutdown waits for the completion, and the row was gone.",
    },
    durability: "the same PostgreSQL: each acknowledged write is on disk (batched completions only after a moment)",
    better: [
      "The lowest latency on PostgreSQL, Outlive's included. With its local queue it drains a short backlog as fast as Outlive does.",
      "`graphile_worker.add_job(...)` is plain SQL: triggers and functions enqueue in the user's own transaction; cron with backfill, named queues, job keys.",
      "Its commercial Worker Pro has heartbeats and recovers crashed workers sooner (not measured).",
    ],
  },
  {
    id: "plainjob",
    name: "plainjob",
    home: "sqlite",
    adapter: "./peers/plainjob.ts",
    package: "plainjob",
    native: true,
    settings: {
      default: "none",
      fastest:
        "queue `timeout: 5000, maintenanceInterval: 1000`, worker `pollIntervall: 100` (no least value is documented; the timeout counts from the scheduled time and nothing renews it, so every job that waits and runs longer than that runs twice, and ours take up to 4 s: 5 s, not 1 s as for BullMQ)",
      throughput: "none; 50 workers in the process, because one worker runs one job at a time",
    },
    quoted: {
      default: {
        ms: 30 * MINUTE,
        text: "30-31 min",
        source:
          "`opts.timeout || 30 * 60 * 1000` and a maintenance every minute in `src/queue.ts`, counted from the scheduled time",
      },
    },
    durability: "WAL, `synchronous = 1` (NORMAL): survives a killed process, a power loss may take acknowledged jobs",
    better: [
      "A few hundred lines that can be read in half an hour, one small dependency next to the driver, also for Bun.",
      "Synchronous calls: an add is one function call, inside one's own better-sqlite3 transaction if wished.",
    ],
  },
];

export function contender(id: string): Contender {
  const found = contenders.find((each) => each.id === id);
  if (!found)
    throw new Error(`There is no contender ${id}. There are: ${contenders.map((each) => each.id).join(", ")}.`);
  return found;
}
