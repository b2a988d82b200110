// Opens a kept store of every released schema (test/fixtures): everything that was in it is there, what a dead worker held is
// recovered, and all that can run runs.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test, type TestContext } from "node:test";
import { migrationsOf, printedSql } from "../../src/stores/registry.ts";
import { open } from "../../src/index.ts";
import { assertMigrated, NEEDED_VERSION } from "../../src/stores/postgres/migrate.ts";
import { ALSO_ACCEPTED, checksumOf, MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { psql } from "../postgres-sql/fixture.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { assertKept, assertRuns, copyKept, KEPT_OPTIONS, KEPT_STORES } from "../support/kept-stores.ts";
import { Place } from "../support/processes.ts";

const STORES = readdirSync(KEPT_STORES).filter((name) => /^(sqlite|postgres)-\d+/.test(name));

test("a store of every kind is kept", () => {
  assert.ok(STORES.includes("sqlite-1.db.gz") && STORES.includes("postgres-3.sql"), STORES.join(", "));
});

for (const name of STORES) {
  test(`${name}: everything is there after the open, what was running is recovered, and all that can run runs`, async (t) => {
    const url = await restored(t, name);
    const engine = await open(url, KEPT_OPTIONS);
    t.after(() => engine.close({ grace: "0ms" }));
    await assertKept(engine);
    await assertRuns(engine);
    assert.deepEqual(await unknownMigrations(url), [], "every migration is applied and keeps its checksum");
  });
}

test("a kept PostgreSQL schema that was upgraded by hand, with printed SQL, opens; `migrate up` then keeps its checksums", async (t) => {
  const url = await freshDatabase(t);
  await psql(url, readFileSync(new URL("postgres-3.sql", KEPT_STORES), "utf8"));
  await psql(url, await printedSql("outlive", { migrations: { from: 4, to: MIGRATIONS.length, direction: "up" } }));
  await withClient(url, (client) => assertMigrated(client, "outlive"));
  assert.deepEqual(await unknownMigrations(url), [1, 2, 3]);
  assert.deepEqual(await (await migrationsOf(url)).up(), []);
  assert.deepEqual(await unknownMigrations(url), []);
});

test("a store with any text that migration 7 had on main upgrades to the same schema, opens, and goes back", async (t) => {
  const schemas = new Set<string>();
  for (const checksum of [checksumOf(7), ...ALSO_ACCEPTED[7]!]) {
    const url = await freshDatabase(t);
    const kept = checksum === checksumOf(7) ? "postgres-7.sql" : "postgres-7-edited.sql";
    await psql(url, readFileSync(new URL(kept, KEPT_STORES), "utf8"));
    if (kept !== "postgres-7.sql")
      await psql(url, `UPDATE outlive.meta SET value = x'${checksum}'::bigint WHERE key = 'checksum 7'`);
    if (checksum === WITHOUT_RESERVED_BY) await psql(url, "ALTER TABLE outlive.jobs DROP COLUMN reserved_by");
    const migrations = await migrationsOf(url);
    assert.equal((await migrations.list())[6]!.storedChecksum, checksum);
    await withClient(url, (client) =>
      assert.rejects(assertMigrated(client, "outlive"), {
        code: "SCHEMA_MISSING",
        message: new RegExp(`has version 7; ${NEEDED_VERSION} is needed`),
      }),
    );
    assert.deepEqual(await migrations.up(), stepsFrom(8), checksum);
    assert.deepEqual(await unknownMigrations(url), []);
    schemas.add(await psql(url, SCHEMA));
    await withClient(url, (client) => assertMigrated(client, "outlive"));
    assert.deepEqual(await migrations.down({ to: 6, force: true }), stepsFrom(7).toReversed());
  }
  assert.equal(schemas.size, 1, "all are the same after the upgrade");
});

test("a store with an edited migration 7 that was not upgraded goes back, too; and no other text is accepted", async (t) => {
  const url = await freshDatabase(t);
  await psql(url, readFileSync(new URL("postgres-7-edited.sql", KEPT_STORES), "utf8"));
  const migrations = await migrationsOf(url);
  assert.deepEqual(await migrations.down({ to: 6, force: true }), [7]);
  assert.deepEqual(await migrations.up(), stepsFrom(7));
  await psql(url, "UPDATE outlive.meta SET value = 1 WHERE key = 'checksum 7'");
  await assert.rejects(migrations.up(), { code: "SCHEMA_DIFFERS" });
});

/** Of a1f9cb8. */
const WITHOUT_RESERVED_BY = "b3717e62d55673d";

const SCHEMA = `SELECT oid::regprocedure::text, md5(prosrc) FROM pg_proc WHERE pronamespace = 'outlive'::regnamespace UNION ALL
  SELECT attrelid::regclass::text, attname FROM pg_attribute WHERE NOT attisdropped
    AND attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'outlive'::regnamespace) UNION ALL
  SELECT viewname, definition FROM pg_views WHERE schemaname = 'outlive' ORDER BY 1, 2`;

/** The address of a store with the content of the kept one, upgraded as its users do. */
async function restored(t: TestContext, name: string): Promise<string> {
  if (name.startsWith("sqlite")) {
    const place = new Place(t);
    copyKept(name, place.path);
    return place.url;
  }
  const url = await freshDatabase(t);
  await psql(url, readFileSync(new URL(name, KEPT_STORES), "utf8"));
  await (await migrationsOf(url)).up();
  return url;
}

async function unknownMigrations(url: string): Promise<number[]> {
  const all = await (await migrationsOf(url)).list();
  return all.filter(({ checksum, storedChecksum }) => storedChecksum !== checksum).map(({ number }) => number);
}

/** The numbers of all migrations from this one on. */
function stepsFrom(number: number): number[] {
  return MIGRATIONS.map((_, i) => i + 1).slice(number - 1);
}
