// One process of the run with an older package next to this one: `node program.ts ROOT URL HISTORY ROLE`. ROOT is the tree whose Outlive it
// uses, so everything here is written for the public API that both have. Each line of the history is written before what it is about can
// be accepted by the store, or after the handler has ended.
import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import type * as Outlive from "../../../src/index.ts";
import type * as OnPostgres from "../../../src/postgres.ts";
import type * as OnSqlite from "../../../src/sqlite.ts";
import type * as Migrate from "../../../src/stores/postgres/migrate.ts";

const [root, url, history, role] = process.argv.slice(2) as [string, string, string, "create" | "enqueue" | "work"];
const isFile = url.startsWith("sqlite:");

const load = async <T>(path: string): Promise<T> => (await import(pathToFileURL(join(root, "src", path)).href)) as T;
const { job, open } = await load<typeof Outlive>("index.ts");

const say = (line: Record<string, unknown>): void =>
  appendFileSync(history, `${JSON.stringify({ pid: process.pid, ...line })}\n`);

const retry = { backoff: { base: "20ms", max: "100ms" } } as const;

/** One row in the ledger, exactly once. */
const transfer = job<{ readonly ms: number }>("transfer", { retry });
transfer.handle(async ({ ms }, run) => {
  say({ what: "start", id: run.id, fence: run.fence });
  await pause(ms, undefined, { signal: run.signal });
  if (isFile) {
    const { sqlite } = await load<typeof OnSqlite>("sqlite.ts");
    await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger (job) VALUES (?)", run.id));
  } else {
    const { postgres } = await load<typeof OnPostgres>("postgres.ts");
    await run.commit(postgres, async (tx) => void (await tx.query("INSERT INTO ledger (job) VALUES ($1)", [run.id])));
  }
});

/** Ends without a transaction of its own. The odd ones fail once before. */
const nap = job<{ readonly ms: number; readonly fails: boolean }>("nap", { retry });
nap.handle(async ({ ms, fails }, run) => {
  say({ what: "start", id: run.id, fence: run.fence });
  const failed = await run.step("fail once", () => !fails);
  await pause(ms, undefined, { signal: run.signal });
  if (!failed && run.attempt === 1) throw new Error("it fails once");
  say({ what: "end", id: run.id, fence: run.fence });
});

async function create(jobs: number): Promise<void> {
  if (!isFile) {
    const { default: pg } = await import("pg");
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    const { migrate } = await load<typeof Migrate>("stores/postgres/migrate.ts");
    await migrate(client, "outlive");
    await client.query("CREATE TABLE ledger (job text NOT NULL)");
    await client.end();
  }
  const engine = await open(url, { jobs: [transfer, nap], logger: false });
  if (isFile) {
    const { sqlite } = await load<typeof OnSqlite>("sqlite.ts");
    await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE ledger (job TEXT NOT NULL)"));
  }
  await engine.close();
  await enqueue(jobs);
}

/** As many of each kind. */
async function enqueue(jobs: number): Promise<void> {
  const engine = await open(url, { jobs: [transfer, nap], logger: false });
  await engine.enqueueMany(
    transfer,
    Array.from({ length: jobs }, (_, n) => ({ ms: n % 40 })),
  );
  await engine.enqueueMany(
    nap,
    Array.from({ length: jobs }, (_, n) => ({ ms: n % 40, fails: n % 2 === 1 })),
  );
  await engine.close();
}

async function work(): Promise<void> {
  const engine = await open(url, {
    jobs: [transfer, nap],
    logger: false,
    // An older worker learns with its next heartbeat that the store is another one.
    heartbeat: { interval: "1s", lease: "20s", probe: "50ms", sweep: "1s" },
    onEvent: (event) => {
      if (event.name === "store.failed") say({ what: "store.failed", error: event.error.message, doing: event.doing });
    },
  });
  const worker = await engine.start({ concurrency: 8 });
  say({ what: "working" });
  process.on("SIGTERM", () => void worker.stop());
  try {
    await worker.stopped;
    say({ what: "stopped" });
  } catch (thrown) {
    say({ what: "refused", code: (thrown as Outlive.OutliveError).code, message: (thrown as Error).message });
  }
  await engine.close();
}

try {
  if (role === "create") await create(Number(process.argv[6]));
  else if (role === "enqueue") await enqueue(Number(process.argv[6]));
  else await work();
  process.exit(0);
} catch (thrown) {
  say({ what: "refused", code: (thrown as Outlive.OutliveError).code, message: (thrown as Error).message });
  process.exit(1);
}
