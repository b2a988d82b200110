// `outlive migrate` as an operator runs it, on a real server: up and down, refused, killed in the middle, and printed for psql.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { type TestContext, test } from "node:test";
import { cli, cliOn, ended, startCli } from "../support/cli.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { psql } from "./fixture.ts";

/** The numbers of all migrations. Those after the first are also called the later ones. */
const ALL = MIGRATIONS.map((_, i) => i + 1);
const LATER = ALL.slice(1);
const LATEST = ALL.at(-1)!;

interface Listed {
  readonly migrations: readonly { readonly number: number; readonly name: string; readonly applied: boolean }[];
}

async function applied(t: TestContext, store: string): Promise<number[]> {
  const { value } = await cliOn(t, store).json("migrate", "list");
  return (value as Listed).migrations.filter((one) => one.applied).map(({ number }) => number);
}

/** Everything in the schema: names, columns, and the texts of functions. */
function things(url: string): Promise<string> {
  return psql(
    url,
    `SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('outlive') UNION ALL
     SELECT proname || md5(prosrc) FROM pg_proc WHERE pronamespace = to_regnamespace('outlive') UNION ALL
     SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relnamespace = to_regnamespace('outlive') AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1`,
  );
}

test("up makes all steps one after the other, and a second run changes nothing", async (t) => {
  const url = await freshDatabase(t);
  const { json, run } = cliOn(t, url);
  assert.deepEqual(await applied(t, url), []);
  assert.deepEqual((await json("migrate", "up", "--to", "1")).value, { schema: "outlive", applied: [1] });
  assert.deepEqual(await applied(t, url), [1]);
  assert.match(
    (await run("migrate", "list")).stdout,
    /1 {2}core +\d{4}-.*Z +[0-9a-f]{15}\n +2 {2}heartbeats and reclaim +not yet/,
  );
  assert.deepEqual((await json("migrate", "up")).value, { schema: "outlive", applied: LATER });
  assert.match((await run("migrate", "up")).stdout, /up to date/);
});

test("with --read-only neither way is gone, not even by force", async (t) => {
  const url = await freshDatabase(t);
  const { run } = cliOn(t, url);
  const up = await run("migrate", "up", "--read-only");
  assert.deepEqual([up.code, await things(url)], [1, ""]);
  await run("migrate", "up");
  const before = await things(url);
  const down = await run("migrate", "down", "--to", "0", "--force", "--read-only");
  assert.equal(down.code, 1);
  assert.match(down.stderr, /With --read-only this command can't undo migrations\.\n {2}Nothing was written/);
  assert.equal(await things(url), before);
});

test("down takes everything back that up made, and leaves what is not ours", async (t) => {
  const url = await freshDatabase(t);
  const { run, json } = cliOn(t, url);
  await run("migrate", "up", "--to", "1");
  const core = await things(url);
  await run("migrate", "up");
  assert.notEqual(await things(url), core);
  const { stdout } = await run("migrate", "down", "--to", "1");
  assert.match(
    stdout,
    new RegExp(`${LATER.length} migrations undone \\(${LATER.toReversed().join(", ")}\\)\\. Dropped:`),
  );
  assert.match(stdout, /\n {2}the views stale_monitor.*\n {2}the functions job_heartbeat/);
  assert.equal(await things(url), core);
  await psql(url, "CREATE TABLE outlive.mine (a int)");
  assert.deepEqual(((await json("migrate", "down", "--to", "0")).value as { undone: number[] }).undone, [1]);
  assert.equal(await things(url), "mine\nmine.a");
  await run("migrate", "up");
  await psql(url, "DROP TABLE outlive.mine");
  await run("migrate", "down", "--to", "0");
  assert.equal(await psql(url, "SELECT to_regnamespace('outlive') IS NULL"), "t");
});

test("down refuses while unfinished jobs exist, says what it would drop, and does it when it is forced", async (t) => {
  const url = await freshDatabase(t);
  const { run, json } = cliOn(t, url);
  await run("migrate", "up");
  await psql(url, "SELECT outlive.enqueue('mail'), outlive.enqueue('mail')");
  const refused = await run("migrate", "down", "--to", "0");
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /2 jobs .* are unfinished.*drops .*the views.*; the functions.*; all jobs.*\n.*--force/);
  assert.equal((await run("migrate", "down")).code, 4, "one step as well");
  assert.deepEqual(await applied(t, url), ALL);
  const { value } = await json("migrate", "down", "--to", "0", "--force");
  assert.deepEqual((value as { undone: number[] }).undone, ALL.toReversed());
});

test("without jobs that are unfinished, down is one step", async (t) => {
  const url = await freshDatabase(t);
  const { json, run } = cliOn(t, url);
  await run("migrate", "up");
  await psql(url, "SELECT outlive.enqueue('mail'); UPDATE outlive.jobs SET state = 2");
  assert.deepEqual(((await json("migrate", "down")).value as { undone: number[] }).undone, [LATEST]);
});

test("a migration that is killed in the middle has not happened, and the next one does it", async (t) => {
  const url = await freshDatabase(t);
  await cliOn(t, url).run("migrate", "up", "--to", "1");
  for (const number of LATER) {
    const before = await things(url);
    await killAtTheEndOf(t, url, number);
    assert.equal(await things(url), before, `migration ${number}`);
    assert.deepEqual(await applied(t, url), ALL.slice(0, number - 1));
    await cliOn(t, url).run("migrate", "up", "--to", String(number));
  }
  assert.deepEqual(await applied(t, url), ALL);
});

/** Kills a process that has done all of a migration but to write its number. */
async function killAtTheEndOf(t: TestContext, url: string, number: number): Promise<void> {
  await withClient(url, async (other) => {
    await other.query("BEGIN; LOCK TABLE outlive.meta IN SHARE MODE");
    const process = startCli(t, ["migrate", "up", "--to", String(number)], { store: url });
    const over = ended(process);
    await untilTrue(
      async () =>
        (
          await withClient(url, (c) =>
            c.query("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'outlive.meta'::regclass"),
          )
        ).rows.length,
      (waiting) => waiting === 1,
      `migration ${number} waits for the table`,
    );
    process.kill("SIGKILL");
    await over;
    await other.query("ROLLBACK");
  });
  await untilTrue(
    () =>
      psql(url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"),
    (sessions) => sessions === "0",
    "the killed session has ended",
  );
}

test("several processes that migrate at once make each step once", async (t) => {
  const url = await freshDatabase(t);
  const all = await Promise.all(Array.from({ length: 3 }, () => cliOn(t, url).json("migrate", "up")));
  assert.deepEqual(
    all.map(({ code }) => code),
    [0, 0, 0],
  );
  assert.deepEqual(
    all.flatMap(({ value }) => (value as { applied: number[] }).applied).sort((a, b) => a - b),
    ALL,
  );
});

test("a table that another session holds makes a migration give up with a sentence, and nothing has changed", async (t) => {
  const url = await freshDatabase(t);
  await cliOn(t, url).run("migrate", "up", "--to", "1");
  await withClient(url, async (other) => {
    await other.query("BEGIN; LOCK TABLE outlive.history IN ACCESS SHARE MODE");
    const { code, stderr } = await cliOn(t, url).run("migrate", "up");
    assert.equal(code, 1);
    assert.match(stderr, /could not be migrated: .*lock timeout.*\n.*run it again/);
  });
  assert.deepEqual(await applied(t, url), [1]);
});

test("a migration that waits for a table lets others pass, and is done once the table is free", async (t) => {
  const url = await freshDatabase(t);
  await cliOn(t, url).run("migrate", "up", "--to", "3");
  await withClient(url, async (reader) => {
    await reader.query("BEGIN; SELECT count(*) FROM outlive.jobs");
    const migrating = cliOn(t, url).run("migrate", "up");
    const waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outlive.jobs'::regclass";
    await untilTrue(
      () => psql(url, waits),
      (count) => count === "1",
      "the migration waits",
    );
    const began = performance.now();
    await psql(url, "SELECT outlive.enqueue('mail')");
    assert.ok(performance.now() - began < 2_000, "an enqueue does not wait until the reader has ended");
    await reader.query("COMMIT");
    assert.equal((await migrating).code, 0);
  });
  assert.deepEqual(await applied(t, url), ALL);
});

test("a role that may not create tables gets an error that says so", async (t) => {
  const url = await freshDatabase(t);
  const role = `r_${new URL(url).pathname.slice(1)}`;
  await psql(url, `CREATE ROLE ${role} LOGIN; REVOKE CREATE ON DATABASE ${new URL(url).pathname.slice(1)} FROM PUBLIC`);
  t.after(() => psql(new URL("/postgres", url).href, `DROP ROLE IF EXISTS ${role}`));
  const as = new URL(url);
  as.username = role;
  const { code, stderr } = await cliOn(t, as.href).run("migrate", "up");
  assert.equal(code, 1);
  assert.match(stderr, /permission denied.*\n.*a role that may create/);
});

test("print gives SQL that psql takes, and refuses to run twice", async (t) => {
  const url = await freshDatabase(t);
  const { run } = cliOn(t, url);
  const up = (await run("migrate", "print")).stdout;
  await psql(url, up);
  assert.deepEqual(await applied(t, url), ALL);
  await assert.rejects(psql(url, up), new RegExp(`has version ${LATEST}, and this needs 0`));
  await psql(url, (await run("migrate", "print", "--down", "--from", "2")).stdout);
  assert.deepEqual(await applied(t, url), [1]);
  await psql(url, (await run("migrate", "print", "--from", "2", "--to", "2")).stdout);
  assert.deepEqual(await applied(t, url), [1, 2]);
});

test("list shows the checksum of each migration; with another one than the released, nothing is migrated up, down or by psql", async (t) => {
  const url = await freshDatabase(t);
  const { run, json } = cliOn(t, url);
  await run("migrate", "up");
  const { migrations } = (await json("migrate", "list")).value as {
    migrations: { checksum: string; storedChecksum: string | null }[];
  };
  assert.ok(migrations.every(({ checksum, storedChecksum }) => storedChecksum === checksum));
  assert.match(
    (await run("migrate", "print")).stdout,
    new RegExp(`-- .*migration 1 .*checksum ${migrations[0]!.checksum}`),
  );

  await psql(url, "UPDATE outlive.meta SET value = x'abcabcabcabcabc'::bigint WHERE key = 'checksum 1'");
  const before = await things(url);
  assert.match((await run("migrate", "list")).stdout, /1 {2}core .*abcabcabcabcabc, not the released [0-9a-f]{15}\n/);
  for (const way of [["up"], ["down", "--force"]]) {
    const { code, stderr } = await run("migrate", ...way);
    assert.equal(code, 1);
    assert.match(
      stderr,
      /Migration 1 \(core\) of the schema "outlive" has the checksum abcabcabcabcabc; .*\n.*unreleased build/,
    );
  }
  const back = (await run("migrate", "print", "--down", "--from", String(LATEST))).stdout;
  await assert.rejects(psql(url, back), /the schema outlive was made by an unreleased build of Outlive/);
  assert.equal(await things(url), before);
});

test("checksums do not depend on the name of the schema", async (t) => {
  const url = await freshDatabase(t);
  for (const schema of ["outlive", "other_name"]) {
    const { code } = await cli(t, ["migrate", "up"], { store: url, env: { OUTLIVE_POSTGRES_SCHEMA: schema } });
    assert.equal(code, 0);
  }
  const kept = (schema: string): Promise<string> =>
    psql(url, `SELECT key, value FROM ${schema}.meta WHERE key LIKE 'checksum %' ORDER BY key`);
  assert.equal((await kept("outlive")).split("\n").length, ALL.length);
  assert.equal(await kept("other_name"), await kept("outlive"));
});

test("print --pg-cron schedules tick every 15 s, and print --roles names the four roles", async (t) => {
  const { run } = cliOn(t, "postgres://nobody@127.0.0.1:1/none");
  const cron = (await run("migrate", "print", "--pg-cron")).stdout;
  assert.match(cron, /cron\.schedule\('outlive-tick', '15 seconds', 'SELECT "outlive"\.tick\(\)'\)/);
  assert.doesNotMatch(cron, /CREATE TABLE/);
  const roles = (await run("migrate", "print", "--roles")).stdout;
  for (const role of ["outlive_owner", "outlive_worker", "outlive_enqueue", "outlive_read"])
    assert.match(roles, new RegExp(`CREATE ROLE "${role}"`));
});

test("on SQLite up creates the file, so that a job can be enqueued before the first worker, and down is refused", async (t) => {
  const place = new Place(t);
  const { run, json } = cliOn(t, place.url);
  assert.match(
    (await run("migrate", "list")).stdout,
    /1 {2}core +not yet .*\n\nA worker also upgrades a SQLite file when it opens it\.\n$/s,
  );
  const early = await run("enqueue", "mail", "{}");
  assert.equal(early.code, 1);
  assert.match(early.stderr, /There is no file .*\n.*outlive migrate up/);
  assert.match((await run("migrate", "up")).stdout, /jobs\.db: \d+ migrations? done \(1[, \d]*\)\.\n$/);
  assert.deepEqual((await json("migrate", "up")).value, { applied: [], store: "sqlite" });
  assert.equal((await run("status")).code, 0);
  assert.equal((await json("migrate", "up", "--to", "1")).code, 2);
  assert.equal((await json("migrate", "down")).code, 2);
});

test("list shows the checksums that a SQLite file keeps, and writes nothing", async (t) => {
  const place = new Place(t);
  const { run, json } = cliOn(t, place.url);
  await run("migrate", "list");
  assert.equal(existsSync(place.path), false);
  await (await place.engine()).close();
  const { migrations } = (await json("migrate", "list")).value as { migrations: Record<string, unknown>[] };
  assert.ok(migrations.every(({ applied, checksum, storedChecksum }) => applied && storedChecksum === checksum));
  const db = new DatabaseSync(place.path);
  db.exec("DELETE FROM outlive_meta WHERE key LIKE 'checksum %'");
  assert.match((await run("migrate", "list")).stdout, /1 {2}core +yes +not stored yet/);
  assert.equal(db.prepare("SELECT count(*) AS n FROM outlive_meta WHERE key LIKE 'checksum %'").get()!["n"], 0);
  db.close();
});

test("a worker on a schema that is not there prints what to run", async (t) => {
  const url = await freshDatabase(t);
  const { code, stderr } = await cli(t, ["status"], { store: url });
  assert.equal(code, 1);
  assert.match(stderr, /holds no Outlive tables.*\n.*outlive migrate up/);
});
