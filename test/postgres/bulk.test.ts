// `enqueueMany` on PostgreSQL: one batch is inserted while the one before is flushed, in two sessions. What others see, and what is left
// when a commit fails, is as if the batches had come one after the other.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { test, type TestContext } from "node:test";
import { setImmediate as immediate } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { type Engine, job, open } from "../../src/index.ts";
import { ErrorCode } from "../../src/job/errors.ts";
import { Enqueuing, Kinds } from "../../src/stores/postgres/enqueue.ts";
import { checksumSql, inputHashSql } from "../../src/stores/postgres/statements.ts";
import { standsStill } from "../../src/torture/audit.ts";
import { Child, untilTrue } from "../support/processes.ts";
import { commitProxy, type CutAt } from "./commit-proxy.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

const BATCH = 1_000;
const COUNT = 8 * BATCH;
const plain = job<{ n: number }>("plain");

async function engineOn(t: TestContext, place: PostgresPlace, url = place.url, connections = 4): Promise<Engine> {
  const settings = { schema: place.schema, connections };
  const engine = await open(url, { jobs: [plain], logger: false, heartbeat: PATIENT, postgres: settings });
  t.after(() => engine.close({ grace: "0ms" }));
  return engine;
}

function* inputs(count: number): Generator<{ n: number }> {
  for (let n = 0; n < count; n++) yield { n };
}

const SEEN = `SELECT count(*)::int AS count, coalesce(max((input::json->>'n')::int) + 1, 0)::int AS next FROM outlive.jobs`;
const seen = async (place: PostgresPlace): Promise<{ count: number; next: number }> =>
  (await place.query<{ count: number; next: number }>(SEEN))[0]!;

test("others see batches in the order of the call, each as a whole, and a batch is reported when they see it", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await engineOn(t, place);
  let heard = 0;
  let ended = false;
  const enqueued = engine
    .enqueueMany(plain, inputs(COUNT), { onBatch: ({ length }) => void (heard += length) })
    .finally(() => (ended = true));
  while (!ended) {
    const reported = heard;
    const { count, next } = await seen(place);
    assert.deepEqual([count % BATCH, next], [0, count]);
    assert.ok(count >= reported, `${reported} are reported and ${count} are there`);
  }
  assert.deepEqual(await enqueued, { count: COUNT, created: COUNT });
  const rows = await place.query<{ n: number }>("SELECT (input::json->>'n')::int AS n FROM outlive.jobs ORDER BY seq");
  assert.deepEqual(
    rows.map(({ n }) => n),
    Array.from({ length: COUNT }, (_, n) => n),
  );
});

test("several calls at once, on one session, all end", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await engineOn(t, place, place.url, 1);
  const many = Array.from({ length: 4 }, () => engine.enqueueMany(plain, inputs(2 * BATCH)));
  const one = engine.enqueue(plain, { n: 0 });
  for (const { created } of await Promise.all(many)) assert.equal(created, 2 * BATCH);
  await one;
  assert.equal((await seen(place)).count, 8 * BATCH + 1);
});

test("jobs whose ids are known, or are in the call twice, are added once, and the others as well", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await engineOn(t, place);
  await engine.enqueueMany(plain, inputs(1), { each: () => ({ id: "known" }) });
  const each = ({ n }: { n: number }): { id: string } => ({
    id: n === 1_500 ? "known" : `job-${n === 2_700 ? 2_600 : n}`,
  });
  const batches: boolean[] = [];
  const onBatch = (batch: readonly { created: boolean }[]): void =>
    void batches.push(...batch.map(({ created }) => created));
  assert.deepEqual(await engine.enqueueMany(plain, inputs(4 * BATCH), { each, onBatch }), {
    count: 4 * BATCH,
    created: 4 * BATCH - 2,
  });
  assert.deepEqual([batches.indexOf(false), batches.lastIndexOf(false)], [1_500, 2_700], "in the order of the call");
  const rows = await place.query<{ n: number }>("SELECT (input::json->>'n')::int AS n FROM outlive.jobs ORDER BY seq");
  assert.ok(
    rows.slice(1).every(({ n }, at) => at === 0 || n > rows[at]!.n),
    "their numbers, too",
  );
});

test("the checksums that a client makes are those that the server compares", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await engineOn(t, place);
  const texts = ["", "plain", 'a "quoted" \\ text', "Grüße", "日本語 🙂", "\ud800 alone", "\u0001 and\nlines"];
  const words = Array.from({ length: BATCH }, (_, n) => ({ n, text: `${texts[n % texts.length]}` }));
  const each = ({ n, text }: { n: number; text: string }): { id: string } => ({
    id: `${n}${/^[\w ]+$/.test(text) ? text : "é"}`.replaceAll(" ", "-"),
  });
  await engine.enqueueMany(plain, words, { each: each as never });
  const [row] = await place.query<{ all: number; intact: number; same: number }>(
    `SELECT count(*)::int AS all, count(*) FILTER (WHERE j.input_sum = ${checksumSql("j.input", "j.id")})::int AS intact,
       count(*) FILTER (WHERE j.input_hash = ${inputHashSql("j.input", "j.id")})::int AS same FROM outlive.jobs j`,
  );
  assert.deepEqual(row, { all: BATCH, intact: BATCH, same: BATCH });
  const [counts] = await engine.counts().then((all) => all.filter(({ kind }) => kind === plain.name));
  assert.equal(counts?.ready, BATCH);
});

test("a process that freezes keeps the ids of a batch, and vacuum off, for 10 s, and stores the rest when it goes on", async (t) => {
  const place = await PostgresPlace.shared(t);
  const file = fileURLToPath(new URL("./bulk-process.ts", import.meta.url));
  const stdio = ["ignore", "inherit", "pipe", "ipc"] as const;
  const name = `frozen-${place.schema}`;
  const url = new URL(place.url);
  url.searchParams.set("application_name", name);
  const child = new Child(fork(file, [url.href, place.schema, String(COUNT)], { stdio: [...stdio] }));
  t.after(() => child.kill());
  await untilTrue(() => standsStill(child.pid), Boolean, "it stands still");
  const open = (): Promise<object[]> =>
    place.query("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name = $1", [name]);
  await untilTrue(open, ({ length }) => length === 1, "one batch waits for it");
  await untilTrue(open, ({ length }) => length === 0, "the server ends it");
  child.kill("SIGCONT");
  const { count, created } = await child.untilFact("enqueued");
  assert.deepEqual([count, created], [COUNT, COUNT]);
  assert.deepEqual(await seen(place), { count: COUNT, next: COUNT });
});

for (const size of [1, BATCH])
  test(`a batch of ${size} behind one of the same call that was not stored is not sent, and those of others are`, async () => {
    const sent: string[] = [];
    const refuse = Promise.withResolvers<never>();
    const session = {
      async rows(sql: string, values: readonly unknown[]) {
        if (sql.includes("FROM outlive.kinds") && !sql.includes("add_")) return [{ id: 1, name: plain.name }];
        sent.push(String(values[1]).replace(/^\{"(\w+?)-.*/s, "$1"));
        return sent.length === 1 ? refuse.promise : [{ added: null }];
      },
      behind(former: Promise<unknown>, work: (tx: unknown) => Promise<unknown>) {
        const worked = work({
          run: async (_: string, values: readonly unknown[]) => (await session.rows("", values)).length,
        });
        return { worked, committed: worked.then(() => former) };
      },
    };
    const enqueuing = new Enqueuing(session as never, new Kinds(), { soon: setImmediate });
    const base = { kind: plain.name, input: "{}", priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
    const batch = (name: string, call?: object): Promise<unknown> =>
      enqueuing.enqueue(
        Array.from({ length: size }, (_, n) => ({ ...base, id: `${name}-${n}` })),
        call,
      );
    const call = {};
    const first = batch("first", call);
    await untilTrue(
      () => sent.length,
      (count) => count === 1,
      "the first batch was sent",
    );
    const second = batch("second", call);
    const other = batch("other", {});
    const single = batch("single");
    refuse.reject(new Error("refused"));
    await assert.rejects(first, { message: "refused" });
    await assert.rejects(second, { message: "refused" });
    await assert.rejects(batch("third", call), { message: "refused" });
    await Promise.all([other, single]);
    assert.deepEqual(
      sent.filter((name) => name === "third"),
      [],
    );
    if (size === 1) assert.ok(!sent.some((name) => name.includes("second")), sent.join());
  });

test("calls keep their order while their kind is looked up", async () => {
  const added: string[] = [];
  let lookups = 0;
  const first = Promise.withResolvers<void>();
  const session = {
    rows: async (sql: string, values: readonly unknown[]) => {
      if (sql.includes("FROM outlive.kinds") && !sql.includes("add_plain_jobs")) {
        if (lookups++ === 0) await first.promise;
        return [{ id: 1, name: plain.name }];
      }
      added.push(String(values[1]));
      return [{ added: null }];
    },
  };
  const enqueuing = new Enqueuing(session as never, new Kinds(), { soon: setImmediate });
  const draft = { kind: plain.name, input: "{}", priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
  const calls = ["a", "b"].map((id) => enqueuing.enqueue([{ ...draft, id }]));
  await immediate();
  calls.push(enqueuing.enqueue([{ ...draft, id: "c" }]));
  await immediate();
  first.resolve();
  await Promise.all(calls);
  assert.equal(added.join().replaceAll(/\W/g, ""), "abc");
});

const LEFT: Readonly<Record<CutAt, string>> = { "before COMMIT": "is not there", "before its answer": "is there" };

for (const [when, left] of Object.entries(LEFT) as [CutAt, string][])
  test(`a batch whose connection is lost ${when} ${left}, the call rejects, and nothing is on its way any more`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const proxy = await commitProxy(t, place.url, "INSERT INTO");
    const engine = await engineOn(t, place, proxy.url);
    const heard: number[] = [];
    const call = engine.enqueueMany(plain, inputs(COUNT), {
      onBatch: (batch) => {
        heard.push(batch.length);
        if (heard.length === 2) proxy.cutAt(when);
      },
    });
    await assert.rejects(call, { name: "OutliveError", code: ErrorCode.storeUnreachable });
    assert.equal(proxy.cuts(), 1);
    const { count, next } = await seen(place);
    assert.equal(count % BATCH, 0);
    const lost = when === "before COMMIT" ? 0 : BATCH;
    assert.equal(count, heard.length * BATCH + lost, "what was reported, and what was committed without an answer");
    assert.equal(next, count, "nothing behind a batch that is not there");
    await engine.enqueueMany(plain, inputs(BATCH));
    assert.equal((await seen(place)).count, count + BATCH);
  });
