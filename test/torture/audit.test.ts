// The audit of `outlive demo` and `outlive torture` can fail: each promise is broken by hand in tables that were in order, and the
// sentence names the job.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type Engine, open } from "../../src/index.ts";
import { sqlite, type SqliteTransaction } from "../../src/sqlite.ts";
import { type Audit, audit } from "../../src/torture/audit.ts";
import { checkedTransfer, tablesOf, transfer, type Transfer, writeTo } from "../../src/torture/tables.ts";

const ORDERS: ReadonlyMap<string, Transfer> = new Map(
  ["a", "b", "c", "d"].map((id, i) => [id, { from: 1 + i, to: 2 + i, amount: 100, workMs: 1 }]),
);
const tables = await tablesOf("sqlite::memory:", null);
writeTo("sqlite::memory:", null);

async function transferred(t: TestContext): Promise<Engine> {
  const engine = await open("sqlite::memory:", { jobs: [transfer, checkedTransfer], logger: false });
  t.after(() => engine.close());
  await tables.create(engine);
  for (const [id, input] of ORDERS) await engine.enqueue("ac".includes(id) ? transfer : checkedTransfer, input, { id });
  await engine.runUntilIdle();
  return engine;
}

const ORDER: Transfer = { from: 1, to: 2, amount: 1, workMs: 1 };

function broken(found: Audit): readonly string[] {
  return found.verdicts.flatMap(({ violations }) => violations);
}

test("tables in order pass", async (t) => {
  const found = await audit(await transferred(t), tables, ORDERS);
  assert.deepEqual(broken(found), []);
  const { enqueued, succeeded, lost, committedTwice, quarantined, poison, ledgerRows, balance } = found;
  assert.deepEqual(
    { enqueued, succeeded, lost, committedTwice, quarantined, poison, ledgerRows, balance },
    {
      enqueued: 4,
      succeeded: 4,
      lost: 0,
      committedTwice: 0,
      quarantined: 0,
      poison: 0,
      ledgerRows: 4,
      balance: 51 * 100_000,
    },
  );
});

test("a job that was promised and is not there is lost", async (t) => {
  const found = await audit(await transferred(t), tables, new Map(ORDERS).set("e", ORDER));
  assert.deepEqual(broken(found), ["job e was enqueued and is not in the store"]);
  assert.equal(found.lost, 1);
});

test("a job that has not ended is lost", async (t) => {
  const engine = await transferred(t);
  await engine.enqueue(transfer, ORDER, { id: "e" });
  const found = await audit(engine, tables, new Map(ORDERS).set("e", ORDER));
  assert.deepEqual(broken(found), ["job e has not ended: it is queued, its last worker was none"]);
  assert.equal(found.lost, 1);
});

test("a job that was run again after its end, and its transfer made twice, are found", async (t) => {
  const engine = await transferred(t);
  await engine.retry("b");
  await engine.runUntilIdle();
  const found = await audit(engine, tables, ORDERS);
  assert.equal(found.committedTwice, 1);
  assert.deepEqual(broken(found), [
    'job b was succeeded already when operator wrote "retry"',
    "job b is in the ledger 2 times (attempts 1,2)",
  ]);
});

const DAMAGE: readonly (readonly [string, (tx: SqliteTransaction) => void, readonly string[]])[] = [
  [
    "a row that is missing in the ledger",
    (tx) => tx.run("DELETE FROM ledger WHERE job_id = 'a'"),
    [
      "job a succeeded, but its row is not in the ledger",
      "account 1 holds 999.00; its ledger makes 1,000.00",
      "account 2 holds 999.99; its ledger makes 998.99",
    ],
  ],
  [
    "a row of no job in the ledger",
    (tx) => tx.run("INSERT INTO ledger VALUES ('x', 9, 9, 0, 0, 1, 1)"),
    ["job x is in the ledger, but it is not a job"],
  ],
  [
    "another amount than was ordered",
    (tx) => {
      tx.run("UPDATE ledger SET amount = 200 WHERE job_id = 'a'");
      tx.run("UPDATE accounts SET balance = balance - 100 WHERE id = 1");
      tx.run("UPDATE accounts SET balance = balance + 100 WHERE id = 2");
    },
    ["job a moved something else than was ordered"],
  ],
  [
    "money from nowhere",
    (tx) => tx.run("UPDATE accounts SET balance = balance + 1 WHERE id = 9"),
    ["the accounts hold 51,000.01; they began with 51,000.00", "account 9 holds 1,000.01; its ledger makes 1,000.00"],
  ],
];

for (const [title, damage, sentences] of DAMAGE) {
  test(`${title}: found`, async (t) => {
    const engine = await transferred(t);
    await engine.transaction(sqlite, (tx) => damage(tx));
    assert.deepEqual(broken(await audit(engine, tables, ORDERS)), sentences);
  });
}
