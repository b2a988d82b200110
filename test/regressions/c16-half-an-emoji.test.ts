// C16: Outlive cut a message inside a surrogate pair, or stored one that a handler had cut so, and PostgreSQL then refused to read
// the whole view `dead_jobs`.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { type Engine, job, open } from "../../src/index.ts";
import { memory } from "../engine/engines.ts";
import { attemptsAllowed } from "../support/former-names.ts";
import { freshSchema, type FreshSchema } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";

/** The limit of a stored message is 8,192: the emoji is at its edge. */
const cutByOutlive = `${"x".repeat(8_191)}😀${"y".repeat(100)}`;
const cutByHandler = "😀 it failed 😀".slice(0, -1);

const tells = job<string>("tells", { retry: attemptsAllowed(1) }).handle(async (message, run) => {
  await run.log(message);
  const error = new Error(message);
  error.name = `Odd${"\ud83d"}Error`;
  throw error;
});

/** Runs a job that fails once with each message, and returns the ids. */
async function fail(engine: Engine): Promise<readonly string[]> {
  const ids: string[] = [];
  for (const message of [cutByOutlive, cutByHandler]) ids.push((await engine.enqueue(tells, message)).id);
  const worker = await engine.start();
  for (const id of ids) await untilState(engine, id, "dead");
  await worker.stop();
  return ids;
}

async function assertWellFormed(engine: Engine, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    const { error, history, log } = (await engine.get(id))!;
    const texts = [error!.message, error!.stack!, error!.name];
    texts.push(...history.map(({ reason }) => reason), ...log.map(({ message }) => message));
    for (const text of texts)
      assert.ok(text.isWellFormed(), `half a surrogate pair is in …${JSON.stringify(text.slice(-60))}`);
  }
  const [long, short] = await Promise.all(ids.map(async (id) => (await engine.get(id))!.error!.message));
  assert.equal(long, `${"x".repeat(8_191)}… (8293 characters)`);
  assert.equal(short, "😀 it failed \ufffd");
}

async function onPostgres(t: TestContext): Promise<FreshSchema & { readonly engine: Engine }> {
  const engines: Engine[] = [];
  t.after(() => Promise.all(engines.map((engine) => engine.close({ grace: "0ms" }))));
  const store = await freshSchema(t);
  const engine = await open(store.url, { jobs: [tells], logger: false, postgres: { schema: store.schema } });
  engines.push(engine);
  return { ...store, engine };
}

test("C16: no half of an emoji reaches SQLite, whether Outlive or the handler cut the message", async (t) => {
  const engine = await memory(t, [tells]);
  const heard: string[] = [];
  engine.on("job.failed", ({ error }) => void heard.push(error.message));
  engine.on("job.log", ({ message }) => void heard.push(message));
  await assertWellFormed(engine, await fail(engine));
  assert.deepEqual(
    heard.filter((text) => !text.isWellFormed()),
    [],
    "events carry what is stored",
  );
});

test("C16: no half of an emoji reaches PostgreSQL, and dead_jobs lists the jobs", async (t) => {
  const { engine, schema, query } = await onPostgres(t);
  const ids = await fail(engine);
  await assertWellFormed(engine, ids);
  const rows = await query(`SELECT job_id, last_error FROM ${schema}.dead_jobs ORDER BY finished_at`);
  assert.deepEqual(new Set(rows.map(({ job_id }) => job_id)), new Set(ids));
});

test("C16: dead_jobs reads rows that were stored with half an emoji before", async (t) => {
  const { engine, schema, query } = await onPostgres(t);
  const [id, other] = await fail(engine);
  const stored = String.raw`{"name":"E\ud83d","message":"\ud83d\ud83d two halves, \ude00 one, \\ud83d none, 😀 a whole one"}`;
  await query(`UPDATE ${schema}.jobs SET error = $1 WHERE id = $2`, [stored, id]);
  await query(`UPDATE ${schema}.jobs SET error = NULL WHERE id = $1`, [other]);
  const read = query(`SELECT job_id, error, last_error FROM ${schema}.dead_jobs ORDER BY job_id = $1 DESC`, [id]);
  await assert.doesNotReject(read);
  assert.deepEqual(await read, [
    {
      job_id: id,
      error: "E\ufffd",
      last_error: String.raw`${"\ufffd\ufffd"} two halves, ${"\ufffd"} one, \ud83d none, 😀 a whole one`,
    },
    { job_id: other, error: null, last_error: null },
  ]);
});
