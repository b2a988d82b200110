// The command line on a PostgreSQL address: the same commands, the same answers, and no password in any of them.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { cli, startCli } from "../support/cli.ts";
import { ownServer, withClient } from "../support/postgres.ts";
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
  const job = async (): Promise<{ state: string; fence: number }> =>
    JSON.parse(await said("job", id, "--json")) as never;
  await untilTrue(job, ({ state }) => state === "running", "it runs");
  assert.match(await said("why", id), /It runs .*attempt 1/);
  assert.match(await said("status"), /wait/);
  assert.match(await said("jobs"), new RegExp(id));
  process.kill(first!.pid, "SIGKILL");
  await untilTrue(job, ({ state, fence }) => state === "running" && fence === 2, "it runs again");
  assert.match(await said("incidents"), /gone/);
  await said("recover");
  await said("pause", "wait");
  const metrics = await said("metrics");
  assert.match(metrics, /^outlive_store_up 1$/m);
  assert.match(metrics, /^outlive_jobs\{kind="wait",state="running"\} 1$/m);
  assert.match(metrics, /^outlive_paused\{kind="wait"\} 1$/m);
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
  work.kill("SIGTERM");
  await untilTrue(live, (workers) => workers.length === 0, "it has drained");
  const left = await withClient(store, (client) => client.query("SELECT state FROM outlive.jobs WHERE state = 1"));
  assert.deepEqual(left.rows, [], "nothing is left running");
  assert.doesNotMatch(all.join("\n"), new RegExp(SECRET));
});
