// Blocks of a batch that is the only one of its kind wait as plain jobs do. What ends this, and that no block is lost, passed or run past a limit because of it.
// That batches take turns is in the conformance suite.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import pg from "pg";
import type { ClaimedJob } from "../../src/job/job.ts";
import { FAIR, type JobKey, jobKey } from "../../src/job/limits.ts";
import { MIGRATIONS } from "../../src/stores/postgres/migrations/index.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, fairBlocks } from "../../src/testing/conformance/batch-fixture.ts";
import {
  TestWorker,
  draft,
  idsOf,
  kind,
  names,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, type FreshSchema } from "../support/postgres.ts";

interface Here {
  readonly store: Store;
  readonly worker: TestWorker;
  readonly fresh: FreshSchema;
  readonly query: FreshSchema["query"];
}

/** A store with a batch `a` of so many blocks of two rows, and a worker. */
async function withBatch(t: TestContext, blocks: number): Promise<Here> {
  const fresh = await freshSchema(t);
  const store = await openStore(fresh);
  t.after(() => store.close());
  await store.declare([kind("mail", { fair: true })]);
  await submit(store, "a", blocks);
  const { epoch } = await store.register(workerRecord("w"));
  const query: FreshSchema["query"] = (text, values) =>
    fresh.query(text.replaceAll("outlive.", `"${fresh.schema}".`), values);
  return { store, worker: new TestWorker(store, "w", epoch), fresh, query };
}

async function submit(store: Store, id: string, blocks: number): Promise<void> {
  await store.batches!.open(batchDraft(id));
  await append(store, id, blocks);
  assert.equal(await store.batches!.seal(id, 1), "sealed");
}

function append(store: Store, id: string, blocks: number, from = 0): Promise<unknown> {
  const sizes = Array.from({ length: blocks }, () => 2);
  return store.batches!.append(id, 1, fairBlocks(id, sizes, { from }));
}

const room = roomFor(10, ["mail"]);
const KEY: JobKey = jobKey(FAIR, "a");

interface Waiting {
  readonly ready: number;
  readonly held: number;
  readonly rows: number;
}

/** Jobs that wait by where they do, and rows in extras. */
async function waiting(query: Here["query"]): Promise<Waiting> {
  const [row] = await query(`SELECT (SELECT count(*)::int FROM outlive.jobs WHERE state = 0 AND lane = 1) AS ready,
    (SELECT count(*)::int FROM outlive.jobs WHERE state = 0 AND lane = 3) AS held, (SELECT count(*)::int FROM outlive.extras) AS rows`);
  return row as unknown as Waiting;
}

function succeed(worker: TestWorker, claimed: readonly ClaimedJob[]): Promise<unknown> {
  return worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
}

function countOf(claimed: readonly ClaimedJob[], batch: string): number {
  return idsOf(claimed).filter((id) => id.startsWith(`${batch}:`)).length;
}

test("blocks of a lone batch are claimed in their order and end, and nothing is written for their key", async (t) => {
  const { store, worker, query } = await withBatch(t, 25);
  assert.deepEqual(await waiting(query), { ready: 25, held: 0, rows: 0 });
  const ids: string[] = [];
  for (;;) {
    const claimed = await worker.claim(room);
    if (claimed.length === 0) break;
    ids.push(...idsOf(claimed));
    await succeed(worker, claimed);
  }
  assert.deepEqual(
    ids,
    Array.from({ length: 25 }, (_, n) => `a:1:${n}`),
  );
  assert.deepEqual(await waiting(query), { ready: 0, held: 0, rows: 0 });
  assert.deepEqual(await query("SELECT * FROM outlive.key_wakes"), []);
  const [batch] = await store.batches!.get(["a"]);
  assert.equal(batch!.sums.succeeded, 50);
});

test("the first blocks of a second batch move all of the first to the gate, and both take turns from then on", async (t) => {
  const { store, worker, query } = await withBatch(t, 2_500);
  assert.equal((await worker.claim(room)).length, 10);
  await submit(store, "b", 10);
  assert.deepEqual(await waiting(query), { ready: 0, held: 2_500, rows: 2_500 });
  const claimed = await worker.claim(room);
  assert.deepEqual([countOf(claimed, "a"), countOf(claimed, "b")], [5, 5]);
  // What comes now comes to the gate.
  await store.batches!.open(batchDraft("c"));
  await append(store, "c", 1);
  assert.deepEqual((await waiting(query)).ready, 0);
});

test("blocks of a lone batch and plain jobs are claimed ahead in the order of both, until another batch waits at the gate", async (t) => {
  const { store, worker } = await withBatch(t, 25);
  await store.declare([kind("sms")]);
  await store.enqueue(names("s", 10).map((id) => draft({ id, kind: "sms" })));
  const kinds = [
    { kind: "mail", room: 10, ahead: true, fair: true },
    { kind: "sms", room: 10, ahead: true },
  ];
  const first = await worker.claim({ total: 1, kinds, ahead: 9 });
  assert.deepEqual(idsOf(first), ["a:1:0"], "it has not looked at the gate yet");
  const blocks = (from: number, to: number): string[] => Array.from({ length: to - from }, (_, n) => `a:1:${from + n}`);
  assert.deepEqual(idsOf(await worker.claim({ total: 1, kinds, ahead: 9 })), blocks(1, 11));
  assert.deepEqual(
    idsOf(await worker.claim({ total: 0, kinds: kinds.slice(0, 1), ahead: 4 })),
    blocks(11, 15),
    "of one kind",
  );
  assert.deepEqual(idsOf(await worker.claim({ total: 0, kinds, ahead: 12 })), [...blocks(15, 25), "s0001", "s0002"]);
  await submit(store, "b", 5);
  await submit(store, "c", 5);
  assert.deepEqual(idsOf(await worker.claim({ total: 0, kinds, ahead: 4 })), []);
  assert.deepEqual(idsOf(await worker.claim({ total: 0, kinds: kinds.slice(0, 1), ahead: 4 })), []);
  const claimed = await worker.claim({ total: 4, kinds: kinds.slice(0, 1), ahead: 4 });
  assert.deepEqual([countOf(claimed, "b"), countOf(claimed, "c")], [2, 2]);
});

test("a kind that may not wait ends what is claimed ahead next to a batch kind", async (t) => {
  const { store, worker } = await withBatch(t, 3);
  await store.declare([kind("sms"), kind("fax")]);
  await store.enqueue([draft({ id: "f", kind: "fax" }), draft({ id: "s", kind: "sms" })]);
  const kinds = [
    { kind: "mail", room: 10, ahead: true, fair: true },
    { kind: "fax", room: 10 },
    { kind: "sms", room: 10, ahead: true },
  ];
  assert.equal((await worker.claim({ total: 1, kinds, ahead: 9 })).length, 1);
  assert.deepEqual(idsOf(await worker.claim({ total: 1, kinds, ahead: 9 })), ["a:1:1", "a:1:2"]);
  assert.deepEqual(idsOf(await worker.claim({ total: 0, kinds, ahead: 9 })), []);
  assert.deepEqual(idsOf(await worker.claim({ total: 1, kinds, ahead: 9 })), ["f", "s"]);
});

test("a submitter that dies after its first blocks leaves the move to the next turns", async (t) => {
  const { store, worker, query } = await withBatch(t, 2_500);
  // Only the first blocks of a batch move others: these are as they are left by a submitter that is killed after its commit.
  await store.batches!.open(batchDraft("b"));
  await query("UPDATE outlive.batch_state SET blocks = 1 WHERE id = 'b'");
  await append(store, "b", 10, 1);
  assert.deepEqual(await waiting(query), { ready: 2_500, held: 10, rows: 10 });
  let turns = 0;
  let found = 0;
  for (; found === 0 && turns < 10; turns++) found = countOf(await worker.claim(room), "b");
  assert.ok(found > 0, "the other batch has its turn");
  assert.ok(turns <= 4, `each turn moves a thousand: ${turns} turns`);
});

test("a batch that SQL submits takes turns with the one that was alone, and its key is that of core", async (t) => {
  const { store, worker, query } = await withBatch(t, 200);
  await store.declare([kind("mail:done")]);
  const [{ batch_id: id }] = (await query(
    "SELECT batch_id FROM outlive.submit('mail', (SELECT jsonb_agg(n) FROM generate_series(1, 500) n))",
  )) as [{ batch_id: string }];
  const { id: ring } = jobKey(FAIR, id);
  assert.deepEqual(await query("SELECT DISTINCT ring::float8, fair::float8 FROM outlive.extras"), [
    { ring, fair: ring },
  ]);
  let found = 0;
  for (let turn = 0; found === 0 && turn < 2; turn++) found = countOf(await worker.claim(room), id);
  assert.ok(found > 0, "it waits for one round, and not for 200 blocks");
  await store.operate.pauseKey!(jobKey(FAIR, id), { reason: "unpaid", forMs: null });
  assert.equal(countOf(await worker.claim(room), id), 0);
});

test("nothing of a paused batch starts, and its blocks start again when it is resumed", async (t) => {
  const { store, worker, query } = await withBatch(t, 30);
  const running = await worker.claim(room);
  assert.equal(running.length, 10);
  await store.operate.pauseKey!(KEY, { reason: "maintenance", forMs: null });
  assert.deepEqual(await waiting(query), { ready: 0, held: 20, rows: 30 });
  assert.deepEqual(await worker.claim(room), []);
  await succeed(worker, running);
  assert.deepEqual(await worker.claim(room), []);
  await store.operate.pauseKey!(KEY, null);
  assert.equal((await worker.claim(room)).length, 10);
});

test("a limit counts the blocks that run when it is set", async (t) => {
  const { store, worker } = await withBatch(t, 30);
  const running = await worker.claim(room);
  await store.operate.setLimit(KEY, { running: 10 });
  const claims = async (): Promise<number> => {
    let count = 0;
    for (let turn = 0; turn < 3; turn++) count += (await worker.claim(room)).length;
    return count;
  };
  assert.equal(await claims(), 0, "ten run");
  await succeed(worker, running.slice(0, 3));
  assert.equal(await claims(), 3);
});

test("a batch whose key is paused before its first block waits at the gate", async (t) => {
  const { store, worker, query } = await withBatch(t, 1);
  await succeed(worker, await worker.claim(room));
  await query("UPDATE outlive.batch_state SET state = 3");
  await store.operate.pauseKey!(jobKey(FAIR, "b"), { reason: "not yet", forMs: null });
  await submit(store, "b", 3);
  assert.deepEqual(await waiting(query), { ready: 0, held: 3, rows: 3 });
  assert.deepEqual(await worker.claim(room), []);
});

test("a block that is ready again is first while its batch is alone, and takes turns when it is not", async (t) => {
  const { store, worker, query } = await withBatch(t, 30);
  const [first, second] = await worker.claim(roomFor(2, ["mail"]));
  await worker.settle(SETTLE.release(first!));
  assert.equal((await waiting(query)).rows, 0);
  const [again] = await worker.claim(roomFor(1, ["mail"]));
  assert.equal(again!.lease.jobId, first!.lease.jobId);
  await submit(store, "b", 10);
  await worker.settle(SETTLE.release(second!), SETTLE.release(again!));
  assert.deepEqual((await waiting(query)).ready, 0, "at the gate");
  const claimed = await worker.claim(room);
  assert.deepEqual([countOf(claimed, "a"), countOf(claimed, "b")], [5, 5]);
  const findings = (await store.upkeep.inconsistencies?.()) ?? [];
  assert.deepEqual(findings, []);
});

test("while blocks are being added none is moved, and afterwards all of them are", async (t) => {
  const { store, fresh, query } = await withBatch(t, 5);
  await query("UPDATE outlive.batch_state SET state = 0, sealed_at = NULL WHERE id = 'a'");
  const session = new pg.Client({ connectionString: fresh.url });
  await session.connect();
  t.after(() => session.end());
  const own = (text: string): Promise<unknown> => session.query(text.replaceAll("outlive.", `"${fresh.schema}".`));
  await own("BEGIN");
  await own("SELECT outlive.is_alone(l.batch, l.kind, l.ring) FROM outlive.lone_batches l");
  await submit(store, "b", 1);
  assert.equal((await waiting(query)).ready, 5, "its blocks may be among those that are not committed");
  await own("COMMIT");
  const moved = await query("SELECT outlive.to_gate(l.kind, 1000) AS moved FROM outlive.lone_batches l");
  assert.deepEqual(moved, [{ moved: 5 }]);
  assert.deepEqual(await query("SELECT * FROM outlive.lone_batches"), []);
  await append(store, "a", 2, 5);
  assert.deepEqual(await waiting(query), { ready: 0, held: 8, rows: 8 });
});

test("without the step, the blocks of a lone batch wait at the gate", async (t) => {
  const { fresh, query } = await withBatch(t, 5);
  const { down } = MIGRATIONS.find(({ name }) => name === "lone batches")!;
  await query(down(`"${fresh.schema}"`));
  assert.deepEqual(await waiting(query), { ready: 0, held: 5, rows: 5 });
});

test("batches that come and go at the same time: each of their rows ends once, and none is left anywhere", async (t) => {
  const { store, fresh, query } = await withBatch(t, 5);
  const stores = [store, await openStore(fresh), await openStore(fresh)];
  t.after(() => Promise.all(stores.slice(1).map((one) => one.close())));
  const ids = Array.from({ length: 3 }, (_, by) => Array.from({ length: 8 }, (_, n) => `s${by}-${n}`));
  const submitting = Promise.all(
    ids.map(async (own, by) => {
      const from = stores[by]!;
      for (const id of own) {
        await from.batches!.open(batchDraft(id));
        for (let part = 0; part < 3; part++) await append(from, id, 4, part * 4);
        await from.batches!.seal(id, 1);
        if (by === 0) {
          const key = jobKey(FAIR, id);
          await from.operate.pauseKey!(key, { reason: "for a moment", forMs: null });
          await from.operate.setLimit(key, { running: 3 });
          await from.operate.pauseKey!(key, null);
        }
      }
    }),
  );
  const all = ["a", ...ids.flat()];
  const total = 10 + 24 * 24;
  const ended = async (): Promise<number> =>
    (await store.batches!.get(all)).reduce((sum, { sums }) => sum + sums.succeeded, 0);
  const ran = new Map<string, number>();
  const working = stores.map(async (own, at) => {
    const { epoch } = await own.register(workerRecord(`v${at}`));
    const worker = new TestWorker(own, `v${at}`, epoch);
    for (let turn = 0; (await ended()) < total; turn++) {
      assert.ok(turn < 3_000, `${await ended()} of ${total} rows have ended`);
      const claimed = await worker.claim(roomFor(4, ["mail"]));
      // The first attempt of every third block goes back.
      const isReleased = ({ lease }: ClaimedJob): boolean => lease.fence === 1 && lease.row % 3 === 0;
      for (const job of claimed) if (!isReleased(job)) ran.set(job.lease.jobId, (ran.get(job.lease.jobId) ?? 0) + 1);
      await worker.settle(...claimed.map((job) => (isReleased(job) ? SETTLE.release(job) : SETTLE.succeed(job))));
    }
  });
  await submitting;
  await Promise.all(working);
  assert.equal(ran.size, total / 2);
  assert.deepEqual(new Set(ran.values()), new Set([1]));
  assert.deepEqual(await waiting(query).then(({ ready, held }) => [ready, held]), [0, 0]);
  assert.deepEqual((await store.upkeep.inconsistencies?.()) ?? [], []);
});
