// Unconfirmed list: the SQLite store kept the numbers of kinds and workers that it had read in a transaction that was rolled back.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { systemClock } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import type { SqliteTransaction } from "../../src/stores/sqlite/transaction.ts";
import { draft, kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

test("U: a kind whose declaration was rolled back on SQLite does not lend its number to another kind's jobs", async (t) => {
  const { store, rolledBack } = await opened(t);
  await rolledBack(store.declare([kind("first")]), store.enqueue([draft({ id: "lost", kind: "first" })]));
  await store.declare([kind("second")]);
  await store.declare([kind("first")]);
  await store.enqueue([draft({ id: "kept", kind: "first" })]);
  assert.equal((await store.inspect.get("kept"))?.kind, "first");
});

test("U: a worker whose registration was rolled back on SQLite does not stop the worker that got its number", async (t) => {
  const { store, rolledBack } = await opened(t);
  await rolledBack(store.register(workerRecord("failed")));
  await store.register(workerRecord("lives"));
  // What a worker does whose start has failed.
  await store.leave("failed");
  assert.deepEqual(
    (await store.workers({ which: "all" })).map(({ id, state }) => [id, state]),
    [["lives", "live"]],
  );
});

async function opened(t: TestContext) {
  const store = await openStore(systemClock, ":memory:");
  t.after(() => store.close());
  await store.transactions!.transact((handle) =>
    (handle as SqliteTransaction).exec(
      "CREATE TABLE parents (id INTEGER PRIMARY KEY); CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)",
    ),
  );
  /** Writes that share a transaction whose COMMIT fails. */
  const rolledBack = async (...writes: readonly Promise<unknown>[]): Promise<void> => {
    const all = await Promise.allSettled([...writes, orphan(store)]);
    assert.deepEqual(
      all.map(({ status }) => status),
      all.map(() => "rejected"),
    );
  };
  return { store, rolledBack };
}

/** A row of the user's that breaks a constraint which is checked at the COMMIT. */
function orphan(store: Store): Promise<unknown> {
  return store.transactions!.transact(
    (handle) => void (handle as SqliteTransaction).run("INSERT INTO children VALUES (1)"),
  );
}
