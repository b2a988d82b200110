// Migrations of a kept store of 0.1.0 that die after each of their statements: nothing of them is there, and the next one does it whole.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { open } from "../../src/index.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { MIGRATIONS as POSTGRES, upText } from "../../src/stores/postgres/migrations/index.ts";
import { MIGRATIONS as SQLITE } from "../../src/stores/sqlite/schema.ts";
import { psql } from "../postgres-sql/fixture.ts";
import { assertKept, assertRuns, copyKept, KEPT_OPTIONS, KEPT_STORES } from "../support/kept-stores.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { Place, untilTrue } from "../support/processes.ts";

/** At the semicolons outside of comments, quoted texts and triggers. */
function statementsOf(text: string): string[] {
  const parts = text.match(
    /--.*|'[^']*'|(\$\w*\$)[\s\S]*?\1|\bBEGIN\b[\s\S]*?\bEND\b|;|(?:(?!\bBEGIN\b)[^;'$-])+|[\s\S]/g,
  )!;
  const statements = [""];
  for (const part of parts)
    if (part === ";") statements.push("");
    else if (!part.startsWith("--")) statements[statements.length - 1] += part;
  return statements.filter((statement) => statement.trim() !== "");
}

test("a step of SQLite that is killed after any of its statements has not happened; the next open does it, and everything is there", async (t) => {
  const place = new Place(t);
  copyKept("sqlite-1.db.gz", place.path);
  const program = fileURLToPath(new URL("../support/killed-after.ts", import.meta.url));
  const before = contentOf(place.path);
  const done: string[] = [];
  for (const { sql } of SQLITE.slice(1))
    for (const statement of statementsOf(sql)) {
      done.push(statement);
      const { signal, stderr } = spawnSync(process.execPath, [program, place.path, ...done], { encoding: "utf8" });
      assert.equal(signal, "SIGKILL", stderr);
      assert.deepEqual(contentOf(place.path), before, statement);
    }
  assert.ok(done.length > 10, "every statement of every later step");
  const engine = await open(place.url, KEPT_OPTIONS);
  t.after(() => engine.close({ grace: "0ms" }));
  await assertKept(engine);
  await assertRuns(engine);
});

/** Every table with its rows, and the schema. */
function contentOf(path: string): unknown[] {
  const db = new DatabaseSync(path);
  try {
    const schema = db.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").all();
    const tables = schema.filter(({ sql }) => String(sql).startsWith("CREATE TABLE"));
    return [schema, ...tables.map(({ name }) => db.prepare(`SELECT * FROM "${String(name)}"`).all())];
  } finally {
    db.close();
  }
}

test("a step of PostgreSQL that is killed after any of its statements has not happened; the next migration does it, and everything is there", async (t) => {
  const url = await keptDatabase(t);
  let kills = 0;
  await withClient(url, async (observer) => {
    for (let number = 4; number <= POSTGRES.length; number++) {
      const before = await fingerprintOf(observer);
      const statements = statementsOf(upText("outlive", number));
      for (let count = 1; count <= statements.length; count++, kills++) {
        await dieAfter(url, observer, statements.slice(0, count));
        assert.equal(await fingerprintOf(observer), before, `step ${number}: ${statements[count - 1]}`);
      }
      assert.deepEqual(await withClient(url, (client) => migrate(client, "outlive", number)), [number]);
      assert.notEqual(await fingerprintOf(observer), before);
    }
  });
  assert.ok(kills > 40, "every statement of every later step");
  const engine = await open(url, KEPT_OPTIONS);
  t.after(() => engine.close({ grace: "0ms" }));
  await assertKept(engine);
  await assertRuns(engine);
});

test("a migration of PostgreSQL that is killed while it builds an index leaves it unusable, and the next one builds it again", async (t) => {
  const url = await keptDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive", 8));
  await withClient(url, async (reader) => {
    // An index is not done before the statements have ended that are older than it.
    await reader.query("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outlive.jobs");
    const killed = assert.rejects(withClient(url, (client) => migrate(client, "outlive")));
    const building = "SELECT pid FROM pg_stat_progress_create_index WHERE datname = current_database()";
    await untilTrue(
      () => psql(url, building),
      (pid) => pid !== "",
      "the index is being built",
    );
    await psql(url, `SELECT pg_terminate_backend(pid) FROM (${building}) AS builder`);
    await killed;
    await reader.query("COMMIT");
  });
  const invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid = 'outlive.jobs'::regclass";
  assert.equal(await psql(url, invalid), "1");
  assert.deepEqual(
    await withClient(url, (client) => migrate(client, "outlive")),
    POSTGRES.map((_, i) => i + 1).slice(8),
  );
  assert.equal(await psql(url, invalid), "0");
  assert.equal(
    await psql(
      url,
      "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'outlive.jobs'::regclass AND indpred::text <> '' ORDER BY 1::text",
    ).then((names) =>
      names
        .split("\n")
        .filter((name) => /suspect|alone/.test(name))
        .sort()
        .join(),
    ),
    "outlive.jobs_suspects_largest,outlive.jobs_suspects_oldest",
  );
  const engine = await open(url, KEPT_OPTIONS);
  t.after(() => engine.close({ grace: "0ms" }));
  await assertKept(engine);
});

async function keptDatabase(t: TestContext): Promise<string> {
  const url = await freshDatabase(t);
  await psql(url, readFileSync(new URL("postgres-3.sql", KEPT_STORES), "utf8"));
  // Steps without checksums keep them with the first migration, in the same transaction as a step.
  await withClient(url, (client) => migrate(client, "outlive", 3));
  return url;
}

/** The server learns of it as of any process that was killed: its connection is gone in the middle of a transaction. */
async function dieAfter(url: string, observer: pg.Client, statements: readonly string[]): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  client.on("error", () => {});
  await client.connect();
  const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
  await client.query("BEGIN");
  for (const statement of statements) await client.query(statement);
  (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
  const alive = `SELECT count(*) FROM pg_stat_activity WHERE pid = ${rows[0]!.pid}`;
  await untilTrue(
    async () => (await observer.query<{ count: string }>(alive)).rows[0]!.count,
    (count) => count === "0",
    "the server has noticed",
  );
}

/** Of every table with its rows, every index, function and view. */
async function fingerprintOf(client: pg.Client): Promise<string> {
  const ask = async (text: string): Promise<string> => JSON.stringify((await client.query(text)).rows);
  const ofSchema = "(SELECT oid FROM pg_class WHERE relnamespace = 'outlive'::regnamespace)";
  const { rows: tables } = await client.query<{ name: string }>(
    "SELECT c.oid::regclass::text AS name FROM pg_class c WHERE relnamespace = 'outlive'::regnamespace AND relkind = 'r' ORDER BY 1",
  );
  const contents = tables
    .map(({ name }) => `SELECT '${name}' AS name, t::text AS line FROM ${name} t`)
    .join(" UNION ALL ");
  return [
    await ask(`${contents} ORDER BY 1, 2`),
    await ask(`SELECT oid::regclass::text, relkind FROM pg_class WHERE oid IN ${ofSchema} ORDER BY 1`),
    await ask(
      "SELECT oid::regprocedure::text, md5(prosrc), proacl::text FROM pg_proc WHERE pronamespace = 'outlive'::regnamespace ORDER BY 1, 2",
    ),
    await ask("SELECT viewname, definition FROM pg_views WHERE schemaname = 'outlive' ORDER BY 1"),
    await ask(
      `SELECT attrelid::regclass::text, attname FROM pg_attribute WHERE attrelid IN ${ofSchema} AND NOT attisdropped ORDER BY 1, 2`,
    ),
  ].join("\n");
}
