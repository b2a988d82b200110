// What can be wrong on the way to the server and in the middle of work, each said in a sentence, with no password in it.
import assert from "node:assert/strict";
import { inspect } from "node:util";
import { test } from "node:test";
import pg from "pg";
import { connect } from "../../src/client.ts";
import { job, open, OutliveError } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { addressOf, shownAddress } from "../../src/stores/postgres/address.ts";
import { freshDatabase, freshSchema, ownServer, sharedServer, withClient } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { slow, transfer } from "./jobs.ts";
import { PostgresPlace } from "./place.ts";

const SECRET = "s3cr3t-w0rd";

async function refusal(url: string, options = {}): Promise<OutliveError> {
  for (const enter of [open, connect]) {
    const thrown = await enter(url, { ...options, logger: false } as object).then(
      () => assert.fail("it opened"),
      (error: unknown) => error,
    );
    assert.ok(thrown instanceof OutliveError, inspect(thrown));
    assert.doesNotMatch(inspect(thrown, { depth: 10 }), new RegExp(SECRET), "no password anywhere in it");
    if (enter === connect) return thrown;
  }
  return assert.fail();
}

test("a wrong password, a database that is not there and a server that is away are refused with what to do", async (t) => {
  const server = await ownServer(t, { password: "right", fsync: false });
  const wrong = await refusal(server.url("postgres", undefined, SECRET));
  assert.equal(wrong.code, "STORE_UNUSABLE");
  assert.match(
    wrong.message,
    /:\[redacted\]@127.0.0.1.*password authentication failed.*Check the user and the password/s,
  );
  const absent = await refusal(server.url("nowhere"));
  assert.equal(absent.code, "STORE_UNUSABLE");
  assert.match(absent.message, /"nowhere" does not exist.*create it/s);
  await server.stop();
  const away = await refusal(server.url());
  assert.equal(away.code, "STORE_UNREACHABLE");
  assert.match(away.hint, /Nothing listens there/);
});

test("an invalid address, or one that names a server next to a pool, is refused without its password", async () => {
  for (const url of [
    `postgres://u:${SECRET}@host:notaport/db`,
    `postgres://u:${SECRET}/@host name/db`,
    `mysql://u:${SECRET}@h/db`,
  ]) {
    const thrown = await refusal(url);
    assert.equal(thrown.code, "OPTION_INVALID");
  }
  const pool = { connect: async () => {}, options: {} };
  assert.throws(() => addressOf("postgres://localhost/x", { pool }), { code: "OPTION_INVALID" });
  assert.equal(addressOf("postgres:", { pool }).pool, pool);
  assert.equal(
    shownAddress(`postgres://u:p@${SECRET}@h/db?password=${SECRET}&x=1`),
    "postgres://u:[redacted]@h/db?password=[redacted]&x=1",
  );
  await assert.rejects(open("postgres://localhost/x", { postgres: { schema: "Drop;" } }), { code: "OPTION_INVALID" });
  await assert.rejects(open("postgres://localhost/x", { postgres: { connections: 0 } }), { code: "OPTION_INVALID" });
});

test("a schema that is missing, older or newer is refused, and never migrated by an open", async (t) => {
  const empty = await refusal(await freshDatabase(t));
  assert.equal(empty.code, "SCHEMA_MISSING");
  assert.match(empty.hint, /outlive migrate up/);
  const fresh = await freshSchema(t);
  const { url, schema } = fresh;
  await fresh.query(`UPDATE "${schema}".meta SET value = value + 1 WHERE key = 'schema'`);
  const newer = await refusal(url, { postgres: { schema } });
  assert.equal(newer.code, "SCHEMA_NEWER");
  assert.match(newer.hint, /Upgrade the outlive package/);
});

test("a worker that is too old for a schema that was migrated meanwhile says so, stops claiming and releases what it holds", async (t) => {
  const place = await PostgresPlace.shared(t);
  const wait = job<object>("wait");
  wait.handle(
    (_, run) => new Promise((_resolve, reject) => (run.signal.onabort = () => reject(run.signal.reason as Error))),
  );
  const engine = await place.engine({ jobs: [wait] });
  const worker = await engine.start();
  const { id } = await engine.enqueue(wait, {});
  await untilState(engine, id, "running");
  await place.query("UPDATE outlive.meta SET value = value + 1 WHERE key = 'schema'");
  await assert.rejects(worker.stopped, { code: "SCHEMA_NEWER" });
  const given = await place.query(
    "SELECT state, fence, interruptions, errors, crashes FROM outlive.jobs WHERE id = $1",
    [id],
  );
  assert.deepEqual(
    given,
    [{ state: 0, fence: 1, interruptions: 1, errors: 0, crashes: 0 }],
    "it is queued again at once",
  );
});

test("a role without rights is refused with what to do", async (t) => {
  const fresh = await freshSchema(t);
  const { url, schema } = fresh;
  const role = `r_${schema}`;
  await fresh.query(`CREATE ROLE ${role} LOGIN`);
  t.after(() => fresh.query(`DROP ROLE ${role}`));
  const address = new URL(url);
  address.username = role;
  const thrown = await refusal(address.href, { postgres: { schema } });
  assert.equal(thrown.code, "STORE_UNUSABLE");
  assert.match(thrown.message, /permission denied.*Grant this role/s);
});

test("the server is killed while the callback of a commit is under way: the job is tried again, and its row is there once", async (t) => {
  const server = await ownServer(t);
  const place = await PostgresPlace.on(t, server.url());
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(transfer, { n: 1, idleMs: 600_000 });
  await child.untilFact("inside", { id });
  await server.kill();
  await server.start();
  await untilTrue(
    () => engine.get(id).catch(() => null),
    (found) => found?.state === "succeeded",
    "the job has succeeded",
  );
  assert.deepEqual([...(await place.ledgerRows())], [[id, 1]]);
});

test("a session that is killed while it is idle in the callback's transaction costs that attempt only", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(transfer, { n: 1, idleMs: 600_000 });
  const { backend } = await child.untilFact("inside", { id });
  await place.query("SELECT pg_terminate_backend($1)", [backend]);
  await untilState(engine, id, "succeeded");
  assert.deepEqual([...(await place.ledgerRows())], [[id, 1]]);
  const found = (await engine.get(id))!;
  assert.equal(found.attempt, 2);
  assert.equal(found.counters.crashes, 0);
  assert.deepEqual(await engine.incidents(), []);
});

test("the heartbeat's session alone is killed: the worker keeps its work and no worker is called dead", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const children = [place.child(), place.child()];
  await Promise.all(children.map((child) => child.untilFact("working")));
  const { id } = await engine.enqueue(slow, { ms: 5_000 });
  await Promise.any(children.map((child) => child.untilFact("started", { id })));
  const killed = await place.query<{ lock: string }>(
    `SELECT held.lock, pg_terminate_backend(held.pid)
     FROM (SELECT pid, ((classid::bigint << 32) | objid::bigint)::text AS lock
           FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock') held
     WHERE held.lock IN (SELECT lock_name FROM outlive.fleet)`,
  );
  // A worker has two holders for a moment, while its lock passes from the session of its open to its maintenance's.
  assert.equal(new Set(killed.map(({ lock }) => lock)).size, 2);
  await untilState(engine, id, "succeeded");
  assert.equal((await engine.get(id))!.attempt, 1);
  assert.deepEqual(await engine.incidents(), []);
});

test("an exhausted pool is waited for, then refused with what to do", async (t) => {
  const { url, schema } = await freshSchema(t);
  const pool = new pg.Pool({ connectionString: url, max: 1 });
  t.after(() => pool.end());
  const hello = job<object>("hello");
  await using engine = await open("postgres:", { jobs: [hello], logger: false, postgres: { schema, pool } });
  const client = await pool.connect();
  // Only now: it is also how long a new connection may take.
  pool.options.connectionTimeoutMillis = 300;
  await assert.rejects(engine.enqueue(hello, {}), (thrown: OutliveError) => {
    assert.equal(thrown.code, "STORE_BUSY");
    assert.match(thrown.hint, /Every connection of the pool was in use/);
    return true;
  });
  client.release();
  assert.equal((await engine.enqueue(hello, {})).created, true);
});

test("on the user's own pool: queries run on it, it stays open, and nothing is left in its sessions", async (t) => {
  const { url, schema } = await freshSchema(t);
  const pool = new pg.Pool({ connectionString: url, max: 3 });
  t.after(() => pool.end());
  const ran: unknown[] = [];
  const hello = job<{ n: number }>("hello");
  hello.handle(async ({ n }, run) => {
    await run.commit(
      postgres,
      async (tx) => void ran.push((await tx.query<{ n: number }>("SELECT $1::int AS n", [n]))[0]!.n),
    );
  });
  const engine = await open("postgres:", { jobs: [hello], logger: false, postgres: { schema, pool } });
  const worker = await engine.start();
  await engine.enqueue(hello, { n: 7 });
  await untilTrue(
    () => ran.length,
    (count) => count === 1,
    "it ran",
  );
  await worker.stop();
  await engine.close();
  const { rows } = await pool.query(
    "SELECT current_setting('enable_seqscan') AS seqscan, (SELECT count(*)::int FROM pg_prepared_statements) AS prepared",
  );
  assert.deepEqual(rows, [{ seqscan: "on", prepared: 0 }]);
});

test("a pool whose password is a function gets its maintenance in the worker's thread, and the log says so", async (t) => {
  const { url, schema } = await freshSchema(t);
  const pool = new pg.Pool({ connectionString: url, password: () => "" });
  t.after(() => pool.end());
  const notices: string[] = [];
  const hello = job<object>("hello");
  hello.handle(() => {});
  await using engine = await open("postgres:", {
    jobs: [hello],
    logger: false,
    postgres: { schema, pool },
    onEvent: (event) => void (event.name === "store.notice" && notices.push(event.text)),
  });
  const worker = await engine.start();
  assert.match(notices.join(), /the maintenance runs in the worker's own thread/);
  const { id } = await engine.enqueue(hello, {});
  await untilState(engine, id, "succeeded");
  await worker.stop();
});

test("without the package pg the error says what to install", async () => {
  const shared = await sharedServer();
  const { execFileSync } = await import("node:child_process");
  const root = new URL("../../src/index.ts", import.meta.url).href;
  const program = `import { registerHooks } from "node:module";
    registerHooks({ resolve(name, context, next) { if (name === "pg") throw new Error("Cannot find package 'pg'"); return next(name, context); } });
    const { open } = await import(${JSON.stringify(root)});
    await open(${JSON.stringify(shared)}).catch((error) => console.log(error.code, error.hint));`;
  const said = execFileSync(
    process.execPath,
    ["--disable-warning=ExperimentalWarning", "--input-type=module", "-e", program],
    { encoding: "utf8" },
  );
  assert.match(said, /DRIVER_MISSING .*npm install pg/);
});

test("no connection is left behind by an engine that was closed", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine({ postgres: { schema: place.schema, connections: 2 } });
  const worker = await engine.start();
  await Promise.all(Array.from({ length: 50 }, (_, n) => engine.enqueue(transfer, { n })));
  const names = await place.query<{ name: string; n: number }>(
    "SELECT a.application_name AS name, count(*)::int AS n FROM pg_stat_activity a WHERE a.application_name = (SELECT application_name FROM pg_stat_activity b JOIN pg_locks l ON l.pid = b.pid WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND ((l.classid::bigint << 32) | l.objid::bigint)::text = (SELECT lock_name FROM outlive.fleet) LIMIT 1) GROUP BY 1",
  );
  assert.match(names[0]!.name, /^outlive-[0-9a-f]{12}$/);
  assert.ok(names[0]!.n <= 2 + 4 + 1, `${names[0]!.n} connections`);
  await worker.stop({ grace: "1s" });
  await engine.close();
  await untilTrue(
    () =>
      withClient(
        place.url,
        async (c) =>
          (
            await c.query("SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = $1", [
              names[0]!.name,
            ])
          ).rows[0].n as number,
      ),
    (n) => n === 0,
    "all are closed",
  );
});
