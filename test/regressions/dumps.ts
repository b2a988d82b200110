// Dumps of a schema, made and restored by the server's own tools while workers use it, as an operator does who forgot to stop them.
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { promisify } from "node:util";

const run = promisify(execFile);
const env = { ...process.env, PGOPTIONS: "-c client_min_messages=warning" };

/** Restores the tables as they were when the dump was made. */
export type Restore = () => Promise<void>;
export type MakeDump = (t: TestContext, place: { readonly url: string; readonly schema: string }) => Promise<Restore>;

/** A restore that waits for workers that wait for it is ended by the server: then it is tried again. */
async function untilItWins(work: () => Promise<unknown>): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      await work();
      return;
    } catch (thrown) {
      if (tries === 20 || !/deadlock detected|lock timeout/.test(String((thrown as { stderr?: string }).stderr)))
        throw thrown;
    }
  }
}

async function dump(t: TestContext, url: string, schema: string, more: readonly string[] = []): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-dump-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "dump");
  await run("pg_dump", [`--schema=${schema}`, `--file=${file}`, ...more, `--dbname=${url}`]);
  return file;
}

function psql(url: string, ...steps: readonly string[]): Promise<unknown> {
  const quietly = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction"];
  return run("psql", [...quietly, ...steps, `--dbname=${url}`], { env });
}

/** Every usual way. In each of them the rows come back one by one, and so does the number of the next worker. */
export const WAYS: Readonly<Record<string, MakeDump>> = {
  "DROP SCHEMA and psql": async (t, { url, schema }) => {
    const file = await dump(t, url, schema);
    return () => untilItWins(() => psql(url, `--command=DROP SCHEMA "${schema}" CASCADE`, `--file=${file}`));
  },
  "pg_restore --clean": async (t, { url, schema }) => {
    const file = await dump(t, url, schema, ["--format=custom"]);
    return () =>
      untilItWins(() => run("pg_restore", ["--clean", "--single-transaction", `--dbname=${url}`, file], { env }));
  },
  "TRUNCATE and the data alone": async (t, { url, schema }) => {
    const file = await dump(t, url, schema, ["--data-only"]);
    const empty = `DO $$ BEGIN EXECUTE (SELECT 'TRUNCATE ' || string_agg(c.oid::regclass::text, ', ') FROM pg_class c
      WHERE c.relnamespace = '${schema}'::regnamespace AND c.relkind = 'r'); END $$`;
    return () => untilItWins(() => psql(url, `--command=${empty}`, `--file=${file}`));
  },
};
