// Processes that are killed with SIGKILL while they run, submit or end a batch: no row is lost, none counts twice, and the end comes once.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { BatchInfo, Engine } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { batches, careful, hundred, type Payment, payments } from "../support/batch-jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

/** Resolves when the batch has ended and what follows its end has, too. */
async function untilDone(engine: Engine, id: string): Promise<BatchInfo> {
  const ended = await untilTrue(
    () => engine.batch(id),
    (batch) => batch?.endedAt !== null,
    `batch ${id} has ended`,
  );
  await untilTrue(
    () => engine.get(`${id}:done:1`),
    (job) => job?.state === "succeeded",
    `what follows batch ${id} has run`,
  );
  return ended!;
}

/** Null when the batch has ended although nothing killed the worker; also if the test has ended meanwhile. */
function wasNotKilled(engine: Engine, id: string): Promise<null> {
  return untilDone(engine, id).then(
    () => null,
    () => null,
  );
}

async function assertSound({ path }: Place): Promise<void> {
  const store = await openStore(systemClock, path);
  try {
    assert.deepEqual(await store.upkeep.inconsistencies!(), []);
  } finally {
    await store.close();
  }
}

test("BR-001 BR-003 BR-004 BR-013 BR-014 BR-016 BR-019 rows 100 to 109, killed after 104: exactly 105 to 109 run again", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  const rows = Array.from({ length: 10 }, (_, i) => ({ n: 100 + i }));
  const { id } = await engine.submit(careful, rows);
  const child = place.batchProcess({}, "after:UPDATE outlive_blocks SET marks#5");
  assert.equal((await child.exited).signal, "SIGKILL");
  place.batchProcess();
  const { state, rows: counted } = await untilDone(engine, id);
  assert.deepEqual([state, counted.succeeded, counted.total, counted.left], ["completed", 10, 10, 0]);
  const ran = [...place.effects()].filter(([line]) => line.startsWith("row"));
  assert.deepEqual(
    ran,
    rows.map(({ n }) => [`row ${n} attempt ${n < 105 ? 1 : 2}`, 1]),
  );
  await assertSound(place);
});

const ROWS: readonly Payment[] = Array.from({ length: 23 }, (_, n) => ({ n, ...(n % 7 === 3 && { bad: true }) }));
const GOOD = ROWS.filter(({ bad }) => !bad).map(({ n }) => n);
const PAID = GOOD.map((n) => `${n + 1},${n}\n`).join("");

/** All that a batch of ROWS must have come to, whatever died on the way. */
async function assertPaid(place: Place, engine: Engine, id: string): Promise<void> {
  const { state, rows } = await untilDone(engine, id);
  assert.deepEqual(
    [state, rows.total, rows.succeeded, rows.failed, rows.left],
    ["completed", 23, GOOD.length, 23 - GOOD.length, 0],
  );
  const ledger = (await place.ledgerRows(engine)).map(({ n }) => n).toSorted((a, b) => a - b);
  assert.deepEqual(ledger, GOOD, "each row was committed once");
  const failed: number[] = [];
  for await (const { line } of engine.batchRows(id, { failed: true })) failed.push(line);
  assert.deepEqual(
    failed,
    ROWS.filter(({ bad }) => bad).map(({ n }) => n + 1),
  );
  const { outputs } = (await engine.batch(id))!;
  assert.equal(readFileSync(join(place.folder, "blobs", outputs["paid.csv"]!.blob), "utf8"), PAID);
  assert.equal(await engine.list({ kind: "payments:done" }).then(({ jobs }) => jobs.length), 1);
  await assertSound(place);
}

const POINTS = {
  "a row ends with the user's writes": "INSERT INTO ledger#7",
  "rows are marked": "UPDATE outlive_blocks SET marks#9",
  "a failed row is kept": "INSERT INTO outlive_row_failures#2",
  "an output is kept": "INSERT INTO outlive_row_outputs#11",
  "rows are added to the batch": "UPDATE outlive_batches SET succeeded#18",
  "the batch ends": "ended_at = \\?",
  "its outputs are noted": "UPDATE outlive_batch_texts SET outputs",
} as const;

for (const [what, statement] of Object.entries(POINTS))
  for (const when of ["before", "after"] as const)
    test(`BR-001 BR-016 a worker that is killed ${when} the commit in which ${what} loses and doubles nothing`, async (t) => {
      const place = new Place(t);
      const engine = await place.engine({ jobs: batches });
      await place.ledger(engine);
      const { id } = await engine.submit(payments, ROWS);
      const child = place.batchProcess({}, `${when}:${statement}`);
      const exit = await Promise.race([child.exited, wasNotKilled(engine, id)]);
      assert.equal(exit?.signal, "SIGKILL", "it died at the point");
      place.batchProcess();
      await assertPaid(place, engine, id);
    });

for (const when of ["before", "after"] as const)
  for (const point of ["INSERT INTO outlive_batches ", "INSERT INTO outlive_blocks", "sealed_at = \\?, touched"])
    test(`a submitter that is killed ${when} "${point}" and starts again loses and doubles nothing`, async (t) => {
      const place = new Place(t);
      const engine = await place.engine({ jobs: batches });
      await place.ledger(engine);
      const first = place.batchProcess({ submit: ROWS }, `${when}:${point}`);
      assert.equal((await first.exited).signal, "SIGKILL", "it died at the point");
      const again = place.batchProcess({ submit: ROWS });
      const { id, rows } = await again.untilFact("submitted");
      assert.equal(rows, 23);
      place.batchProcess();
      await assertPaid(place, engine, id as string);
    });

test("a submitter that is killed at every write of blocks, before and after its commit, loses and doubles nothing", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  await place.ledger(engine);
  // 43 blocks of five: two appends, of 40 and of 3.
  const ROWS_OF_EACH = 215;
  const ids: string[] = [];
  for (let point = 1; ; point++) {
    const submit = Array.from({ length: ROWS_OF_EACH }, (_, n) => ({ n }));
    const does = { submit, key: `killed at ${point}` };
    const killedAt = async (when: string): Promise<boolean> =>
      (await place.batchProcess(does, `${when}:INSERT INTO outlive_blocks#${point}`).exited).signal === "SIGKILL";
    const wasKilled = await killedAt("before");
    if (wasKilled) await killedAt("after");
    const { id, rows } = await engine.submit(payments, submit, { key: does.key });
    assert.equal(rows, ROWS_OF_EACH);
    ids.push(id);
    if (!wasKilled) break;
  }
  assert.ok(ids.length > 2, "at least the write of each append was met");
  place.batchProcess();
  for (const id of ids) {
    const { rows } = await untilDone(engine, id);
    assert.deepEqual([rows.total, rows.succeeded, rows.left], [ROWS_OF_EACH, ROWS_OF_EACH, 0]);
  }
  assert.equal((await place.ledgerRows(engine)).length, ids.length * ROWS_OF_EACH);
  await assertSound(place);
});

test("a poison row in a block of 100 is found in a death more than its limit after isolation, and 99 succeed", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  const rows: Payment[] = Array.from({ length: 100 }, (_, n) => ({ n, ...(n === 61 && { poison: true }) }));
  const { id } = await engine.submit(hundred, rows);
  const ended = untilDone(engine, id).then(() => null);
  let deaths = 0;
  for (; ; deaths++) {
    assert.ok(deaths < 8, "the row was found");
    const exit = await Promise.race([place.batchProcess().exited, ended]);
    if (exit === null) break;
    assert.equal(exit.signal, "SIGKILL");
  }
  const { rows: counted } = (await engine.batch(id))!;
  assert.deepEqual([counted.succeeded, counted.quarantined, counted.failed], [99, 1, 0]);
  const LIMIT = 2;
  // The first death leads to its isolation.
  assert.ok(deaths - 1 <= LIMIT + 1, `${deaths} deaths`);
  for await (const { line, state } of engine.batchRows(id, { failed: true }))
    assert.deepEqual([line, state], [62, "quarantined"]);
  await assertSound(place);
});

test("a row that kills its workers is found among its neighbours, and they succeed", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: batches });
  await place.ledger(engine);
  const rows: Payment[] = Array.from({ length: 5 }, (_, n) => ({ n, ...(n === 2 && { poison: true }) }));
  const { id } = await engine.submit(payments, rows);
  let deaths = 0;
  for (; ; deaths++) {
    assert.ok(deaths < 8, "the row was found");
    const child = place.batchProcess();
    const ended = wasNotKilled(engine, id);
    const exit = await Promise.race([child.exited, ended]);
    if (exit === null) break;
    assert.equal(exit.signal, "SIGKILL");
  }
  const { rows: counted } = (await engine.batch(id))!;
  assert.deepEqual([counted.succeeded, counted.quarantined, counted.failed], [4, 1, 0]);
  assert.deepEqual(
    (await place.ledgerRows(engine)).map(({ n }) => n),
    [0, 1, 3, 4],
  );
  for await (const { line, input, state } of engine.batchRows(id, { failed: true }))
    assert.deepEqual([line, input, state], [3, rows[2], "quarantined"]);
  // One of no account, the limit of two alone, and one more for what has to be isolated first.
  assert.ok(deaths <= 4, `${deaths} deaths`);
  await assertSound(place);
});
