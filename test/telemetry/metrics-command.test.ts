// `outlive metrics`: the store's metrics once, as text and as JSON, without changing anything.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { slow } from "../support/jobs.ts";
import { Place } from "../support/processes.ts";

const BIN = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));

test("outlive metrics prints what the store knows, as Prometheus text or JSON", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueue(slow, { ms: 1 });
  const run = async (...args: string[]): Promise<string> => {
    const command = ["--disable-warning=ExperimentalWarning", BIN, "metrics", "--store", place.url, ...args];
    return (await promisify(execFile)(process.execPath, command, { cwd: place.folder })).stdout;
  };
  const text = await run();
  assert.match(text, /^outlive_jobs\{kind="slow",state="ready"\} 1$/m);
  assert.match(text, /^# TYPE outlive_oldest_ready_seconds gauge$/m);
  assert.doesNotMatch(text, /outlive_claims_total/, "what happened in processes is not the store's to tell");
  const json = JSON.parse(await run("--json")) as { name: string; values: object[] }[];
  assert.ok(json.find(({ name }) => name === "outlive_jobs")!.values.length > 0);
});
