// The demo on PostgreSQL, as a person or a script runs it: on a server of its own, and on one that it is given.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { NODE } from "../support/cli.ts";
import { sharedServer, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const run = promisify(execFile);
const [node, ...first] = NODE;

async function demo(...args: string[]): Promise<Record<string, unknown>> {
  const { stdout } = await run(node, [...first, "demo", "--seconds", "6", "--jobs", "300", "--json", ...args]).catch(
    (error: { stdout?: string; stderr?: string }) => assert.fail(`${error.stderr}\n${error.stdout}`),
  );
  return JSON.parse(stdout) as Record<string, unknown>;
}

test("on a server of its own it kills, freezes and poisons workers, loses nothing and commits nothing twice", async () => {
  const { store, enqueued, succeeded, lost, committedTwice, quarantined, kills } = await demo("--store", "postgres");
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

test("on a server that it is given it plays in a schema of its own and takes it away", async () => {
  const url = await sharedServer();
  const { lost, committedTwice } = await demo("--store", url);
  assert.deepEqual({ lost, committedTwice }, { lost: 0, committedTwice: 0 });
  const { rows } = await withClient(url, (client) =>
    client.query("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'demo\\_%'"),
  );
  assert.deepEqual(rows, []);
});

test("with --keep a server of its own is stopped, and its folder, its schema and the way to start it are told", async (t) => {
  const args = ["demo", "--seconds", "5", "--jobs", "100", "--json", "--store", "postgres", "--keep"];
  const { stderr } = await run(node, [...first, ...args]).catch((error: { stderr?: string }) => ({
    stderr: error.stderr ?? "",
  }));
  const told = /The server is kept: (\S+), schema (demo_\w+), at postgres:/.exec(stderr);
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
