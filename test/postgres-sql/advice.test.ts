// What `outlive check` says of a server: each fault is made on a real one, and is reported.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import type { Session } from "../../src/stores/postgres/statements.ts";
import { advice, transactions, vacuum } from "../../src/stores/postgres/upkeep.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";
import { type Fixture, fixture, MINUTE } from "./fixture.ts";

async function told(store: Fixture, pooled: boolean | null = null): Promise<string[]> {
  const found = await advice(sessionOf(store), pooled);
  return found.map(({ level, text }) => `${level}: ${text}`);
}

/** Numbers come back as numbers, as the store's own connection has it. */
function sessionOf(store: Fixture): Session {
  const rows = async <R>(sql: string, values?: readonly unknown[]): Promise<R[]> => {
    const found = await store.sql<Record<string, unknown>>(sql, values as unknown[]);
    return found.map((row) =>
      Object.fromEntries(
        Object.entries(row).map(([key, value]) => [
          key,
          typeof value === "string" && /^-?\d+$/.test(value) ? Number(value) : value,
        ]),
      ),
    ) as R[];
  };
  return {
    rows,
    run: () => Promise.reject(new Error("not asked")),
  };
}

function said(lines: readonly string[], pattern: RegExp): void {
  assert.ok(
    lines.some((line) => pattern.test(line)),
    `${pattern} in:\n${lines.join("\n")}`,
  );
}

test("a sound store is reported part by part, and a part that this role may not see spoils no other", async (t) => {
  const store = await fixture(t);
  const lines = await told(store, false);
  said(lines, /PostgreSQL \d+\.\d+/);
  said(lines, /^ok: A direct connection/);
  said(lines, /^ok: All \d+ migrations are there/);
  said(lines, /^ok: This role may do all/);
  said(lines, /^ok: Vacuum keeps up/);
  said(lines, /^ok: Nothing calls outlive.tick/);
  said(lines, /^ok: No job is overdue/);
  said(lines, /^ok: Nothing was reclaimed/);
  await store.sql("ALTER TABLE outlive.history RENAME TO elsewhere");
  const without = await told(store, true);
  said(without, /^warning: reclaims: not known/);
  said(without, /^ok: No job is overdue/);
  said(without, /^warning: A pooler stands between/);
});

test("settings that lose data are reported with what they lose", async (t) => {
  const store = await fixture(t);
  const [shared] = await store.sql<{ setting: string }>("SELECT setting FROM pg_settings WHERE name = 'fsync'");
  // The server that tests share runs with fsync off: that is reported, too.
  if (shared!.setting === "off") said(await told(store), /^warning: fsync is off/);
  await store.sql("SET synchronous_commit = off");
  said(await told(store), /^warning: synchronous_commit is off: .* may run again/);
});

test("a missing migration, and a role that can't work, are reported with what to run", async (t) => {
  const store = await fixture(t);
  await store.sql("UPDATE outlive.meta SET value = 2 WHERE key = 'schema'");
  said(await told(store), /^warning: Not there: views, .*No worker starts without.*outlive migrate up/);
  const role = `${store.schema}_looks`;
  await store.sql(`CREATE ROLE ${role}`);
  await store.sql(
    `GRANT USAGE ON SCHEMA ${store.schema} TO ${role}; GRANT SELECT ON ALL TABLES IN SCHEMA ${store.schema} TO ${role}`,
  );
  await store.sql(`SET ROLE ${role}`);
  const lines = await told(store);
  await store.sql("RESET ROLE");
  await store.sql(`DROP OWNED BY ${role}; DROP ROLE ${role}`);
  said(lines, new RegExp(`^warning: The role ${role} can only read.*jobs: INSERT, UPDATE, DELETE`));
  said(lines, /^warning: overdue jobs: not known, permission denied/);
});

test("overdue jobs are reported with their age and what to run, and reclaims by kind and decision", async (t) => {
  const store = await fixture(t);
  await store.worker("w");
  for (const id of ["a", "b"]) {
    await store.sql("SELECT outlive.enqueue('run_tsa', id => $1)", [id]);
    await store.claim("w", id);
  }
  await store.pass(20 * MINUTE);
  await store.beat("w");
  said(await told(store), /^warning: 2 jobs of run_tsa are overdue, the oldest by 5m.*reclaim_stale_jobs/);
  await store.psql("SELECT outlive.reclaim_stale_jobs()");
  said(await told(store), /^ok: Reclaimed in the last hour: run_tsa retry 2\./);
});

test("the last tick is printed with its caller, also if it is late or failed", async (t) => {
  const store = await fixture(t);
  await store.sql("SET application_name = 'pg_cron'");
  await store.sql("SELECT outlive.tick()");
  said(await told(store), /^ok: The last tick was .* ago, by pg_cron as /);
  await store.pass(5 * MINUTE);
  said(await told(store), /^warning: The last tick was 5m.* ago, by pg_cron as .*: cron does not call it any more/);
  await store.sql("UPDATE outlive.ticks SET error = 'the disk is on fire'");
  said(await told(store), /^warning: The last tick.*reclaimed nothing: the disk is on fire/);
});

test("a transaction that is open for long is named with its process", async (t) => {
  const store = await fixture(t);
  const other = new pg.Client({ connectionString: store.url, application_name: "report" });
  await other.connect();
  await other.query("BEGIN");
  await other.query("SELECT 1");
  const pid = String((other as unknown as { processID: number }).processID);
  const find = async (longMs: number): Promise<string[]> =>
    (await transactions(sessionOf(store), longMs)).map(({ level, text }) => `${level}: ${text}`);
  said(
    await find(0),
    new RegExp(`^warning: A transaction of process ${pid} report \\(idle in transaction\\) is open for`),
  );
  said(await find(MINUTE * 60), /^ok: No long transaction/);
  await other.end();
});

test("a table with more dead rows than vacuum keeps up with is named with its numbers", async (t) => {
  const store = await fixture(t);
  await store.sql("ALTER TABLE outlive.jobs SET (autovacuum_enabled = false)");
  const find = async (many: number): Promise<string> =>
    (await vacuum(sessionOf(store), many)).map(({ level, text }) => `${level}: ${text}`).join("\n");
  // A session's numbers are there when it has ended.
  await withClient(store.url, async (client) => {
    await client.query(`SELECT ${store.schema}.enqueue('mail') FROM generate_series(1, 20)`);
    await client.query(`DELETE FROM ${store.schema}.jobs`);
  });
  const warned = await untilTrue(
    () => find(10),
    (said_) => said_.startsWith("warning"),
    "the dead rows are counted",
  );
  assert.match(
    warned,
    /^warning: The table jobs has 20 dead rows and 0 live ones; the last vacuum was never\. Check for a long transaction/,
  );
  assert.match(await find(10_000), /^ok: Vacuum keeps up: \d+ dead rows/);
});

test("pg_cron is reported where it is installed: not scheduled, scheduled, not active", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive");
    // The two columns of pg_cron's table that are read; the extension itself is not on every server.
    await client.query("CREATE SCHEMA cron; CREATE TABLE cron.job (schedule text, command text, active boolean)");
    const store = {
      sql: async (text: string, values?: unknown[]) => (await client.query(text, values)).rows,
    } as Fixture;
    said(await told(store), /^warning: pg_cron is here and does not call tick/);
    await client.query(`INSERT INTO cron.job VALUES ('15 seconds', 'SELECT "outlive".tick()', true)`);
    said(await told(store), /^ok: pg_cron calls tick\(\): 15 seconds/);
    await client.query("UPDATE cron.job SET active = false, command = 'select outlive.tick()'");
    said(await told(store), /^warning: pg_cron has a schedule .* not active/);
  });
});
