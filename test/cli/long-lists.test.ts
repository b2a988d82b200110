// A list in a store with many jobs: pages are bounded by what they look at, nothing is skipped and nothing comes twice.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { type Engine, job } from "../../src/index.ts";
import { cliOn } from "../support/cli.ts";
import { Place } from "../support/processes.ts";

const common = job<null>("common");
const rare = job<null>("rare");
const MANY = 250_000;

/** Straight into the table: every tenth is dead, every tenth delayed, every tenth ready, the rest succeeded. Ten are rare. */
async function filled(place: Place): Promise<Engine> {
  const engine = await place.engine({ jobs: [common, rare] });
  const db = new DatabaseSync(place.path);
  db.exec(`
    PRAGMA synchronous = OFF;
    WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ${MANY})
    INSERT INTO outlive_jobs (seq, state, lane, kind, priority, worker, epoch, created_at, started_at, finished_at, run_at, id, input, input_sum, error)
    SELECT n, CASE n % 10 WHEN 0 THEN 3 WHEN 1 THEN 0 WHEN 2 THEN 0 ELSE 2 END, CASE n % 10 WHEN 1 THEN 0 ELSE 1 END,
      (SELECT id FROM outlive_kinds WHERE name = CASE WHEN n % 25000 = 0 THEN 'rare' ELSE 'common' END), 0, -1000, 1, n, n, n,
      CASE n % 10 WHEN 1 THEN 9e15 END, 'job-' || n, 'null', 0,
      CASE WHEN n % 10 = 0 THEN '{"name":"Error","message":"number ' || n || '."}' END FROM n`);
  db.close();
  return engine;
}

async function all(engine: Engine, filter: Parameters<Engine["list"]>[0]): Promise<{ ids: string[]; pages: number }> {
  const ids: string[] = [];
  let pages = 0;
  let after: string | null = null;
  do {
    const page: Awaited<ReturnType<Engine["list"]>> = await engine.list({
      ...filter,
      limit: 1_000,
      ...(after !== null && { after }),
    });
    ids.push(...page.jobs.map(({ id }) => id));
    after = page.next;
    pages++;
  } while (after !== null);
  return { ids, pages };
}

test("every filter finds all of its jobs, newest first, once", async (t) => {
  const place = new Place(t);
  const engine = await filled(place);
  const ids = (is: (n: number) => boolean): string[] =>
    Array.from({ length: MANY }, (_, i) => MANY - i)
      .filter(is)
      .map((n) => `job-${n}`);
  const cases: readonly (readonly [Parameters<Engine["list"]>[0], (n: number) => boolean])[] = [
    [{ kind: "rare" }, (n) => n % 25_000 === 0],
    [{ state: "dead" }, (n) => n % 10 === 0],
    [{ state: "dead", kind: "rare" }, (n) => n % 25_000 === 0],
    [{ state: "queued" }, (n) => n % 10 === 1 || n % 10 === 2],
    [{ state: "queued", kind: "rare" }, () => false],
    [{ state: "running" }, () => false],
    [{ state: "succeeded", kind: "rare" }, () => false],
    [{ text: "number 12340." }, (n) => n === 12_340],
    [{ state: "dead", text: "number 12340." }, (n) => n === 12_340],
    [{ state: "queued", text: "job-1234" }, (n) => String(n).startsWith("1234") && (n % 10 === 1 || n % 10 === 2)],
    [{ createdBefore: 3 }, (n) => n < 3],
    [{ createdAfter: MANY - 3 }, (n) => n > MANY - 3],
    [{ state: "dead", createdAfter: MANY - 100 }, (n) => n > MANY - 100 && n % 10 === 0],
  ];
  for (const [filter, is] of cases) assert.deepEqual((await all(engine, filter)).ids, ids(is), JSON.stringify(filter));
  const { pages } = await all(engine, { text: "nowhere" });
  assert.equal(pages, 3, "a walk of 100,000 rows a page");
  assert.deepEqual(await engine.list({ kind: "unknown" }), { jobs: [], next: null });
  assert.equal((await all(engine, { text: "job-7." })).ids.length, 0);
});

test("the CLI continues through short pages, and retries thousands by a filter", async (t) => {
  const place = new Place(t);
  const engine = await filled(place);
  const { json } = cliOn(t, place.url);
  const oldest = await json("jobs", "--text", "number 10.");
  const { jobs, next } = oldest.value as { jobs: { id: string }[]; next: string | null };
  // On a loaded machine it stops in time and says where to go on.
  assert.ok(next !== null || jobs[0]?.id === "job-10", JSON.stringify(oldest.value));
  const retried = await json("retry", "--state", "dead", "--text", "00.", "--yes");
  assert.deepEqual(retried.value, { change: "retry", changed: MANY / 100, failed: 0, jobs: [] });
  assert.equal(
    (await engine.counts()).reduce((sum, { dead }) => sum + dead, 0),
    MANY / 10 - MANY / 100,
  );
});
