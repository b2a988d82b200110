// `crashTest` says what really happens twice: each job here is killed for real, at each point, and its effects are counted.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { crashTest } from "../../src/testing/index.ts";
import {
  askedCharge,
  booked,
  bookedRows,
  collecting,
  keylessCollecting,
  calling,
  careful,
  carelesslyWaiting,
  failing,
  hanging,
  keptKey,
  keyless,
  keylessPayments,
  newKey,
  onceCharge,
  payments,
  readCharge,
  rereading,
  resentCharge,
  starting,
  stepless,
  waiting,
  wandering,
} from "../support/crash-test-jobs.ts";

const module = new URL("../support/crash-test-jobs.ts", import.meta.url);
const input = { amount: 7 };
const BEFORE_KEPT = 'after step "charge" returned, before its result was kept';

test("a step with an idempotency key is repeated under that key only, and only if it was not kept", async () => {
  const report = await crashTest(careful, { module, input });
  assert.deepEqual(
    report.runs.map(({ point, twice, twiceUnderOneKey }) => [point, twice, twiceUnderOneKey]),
    [
      ["after the claim, before the handler ran", [], []],
      [BEFORE_KEPT, [], ["charge 7"]],
      ['after the result of step "charge" was kept', [], []],
      ["after the handler returned, before that was settled", [], []],
      ["after the settlement was durable", [], []],
    ],
  );
  assert.equal(report.ok, true);
  assert.match(report.text, /sent again under the same idempotency key: charge 7/);
});

test("a step whose receiver can't know a repetition happens twice if its process dies before it is kept", async () => {
  const report = await crashTest(keyless, { module, input });
  assert.equal(report.ok, false);
  assert.deepEqual(
    report.runs.filter(({ twice }) => twice.length > 0).map(({ point, twice }) => [point, twice]),
    [[BEFORE_KEPT, ["charge 7"]]],
  );
});

test("an effect outside of steps happens twice at every later point until the settlement", async () => {
  const report = await crashTest(stepless, { module, input });
  assert.deepEqual(
    report.runs.map(({ twice }) => twice.length),
    [0, 1, 1, 1, 0],
  );
  assert.match(report.text, /BAD {2}killed after step "book" returned.*\n\s+happened twice: charge 7/);
});

test("a commit is killed before, inside and after, and does no harm", async () => {
  const report = await crashTest(booked, { module, input });
  assert.equal(report.ok, true, report.text);
  const points = report.runs.map(({ point }) => point);
  for (const point of ["before the commit", "inside the commit, before it was durable", "after the commit was durable"])
    assert.ok(points.includes(point), point);
});

test("a key that is new in each attempt tells its receiver nothing: the effect happens twice", async () => {
  const report = await crashTest(newKey, { module, input });
  assert.equal(report.ok, false, report.text);
  assert.deepEqual(
    report.runs.filter(({ twice }) => twice.length > 0).map(({ point, twice }) => [point, twice]),
    [[BEFORE_KEPT, ["charge 7"]]],
  );
  assert.deepEqual(
    report.runs.flatMap(({ twiceUnderOneKey }) => twiceUnderOneKey),
    [],
  );
});

test("a key and a text that are kept in a step differ from run to run, and nothing happens twice", async () => {
  const report = await crashTest(keptKey, { module, input });
  assert.equal(report.ok, true, report.text);
  const again = report.runs.filter(({ twiceUnderOneKey }) => twiceUnderOneKey.length > 0);
  assert.deepEqual(
    again.map(({ point }) => point),
    [BEFORE_KEPT],
  );
});

test("a job that sleeps, waits for signals and for its children is killed around each wait, and does no harm", async () => {
  const report = await crashTest(waiting, { module, input, signals: { approved: { by: "ann" } } });
  assert.equal(report.ok, true, report.text);
  const points = report.runs.map(({ point }) => point);
  for (const point of [
    "after the wait run.sleep#1 began, before it was stored",
    "after the wait run.sleep#1 was stored",
    "after the wait run.sleep#1 ended, before that was kept",
    "after the end of the wait run.sleep#1 was kept",
    "at the wait run.signal(approved)#1, before a signal was read",
    "after the wait run.signal(approved)#1 began, before it was stored",
    "after the wait run.signal(approved)#1 was stored",
    "at the wait run.signal(approved)#1, after it was asked for a signal",
    "after the wait run.signal(never)#1 was stored",
    "after the wait run.wait#1 began, before it was stored",
    "after the wait run.wait#1 was stored",
    "after the wait run.wait#1 ended, before that was kept",
  ])
    assert.ok(points.includes(point), `${point}\n${report.text}`);
  // Once before each wait, and once for each attempt that a wake began.
  assert.equal(points.filter((point) => point.startsWith("after the claim")).length, 5);
});

test("an effect between two waits that is in no step happens again for each kill after it", async () => {
  const report = await crashTest(carelesslyWaiting, { module, input: null });
  assert.equal(report.ok, false, report.text);
});

async function serverUrl(t: TestContext): Promise<string> {
  const server = createServer((_, response) => response.end("ok"));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("what a job does twice on purpose has happened twice only where it was done a third time", async (t) => {
  const url = await serverUrl(t);
  const report = await crashTest(rereading, { module, input: { url } });
  assert.deepEqual(
    report.runs.filter(({ twice }) => twice.length > 0).map(({ point, twice }) => [point, twice]),
    ["before", "after"].map((step) => [`after step "${step}" returned, before its result was kept`, [`GET ${url}/`]]),
  );
});

test("effects that the test itself reads are held against those of the undisturbed run, too", async (t) => {
  const file = fileOfStarts(t);
  const options = { module, input: { file }, reset: () => rmSync(file, { force: true }) };
  const twoOfEach = (): string[] => Array.from({ length: 2 * readFileSync(file).length }, () => "a start");
  const report = await crashTest(starting, { ...options, effects: twoOfEach });
  assert.deepEqual(
    report.runs.map(({ twice }) => twice),
    [[], ["a start"], []],
  );
});

test("requests are recorded automatically, with their idempotency keys", async (t) => {
  const url = await serverUrl(t);
  const report = await crashTest(calling, { module, input: { url } });
  const twice = new Set(report.runs.flatMap((run) => run.twice));
  const keyed = new Set(report.runs.flatMap((run) => run.twiceUnderOneKey));
  assert.deepEqual([...twice], [`POST ${url}/tell`]);
  assert.deepEqual([...keyed], [`POST ${url}/`]);
});

test("a job that never succeeds, and a module without it, are reported before anything is killed", async () => {
  await assert.rejects(
    crashTest(failing, { module, input: null }),
    /does not succeed even in an undisturbed run.*it never works/,
  );
  await assert.rejects(crashTest({ name: "nobody" }, { module, input }), /exports no job named nobody/);
});

function fileOfStarts(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-crash-test-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return join(folder, "starts");
}

test("a point that a job does not come to again is listed as not reached, and not as killed", async (t) => {
  const report = await crashTest(wandering, { module, input: { file: fileOfStarts(t) } });
  assert.equal(report.ok, false);
  assert.deepEqual(
    report.runs.map(({ point, notReached }) => [point, notReached?.split(":")[0] ?? null]),
    [
      ["after the claim, before the handler ran", null],
      [
        'after step "once" returned, before its result was kept',
        "it was killed after the handler returned, before that was settled",
      ],
      ['after the result of step "once" was kept', "it was killed after the settlement was durable"],
      ["after the handler returned, before that was settled", "its process ended on its own, the job succeeded"],
      ["after the settlement was durable", "its process ended on its own, the job succeeded"],
    ],
  );
  assert.match(report.text, /was killed at 1 of 5 points/);
  assert.match(report.text, /BAD {2}not reached: after the settlement was durable\n\s+its process ended on its own/);
  assert.match(report.text, /4 of 5 points were not reached/);
});

test("a process that was ended because its time was up was not killed at its point", async (t) => {
  const report = await crashTest(hanging, { module, input: { file: fileOfStarts(t) }, limitMs: 10_000 });
  assert.equal(report.ok, false);
  assert.deepEqual(
    report.runs.map(({ notReached, ended }) => [notReached?.split(":")[0] ?? null, ended]),
    [
      [null, "succeeded"],
      ["it had not ended after 10000 ms (limitMs)", "never"],
      [null, "succeeded"],
    ],
  );
});

const of = (block: string, ...points: string[]): string[] => points.map((point) => `${point}${block}`);

test("a batch is killed at every write of its submission, its rows, its blocks and its end, and leaves the same behind", async () => {
  const report = await crashTest(payments, { module, input: [11, 13], context: "acme" });
  assert.deepEqual(
    report.runs.map(({ point }) => point),
    [
      ...["opened", "filled", "sealed"].flatMap((what) => [
        `before the batch was ${what}`,
        `after the batch was ${what}`,
      ]),
      "after the claim, before the handler ran (block 1)",
      ...[1, 2].flatMap((row) =>
        of(`, rows ${row} (block 1)`, "before the end of rows was marked", "after the end of rows was marked"),
      ),
      ...of(" (block 1)", "after the handler returned, before that was settled", "after the settlement was durable"),
      "after the claim, before the handler ran (what follows the end)",
      ...of(
        " (what follows the end)",
        'after step "outputs" returned, before its result was kept',
        'after the result of step "outputs" was kept',
        "after the handler returned, before that was settled",
        "after the settlement was durable",
      ),
    ],
    report.text,
  );
  assert.equal(report.ok, true, report.text);
  assert.ok(report.runs.every(({ twice }) => twice.length === 0));
  const again = report.runs.filter(({ twiceUnderOneKey }) => twiceUnderOneKey.length > 0);
  assert.deepEqual(
    again.map(({ point, twiceUnderOneKey }) => [point, ...twiceUnderOneKey]),
    [
      ["before the end of rows was marked, rows 1 (block 1)", "pay 11"],
      ["after the handler returned, before that was settled (what follows the end)", "report 1"],
    ],
  );
});

test("a batch whose rows pay without a key is found to pay twice, and only where a row's end was not durable", async () => {
  const report = await crashTest(keylessPayments, { module, input: [7], points: (point) => /marked/.test(point) });
  assert.equal(report.ok, false);
  assert.deepEqual(
    report.runs.map(({ point, twice }) => [point, twice]),
    [
      ["before the end of rows was marked, rows 1 (block 1)", ["pay 7"]],
      ["after the end of rows was marked, rows 1 (block 1)", []],
    ],
  );
});

test("rows with a commit of their own are killed before, inside and after it, and are booked once", async () => {
  const report = await crashTest(bookedRows, { module, input: [1], points: (point) => /commit/.test(point) });
  assert.deepEqual(
    report.runs.map(({ point }) => point),
    of(
      ", rows 1 (block 1)",
      "before the commit",
      "inside the commit, before it was durable",
      "after the commit was durable",
    ),
  );
  assert.equal(report.ok, true, report.text);
});

test("a collection is killed where it is opened, at every part, and in each of its jobs, and comes to the same once", async () => {
  const points = [
    "after the collection was opened",
    "before part files 1 was kept",
    "after part files 2 was kept",
    "after the collection became complete",
    "before the collection became notified",
    'after step "load" returned, before its result was kept (done)',
    "after the settlement was durable (notify)",
  ];
  const report = await crashTest(collecting, {
    module,
    input: null,
    parts: { files: ["a", "b"] },
    points: (point) => points.includes(point),
  });
  assert.deepEqual(report.runs.map(({ point }) => point).toSorted(), points.toSorted());
  assert.equal(report.ok, true, report.text);
});

test("what follows a collection is found to happen twice if its receiver can't know a repetition", async () => {
  const report = await crashTest(keylessCollecting, {
    module,
    input: null,
    parts: { files: ["a"] },
    points: (point) => point === "after the handler returned, before that was settled (done)",
  });
  assert.deepEqual(
    report.runs.map(({ twice }) => twice),
    [["load 1"]],
  );
});

// ---- requests

const SENT = "after it was sent, before its answer came";

/** A server that counts what reaches it, in the environment of the children. */
async function receiver(t: TestContext): Promise<{ count: number }> {
  const arrived = { count: 0 };
  const server = createServer((_, response) => {
    arrived.count++;
    response.end("ok");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  process.env["OUTLIVE_TEST_RECEIVER"] = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.after(() => {
    delete process.env["OUTLIVE_TEST_RECEIVER"];
    server.close();
  });
  return arrived;
}

test("a request is killed before and after it is sent, and is sent again under its key", async (t) => {
  await receiver(t);
  const { runs, ok, text } = await crashTest(resentCharge, { module, input });
  assert.equal(ok, true, text);
  assert.deepEqual(
    runs.map(({ point, ended, twiceUnderOneKey }) => [point, ended, twiceUnderOneKey.length]),
    [
      ["after the claim, before the handler ran", "succeeded", 0],
      ["before it was sent", "succeeded", 0],
      [SENT, "succeeded", 1],
      ["after its answer began", "succeeded", 1],
      ["after the handler returned, before that was settled", "succeeded", 1],
      ["after the settlement was durable", "succeeded", 0],
    ],
  );
});

test('under "fail" and "ask" nothing is sent twice, wherever the process dies', async (t) => {
  const arrived = await receiver(t);
  let before = 0;
  const most: number[] = [];
  const reset = (): void => {
    most.push(arrived.count - before);
    before = arrived.count;
  };
  const ends = async (kind: { readonly name: string }, ...chosen: string[]): Promise<Record<string, string>> => {
    const points = (point: string): boolean => chosen.includes(point);
    const { runs, ok, text } = await crashTest(kind, { module, input, reset, points });
    reset();
    assert.equal(ok, true, text);
    return Object.fromEntries(runs.map(({ point, ended }) => [point, ended]));
  };
  const MARKED = "after it was marked that it is sent";
  const UNMARKED = "before it was marked that it is sent";
  assert.deepEqual(await ends(onceCharge, UNMARKED, MARKED, "before it was sent", SENT), {
    [UNMARKED]: "succeeded",
    // It may have been sent, for all that the store knows.
    [MARKED]: "unknown",
    "before it was sent": "unknown",
    [SENT]: "unknown",
  });
  assert.deepEqual(await ends(askedCharge, SENT), { [SENT]: "succeeded" });
  assert.equal(Math.max(...most), 1);
});

test("a GET that is sent twice does no harm, and the report says so", async (t) => {
  await receiver(t);
  const { ok, text } = await crashTest(readCharge, { module, input, points: (point) => point === SENT });
  assert.equal(ok, true);
  assert.match(text, /sent again, by a method that is idempotent: GET /);
});
