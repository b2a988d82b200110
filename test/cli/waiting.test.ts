// Jobs that wait, children, limits and dedupe as an operator sees them: `signal`, `limit`, `job`, `jobs`, `enqueue`, their text and JSON.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { jobLines } from "../../src/cli/commands/job.ts";
import type { Pen } from "../../src/cli/terminal.ts";
import { widthOf } from "../../src/cli/words.ts";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Engine, job } from "../../src/index.ts";
import { cli, cliOn, shapeOf } from "../support/cli.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { JOB } from "./shapes.ts";

const approve = job<{ order: string }>("approve");
approve.handle((_, run) => run.waitForSignal("approved", { timeout: "2d" }));
const nap = job<null>("nap");
nap.handle((_, run) => run.sleep("3h"));
const part = job<{ n: number }>("part");
part.handle(async ({ n }, run) => (n === 0 ? n : run.waitForSignal("go")));
const report = job<null>("report");
report.handle(async (_, run) => {
  const ids = await run.enqueueMany(
    part,
    [0, 1, 2, 3, 4].map((n) => ({ n })),
  );
  await run.wait(ids);
});
const sync = job<{ tenant: string }>("sync", {
  grace: "0ms",
  limits: [{ name: "tenant", key: ({ tenant }) => tenant, running: 1 }],
});
sync.handle((_, run) => new Promise<void>((resolve) => run.signal.addEventListener("abort", () => resolve())));

async function working(t: TestContext): Promise<{ engine: Engine; url: string } & ReturnType<typeof cliOn>> {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [approve, nap, part, report, sync] });
  await engine.start();
  return { engine, url: place.url, ...cliOn(t, place.url) };
}

const untilWaits = (engine: Engine, id: string) =>
  untilTrue(
    () => engine.get(id),
    (details) => (details?.waitsAt ?? null) !== null,
    `${id} waits`,
  );

const untilHeld = (engine: Engine, id: string) =>
  untilTrue(
    () => engine.get(id),
    (details) => (details?.heldBy ?? null) !== null,
    `${id} is held`,
  );

test("a signal is sent as JSON, from the argument or stdin, once for each id, and refused to a job that has ended", async (t) => {
  const { engine, url, run, json } = await working(t);
  await engine.enqueue(approve, { order: "42" }, { id: "order-42" });
  await untilWaits(engine, "order-42");
  const story = await run("job", "order-42");
  assert.match(story.stdout, /\nwaiting +for signal approved, for at most 2d\n/);
  assert.doesNotMatch(story.stdout, /\ndue /);
  assert.match(story.stdout, /\n(?:Next:| {5}) outlive signal order-42 approved\n/);
  const bad = await run("signal", "order-42", "approved", "{by:1}");
  assert.equal(bad.code, 2);
  assert.match(bad.stderr, /The payload is not JSON at line 1, column 2:/);
  const early = await json("signal", "order-42", "later", "--id", "one");
  assert.deepEqual([early.code, early.value], [0, { job: "order-42", name: "later", created: true }]);
  assert.match((await run("signal", "order-42", "later", "--id", "one")).stdout, /^Nothing was added: a signal with/);
  const sent = await cli(t, ["signal", "order-42", "approved", "-"], { store: url, input: '{"by":"ann"}' });
  assert.deepEqual([sent.code, sent.stdout], [0, "The signal approved was stored for job order-42.\n"]);
  assert.deepEqual(await engine.result("order-42"), { by: "ann" });
  const [ended, missing] = await Promise.all([
    json("signal", "order-42", "approved"),
    run("signal", "none", "approved"),
  ]);
  assert.equal(ended.code, 4);
  assert.equal((ended.value as { error: { code: string } }).error.code, "SIGNAL_REFUSED");
  assert.deepEqual([missing.code, /there is no such job/.test(missing.stderr)], [3, true]);
});

test("a parent shows its children by state, and they are listed by --parent", async (t) => {
  const { engine, run, json } = await working(t);
  await engine.enqueue(report, null, { id: "report" });
  await untilWaits(engine, "report");
  const { jobs } = await engine.list({ parent: "report" });
  for (const { id, kind } of jobs.toReversed().slice(1)) {
    assert.equal(kind, "part");
    await untilWaits(engine, id);
  }
  await untilState(engine, jobs.at(-1)!.id, "succeeded");
  const [story, whole, listed, table, child, nobody] = await Promise.all([
    run("job", "report"),
    json("job", "report"),
    json("jobs", "--parent", "report", "--state", "queued", "--limit", "2"),
    run("jobs", "--parent", "report", "--limit", "2"),
    run("job", jobs[0]!.id),
    run("jobs", "--parent", "none"),
  ]);
  const ids = jobs.slice(0, 3).map(({ id }) => id);
  assert.match(story.stdout, /\nwaiting +for jobs\nchildren +5: 4 queued, 1 succeeded\n/);
  assert.match(story.stdout, new RegExp(`\\n +${ids.join("\\n +")}\\n +\\.\\.\\.\\n`));
  assert.match(story.stdout, /\n(?:Next:| {5}) outlive jobs --parent report\n$/);
  const { children } = whole.value as { children: unknown };
  assert.deepEqual(children, { count: 5, more: false, states: { queued: 4, succeeded: 1 }, ids });
  assert.deepEqual(shapeOf((listed.value as { jobs: unknown[] }).jobs[0]), {
    ...JOB,
    startedAt: "string",
    deadlineAt: "string",
    worker: "string",
    lastOutcome: "string",
    parent: "string",
    waitsAt: "string",
  });
  assert.match(table.stdout, /\n\w+ +part +queued .* waits for signal go\n/);
  assert.match(table.stdout, /There are more: outlive jobs --parent report --limit 2 --after /);
  assert.match(child.stdout, /\nparent +report \(outlive job report\)\n/);
  assert.equal(nobody.code, 3);
});

test("a job that a limit holds says by which, and the limit of its key is changed and reset", async (t) => {
  const { engine, run, json } = await working(t);
  for (const id of ["first", "second"]) await engine.enqueue(sync, { tenant: "acme" }, { id });
  await untilState(engine, "first", "running");
  await engine.enqueue(nap, null, { id: "nap" });
  await untilWaits(engine, "nap");
  const [story, table, status, why, held] = await Promise.all([
    run("job", "second"),
    run("jobs"),
    run("status"),
    run("why", "second"),
    json("job", "second"),
  ]);
  assert.match(story.stdout, /\nlimits +tenant acme\nheld by +limit tenant acme\n/);
  assert.match(table.stdout, /\nsecond .* held by limit tenant acme\n/);
  assert.match(table.stdout, /\nnap .* sleeps for 3h\n/);
  assert.match(status.stdout, /DELAYED +HELD +RUNNING/);
  assert.match(why.stdout, /Next: .*outlive limit tenant acme --running N\n$/);
  const { keys, heldBy } = held.value as { keys: unknown; heldBy: unknown };
  assert.deepEqual([keys, heldBy], [[{ limit: "tenant", key: "acme" }], { limit: "tenant", key: "acme" }]);

  const raised = await json("limit", "tenant", "acme", "--running", "2");
  const own = { running: 2, rate: null, perMs: null, burst: null, weight: null };
  assert.deepEqual([raised.code, raised.value], [0, { limit: "tenant", key: "acme", own }]);
  await untilState(engine, "second", "running");
  const rated = await run("limit", "tenant", "acme", "--running", "2", "--rate", "10", "--per", "1m", "--burst", "3");
  assert.equal(
    rated.stdout,
    "The key acme of the limit tenant may now run 2 at once and start 10 every 1m, 3 at once after an idle time.\n",
  );
  const reset = await json("limit", "tenant", "acme", "--reset");
  assert.deepEqual(reset.value, { limit: "tenant", key: "acme", own: null });
});

test("a key is paused with a reason, weighed and resumed, and the keys with something of their own are listed", async (t) => {
  const { engine, run, json } = await working(t);
  const none = await run("limits");
  assert.equal(none.stdout, "No key has its own limit, weight or pause.\n");
  const paused = await run("limit", "tenant", "acme", "--pause", "the invoice is unpaid");
  assert.equal(
    paused.stdout,
    "The key acme of the limit tenant is paused; running jobs continue. Start it again: outlive limit tenant acme --resume\n",
  );
  await engine.enqueue(sync, { tenant: "acme" }, { id: "first" });
  await untilHeld(engine, "first");
  const why = await run("why", "first");
  assert.match(why.stdout, /the key "acme" of the limit "tenant" has been paused since .*: the invoice is unpaid\./);
  assert.match(why.stdout, /Next: outlive limit tenant acme --resume\n$/);
  await run("limit", "tenant", "beta", "--weight", "3", "--running", "4");
  const [table, listed] = await Promise.all([run("limits", "tenant"), json("limits")]);
  assert.match(
    table.stdout,
    /\ntenant +acme +0 +1 +paused: the invoice is unpaid\ntenant +beta +0 +0 +runs 4 at once; weight 3\n$/,
  );
  const { keys } = listed.value as { keys: { key: string; own: unknown; paused: { reason: string } | null }[] };
  assert.deepEqual(
    keys.map(({ key, own, paused: pause }) => [key, own, pause?.reason ?? null]),
    [
      ["acme", {}, "the invoice is unpaid"],
      ["beta", { running: 4, weight: 3 }, null],
    ],
  );
  const resumed = await json("limit", "tenant", "acme", "--resume");
  assert.deepEqual(resumed.value, { limit: "tenant", key: "acme", paused: null });
  await untilState(engine, "first", "running");
});

test("limit refuses what would not mean what it seems to", async (t) => {
  const { url } = await working(t);
  const { run } = cliOn(t, url);
  const calls = [
    [],
    ["--burst", "3"],
    ["--per", "1m"],
    ["--reset", "--running", "2"],
    ["--rate", "0"],
    ["--for", "1h"],
    ["--pause", "x", "--running", "2"],
    ["--weight", "0"],
  ];
  const said = await Promise.all(calls.map((flags) => run("limit", "tenant", "acme", ...flags)));
  assert.deepEqual(
    said.map(({ code }) => code),
    [2, 2, 2, 2, 2, 2, 2, 2],
  );
  assert.match(said[0]!.stderr, /No limit was given\.\n {2}Nothing was changed\. Give --running N/);
  assert.match(said[1]!.stderr, /--per and --burst belong to --rate/);
});

test("enqueue says what became of the job that holds the dedupe key", async (t) => {
  const { engine, run, json } = await working(t);
  await engine.pause("nap");
  const twice = (then: string, input = "null") =>
    json("enqueue", "nap", input, "--dedupe-key", "k", "--dedupe-then", then);
  const { id } = (await twice("rerun")).value as { id: string };
  assert.deepEqual((await twice("replace", "1")).value, { id, created: false, became: "replaced" });
  assert.equal((await engine.get(id))?.input, 1);
  assert.deepEqual((await twice("keep", "2")).value, { id, created: false });
  await engine.resume("nap");
  await untilWaits(engine, id);
  assert.deepEqual((await twice("rerun", "3")).value, { id, created: false, became: "rerun" });
  const text = await run("enqueue", "nap", "4", "--dedupe-key", "k", "--dedupe-then", "rerun");
  assert.match(text.stdout, /\nNo job was added yet: .* The new input runs after it has ended\. See it: outlive job/);
  const [alone, wrong] = await Promise.all([
    run("enqueue", "nap", "4", "--dedupe-then", "rerun"),
    run("enqueue", "nap", "4", "--dedupe-key", "k", "--dedupe-then", "drop"),
  ]);
  assert.deepEqual([alone.code, wrong.code], [2, 2]);
  assert.match(alone.stderr, /--dedupe-then was given without --dedupe-key/);
});

test("what a job waits for fits a terminal of 80 columns", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [nap] });
  const { id } = await engine.enqueue(nap, null);
  const one = (await engine.get(id))!;
  const now = one.createdAt + 90_000;
  const pen: Pen = { style: (_, text) => text, columns: 80, isTty: true };
  const key = { limit: "tenant", key: "acme" };
  const lines = jobLines(
    [
      { ...one, waitsAt: "run.sleep(until monday)#1", runAt: now + 3_600_000 },
      { ...one, waitsAt: "run.signal(approved)#2", runAt: null },
      { ...one, waitsAt: "run.wait#1", runAt: now + 60_000 },
      { ...one, keys: [key], heldBy: key },
      { ...one, heldBy: { limit: "crm", key: "*" } },
      { ...one, heldBy: { limit: "throttle/60000", key: "nap/doc" } },
      { ...one, runAt: now + 5_000 },
    ],
    pen,
    now,
  );
  const remarks = lines.slice(1).map((line) => line.slice(lines[0]!.indexOf("AGE") + 5));
  assert.deepEqual(remarks, [
    "sleeps for 1h",
    "waits for signal approved",
    "waits for jobs, for at most 1m",
    "held by limit tenant acme",
    "held by limit crm",
    "held by throttle nap/doc, every 1m",
    "due in 5s",
  ]);
  for (const line of lines) assert.ok(widthOf(line) < 80, line);
});

test("cancel --children also cancels the children that have not begun, and says how to see them", async (t) => {
  const { engine, run, json } = await working(t);
  await engine.pause(part);
  await engine.enqueue(report, null, { id: "report" });
  await untilWaits(engine, "report");
  const cancelled = await run("cancel", "report", "--children");
  assert.deepEqual([cancelled.code, cancelled.stderr], [0, ""]);
  assert.match(
    cancelled.stdout,
    /^1 job cancelled\.\nWorkers will cancel their children that have not begun: outlive jobs --parent ID\n$/,
  );
  const children = () => engine.list({ parent: "report", state: "cancelled" });
  await untilTrue(children, ({ jobs }) => jobs.length === 5, "all children are cancelled");
  assert.match((await run("job", "report")).stdout, /\nchildren +5: 5 cancelled\n/);
  const again = await json("cancel", "report", "--children");
  assert.deepEqual(again.value, {
    change: "cancel",
    changed: 1,
    failed: 0,
    jobs: [{ id: "report", state: "cancelled" }],
  });
  assert.equal((await run("cancel", "report")).code, 4, "without children there is nothing to cancel");
});

const INDEX = fileURLToPath(new URL("../../src/index.ts", import.meta.url));
/** A module that keeps the process alive, as one with a pool of connections does. */
const LIMITED = `import { job } from ${JSON.stringify(INDEX)};
import { z } from ${JSON.stringify(import.meta.resolve("zod"))};
setInterval(() => {}, 1_000);
export const sync = job("sync", {
  input: z.object({ tenant: z.string() }),
  limits: [{ name: "tenant", key: ({ tenant }) => tenant, running: 1 }],
});
`;

test("enqueue loads the kind from the modules of the configuration: the input is checked and the keys are computed", async (t) => {
  const { engine, url } = await working(t);
  const folder = new Place(t).folder;
  mkdirSync(join(folder, "jobs"));
  writeFileSync(join(folder, "jobs", "sync.ts"), LIMITED);
  const run = (...args: readonly string[]) => cli(t, ["enqueue", ...args], { store: url, cwd: folder });
  await engine.enqueue(sync, { tenant: "acme" }, { id: "first" });
  await untilState(engine, "first", "running");
  const added = await run("sync", '{"tenant":"acme"}', "--id", "second");
  assert.deepEqual([added.code, added.stdout, added.stderr], [0, "second\n", ""]);
  assert.deepEqual((await engine.get("second"))?.keys, [{ limit: "tenant", key: "acme" }]);
  await untilTrue(
    () => engine.get("second"),
    (details) => details?.heldBy?.key === "acme",
    "the limit holds it",
  );
  const refused = await run("sync", '{"tenant":7}', "--id", "third");
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /The input of kind sync|tenant/);
  assert.equal(await engine.get("third"), null);
  // Kinds that no module exports are enqueued by their name, as before.
  assert.equal((await run("nap", "null", "--id", "by-name")).code, 0);
});

test("enqueue by the name alone refuses a kind that has limits, and says what to do", async (t) => {
  const { engine, run } = await working(t);
  const refused = await run("enqueue", "sync", '{"tenant":"acme"}', "--id", "past-the-limit");
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /Jobs of the kind "sync" count against limits/);
  assert.match(refused.stderr, /Nothing was enqueued\. Name the modules .*`jobs` in the configuration/s);
  assert.equal(await engine.get("past-the-limit"), null);
});
