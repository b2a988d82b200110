// Not confirmed by the research: a role that may only enqueue could make kinds without end, and `jsonb` 1e400 could arrive as
// Infinity. Both happened.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Engine, job, open } from "../../src/index.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

test("U: enqueue by SQL makes no kind beyond a thousand, and goes on with the kinds that are known", async (t) => {
  const { schema, query } = await freshSchema(t);
  await query(`INSERT INTO ${schema}.kinds (name) SELECT 'kind-' || n FROM generate_series(1, 999) n`);
  await query(`SELECT ${schema}.enqueue('the-last')`);
  await assert.rejects(query(`SELECT ${schema}.enqueue('one-more')`), (thrown) => {
    const { message, hint, code } = thrown as Error & { hint: string; code: string };
    assert.match(message, /no program has declared the kind 'one-more', and there are 1000 kinds or more already/);
    assert.match(hint, /declare the kind first/);
    assert.equal(code, "54000");
    return true;
  });
  await query(`SELECT ${schema}.enqueue('the-last'), ${schema}.enqueue('kind-7')`);
  const [{ kinds, jobs }] = (await query(
    `SELECT (SELECT count(*)::int FROM ${schema}.kinds) AS kinds, (SELECT count(*)::int FROM ${schema}.jobs) AS jobs`,
  )) as [{ kinds: number; jobs: number }];
  assert.deepEqual({ kinds, jobs }, { kinds: 1_000, jobs: 3 });
});

test("U: enqueue by SQL refuses a number that a worker would read as Infinity", async (t) => {
  const { schema, query } = await freshSchema(t);
  for (const input of ["1e400", "-1e400", '{"a": [1, {"b": 1.8e308}]}'])
    await assert.rejects(query(`SELECT ${schema}.enqueue('sums', $1)`, [input]), { code: "22003" }, input);
  const digits = "9".repeat(400);
  for (const input of ["1.7976931348623157e308", `"${digits}"`, `{"${digits}": 0.${digits}}`])
    await query(`SELECT ${schema}.enqueue('sums', $1)`, [input]);
});

test("U: a number that is stored as 1e400 never reaches the handler as Infinity", async (t) => {
  const engines: Engine[] = [];
  t.after(() => Promise.all(engines.map((engine) => engine.close({ grace: "0ms" }))));
  const { url, schema, query } = await freshSchema(t);
  const inputs: unknown[] = [];
  const sums = job<number>("sums").handle((input) => void inputs.push(input));
  const engine = await open(url, { jobs: [sums], logger: false, postgres: { schema } });
  engines.push(engine);
  const id = "too-large";
  // As an earlier version of `enqueue` stored it: jsonb writes all digits. A changed row would not have the checksum of its input.
  await query(`INSERT INTO ${schema}.kinds (name) VALUES ('sums') ON CONFLICT DO NOTHING`);
  await query(
    `SELECT ${schema}.add_jobs(ARRAY[id], ARRAY[0], ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[$1], ARRAY[NULL], ARRAY['1e400'::jsonb::text])
     FROM ${schema}.kinds WHERE name = 'sums'`,
    [id],
  );
  await engine.start();
  const { state, error } = await untilTrue(
    async () => (await engine.get(id))!,
    (found) => found.state !== "queued" && found.state !== "running",
    "the job has ended",
  );
  assert.deepEqual({ state, inputs }, { state: "dead", inputs: [] });
  assert.match(error!.message, /(?:holds|contains) Infinity at \$/);
});
