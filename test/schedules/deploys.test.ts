// Deploys: two versions of a program side by side do not fight about a schedule, a rollback wins once the newer version is gone, and a program that no longer
// declares a schedule deletes nothing.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { type Engine, type EngineEvent, ErrorCode, job, type JobContract, open, schedule } from "../../src/index.ts";
import { PATIENT, says } from "../engine/engines.ts";

interface Program {
  readonly engine: Engine;
  readonly report: JobContract<string>;
  readonly events: EngineEvent[];
}

/** Programs that share one file, each with its own declaration of "nightly"; null: it has none. */
async function programs(t: TestContext, ...crons: readonly (string | null)[]): Promise<readonly Program[]> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const opened: Engine[] = [];
  t.after(async () => {
    for (const engine of opened) await engine.close({ grace: "0ms" });
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  });
  const made: Program[] = [];
  for (const cron of crons) {
    const events: EngineEvent[] = [];
    const report = job<string>("report").handle(() => {});
    const jobs = cron === null ? [report] : [report, schedule("nightly", report, { cron, input: "x" })];
    const engine = await open(`sqlite:${join(folder, "jobs.db")}`, {
      jobs,
      logger: false,
      heartbeat: PATIENT,
      onEvent: (event) => events.push(event),
    });
    opened.push(engine);
    made.push({ engine, report, events });
  }
  return made;
}

async function cronOf({ engine }: Program): Promise<string> {
  const { timing } = (await engine.schedules.get("nightly"))!;
  return "cron" in timing ? timing.cron : "";
}

test("of two versions side by side the newer one is kept, until none of its workers is left", async (t) => {
  const [old, next] = (await programs(t, "0 3 * * *", "0 4 * * *")) as [Program, Program];
  const first = await old.engine.start();
  assert.equal(await cronOf(old), "0 3 * * *");
  const second = await next.engine.start();
  assert.equal(await cronOf(old), "0 4 * * *");
  await first.stop();
  const again = await old.engine.start();
  assert.equal(await cronOf(old), "0 4 * * *", "a worker of the old version that starts again changes nothing");
  assert.ok(old.events.some(({ name }) => name === "schedule.outdated"));
  await again.stop();
  await second.stop();
  await old.engine.start();
  assert.equal(await cronOf(old), "0 3 * * *", "it is a rollback: no live worker declares the newer one");
});

test("a worker that starts again with the same declaration moves nothing", async (t) => {
  const [one] = (await programs(t, "0 3 * * *")) as [Program];
  const worker = await one.engine.start();
  const before = await one.engine.schedules.get("nightly");
  await worker.stop();
  await one.engine.start();
  assert.deepEqual(await one.engine.schedules.get("nightly"), before);
});

test("a deploy that no longer declares a schedule deletes nothing; prune does", async (t) => {
  const [old, next] = (await programs(t, "0 3 * * *", null)) as [Program, Program];
  const worker = await old.engine.start();
  await next.engine.start();
  const undeclared = async () => (await next.engine.schedules.review()).undeclared;
  assert.deepEqual(await undeclared(), []);
  assert.deepEqual(await next.engine.schedules.prune(), [], "the old version still declares it");
  await worker.stop();
  assert.deepEqual(await undeclared(), ["nightly"]);
  assert.equal((await next.engine.schedules.get("nightly"))?.declared, false);
  assert.deepEqual(await next.engine.schedules.prune({ dryRun: true }), ["nightly"]);
  assert.deepEqual(await next.engine.schedules.prune(), ["nightly"]);
  assert.deepEqual(await next.engine.schedules.list(), []);
});

test("what is declared in code can't be set at run time, and what was set is not declared over", async (t) => {
  const [declaring, other] = (await programs(t, "0 3 * * *", null)) as [Program, Program];
  const worker = await declaring.engine.start();
  const set = () => other.engine.schedules.set("nightly", other.report, { every: "1h", input: "x" });
  await assert.rejects(set(), says(ErrorCode.wrongState, /declared in code/));
  await worker.stop();
  await other.engine.schedules.remove("nightly");
  await set();
  await declaring.engine.start();
  const info = await declaring.engine.schedules.get("nightly");
  assert.deepEqual([info?.origin, info && "everyMs" in info.timing], ["api", true]);
  assert.ok(declaring.events.some(({ name }) => name === "schedule.failed"));
});
