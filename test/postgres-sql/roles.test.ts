// The four roles of `outlive migrate print --roles`, on a real server: each may do its work, and everything else is refused by the
// server with 42501.
import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import pg from "pg";
import { installedVersion, KNOWN_VERSION, migrate, migrateDown } from "../../src/stores/postgres/migrate.ts";
import { type Role, roleName, ROLES, rolesText } from "../../src/stores/postgres/roles.ts";
import { psql, type Fixture, fixture } from "./fixture.ts";

const FORBIDDEN = { code: "42501" };

async function roles(t: TestContext): Promise<Fixture & { as: (role: Role) => Promise<pg.Client> }> {
  const users: pg.Client[] = [];
  let drop = async (): Promise<void> => {};
  t.after(async () => {
    await Promise.all(users.map((client) => client.end()));
    await drop();
  });
  const store = await fixture(t);
  await store.sql("DROP TABLE outlive.test_clock CASCADE");
  await store.sql(
    "CREATE OR REPLACE FUNCTION outlive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint $$",
  );
  await psql(store.url, rolesText(store.schema));
  // The same again changes nothing.
  await psql(store.url, rolesText(store.schema));
  for (const role of ROLES)
    await store.sql(`CREATE ROLE ${login(store, role)} LOGIN IN ROLE ${roleName(store.schema, role)}`);
  drop = async () => {
    const admin = new pg.Client({ connectionString: store.url });
    await admin.connect();
    for (const role of ROLES)
      for (const name of [login(store, role), roleName(store.schema, role)])
        await admin.query(`DROP OWNED BY ${name} CASCADE; DROP ROLE ${name}`);
    await admin.end();
  };
  return {
    ...store,
    async as(role) {
      const url = new URL(store.url);
      url.username = login(store, role);
      const client = new pg.Client({ connectionString: url.href });
      await client.connect();
      users.push(client);
      return client;
    },
  };
}

function login({ schema }: Fixture, role: Role): string {
  return `${schema}_${role}_user`;
}

test("who may only enqueue can call enqueue, and nothing else", async (t) => {
  const { as, schema, sql } = await roles(t);
  const user = await as("enqueue");
  await user.query(`SELECT * FROM ${schema}.enqueue('mail', '{}', id => 'a', dedupe_key => 'k')`);
  assert.deepEqual(await sql("SELECT id FROM outlive.jobs"), [{ id: "a" }]);
  for (const forbidden of [
    `SELECT * FROM ${schema}.jobs`,
    `SELECT * FROM ${schema}.dead_jobs`,
    `INSERT INTO ${schema}.kinds (name) VALUES ('x')`,
    `UPDATE ${schema}.jobs SET state = 2`,
    `DELETE FROM ${schema}.jobs`,
    `SELECT ${schema}.reclaim_stale_jobs()`,
    `SELECT ${schema}.tick()`,
    `SELECT ${schema}.job_heartbeat('a', 'w', 1)`,
    `SELECT ${schema}.now_ms()`,
    `CREATE TABLE ${schema}.mine (a int)`,
    `DROP SCHEMA ${schema} CASCADE`,
  ])
    await assert.rejects(user.query(forbidden), FORBIDDEN, forbidden);
});

test("a table of the caller's own that is named as one of ours does not get into enqueue", async (t) => {
  const { as, schema, sql } = await roles(t);
  const user = await as("enqueue");
  await user.query("CREATE TEMP TABLE kinds (id int, name text)");
  await user.query("SET search_path = pg_temp, public");
  await user.query(`SELECT * FROM ${schema}.enqueue('mail', id => 'a')`);
  assert.deepEqual(await sql("SELECT name FROM outlive.kinds"), [{ name: "mail" }]);
});

test("who may only read sees tables and views, and can change nothing", async (t) => {
  const { as, schema, psql: ask } = await roles(t);
  await ask("SELECT outlive.enqueue('mail', id => 'a')");
  const user = await as("read");
  for (const table of [
    "jobs",
    "kinds",
    "fleet",
    "incidents",
    "ticks",
    "stale_monitor",
    "stale_validation",
    "reclaim_history",
    "dead_jobs",
    "workers",
  ])
    await user.query(`SELECT * FROM ${schema}.${table}`);
  for (const forbidden of [
    `SELECT ${schema}.enqueue('mail')`,
    `SELECT ${schema}.reclaim_stale_jobs()`,
    `SELECT ${schema}.tick()`,
    `UPDATE ${schema}.jobs SET state = 2`,
    `INSERT INTO ${schema}.kinds (name) VALUES ('x')`,
    `DELETE FROM ${schema}.history`,
    `TRUNCATE ${schema}.jobs`,
    `SELECT * FROM ${schema}.jobs FOR UPDATE`,
    `DROP VIEW ${schema}.workers`,
  ])
    await assert.rejects(user.query(forbidden), FORBIDDEN, forbidden);
});

test("a worker writes rows and calls everything, but changes no table and not the number of the schema", async (t) => {
  const { as, schema } = await roles(t);
  const user = await as("worker");
  for (const allowed of [
    `SELECT ${schema}.enqueue('mail', id => 'a')`,
    `INSERT INTO ${schema}.meta AS m (key, value) VALUES ('epoch', 7) ON CONFLICT (key) DO UPDATE SET value = m.value + 1`,
    `UPDATE ${schema}.jobs SET priority = 1`,
    `SELECT * FROM ${schema}.jobs FOR UPDATE SKIP LOCKED`,
    `SELECT * FROM ${schema}.reclaim_stale_jobs()`,
    `SELECT ${schema}.tick()`,
    `SELECT ${schema}.job_heartbeat('a', 'w', 1)`,
    `SELECT * FROM ${schema}.workers`,
    `DELETE FROM ${schema}.jobs`,
  ])
    await user.query(allowed);
  for (const forbidden of [
    `UPDATE ${schema}.meta SET value = 99 WHERE key = 'schema'`,
    `INSERT INTO ${schema}.meta VALUES ('migration 99', 1)`,
    `DELETE FROM ${schema}.meta`,
    `TRUNCATE ${schema}.jobs`,
    `DROP TABLE ${schema}.jobs`,
    `ALTER TABLE ${schema}.jobs ADD COLUMN mine int`,
    `CREATE TABLE ${schema}.mine (a int)`,
    `CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`,
  ])
    await assert.rejects(user.query(forbidden), FORBIDDEN, forbidden);
  await assert.rejects(migrateDown(user, schema, { target: 0, force: true }), { code: "STORE_UNUSABLE" });
  assert.equal(await installedVersion(user, schema), KNOWN_VERSION);
});

test("the owner migrates down and up again, and what it makes belongs to the role", async (t) => {
  const { as, schema, sql } = await roles(t);
  const user = await as("owner");
  const later = Array.from({ length: KNOWN_VERSION - 1 }, (_, n) => n + 2);
  assert.deepEqual(await migrateDown(user, schema, { target: 1, force: false }), later.toReversed());
  assert.deepEqual(await migrate(user, schema), later);
  assert.deepEqual(
    await sql(
      `SELECT DISTINCT relowner::regrole::text AS owner FROM pg_class WHERE relnamespace = '${schema}'::regnamespace`,
    ),
    [{ owner: roleName(schema, "owner") }],
  );
});

test("roles that were made before the newest functions may still do their work after the migration", async (t) => {
  const { as, schema, sql, psql: ask } = await roles(t);
  const owner = await as("owner");
  await migrateDown(owner, schema, { target: 3, force: true });
  await ask(rolesText(schema));
  await migrate(owner, schema);
  await ask("SELECT outlive.enqueue('mail', id => 'a')");
  await sql(
    `INSERT INTO outlive.fleet (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at)
     VALUES ('w', 'live', 'h', 'b', 1, '1', 1, 1000, 1, '[]', 1, 1)`,
  );
  await sql("UPDATE outlive.jobs SET state = 1, worker = (SELECT seq FROM outlive.fleet), fence = 1, timeouts = 10");
  const worker = await as("worker");
  assert.equal((await worker.query(`SELECT * FROM ${schema}.reclaim_stale_jobs()`)).rows.length, 1);
  const { rows } = await (await as("read")).query(`SELECT error, state FROM ${schema}.dead_jobs`);
  assert.deepEqual(rows, [{ error: "ContactLost", state: "dead" }]);
});
