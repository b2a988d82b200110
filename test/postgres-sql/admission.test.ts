// Admissions, where only PostgreSQL can go wrong: several workers decide at the same moment, a process stops or dies while it has keys locked, and a user's
// transaction with a keyed enqueue stays open.
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import { JobContract } from "../../src/job/contract.ts";
import { FAIR, jobKey } from "../../src/job/limits.ts";
import { MAX_SIGNALS } from "../../src/job/waits.ts";
import {
  draft,
  TestWorker,
  kind,
  NO_ROOM,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { take } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { fixture } from "./fixture.ts";

const TENANT = { name: "tenant", running: 2, intervalMs: null, burst: 1, strict: false };
const ACCOUNT = { name: "account", running: null, intervalMs: null, burst: 1, strict: true };

async function keyed(t: TestContext) {
  const store = await fixture(t);
  const engine = await openStore(store);
  const hand = async (id: string, on: typeof engine): Promise<TestWorker> => {
    t.after(() => on.close());
    const { epoch } = await on.register(workerRecord(id));
    return new TestWorker(on, id, epoch);
  };
  const open = async (id: string): Promise<TestWorker> => hand(id, await openStore(store));
  const first = await hand("first", engine);
  await first.store.declare([
    kind("mail", { keyed: [TENANT] }),
    kind("book", { keyed: [ACCOUNT] }),
    kind("fair", { fair: true }),
  ]);
  const mail = (id: string, tenant: string) => draft({ id, kind: "mail", keys: [jobKey("tenant", tenant)] });
  const book = (id: string) => draft({ id, kind: "book", keys: [jobKey("account", "one")] });
  return { ...store, engine, open, first, mail, book };
}

test("four workers admit at the same moment: no key ever has more than its limit, and every job runs", async (t) => {
  const { open, first, mail, sql } = await keyed(t);
  const hands = [first, await open("b"), await open("c"), await open("d")];
  const drafts = Array.from({ length: 240 }, (_, n) => mail(`m${n}`, `tenant-${n % 12}`));
  await first.store.enqueue(drafts);
  let ended = 0;
  const over: unknown[] = [];
  const works = async (hand: TestWorker): Promise<void> => {
    for (let idle = 0; ended < drafts.length && idle < 500;) {
      const { claimed } = await hand.turn([], roomFor(7, ["mail"]));
      over.push(...(await sql("SELECT key1 FROM outlive.extras WHERE place = 2 GROUP BY key1 HAVING count(*) > 2")));
      if (claimed.length > 0) await hand.settle(...claimed.map((job) => SETTLE.succeed(job)));
      ended += claimed.length;
      idle = claimed.length > 0 ? 0 : idle + 1;
    }
  };
  await Promise.all(hands.map(works));
  assert.deepEqual([ended, over], [drafts.length, []]);
  assert.deepEqual(await first.store.upkeep.integrity(), []);
});

const MAIL = new JobContract<{ n: number }>(kind("mail", { keyed: [TENANT] }), null, null, null, () => [
  jobKey("tenant", "acme"),
]);
const FAIR_KIND = new JobContract<{ n: number }>(kind("fair", { fair: true }), null, null, null, null, () =>
  jobKey(FAIR, "acme"),
);

for (const contract of [MAIL, FAIR_KIND])
  test(`an enqueue of ${contract.name} in a transaction that stays open stops no other job of its key`, async (t) => {
    const { engine, first, sql } = await keyed(t);
    const { promise: open, resolve: end } = Promise.withResolvers<void>();
    const { promise: sent, resolve: send } = Promise.withResolvers<void>();
    const done = engine.transactions!.transact(async (tx) => {
      await tx.enqueue(contract, { n: 0 }, { id: "open" });
      send();
      await open;
    });
    await sent;
    const own = contract === MAIL ? { keys: [jobKey("tenant", "acme")] } : fairBy("acme");
    for (const id of ["x", "y", "z"]) await first.store.enqueue([draft({ id, kind: contract.name, ...own })]);
    for (const id of ["x", "y", "z"]) {
      const [job] = await takeOf(first, contract.name);
      assert.equal(job?.lease.jobId, id);
      await first.settle(SETTLE.succeed(job));
    }
    assert.deepEqual(await sql("SELECT 1 FROM pg_locks WHERE NOT granted"), []);
    await first.store.operate.pauseKey!(jobKey("tenant", "acme"), { reason: "a pause waits for nobody", forMs: null });
    await first.store.operate.pauseKey!(jobKey("tenant", "acme"), null);
    end();
    await done;
    assert.equal((await takeOf(first, contract.name))[0]?.lease.jobId, "open");
  });

function fairBy(tenant: string) {
  const key = jobKey(FAIR, tenant);
  return { keys: [key], fair: key.id };
}

async function takeOf(hand: TestWorker, of: string) {
  for (let turns = 0; turns < 20; turns++) {
    const { claimed } = await hand.turn([], roomFor(1, [of]));
    if (claimed.length > 0) return claimed;
  }
  return [];
}

/** A process that has stopped in an admission. */
async function stopped(t: TestContext, { url, schema }: { url: string; schema: string }): Promise<ChildProcess> {
  const program = fileURLToPath(new URL("frozen-admitter.ts", import.meta.url));
  const child = fork(program, [url, schema], { execArgv: ["--disable-warning=ExperimentalWarning"] });
  t.after(() => child.kill("SIGKILL"));
  const [{ fact }] = (await once(child, "message")) as [{ fact: string }];
  assert.equal(fact, "admitting");
  return child;
}

/** Turns until a job comes, or until that many ms have passed. */
async function within(hand: TestWorker, ms: number, kinds: readonly string[] = ["mail"]) {
  const from = performance.now();
  for (;;) {
    const { claimed } = await hand.turn([], roomFor(5, kinds));
    const tookMs = performance.now() - from;
    if (claimed.length > 0 || tookMs > ms) return { ids: claimed.map(({ lease }) => lease.jobId), tookMs };
  }
}

test("a process that is frozen in an admission stops its keys for two seconds, no other key, and goes on when it wakes", async (t) => {
  const { first, mail, ...store } = await keyed(t);
  await first.store.enqueue([mail("held", "acme")]);
  const child = await stopped(t, store);
  await first.store.enqueue([mail("other", "bolt")]);
  assert.deepEqual((await within(first, 1_500)).ids, ["other"]);
  const { ids, tookMs } = await within(first, 30_000);
  assert.deepEqual(ids, ["held"]);
  assert.ok(tookMs < 10_000, `${tookMs} ms`);
  child.kill("SIGCONT");
  const [ended] = (await once(child, "message")) as [{ fact: string; live: boolean }];
  assert.deepEqual(ended, { fact: "ended", live: true });
  assert.deepEqual(await first.store.upkeep.integrity(), []);
});

test("a process that is killed in an admission leaves its wakes behind, and the next worker admits", async (t) => {
  const { first, mail, ...store } = await keyed(t);
  await first.store.enqueue([mail("a", "acme"), mail("b", "acme"), mail("c", "acme")]);
  const child = await stopped(t, store);
  child.kill("SIGKILL");
  await once(child, "exit");
  const { ids } = await within(first, 30_000);
  assert.deepEqual([...ids].sort(), ["a", "b"]);
  assert.deepEqual(await first.store.upkeep.integrity(), []);
});

test("the first job of a strict key blocks the rest while another transaction has its row; of other keys the next one goes", async (t) => {
  const { first, mail, book, session } = await keyed(t);
  await first.store.enqueue([book("b1"), book("b2"), mail("m1", "acme"), mail("m2", "acme")]);
  const other = await session();
  await other.sql("BEGIN");
  await other.sql("SELECT 1 FROM outlive.jobs WHERE id IN ('b1', 'm1') FOR UPDATE");
  for (let turns = 0; turns < 5; turns++) await first.turn([], NO_ROOM);
  assert.deepEqual(
    (await first.claim(roomFor(5, ["mail", "book"]))).map(({ lease }) => lease.jobId),
    ["m2"],
  );
  await other.sql("COMMIT");
  assert.deepEqual([...(await within(first, 10_000, ["mail", "book"])).ids].sort(), ["b1", "m1"]);
});

test("senders at the same moment keep no more signals than a job may have", async (t) => {
  const { first, sql } = await keyed(t);
  await first.store.enqueue([draft({ id: "job", kind: "mail" })]);
  const signal = (n: number) => first.store.operate.signal({ job: "job", name: "go", payload: "1", id: `s${n}` });
  await sql(
    `INSERT INTO outlive.signals (job, at, name, id, payload, payload_sum)
     SELECT (SELECT seq FROM outlive.jobs), 1, 'go', 'old-' || n, '1', '' FROM generate_series(1, $1::int) AS n`,
    [MAX_SIGNALS - 5],
  );
  const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => signal(n)));
  assert.equal(answers.filter(({ is }) => is === "kept").length, 5);
  assert.equal(answers.filter(({ is }) => is === "full").length, 35);
  assert.deepEqual(await sql("SELECT count(*)::int AS n FROM outlive.signals WHERE read_at IS NULL"), [
    { n: MAX_SIGNALS },
  ]);
});

test("a pause holds what was admitted and not claimed, and waits for no open transaction", async (t) => {
  const { first, mail, open } = await keyed(t);
  const other = await open("other");
  await first.store.enqueue([mail("a", "acme"), mail("b", "acme"), mail("c", "acme")]);
  await first.turn([], NO_ROOM);
  await other.store.operate.pauseKey!(jobKey("tenant", "acme"), { reason: "unpaid", forMs: null });
  assert.deepEqual(await take(first, 5), []);
  await other.store.operate.pauseKey!(jobKey("tenant", "acme"), null);
  assert.equal((await takeOf(first, "mail")).length, 1);
  assert.deepEqual(await first.store.upkeep.integrity(), []);
});

test("outlive.enqueue refuses a kind whose jobs take turns and says why", async (t) => {
  const { sql } = await keyed(t);
  await assert.rejects(sql("SELECT outlive.enqueue('fair')"), /take turns, and a program computes their keys/);
});

test("with many workers each admission locks few keys, so that all of them together never fill the server's table of locks", async (t) => {
  const { first, mail, sql } = await keyed(t);
  const wide = { name: "wide", running: 1_000, intervalMs: null, burst: 1, strict: false };
  const both = kind("both", { keyed: [wide, TENANT] });
  await first.store.declare([both]);
  for (let n = 0; n < 150; n++) await first.store.register(workerRecord(`idle-${n}`));
  const [locks] = await sql<{ all: number }>(
    "SELECT current_setting('max_locks_per_transaction')::int * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int) AS all",
  );
  const most = Math.max(8, Math.floor(locks!.all / 4 / 151));
  assert.ok(most < 60, "otherwise it shows nothing");
  const admitted = async (): Promise<number> => {
    const [row] = await sql<{ n: number }>("SELECT count(*)::int AS n FROM outlive.extras WHERE place = 2");
    return row!.n;
  };
  const admitsAll = async (count: number): Promise<void> => {
    const before = await admitted();
    for (let turns = 0; (await admitted()) < before + count; turns++) {
      const had = await admitted();
      await first.turn([], NO_ROOM);
      assert.ok((await admitted()) - had <= most, "one admission has locked more keys");
      assert.ok(turns < count, "it goes on");
    }
  };
  await first.store.enqueue(Array.from({ length: 70 }, (_, n) => mail(`m${n}`, `tenant-${n}`)));
  await admitsAll(70);
  // The other keys of the jobs of one door count, too.
  await first.store.enqueue(
    Array.from({ length: 70 }, (_, n) =>
      draft({ id: `b${n}`, kind: "both", keys: [jobKey("wide", "all"), jobKey("tenant", `other-${n}`)] }),
    ),
  );
  await admitsAll(70);
});

test("while no worker runs each key keeps its latest wake, and one that an admission has just taken keeps the others", async (t) => {
  const { first, mail, sql, session } = await keyed(t);
  const wakesOf = async (tenant: string): Promise<number> => {
    const [row] = await sql<{ n: number }>("SELECT count(*)::int AS n FROM outlive.key_wakes WHERE key = $1", [
      jobKey("tenant", tenant).id,
    ]);
    return row!.n;
  };
  const [busy, idle] = [jobKey("tenant", "busy").id, jobKey("tenant", "idle").id];
  await first.store.enqueue([mail("b", "busy"), mail("i", "idle")]);
  await sql(
    `INSERT INTO outlive.key_wakes (key, at) SELECT k.key, 0 FROM generate_series(1, 6000) AS n CROSS JOIN unnest(ARRAY[${busy}, ${idle}]::bigint[]) AS k (key)`,
  );
  const admission = await session();
  await admission.sql("BEGIN");
  await admission.sql(
    `DELETE FROM outlive.key_wakes WHERE id = (SELECT max(id) FROM outlive.key_wakes WHERE key = ${busy})`,
  );
  // With the one before these are 100 groups: then wakes are counted.
  for (let n = 0; n < 99; n++) await first.store.enqueue([mail(`x${n}`, "often")]);
  await first.store.enqueue([mail("last", "often")]);
  assert.deepEqual([await wakesOf("idle"), await wakesOf("often"), await wakesOf("busy")], [1, 2, 6_001]);
  await admission.sql("COMMIT");
  const claimed = await take(first, 10);
  assert.deepEqual(claimed.map(({ lease }) => lease.jobId).toSorted(), ["b", "i", "x0", "x1"]);
});
