// `jobs`, `job`, `status`, `enqueue`, `pause`, `resume`: run as a user runs them, their text and the forms of their JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { job } from "../../src/index.ts";
import { cli, cliOn, shapeOf } from "../support/cli.ts";
import { Place, untilState } from "../support/processes.ts";
import { JOB, KIND, WORKER } from "./shapes.ts";

const mail = job<{ n: number }>("mail");
const broken = job<{ n: number }>("broken", { retry: { attempts: 1 } });
const steps = job<{ n: number }>("steps");
mail.handle(() => ({ sent: true }));
broken.handle(() => {
  throw new Error("the server \u001b[31mrefused\u001b[0m");
});
steps.handle(async (input, run) => {
  await run.step("load", () => ({ frames: 120 }));
  await anotherInstant();
  await run.log("half-way");
  await anotherInstant();
  await run.step("encode", () => "x".repeat(500));
  return { n: input.n, text: "y".repeat(500) };
});

/** Steps and logs are listed by their instants: what came in the same millisecond has no order. */
async function anotherInstant(): Promise<void> {
  for (const before = Date.now(); Date.now() === before;) await pause(1);
}

test("jobs are listed by pages, filtered, as a table or as JSON", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail, broken] });
  const ids: string[] = [];
  for (let n = 0; n < 5; n++) ids.push((await engine.enqueue(mail, { n }, { id: `mail-${n}` })).id);
  await engine.enqueue(broken, { n: 1 }, { id: "later", delay: "1h" });
  const { run, json } = cliOn(t, place.url);

  const [first, table, delayed, none, newer, older] = await Promise.all([
    json("jobs", "--kind", "mail", "--limit", "2"),
    run("jobs", "--limit", "2"),
    run("jobs", "--kind", "broken"),
    run("jobs", "--state", "dead"),
    json("jobs", "--newer-than", "1h"),
    json("jobs", "--older-than", "1h"),
  ]);
  const { jobs, next } = first.value as { jobs: { id: string }[]; next: string };
  assert.deepEqual(shapeOf(first.value), { jobs: [JOB], next: "string" });
  assert.deepEqual(
    jobs.map(({ id }) => id),
    ["mail-4", "mail-3"],
  );
  assert.equal((newer.value as { jobs: [] }).jobs.length, 6);
  assert.deepEqual(older.value, { jobs: [], next: null });
  assert.match(table.stdout, /^ID +KIND +STATE +AGE +ATTEMPTS\nlater +broken +queued .*\nmail-4 +mail +queued .*\n/);
  assert.match(table.stdout, /\nThere are more: outlive jobs --limit 2 --after [\w-]+\n$/);
  assert.match(delayed.stdout, /\nlater .* due in \S+\n$/);
  assert.equal(none.stdout, "No such jobs.\n");
  assert.ok(!table.stdout.includes("\u001b"), "no colours without a terminal");

  const second = await json("jobs", "--kind", "mail", "--limit", "3", "--after", next);
  assert.deepEqual(
    (second.value as { jobs: { id: string }[]; next: null }).jobs.map(({ id }) => id),
    ["mail-2", "mail-1", "mail-0"],
  );
  assert.equal((second.value as { next: null }).next, null);
});

test("a wrong word says what would be right", async (t) => {
  const place = new Place(t);
  await place.engine({ jobs: [mail] });
  const { run, json } = cliOn(t, place.url);
  const [kind, state, limit, cursor, command, asJson, missing] = await Promise.all([
    run("jobs", "--kind", "mial"),
    run("jobs", "--state", "broken"),
    run("jobs", "--limit", "0"),
    run("jobs", "--after", "x"),
    run("jbos"),
    json("pause", "mali"),
    run("job", "no-such-id"),
  ]);
  assert.deepEqual([kind.code, kind.stderr], [3, 'outlive: No kind "mial" is in the store.\n  Did you mean mail?\n']);
  assert.equal(state.code, 2);
  assert.match(state.stderr, /Allowed choices are queued, running, succeeded, dead, cancelled, quarantined/);
  assert.equal(limit.code, 2);
  assert.match(limit.stderr, /Use a whole number from 1 to 1000/);
  assert.equal(cursor.code, 2);
  assert.match(cursor.stderr, /is not a cursor of this list/);
  assert.equal(command.code, 2);
  assert.match(command.stderr, /Did you mean jobs\?/);
  assert.equal(asJson.code, 3);
  assert.deepEqual(asJson.value, {
    error: {
      code: "NOT_FOUND",
      message: 'No kind "mali" is in the store.',
      hint: "Did you mean mail?",
      data: { kind: "mali", kinds: ["mail"] },
    },
  });
  assert.equal(missing.code, 3);
  assert.match(missing.stderr, /^outlive: There is no job no-such-id\.\n {2}.*outlive jobs --text.*\n$/);
});

test("everything about a job: steps, log, result, shortened unless --full", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [steps, broken] });
  await engine.enqueue(steps, { n: 7 }, { id: "story", priority: 3, dedupeKey: "seven" });
  await engine.enqueue(broken, { n: 8 }, { id: "sad" });
  await engine.start();
  await untilState(engine, "story", "succeeded");
  await untilState(engine, "sad", "dead");
  const { run, json } = cliOn(t, place.url);
  const [short, full, sad, value] = await Promise.all([
    run("job", "story"),
    run("job", "story", "--full"),
    run("job", "sad"),
    json("job", "story"),
  ]);
  const timeless = short.stdout
    .replaceAll(/\d{4}-\d\d-\d\d( \d\d:\d\d:\d\dZ)?/g, (found) => found.replaceAll(/\d/g, "0"))
    .replaceAll(/\d\d:\d\d:\d\d\.\d{3}/g, "00:00:00.000")
    .replaceAll(/\([\d.]+m?s ago\)/g, "(0s ago)")
    .replaceAll(/(?<=worker {4}|succeeded  )\S+-\d+-\S+/g, "WORKER");
  assert.equal(
    timeless,
    `Job story  steps  succeeded

enqueued    0000-00-00 00:00:00Z  (0s ago)
started     0000-00-00 00:00:00Z  (0s ago)
finished    0000-00-00 00:00:00Z  (0s ago)
attempts    1, last outcome: succeeded
priority    3
dedupe key  seven
worker      ${/worker {6}(\S+)/.exec(timeless)?.[1]}
input       {"n":7}
result      {"n":7,"text":"${"y".repeat(184)}…

ATTEMPT  STARTED (UTC)  ENDED         OUTCOME    WORKER
      1  00:00:00.000   00:00:00.000  succeeded  WORKER

0000-00-00 UTC  ATTEMPT  WHAT
00:00:00.000             enqueued
00:00:00.000          1  step      load = {"frames":120}
00:00:00.000          1  log       half-way
00:00:00.000          1  step      encode = "${"x".repeat(189)}…
`.replaceAll(/ +$/gm, ""),
  );
  assert.match(full.stdout, /y{500}/);
  assert.match(full.stdout, /x{500}/);
  assert.match(
    sad.stdout,
    /error +Error: the server \\x1b\[31mrefused\\x1b\[0m\n/,
    "no control character of a payload",
  );
  assert.match(sad.stdout, /\n {6}1 {2}\d\S+ {3}\d\S+ {2}failed, dead {2}\S+-\d+-\S+\n/);
  assert.match(sad.stdout, /fail +dead: error 1 of 1, no more are allowed/);
  assert.match(sad.stdout, /\nNext: outlive why sad\n {6}outlive retry sad\n$/);
  assert.ok(!sad.stdout.includes("\u001b"));
  assert.deepEqual(shapeOf(value.value), {
    ...JOB,
    dedupeKey: "string",
    startedAt: "string",
    deadlineAt: "string",
    finishedAt: "string",
    worker: "string",
    lastOutcome: "string",
    input: { n: "number" },
    result: { n: "number", text: "string" },
    progress: "null",
    steps: [{ name: "string", result: { frames: "number" }, at: "string", attempt: "number" }],
    history: [],
    log: [{ at: "string", attempt: "number", message: "string" }],
    corrupt: [],
    children: { count: "number", more: "boolean", states: {}, ids: [] },
    batch: "null",
  });
});

test("status has a fixed form, and --check sets the exit code", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  const { id } = await engine.enqueue(mail, { n: 1 });
  const { run, json } = cliOn(t, place.url);
  const [text, checked, unchecked] = await Promise.all([run("status"), json("status", "--check"), json("status")]);
  assert.deepEqual([text.code, checked.code, unchecked.code], [0, 1, 0]);
  assert.match(text.stdout, /^1 thing needs you/);
  assert.match(text.stdout, /! 1 job is ready \(mail 1\), and no worker is alive\.\n {2}outlive work\n$/);
  assert.deepEqual(shapeOf(checked.value), {
    ok: "boolean",
    at: "string",
    store: {
      ok: "boolean",
      summary: ["string"],
      detail: shapeOf((checked.value as { store: { detail: object } }).store.detail),
      blockedBy: "null",
    },
    kinds: [KIND],
    workers: [],
    incidents: [],
    advice: [
      {
        needsPerson: "boolean",
        kinds: ["string"],
        worker: "null",
        code: "string",
        text: "string",
        next: "string",
      },
    ],
  });

  await engine.start();
  await untilState(engine, id, "succeeded");
  const well = await json("status", "--check");
  assert.equal(well.code, 0);
  const { ok, workers, advice } = well.value as { ok: boolean; workers: object[]; advice: object[] };
  assert.deepEqual([ok, advice], [true, []]);
  assert.deepEqual(shapeOf(workers), [WORKER]);
});

test("an old ready job fails the check, by a limit that can be given; a paused kind waits on purpose", async (t) => {
  const place = new Place(t);
  const { promise: never } = Promise.withResolvers<void>();
  const slow = job<null>("slow", { grace: "0ms" }).handle(() => never);
  const engine = await place.engine({ jobs: [slow] });
  for (const id of ["first", "second"]) await engine.enqueue(slow, null, { id });
  await engine.start({ concurrency: 1 });
  await untilState(engine, "first", "running");
  const { run, json } = cliOn(t, place.url);
  const [young, old] = await Promise.all([
    json("status", "--check", "--max-age", "1d"),
    run("status", "--check", "--max-age", "0ms"),
  ]);
  assert.deepEqual([young.code, old.code], [0, 1]);
  assert.match(old.stdout, /! The oldest ready job of slow has waited for \S+; 1 is ready\./);
  await engine.pause("slow");
  assert.equal((await json("status", "--check", "--max-age", "0ms")).code, 0);
});

test("enqueue takes its input from the argument or from stdin, and options", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  const { run, json } = cliOn(t, place.url);
  const own = await json("enqueue", "mail", '{"n":1}', "--id", "own", "--priority", "-5", "--dedupe-key", "k");
  assert.deepEqual([own.code, own.value], [0, { id: "own", created: true }]);
  const [again, piped, later, delayed, unknown, bad] = await Promise.all([
    run("enqueue", "mail", '{"n":2}', "--dedupe-key", "k"),
    cli(t, ["enqueue", "mail", "-"], { store: place.url, input: '{"n": 3}\n' }),
    run("enqueue", "mail", '{"n":4}', "--run-at", "2099-01-01T00:00:00Z"),
    run("enqueue", "mail", '{"n":5}', "--delay", "1h"),
    run("enqueue", "mial", "{}"),
    run("enqueue", "mail", '{"n":1,\n "b": tru}'),
  ]);
  assert.equal(again.code, 0);
  assert.match(again.stdout, /^own\nNothing was added/);
  assert.deepEqual((await engine.get(piped.stdout.trim()))?.input, { n: 3 });
  assert.equal((await engine.get(later.stdout.trim()))?.runAt, Date.parse("2099-01-01T00:00:00Z"));
  assert.ok((await engine.get(delayed.stdout.trim()))!.runAt! > Date.now() + 3_000_000);
  const { priority, dedupeKey } = (await engine.get("own"))!;
  assert.deepEqual([priority, dedupeKey], [-5, "k"]);
  assert.deepEqual(
    [unknown.code, unknown.stderr],
    [3, 'outlive: No kind "mial" is in the store.\n  Did you mean mail?\n'],
  );
  assert.equal(bad.code, 2);
  assert.match(bad.stderr, /The input is not JSON at line 2, column 7:\n {3}"b": tru}\n {8}\^\n/);
});

test("pause and resume", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail] });
  const { run, json } = cliOn(t, place.url);
  const { value } = await json("pause", "mail");
  assert.partialDeepStrictEqual(value, { kind: "mail", paused: true, pause: { reason: null, until: null } });
  assert.equal((await engine.counts())[0]?.paused, true);
  assert.equal((await run("resume", "mail")).stdout, "mail is resumed: workers claim its jobs again.\n");
  assert.equal((await engine.counts())[0]?.paused, false);
});

test("a store that does not exist is named", async (t) => {
  const place = new Place(t);
  const { code, stderr } = await cli(t, ["status"], { store: `sqlite:${place.folder}/none.db` });
  assert.equal(code, 1);
  assert.match(stderr, /^outlive: .*none\.db/);
  assert.doesNotMatch(stderr, /\n {4}at /, "no stack");
});
