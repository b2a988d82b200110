// One side of `--against`: opens a store with the sources of the tree that it is given and reports the CPU that this process (with its
// threads) used for a number of jobs. It runs on trees of other versions, so it uses only what all of them have: no option of a kind,
// no name that changed.
import { setTimeout as delay } from "node:timers/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type * as Index from "../../../src/index.ts";
import type * as Postgres from "../../../src/postgres.ts";
import type * as Sqlite from "../../../src/sqlite.ts";
import type { AgainstName } from "../against/metrics.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { given, serve } from "../program.ts";

const WIDTH = 50;
const { tree, url, store, concurrency } = given<{
  tree: string;
  url: string;
  store: StoreName;
  concurrency: number;
}>();
const { job, open } = await load<typeof Index>("index");

let handled = 0;
let wanted = Infinity;
let reached = (): void => {};
function count(): void {
  if (++handled >= wanted) reached();
}

const kinds = {
  drain: job<{ n: number }>("noop").handle(count),
  enqueue: job<{ n: number }>("stored"),
  step: job<{ n: number }>("step").handle(async ({ n }, run) => {
    await run.step("one", () => n);
    count();
  }),
  commit: job<{ n: number }>("commit"),
};
const createTable = store === "sqlite" ? await withSqlite() : await withPostgres();
const engine = await open(url, { jobs: Object.values(kinds), logger: false });
await createTable();
// What is filled waits until it is measured.
for (const kind of Object.values(kinds)) await engine.pause(kind);
await engine.start({ concurrency, only: [kinds.drain, kinds.step, kinds.commit] });

serve({
  fill: async ({ name, jobs }: { name: AgainstName; jobs: number }) => {
    if (name !== "enqueue") await engine.enqueueMany(kinds[name], inputs(jobs));
  },
  /** CPU in ms, of what was filled before. */
  measure: async ({ name, jobs }: { name: AgainstName; jobs: number }): Promise<number> => {
    const before = process.cpuUsage();
    await (name === "enqueue" ? enqueueAll(jobs) : workOff(name, jobs));
    const { user, system } = process.cpuUsage(before);
    if (name !== "enqueue") await engine.pause(kinds[name]);
    return (user + system) / 1_000;
  },
});

/** Callers that each wait until their own job is durable. */
async function enqueueAll(jobs: number): Promise<void> {
  const callers = Array.from({ length: WIDTH }, async (_, caller) => {
    for (let n = caller; n < jobs; n += WIDTH) await engine.enqueue(kinds.enqueue, { n });
  });
  await Promise.all(callers);
}

/** Until the last of them is settled. */
async function workOff(name: Exclude<AgainstName, "enqueue">, jobs: number): Promise<void> {
  const all = new Promise<void>((resolve) => (reached = resolve));
  handled = 0;
  wanted = jobs;
  await engine.resume(kinds[name]);
  await all;
  const running = { kind: kinds[name].name, state: "running", limit: 1 } as const;
  while ((await engine.list(running)).jobs.length > 0) await delay(2);
}

async function withSqlite(): Promise<() => Promise<unknown>> {
  const { sqlite } = await load<typeof Sqlite>("sqlite");
  kinds.commit.handle(({ n }, run) =>
    run.commit(sqlite, (tx) => {
      tx.run("INSERT INTO booked (n) VALUES (?)", n);
      count();
    }),
  );
  return () => engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE booked (n INTEGER NOT NULL)"));
}

async function withPostgres(): Promise<() => Promise<unknown>> {
  const { postgres } = await load<typeof Postgres>("postgres");
  kinds.commit.handle(({ n }, run) =>
    run.commit(postgres, async (tx) => {
      await tx.query("INSERT INTO booked (n) VALUES ($1)", [n]);
      count();
    }),
  );
  return () =>
    engine.transaction(postgres, async (tx) => {
      await tx.query("CREATE TABLE booked (n integer NOT NULL)");
    });
}

function load<Module>(name: string): Promise<Module> {
  return import(pathToFileURL(join(tree, `src/${name}.ts`)).href) as Promise<Module>;
}

function* inputs(jobs: number): Generator<{ n: number }> {
  for (let n = 0; n < jobs; n++) yield { n };
}
