// A schema of our own on a real server: made once whatever asks for it at the same time, and refused under a name that SQL could read.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertMigrated, installedVersion, migrate } from "../../src/stores/postgres/migrate.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";

test("several that migrate the same schema at once make it once, and a second run changes nothing", async (t) => {
  const url = await freshDatabase(t);
  await Promise.all([1, 2, 3, 4].map(() => withClient(url, (client) => migrate(client, "outlive"))));
  await withClient(url, async (client) => {
    assert.equal(await installedVersion(client, "outlive"), MIGRATIONS.length);
    await migrate(client, "outlive");
    await assertMigrated(client, "outlive");
  });
});

test("a schema without our tables is refused with what to run", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) =>
    assert.rejects(assertMigrated(client, "outlive"), { code: "SCHEMA_MISSING", message: /outlive migrate up/ }),
  );
});

test("a schema of a newer version is refused", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive");
    await client.query("UPDATE outlive.meta SET value = 99 WHERE key = 'schema'");
    await assert.rejects(assertMigrated(client, "outlive"), { code: "SCHEMA_NEWER" });
  });
});

test("a name that is not small letters, digits and underscores never reaches the server", async () => {
  const session = { query: () => Promise.reject(new Error("it was asked")) };
  for (const name of ["", "Outlive", 'a"b', "1a", "a".repeat(41), "a; drop table x"]) {
    await assert.rejects(migrate(session, name), { code: "OPTION_INVALID" }, name);
  }
});
