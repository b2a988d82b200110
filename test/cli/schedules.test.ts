// `outlive schedules` from a user's side: what each action prints, as text and as JSON, and what it refuses.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { main } from "../../src/cli/main.ts";
import { job, open } from "../../src/index.ts";

async function storeWith(t: TestContext): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  const url = `sqlite:${join(folder, "jobs.db")}`;
  const report = job<string>("report");
  await using engine = await open(url, { jobs: [report], logger: false });
  await engine.schedules.set("nightly", report, { cron: "0 3 * * *", zone: "Europe/Berlin", input: "x" });
  await engine.schedules.set("often", report, { every: "1h", input: "x" });
  return url;
}

function run(url: string, ...argv: string[]): Promise<{ code: number; out: string; err: string }> {
  return runCli(["schedules", ...argv, "--store", url]);
}

async function runCli(argv: string[]): Promise<{ code: number; out: string; err: string }> {
  let out = "";
  let err = "";
  const stream = (to: (text: string) => void) => ({ write: (text: string) => (to(text), true) }) as never;
  const streams = { stdout: stream((text) => (out += text)), stderr: stream((text) => (err += text)) };
  const code = await main(argv, streams);
  return { code, out, err };
}

test("schedules are listed, shown and previewed", async (t) => {
  const url = await storeWith(t);
  const listed = await run(url);
  assert.equal(listed.code, 0, listed.err);
  assert.match(listed.out, /nightly +report +0 3 \* \* \* Europe\/Berlin +in /);
  assert.match(listed.out, /often +report +every 1h +in .*active/);
  const { schedules } = JSON.parse((await run(url, "--json")).out) as { schedules: { name: string; origin: string }[] };
  assert.deepEqual(
    schedules.map(({ name, origin }) => [name, origin]),
    [
      ["nightly", "api"],
      ["often", "api"],
    ],
  );
  assert.match((await run(url, "show", "nightly")).out, /missed: latest, within 1d; overlap: skip/);
  const preview = await run(url, "preview", "nightly", "--count", "2");
  assert.match(preview.out, /^\d{4}-\d\d-\d\dT0[12]:00:00\.000Z {2}\d{4}-\d\d-\d\d 03:00 \+0[12]:00\n/);
  assert.equal(preview.out.trim().split("\n").length, 2);
});

test("a schedule is paused with a reason and a time, resumed, run, backfilled and removed", async (t) => {
  const url = await storeWith(t);
  const paused = await run(url, "pause", "often", "--reason", "a migration", "--until", "2h", "--json");
  const { schedule } = JSON.parse(paused.out) as {
    schedule: { paused: { reason: string; by: string; until: string } };
  };
  assert.equal(schedule.paused.reason, "a migration");
  assert.match(schedule.paused.by, /@/);
  assert.ok(Date.parse(schedule.paused.until) > Date.now() + 7_000_000);
  assert.match((await run(url)).out, /paused until .*: a migration/);
  assert.match((await run(url, "resume", "often")).out, /is resumed/);
  assert.match((await run(url, "run", "often")).out, /Enqueued job s[0-9a-f]{31} of the schedule often/);
  const args = ["--from", "2026-03-28T00:00:00Z", "--to", "2026-03-28T05:00:00Z"];
  assert.deepEqual(JSON.parse((await run(url, "backfill", "often", ...args, "--json")).out), {
    schedule: "often",
    count: 6,
    created: 6,
  });
  assert.match((await run(url, "remove", "often", "--actor", "ann", "--reason", "not wanted")).out, /was removed/);
  const audit = await runCli(["audit", "--target", "schedule often", "--json", "--store", url]);
  const { entries } = JSON.parse(audit.out) as {
    entries: { action: string; count: number; actor: string; reason: string | null }[];
  };
  assert.deepEqual(
    entries.map(({ action, count, actor, reason }) => [action, count, actor.replace(/^cli\/.*/, "cli"), reason]),
    [
      ["remove", 1, "ann", "not wanted"],
      ["backfill", 6, "cli", null],
      ["run", 1, "cli", null],
      ["resume", 1, "cli", null],
      ["pause", 1, "cli", "a migration"],
      ["schedule", 1, "operator", null],
    ],
  );
  assert.match((await run(url, "prune", "--dry-run")).out, /Every schedule is declared/);
});

test("what is not understood is refused with what to do", async (t) => {
  const url = await storeWith(t);
  assert.match((await run(url, "stop", "often")).err, /no action "stop"/);
  assert.match((await run(url, "pause")).err, /needs the name of a schedule/);
  assert.match((await run(url, "show", "none")).err, /There is no schedule "none"/);
  const missing = await run(url, "backfill", "often", "--from", "yesterday", "--to", "2026-03-28T05:00:00Z");
  assert.match(missing.err, /--from is "yesterday"/);
  assert.notEqual(missing.code, 0);
});
