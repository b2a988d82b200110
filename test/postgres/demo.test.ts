// The demo on PostgreSQL, as a person or a script runs it: from the repository on a server of its own, and on one that it is given.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { NODE } from "../support/cli.ts";
import { sharedServer, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const run = promisify(execFile);
const [node, ...first] = NODE;

/** `npm run demo`. */
const FROM_REPOSITORY = [
  "--disable-warning=ExperimentalWarning",
  fileURLToPath(new URL("../../proof/demo.ts", import.meta.url)),
];

async function demo(command: readonly string[], ...args: string[]): Promise<Record<string, unknown>> {
  const { stdout } = await run(node, [...command, "--seconds", "6", "--jobs", "300", "--json", ...args]).catch(
    (error: { stdout?: string; stderr?: string }) => assert.fail(`${error.stderr}\n${error.stdout}`),
  );
  return JSON.parse(stdout) as Record<string, unknown>;
}

test("on a server of its own it kills, freezes and poisons workers, loses nothing and commits nothing twice", async () => {
  const { store, enqueued, succeeded, lost, committedTwice, quarantined, kills } = await demo(
    FROM_REPOSITORY,
    "--store",
    "postgres",
  );
  assert.deepEqual(
    { store, enqueued, succeeded, lost, committedTwice, quarantined },
    {
      store: "postgres",
      enqueued: 301,
      succeeded: 300,
      lost: 0,
      committedTwice: 0,
      quarantined: 1,
    },
  );
  assert.ok(Number(kills) > 0);
});

test("on a server that it is given it runs in a schema of its own and drops it", async () => {
  const url = await sharedServer();
  const { lost, committedTwice } = await demo([...first, "demo"], "--store", url);
  assert.deepEqual({ lost, committedTwice }, { lost: 0, committedTwice: 0 });
  const { rows } = await withClient(url, (client) =>
    client.query("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outlive\\_demo\\_%'"),
  );
  assert.deepEqual(rows, []);
});

test("without a server it says how one is named, and starts none", async () => {
  const failed = await run(node, [...first, "demo", "--store", "postgres"], {
    env: { ...process.env, OUTLIVE_DEMO_POSTGRES_URL: "" },
  }).then(
    () => assert.fail("it ran"),
    (error: { code: number; stderr: string }) => error,
  );
  assert.equal(failed.code, 2);
  assert.match(failed.stderr, /needs a server, and none was named\.\n  Name one: outlive demo --store postgres:\/\//);
});

test("with --keep a server of its own is stopped, and its folder, its schema and the way to start it are printed", async (t) => {
  const args = ["--seconds", "5", "--jobs", "100", "--json", "--store", "postgres", "--keep"];
  const { stderr } = await run(node, [...FROM_REPOSITORY, ...args]).catch((error: { stderr?: string }) => ({
    stderr: error.stderr ?? "",
  }));
  assert.match(stderr, /^The schema outlive_demo_\w+ is left on the server\.$/m);
  const told = /The server is kept: (\S+), at postgres:/.exec(stderr);
  assert.ok(told, stderr);
  const [, folder] = told;
  t.after(() => rmSync(folder!, { recursive: true, force: true }));
  assert.ok(existsSync(join(folder!, "data", "PG_VERSION")));
  await untilTrue(
    async () => existsSync(join(folder!, "data", "postmaster.pid")),
    (runs) => !runs,
    "the server has stopped",
  );
});
