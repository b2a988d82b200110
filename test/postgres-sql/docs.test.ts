// The SQL that the papers show runs as it stands, on the schema with its default name.
import assert from "node:assert/strict";
import { test } from "node:test";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { shownSql } from "./docs.ts";
import { psql } from "./fixture.ts";

test("every SQL of the paper about PostgreSQL runs", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive"));
  await psql(url, "CREATE TABLE orders (id text)");
  const shown = shownSql("postgres.md");
  assert.ok(shown.length >= 3);
  // pg_cron is not on every server.
  for (const sql of shown) await psql(url, sql.replaceAll(/^.*cron\..*$/gm, ""));
  assert.equal(await psql(url, "SELECT count(*) FROM outlive.jobs"), "2");
});

test("what waits in pg-boss is moved, each job once, also if it is done twice", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive"));
  // As pg-boss 12 has it, as far as the move looks at it.
  await psql(
    url,
    `CREATE SCHEMA pgboss; CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
     CREATE TABLE pgboss.job (id uuid DEFAULT gen_random_uuid(), name text, data jsonb, priority int DEFAULT 0, state pgboss.job_state, start_after timestamptz DEFAULT now());
     INSERT INTO pgboss.job (name, data, priority, state, start_after) VALUES ('invoice', '{"a": 1}', 3000, 'created', now()), ('invoice', NULL, 0, 'retry', now() + interval '1 hour'),
       ('invoice', '{}', 0, 'active', now()), ('invoice', '{}', 0, 'completed', now()), ('other', '{}', 0, 'created', now())`,
  );
  const [move] = shownSql("coming-from-pg-boss.md");
  for (let i = 0; i < 2; i++) await psql(url, move!);
  assert.equal(
    await psql(url, "SELECT input, priority, lane FROM outlive.jobs ORDER BY priority"),
    'null|0|0\n{"a": 1}|1000|1',
  );
  assert.equal(
    await psql(url, "SELECT string_agg(state::text, ' ' ORDER BY state) FROM pgboss.job"),
    "created active completed",
  );
});
