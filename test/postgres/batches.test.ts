// Batches on PostgreSQL, where many sessions end rows at the same time and real processes are killed: a batch ends once, and each of its rows does.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  blockId,
  type BatchRow,
  decideBatch,
  doneDraft,
  doneKind,
  encodeBlock,
  NO_ROWS,
} from "../../src/job/batches.ts";
import type { BatchInfo, Engine } from "../../src/index.ts";
import type { Store } from "../../src/stores/port.ts";
import { batchDraft, blocksOf } from "../../src/testing/conformance/batch-fixture.ts";
import { draft, TestWorker, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";
import { type Booking, bookings, careful } from "./jobs.ts";
import { PostgresPlace } from "./place.ts";

const SESSIONS = 8;

/** As a worker does it after its own commit. */
async function endOf(store: Store, ids: readonly string[]): Promise<string[]> {
  const ended: string[] = [];
  for (const batch of await store.batches!.get(ids)) {
    const to = decideBatch(batch);
    if (to === null || to === "abort") continue;
    const end = { batch: batch.id, round: batch.round, from: batch.state, to, follow: [doneDraft(batch)] };
    if (await store.batches!.finish(end)) ended.push(batch.id);
  }
  return ended;
}

test("of 500 batches whose last blocks eight sessions settle at once, each ends once, found by those who settled", async (t) => {
  const { schema, url, query } = await freshSchema(t);
  const stores = await Promise.all(Array.from({ length: SESSIONS }, () => openStore({ url, schema })));
  try {
    const [first] = stores;
    await first!.declare([kind("mail"), kind(doneKind("mail"))]);
    const ids = Array.from({ length: 500 }, (_, i) => `b${i}`);
    for (const id of ids) {
      await first!.batches!.open(batchDraft(id));
      await first!.batches!.append(
        id,
        1,
        blocksOf(
          id,
          Array.from({ length: SESSIONS }, () => 2),
        ),
      );
      await first!.batches!.seal(id, 1);
    }
    const ended: string[] = [];
    await Promise.all(
      stores.map(async (store, at) => {
        const { epoch } = await store.register(workerRecord(`w${at}`));
        const worker = new TestWorker(store, `w${at}`, epoch);
        for (;;) {
          const jobs = await worker.claim(roomFor(3, ["mail"]));
          if (jobs.length === 0) return;
          await worker.settle(...jobs.map((job) => SETTLE.succeed(job)));
          const batches = new Set(jobs.map(({ lease }) => lease.jobId.split(":")[0]!));
          ended.push(...(await endOf(store, [...batches])));
        }
      }),
    );
    assert.deepEqual(ended.toSorted(), ids.toSorted(), "each once, and none is left for the maintenance");
    const sums = await query(
      `SELECT state, sum(rows) AS rows, sum(succeeded) AS succeeded FROM "${schema}".batches GROUP BY state`,
    );
    assert.deepEqual(sums, [{ state: "completed", rows: "8000", succeeded: "8000" }]);
    const [done] = await query(`SELECT count(*) AS n FROM "${schema}".jobs WHERE id LIKE '%:done:1'`);
    assert.deepEqual(done, { n: "500" });
  } finally {
    for (const store of stores) await store.close();
  }
});

test("sums are those of the rows, with sessions that fold, end, append and tend at the same time", async (t) => {
  const { schema, url } = await freshSchema(t);
  const stores = await Promise.all(Array.from({ length: SESSIONS }, () => openStore({ url, schema })));
  try {
    const [first] = stores;
    await first!.declare([kind("mail"), kind(doneKind("mail"))]);
    const ids = Array.from({ length: 6 }, (_, i) => `b${i}`);
    for (const id of ids) await first!.batches!.open(batchDraft(id));
    let submitting = true;
    const submitters = ids.map(async (id, at) => {
      const { batches } = stores[at]!;
      for (let number = 0; number < 40; number++) await batches!.append(id, 1, blocksOf(id, [5], { from: number }));
      await batches!.seal(id, 1);
    });
    const aborted = ids[5]!;
    const workers = stores.map(async (store, at) => {
      const { epoch } = await store.register(workerRecord(`w${at}`));
      const worker = new TestWorker(store, `w${at}`, epoch);
      let settled = 0;
      for (;;) {
        const jobs = await worker.claim(roomFor(4, ["mail"]));
        await worker.settle(...jobs.map((job) => SETTLE.succeed(job)));
        settled += jobs.length;
        await endOf(store, await store.batches!.fold(at === 0 ? 2 : 100));
        if (at === 1 && settled > 10) await store.batches!.abort(aborted);
        await store.batches!.tend(7);
        const batches: readonly BatchRow[] = await store.batches!.get(ids);
        if (!submitting && batches.every(({ endedAt }) => endedAt !== null)) return;
      }
    });
    await Promise.all(submitters.slice(0, 5));
    await submitters[5]!.catch(() => {});
    submitting = false;
    await Promise.all(workers);
    for (const { id, state, rows, sums } of await first!.batches!.get(ids)) {
      if (id !== aborted) assert.deepEqual([state, rows, sums], ["completed", 200, { ...NO_ROWS, succeeded: 200 }]);
      else assert.equal(sums.succeeded + sums.aborted, rows, `${id} is ${state}`);
    }
    assert.deepEqual(await first!.upkeep.integrity(), []);
  } finally {
    for (const store of stores) await store.close();
  }
});

test("outputs that PostgreSQL can't read as JSON are kept byte for byte, and those of rows that ended before are left out", async (t) => {
  const { schema, url } = await freshSchema(t);
  const store = await openStore({ url, schema });
  try {
    await store.declare([kind("mail")]);
    await store.batches!.open(batchDraft("b"));
    const odd = JSON.stringify({ text: 'half \ud800, zero \u0000, "lines":[9] ]' });
    const input = encodeBlock("b", 1, 0, [
      { line: 11, input: odd },
      { line: 12, input: odd },
      { line: 13, input: odd },
    ]);
    const job = draft({ id: blockId("b", 1, 0), kind: "mail", input });
    await store.batches!.append("b", 1, [{ number: 0, job, rows: 3, rejected: [] }]);
    const { epoch } = await store.register(workerRecord("w"));
    const worker = new TestWorker(store, "w", epoch);
    const claimed = await worker.next();
    const text = (line: number): [number, string] => [line, `${line} \u0000 \ud800 "]" 7\n`];
    const part = (...lines: number[]) => ({ file: "f", texts: JSON.stringify(lines.map(text)) });
    const write = { type: "rows", ends: { succeeded: [1], failed: [], outputs: [part(12)] } } as const;
    await worker.record(claimed, write);
    const { lease, change } = SETTLE.succeed(claimed);
    const rows = { succeeded: [0, 1, 2], failed: [], outputs: [part(11, 12, 13)] };
    await worker.settle({ lease, change: { ...change, rows } });
    const { blocks } = await store.batches!.outputs("b", 1, "f", null, 10);
    assert.deepEqual(blocks, [[part(12).texts, part(11, 13).texts]]);
  } finally {
    await store.close();
  }
});

/** Resolves when the batch has ended. */
async function untilEnded(engine: Engine, id: string): Promise<BatchInfo> {
  const ended = await untilTrue(
    () => engine.batch(id),
    (batch) => batch?.endedAt !== null,
    `batch ${id} has ended`,
  );
  return ended!;
}

test("rows 100 to 109, killed after 104: exactly 105 to 109 run again", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const rows: Booking[] = Array.from({ length: 10 }, (_, i) => ({ n: 100 + i, ...(i === 5 && { stops: "at first" }) }));
  const { id } = await engine.submit(careful, rows as never[]);
  const child = place.child();
  await child.untilFact("row", { n: 105, attempt: 1 });
  child.kill();
  place.child();
  const { state, rows: counted } = await untilEnded(engine, id);
  assert.deepEqual([state, counted.succeeded, counted.total, counted.left], ["completed", 10, 10, 0]);
  const ran = [...place.effects()].filter(([line]) => line.startsWith("row"));
  assert.deepEqual(
    ran,
    rows.map(({ n }) => [`row ${n} attempt ${n < 105 ? 1 : 2}`, 1]),
  );
});

for (const stops of ["before its commit", "inside its commit"] as const)
  test(`rows with a commit of their own are booked once, killed ${stops} of one`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const engine = await place.engine();
    const rows: Booking[] = Array.from({ length: 10 }, (_, n) => ({ n, ...(n === 4 && { stops }) }));
    const { id } = await engine.submit(bookings, rows as never[]);
    const child = place.child();
    await child.untilFact("stopped", { n: 4 });
    child.kill();
    place.child();
    const { state, rows: counted } = await untilEnded(engine, id);
    assert.deepEqual([state, counted.succeeded, counted.left], ["completed", 10, 0]);
    assert.deepEqual(
      [...(await place.ledgerRows())].toSorted(([a], [b]) => a.localeCompare(b)),
      rows.map(({ n }) => [`row ${n}`, 1]),
    );
  });
