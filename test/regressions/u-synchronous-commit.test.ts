// U: sessions that are not the engine's to set, with `synchronous_commit = off`. What Outlive acknowledges there is durable all the same.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import pg from "pg";
import { type EngineOptions, job, open } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { pgbouncer } from "../postgres/pgbouncer.ts";
import { PATIENT } from "../postgres/place.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";

/** A database whose sessions forget acknowledged commits by default, and which notes how each write of a job was committed. */
async function forgetful(t: TestContext): Promise<string> {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await client.query(`ALTER DATABASE "${new URL(url).pathname.slice(1)}" SET synchronous_commit = off`);
    await migrate(client, "outlive");
    await client.query(`CREATE TABLE commits (what text, mode text);
      CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.commits SELECT TG_ARGV[0], current_setting('synchronous_commit'); RETURN NULL; END $$;
      CREATE TRIGGER note AFTER INSERT ON outlive.jobs EXECUTE FUNCTION note('enqueue');
      CREATE TRIGGER test_note_end AFTER UPDATE OF finished_at ON outlive.jobs EXECUTE FUNCTION note('end');
      CREATE TRIGGER note_step AFTER INSERT ON outlive.steps EXECUTE FUNCTION note('step')`);
  });
  return url;
}

async function modes(url: string): Promise<unknown> {
  const { rows } = await withClient(url, (client) =>
    client.query("SELECT DISTINCT what, mode FROM commits ORDER BY what, mode"),
  );
  return rows;
}

/** One job with a step that returns, and one that commits. */
async function work(url: string, options: EngineOptions): Promise<void> {
  const stepped = job<object>("stepped");
  stepped.handle(async (_, run) => void (await run.step("first", () => 1)));
  const committed = job<object>("committed");
  committed.handle((_, run) => run.commit(postgres, async () => {}));
  await using engine = await open(url, { jobs: [stepped, committed], logger: false, heartbeat: PATIENT, ...options });
  await engine.start();
  const { id } = await engine.enqueue(stepped, {});
  const { id: other } = await engine.enqueue(committed, {});
  await untilState(engine, id, "succeeded");
  await untilState(engine, other, "succeeded");
}

const DURABLE = ["end", "enqueue", "step"].map((what) => ({ what, mode: "on" }));

test("U: what is acknowledged on a pool of the user's with synchronous_commit off is durable, and the pool stays as it was", async (t) => {
  const url = await forgetful(t);
  const pool = new pg.Pool({ connectionString: url, max: 2 });
  try {
    await work("postgres:", { postgres: { pool } });
    assert.deepEqual(await modes(url), DURABLE);
    const { rows } = await pool.query("SELECT current_setting('synchronous_commit') AS mode");
    assert.deepEqual(rows, [{ mode: "off" }]);
  } finally {
    // It does not wait until its sessions have ended, and those that are left end with their database.
    pool.on("error", () => {});
    await pool.end();
  }
});

test("U: what is acknowledged behind a pooler with synchronous_commit off is durable", async (t) => {
  const url = await forgetful(t);
  await work(await pgbouncer(t, url, "transaction"), {});
  assert.deepEqual(await modes(url), DURABLE);
});
