// The command line on a PostgreSQL address: the same commands, the same answers, and no password in any of them.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { cli, startCli } from "../support/cli.ts";
import { freshDatabase, ownServer, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const SECRET = "s3cr3t-w0rd";
const SOURCE = fileURLToPath(new URL("../../src/index.ts", import.meta.url));

test("migrate, work, enqueue, status, jobs, workers, why, kill, incidents, recover, metrics, pause, cancel, retry, resume and check, with no password shown", async (t) => {
  const server = await ownServer(t, { password: SECRET });
  const store = server.url();
  const cwd = mkdtempSync(join(tmpdir(), "outlive-test-cli-"));
  t.after(() => rmSync(cwd, { recursive: true, force: true }));
  writeFileSync(
    join(cwd, "jobs.ts"),
    `import { job } from ${JSON.stringify(SOURCE)};
export const wait = job("wait");
wait.handle((_, run) => new Promise((resolve) => run.signal.addEventListener("abort", () => resolve(undefined))));`,
  );
  writeFileSync(join(cwd, "outlive.yaml"), "jobs: jobs.ts\n");
  const all: string[] = [];
  const said = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await cli(t, args, { store, cwd });
    all.push(stdout, stderr);
    assert.equal(code, 0, `${args.join(" ")}: ${stdout}${stderr}`);
    return stdout;
  };
  const missing = await cli(t, ["status"], { store, cwd });
  all.push(missing.stdout, missing.stderr);
  assert.match(missing.stderr, /outlive migrate up/);
  await said("migrate", "up");
  const work = startCli(t, ["work", "--log", "json"], { store, cwd });
  work.stdout.on("data", (data: Buffer) => all.push(data.toString()));
  work.stderr.on("data", (data: Buffer) => all.push(data.toString()));
  type Worker = { readonly id: string; readonly pid: number; readonly known: string };
  const live = async (): Promise<Worker[]> => {
    const { workers } = JSON.parse(await said("workers", "--json")) as { workers: Worker[] };
    return workers.filter(({ known }) => known === "live");
  };
  const [first] = await untilTrue(live, (workers) => workers.length === 1, "a worker lives");
  const { id } = JSON.parse(await said("enqueue", "wait", "{}", "--json")) as { id: string };
  const job = async (): Promise<{ state: string; attempt: number }> =>
    JSON.parse(await said("job", id, "--json")) as never;
  await untilTrue(job, ({ state }) => state === "running", "it runs");
  assert.match(await said("why", id), /It has run .*attempt 1/);
  assert.match(await said("status"), /wait/);
  assert.match(await said("jobs"), new RegExp(id));
  process.kill(first!.pid, "SIGKILL");
  await untilTrue(job, ({ state, attempt }) => state === "running" && attempt === 2, "it runs again");
  assert.match(await said("incidents"), /gone/);
  await said("recover");
  await said("pause", "wait");
  const metrics = await said("metrics");
  assert.match(metrics, /^outlive_store_up 1$/m);
  assert.match(metrics, /^outlive_jobs\{kind="wait",state="running"\} 1$/m);
  assert.match(metrics, /^outlive_paused\{kind="wait"\} 1$/m);
  assert.doesNotMatch(metrics, /^outlive_(database|wal)_bytes \d/m, "nobody has measured them");
  const { id: other } = JSON.parse(await said("enqueue", "wait", "{}", "--json")) as { id: string };
  assert.match(await said("why", other), /paused/);
  await said("cancel", other);
  assert.match(await said("job", other), /cancelled/);
  await said("retry", other);
  assert.match(await said("job", other), /queued/);
  await said("resume", "wait");
  await untilTrue(
    async () => JSON.parse(await said("job", other, "--json")) as { state: string },
    ({ state }) => state === "running",
    "what was resumed runs",
  );
  await said("check");
  const greeting = /^\{.*"message":"outlive [^"]*supervisor \(pid .*$/m.exec(all.join(""))!;
  const { leaseMs, store: printed } = JSON.parse(greeting[0]) as { leaseMs: number; store: string };
  assert.match(printed, /^postgres:\/\//, "and the store is printed");
  assert.equal(leaseMs, 30_000, "the supervisor judges by the lease of this store");
  work.kill("SIGTERM");
  await untilTrue(live, (workers) => workers.length === 0, "it has drained");
  const left = await withClient(store, (client) => client.query("SELECT state FROM outlive.jobs WHERE state = 1"));
  assert.deepEqual(left.rows, [], "nothing is left running");
  assert.doesNotMatch(all.join("\n"), new RegExp(SECRET));
});

test("check --repair says that nothing is repaired on a server and what to do instead, and lists what is wrong", async (t) => {
  const store = await freshDatabase(t);
  const said = (...args: string[]) => cli(t, args, { store });
  await said("migrate", "up");
  await withClient(store, async (client) => {
    await client.query("SELECT outlive.enqueue('mail', '{}', id => 'a')");
    await client.query("UPDATE outlive.jobs SET state = 1, fence = 1, worker = 99");
  });
  const rows = () => withClient(store, async (client) => (await client.query("SELECT * FROM outlive.jobs")).rows);
  const before = await rows();
  for (const args of [["--integrity"], ["--repair"], ["--repair", "--yes"]]) {
    const { code, stdout, stderr } = await said("check", ...args);
    assert.equal(code, 1, stdout + stderr);
    assert.match(stdout, /integrity FAILED with 1 finding.*[Ee]ach finding names a job.*amcheck, REINDEX.*backups/);
    assert.match(stdout, /job a runs, but its worker 99 has no row/);
    assert.equal(/--repair changes nothing on a server/.test(stdout), args[0] === "--repair");
    assert.doesNotMatch(stdout + stderr, /rebuilt|salvage|keep a copy of the file|check --repair/);
  }
  assert.deepEqual(await rows(), before);
});
