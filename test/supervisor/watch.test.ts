// --watch: a change of a module starts the worker processes again, and costs no job a crash.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, job } from "../../src/index.ts";
import { untilState } from "../support/processes.ts";
import { Fleet } from "./fleet.ts";

const OUTLIVE = JSON.stringify(fileURLToPath(new URL("../../src/index.ts", import.meta.url)));
const hello = job<{ ms: number }>("hello");

function write(fleet: Fleet, name: string, text: string): void {
  mkdirSync(join(fleet.place.folder, "jobs", "lib"), { recursive: true });
  writeFileSync(join(fleet.place.folder, "jobs", name), text);
}

const MODULE = `import { job } from ${OUTLIVE};
import { version } from "./lib/version.ts";
export const hello = job("hello").handle(async ({ ms }) => {
  await new Promise((resolve) => setTimeout(resolve, ms));
  return version;
});
`;

async function resultOf(engine: Engine, ms: number): Promise<unknown> {
  const { id } = await engine.enqueue(hello, { ms });
  await untilState(engine, id, "succeeded");
  return (await engine.get(id))?.result;
}

test("a changed module, also one that is only imported, is loaded again; a running job is released, not crashed", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine({ jobs: [hello] });
  write(fleet, "lib/version.ts", "export const version = 1;\n");
  write(fleet, "hello.ts", MODULE);
  const supervised = fleet.work({ globs: ["jobs/*.ts"], args: ["--watch", "--grace", "200ms"] });
  await supervised.working();
  assert.equal(await resultOf(engine, 1), 1);

  const { id: long } = await engine.enqueue(hello, { ms: 60_000 });
  await untilState(engine, long, "running");
  write(fleet, "lib/version.ts", "export const version = 22;\n");
  await supervised.said(/version\.ts changed: the workers restart$/);
  await supervised.working(2);
  assert.equal(await resultOf(engine, 1), 22);
  await untilState(engine, long, "running");
  assert.deepEqual((await engine.get(long))?.counters, {
    errors: 0,
    crashes: 0,
    blamed: 0,
    timeouts: 0,
    interruptions: 1,
    losses: 0,
  });

  write(fleet, "hello.ts", "this is no module\n");
  await supervised.said(/could not start: .*hello\.ts can't be loaded/);
  await supervised.said(/^waiting until a module changes$/);
  write(fleet, "hello.ts", MODULE.replace("return version", "return version + 1"));
  await supervised.working(3);
  assert.equal(await resultOf(engine, 1), 23);
  assert.deepEqual(await engine.incidents(), []);
});
