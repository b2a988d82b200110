// C11: until the first version of record, migrations were edited in place. A store that an older build had made said that it was up to
// date, opened, and then no job was ever claimed.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { type TestContext, test } from "node:test";
import { connect } from "../../src/client.ts";
import { open } from "../../src/index.ts";
import { assertMigrated, migrate } from "../../src/stores/postgres/migrate.ts";
import { jobs, stepped } from "../support/jobs.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { Place } from "../support/processes.ts";

/** A file with three queued jobs, then changed as another build would have made it. */
async function fileOfAnotherBuild(t: TestContext, change: string): Promise<Place> {
  const place = new Place(t);
  const engine = await place.engine();
  for (let n = 0; n < 3; n++) await engine.enqueue(stepped, {});
  await engine.close();
  const db = new DatabaseSync(place.path);
  db.exec(change);
  db.close();
  return place;
}

async function schemaOfAnotherBuild(t: TestContext, change: string): Promise<string> {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive");
    await client.query("SELECT outlive.enqueue('mail'), outlive.enqueue('mail'), outlive.enqueue('mail')");
    await client.query(change);
  });
  return url;
}

/** As a store from before checksums were kept. */
const WITHOUT_CHECKSUMS = "DELETE FROM outlive_meta WHERE key LIKE 'checksum %'";
const SCHEMA_WITHOUT_CHECKSUMS = "DELETE FROM outlive.meta WHERE key LIKE 'checksum %'";

test("C11: a SQLite file of an older build, without a column of ours, is refused with a sentence and left as it is", async (t) => {
  const change = `${WITHOUT_CHECKSUMS}; ALTER TABLE outlive_jobs DROP COLUMN input_sum`;
  const place = await fileOfAnotherBuild(t, change);
  const refused = {
    code: "SCHEMA_DIFFERS",
    message: /outlive_jobs\.input_sum .*missing.*unreleased build.*that build/,
  };
  await assert.rejects(place.engine(), refused);
  const db = new DatabaseSync(place.path);
  assert.equal(db.prepare("SELECT count(*) AS n FROM outlive_jobs WHERE state = 0").get()!["n"], 3);
  assert.equal(db.prepare("SELECT count(*) AS n FROM outlive_meta WHERE key LIKE 'checksum %'").get()!["n"], 0);
  db.close();
});

test("C11: a client refuses a SQLite file of an older build, too", async (t) => {
  const place = await fileOfAnotherBuild(t, `${WITHOUT_CHECKSUMS}; ALTER TABLE outlive_jobs DROP COLUMN input_sum`);
  await assert.rejects(
    async () => {
      await using client = await connect(place.url, { jobs });
      await client.get("none");
    },
    { code: "SCHEMA_DIFFERS" },
  );
});

test("C11: a SQLite file whose migration has another checksum is refused, and the sentence says which migration", async (t) => {
  const place = await fileOfAnotherBuild(
    t,
    "INSERT OR REPLACE INTO outlive_meta (key, value) VALUES ('checksum 1', 'abcabcabcabcabc')",
  );
  const refused = { code: "SCHEMA_DIFFERS", message: /Migration 1 \(core\).*abcabcabcabcabc.*released/ };
  await assert.rejects(place.engine(), refused);
});

test("C11: a PostgreSQL schema of an older build, without a column of ours, is refused by `migrate` and by `open`", async (t) => {
  const url = await schemaOfAnotherBuild(
    t,
    `${SCHEMA_WITHOUT_CHECKSUMS}; ALTER TABLE outlive.jobs DROP COLUMN reserved_by`,
  );
  const refused = { code: "SCHEMA_DIFFERS", message: /jobs\.reserved_by bigint is missing.*unreleased build/ };
  await withClient(url, (client) => assert.rejects(migrate(client, "outlive"), refused));
  await assert.rejects(opened(url), refused);
});

test("C11: a PostgreSQL schema whose migration has another checksum is refused, and the sentence says which migration", async (t) => {
  const url = await schemaOfAnotherBuild(
    t,
    "INSERT INTO outlive.meta (key, value) VALUES ('checksum 2', x'abcabcabcabcabc'::bigint) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
  );
  const refused = { code: "SCHEMA_DIFFERS", message: /Migration 2 \(heartbeats and reclaim\).*abcabcabcabcabc/ };
  await withClient(url, (client) => assert.rejects(migrate(client, "outlive"), refused));
  await withClient(url, (client) => assert.rejects(assertMigrated(client, "outlive"), refused));
});

async function opened(url: string): Promise<void> {
  await using _ = await open(url, { jobs, logger: false });
}
