// SQL and the engine on the same tables: a worker's process is killed and psql alone requeues its work; what SQL wrote is read by
// the engine, and what SQL enqueues is run by it; a worker's role has all the rights that the engine needs.
import assert from "node:assert/strict";
import { fork, spawn } from "node:child_process";
import { once } from "node:events";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import { runTsa, submitAnchorBitcoin } from "../../examples/executor-jobs.ts";
import { type Engine, type EngineOptions, job, open } from "../../src/index.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { roleName, rolesText } from "../../src/stores/postgres/roles.ts";
import { cli } from "../support/cli.ts";
import { freshDatabase, freshSchema, ownServer, withClient } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { psql } from "./fixture.ts";

type Told = { readonly fact: string; readonly job: string; readonly fence: number; readonly worker: string };

async function place(t: TestContext) {
  const engines: Engine[] = [];
  const children: { kill: (signal: "SIGKILL") => boolean }[] = [];
  t.after(async () => {
    for (const child of children) child.kill("SIGKILL");
    for (const engine of engines) await engine.close({ grace: "0ms" });
  });
  const { url, schema } = await freshSchema(t);
  const ask = (text: string): Promise<string> => psql(url, text.replaceAll("outlive.", `${schema}.`));
  return {
    url,
    schema,
    ask,
    engine: async (options: EngineOptions, address = url): Promise<Engine> => {
      const engine = await open(address, { logger: false, ...options, postgres: { schema } });
      engines.push(engine);
      return engine;
    },
    /** A worker process; `until` resolves with the next thing of that sort that it says. */
    holder: (...options: readonly string[]) => {
      const file = fileURLToPath(new URL("./holder.ts", import.meta.url));
      const child = fork(file, [url, schema, ...options], { execArgv: ["--disable-warning=ExperimentalWarning"] });
      children.push(child);
      const told: Told[] = [];
      child.on("message", (message) => told.push(message as Told));
      const until = async (fact: string): Promise<Told> =>
        untilTrue(
          () => told.findIndex((one) => one.fact === fact),
          (at) => at >= 0,
          `the worker says: ${fact}`,
        ).then((at) => told.splice(at, 1)[0]!);
      return { child, until };
    },
  };
}

test("the only worker is killed, and one SELECT of psql requeues its jobs; the next worker's report knows of it", async (t) => {
  const { ask, engine, holder, url, schema } = await place(t);
  const { child, until } = holder();
  const { worker } = await until("working");
  await ask("SELECT outlive.enqueue('run_tsa', '{\"documentId\": \"d1\"}', id => 'a')");
  await ask("SELECT outlive.enqueue('submit_anchor_bitcoin', '{\"documentId\": \"d1\"}', id => 'b')");
  await until("holding");
  const { job: id, fence } = await until("holding");
  assert.equal(await ask(`SELECT outlive.job_heartbeat('${id}', '${worker}', ${fence})`), "t", "it lives");
  assert.equal(await ask("SELECT * FROM outlive.reclaim_stale_jobs()"), "");
  child.kill("SIGKILL");
  await once(child, "exit");
  await untilTrue(
    () => ask("SELECT state FROM outlive.workers"),
    (state) => state === "silent",
    "its lease is over",
  );
  assert.equal(
    await ask(
      `SELECT job_id, kind, worker = '${worker}', decision, attempts FROM outlive.reclaim_stale_jobs() ORDER BY 1`,
    ),
    "a|run_tsa|t|lost|1\nb|submit_anchor_bitcoin|t|lost|1",
  );
  assert.equal(await ask(`SELECT outlive.job_heartbeat('${id}', '${worker}', ${fence})`), "f");

  const later = await engine({ jobs: [runTsa, submitAnchorBitcoin] });
  const report = await later.report();
  assert.match(report!.text, /Orphaned Jobs Found: 2\n {2}- a: queued again \(contact lost, not counted\)/);
  const [incident] = await later.incidents();
  assert.deepEqual([incident!.worker, incident!.how, incident!.jobCount], [worker, "silent", 2]);
  const found = await cli(t, ["incidents", "--json"], { store: url, env: { OUTLIVE_POSTGRES_SCHEMA: schema } });
  assert.equal(found.code, 0);
  assert.match(found.stdout, new RegExp(worker));
  runTsa.handle(async (_, run) => run.step("begin", () => "begun again"));
  submitAnchorBitcoin.handle(() => "sent");
  await later.start({ concurrency: 2 });
  await untilState(later, "a", "succeeded");
  await untilState(later, "b", "succeeded");
  const story = await later.get("a");
  assert.equal(story!.result, "begun", "the step of the killed attempt was kept");
  assert.match(story!.history.map(({ reason }) => reason).join("\n"), /^RECLAIMED_TTL: Exceeded TTL \(8 s\)/m);
});

test("seed 003: a worker is killed, and tick() on a schedule of psql alone reclaims its job within 30 s", async (t) => {
  const { ask, holder, url, schema } = await place(t);
  // pg_cron can't be installed here: psql repeats the call that pg_cron would make.
  const schedule = spawn("psql", [url, "-X", "-q", "-A", "-t"], { stdio: ["pipe", "ignore", "inherit"] });
  t.after(() => schedule.kill("SIGKILL"));
  schedule.stdin.write(`SET application_name = 'schedule';\nSELECT ${schema}.tick() \\watch 0.5\n`);
  const { child, until } = holder("3s");
  const { worker } = await until("working");
  await ask("SELECT outlive.enqueue('submit_anchor_bitcoin', '{\"documentId\": \"d1\"}', id => 'a')");
  await until("holding");
  child.kill("SIGKILL");
  await once(child, "exit");
  await untilTrue(
    () => ask("SELECT count(*) FROM outlive.reclaim_history"),
    (reclaimed) => reclaimed === "1",
    "the schedule has reclaimed the job",
  );
  assert.equal(
    await ask("SELECT job_id, worker, decision, cause, by FROM outlive.reclaim_history"),
    `a|${worker}|lost|lose|sql`,
  );
  assert.equal(
    await ask(
      "SELECT h.at - w.heartbeat_at BETWEEN interval '3 s' AND interval '30 s' FROM outlive.reclaim_history h JOIN outlive.workers w USING (worker)",
    ),
    "t",
  );
  assert.match(await ask("SELECT caller FROM outlive.ticks"), /^schedule as /);
  assert.equal(await ask("SELECT state FROM outlive.workers"), "gone");
});

test("what an engine recovers is in reclaim_history next to what SQL reclaims, and its dead worker in the view of workers", async (t) => {
  const { ask, engine, holder } = await place(t);
  const { child, until } = holder();
  const { worker } = await until("working");
  await ask("SELECT outlive.enqueue('run_tsa', '{\"documentId\": \"d1\"}', id => 'a')");
  await until("holding");
  child.kill("SIGKILL");
  await once(child, "exit");
  const later = await engine({ jobs: [runTsa] });
  await untilTrue(
    () => later.operator.recover().then(() => ask("SELECT state FROM outlive.workers")),
    (state) => state === "gone",
    "the engine has recovered it",
  );
  assert.equal(
    await ask(
      `SELECT job_id, kind, worker = '${worker}', decision, cause, state, by <> 'sql', attempts, age > '0', reason FROM outlive.reclaim_history`,
    ),
    `a|run_tsa|t|retry|crash|queued|t|1|t|RECLAIMED_TTL: Worker died: crash 1, 0 of 3 alone; worker ${worker} is gone`,
  );
});

test("a worker's role runs the engine: enqueue, work, steps, a failure, a retry, recovery; and it can't migrate", async (t) => {
  const { url, schema, ask, engine } = await place(t);
  await psql(url, rolesText(schema));
  const login = `${schema}_app`;
  await ask(`CREATE ROLE ${login} LOGIN IN ROLE ${roleName(schema, "worker")}`);
  t.after(() =>
    withClient(url, async (admin) => {
      for (const name of [login, ...["owner", "worker", "enqueue", "read"].map((role) => `${schema}_${role}`)])
        await admin.query(`DROP OWNED BY ${name} CASCADE; DROP ROLE ${name}`);
    }),
  );
  const as = new URL(url);
  as.username = login;
  let failures = 0;
  const mail = job<{ to: string }>("mail", { retry: { backoff: { base: "10ms", max: "10ms" } } }).handle(
    async (input, run) => {
      await run.step("render", () => input.to);
      await run.log("rendered");
      await run.progress({ half: true });
      await run.heartbeat();
      if (failures++ === 0) throw new Error("not yet");
      return "sent";
    },
  );
  const app = await engine({ jobs: [mail], poll: "100ms" }, as.href);
  const { id } = await app.enqueue(mail, { to: "a" }, { delay: "10ms" });
  const worker = await app.start({ concurrency: 2 });
  await untilState(app, id, "succeeded");
  assert.equal(await ask("SELECT heartbeat_at >= started_at FROM outlive.jobs"), "t", "its own heartbeat was kept");
  await app.cancel((await app.enqueue(mail, { to: "b" }, { delay: "1h" })).id);
  await app.pause("mail");
  await app.resume("mail");
  await app.operator.recover();
  await worker.stop();
  const refused = await cli(t, ["migrate", "down", "--force"], {
    store: as.href,
    env: { OUTLIVE_POSTGRES_SCHEMA: schema },
  });
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /must be owner|permission denied/);
});

test("the executor's example works on what psql enqueued, and what follows from it", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive"));
  const file = fileURLToPath(new URL("../../examples/executor-jobs.ts", import.meta.url));
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", file], {
    env: { ...process.env, DATABASE_URL: url },
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.after(() => child.kill("SIGKILL"));
  await once(child.stdout, "data");
  await psql(url, "SELECT outlive.enqueue('protect_document_v2', '{\"documentId\": \"d1\"}')");
  await untilTrue(
    () =>
      psql(
        url,
        "SELECT string_agg(k.name || ' ' || j.state, ', ' ORDER BY j.seq) FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind",
      ),
    (said) => said === "protect_document_v2 2, document.protected 2, run_tsa 2, build_artifact 2",
    "all four have succeeded",
  );
  child.kill("SIGTERM");
  assert.deepEqual(await once(child, "exit"), [0, null]);
  assert.equal(await psql(url, "SELECT DISTINCT state FROM outlive.workers"), "stopped");
});

test("a worker that is too old for the schema says so, and claims no more", async (t) => {
  const { ask, engine } = await place(t);
  const mail = job("mail").handle(() => "sent");
  const old = await engine({ jobs: [mail], heartbeat: { interval: "200ms", lease: "8s" } });
  const working = old.work();
  const { id } = await old.enqueue(mail, null);
  await untilState(old, id, "succeeded");
  await ask("UPDATE outlive.meta SET value = 99 WHERE key = 'schema'");
  await assert.rejects(working, { code: "SCHEMA_NEWER", message: /too old for the store: .*schema is 99/ });
  const { id: left } = await old.enqueue(mail, null);
  assert.equal((await old.get(left))!.state, "queued");
  assert.match((await old.why(left))!.text, /too old|schema/);
});

test("the first tick after a real restart of the server takes nothing, although every heartbeat is old", async (t) => {
  const server = await ownServer(t);
  const url = server.url();
  await withClient(url, (client) => migrate(client, "outlive"));
  await psql(url, "SELECT outlive.tick(); SELECT outlive.enqueue('mail', id => 'a')");
  await psql(
    url,
    `INSERT INTO outlive.fleet (id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at)
       VALUES ('w', 'live', 'h', 'b', 1, '0', 1, 1000, 1, '[]', 1, 1);
     UPDATE outlive.jobs SET state = 1, fence = 1, worker = (SELECT seq FROM outlive.fleet), started_at = 1, deadline_at = NULL`,
  );
  await server.kill();
  await server.start();
  assert.equal(await psql(url, "SELECT outlive.tick(); SELECT held FROM outlive.ticks"), "0\nt");
  assert.equal(await psql(url, "SELECT outlive.tick(); SELECT held FROM outlive.ticks"), "1\nf");
});

test("check reads the server: version, durability, rights, ticks and what is overdue", async (t) => {
  const { url, schema, ask } = await place(t);
  await ask("SELECT outlive.tick()");
  const secret = new URL(url);
  secret.password = "swordfish";
  const { stdout } = await cli(t, ["check"], { store: secret.href, env: { OUTLIVE_POSTGRES_SCHEMA: schema } });
  for (const said of [
    /PostgreSQL \d+/,
    /All \d+ migrations/,
    /a direct connection/i,
    /This role may do all/,
    /The last tick was/,
    /No job is overdue/,
  ])
    assert.match(stdout, said);
  assert.doesNotMatch(stdout, /swordfish/);
});
