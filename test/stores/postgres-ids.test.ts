// Ids and dedupe keys on PostgreSQL are held by two tables: what is new by the one and known by the other leaves nothing behind,
// also when many sessions enqueue the same at once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { job } from "../../src/engine/options.ts";
import type { Store } from "../../src/stores/port.ts";
import { enqueueIn } from "../../src/stores/postgres/transaction.ts";
import { draft, kind } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, withClient } from "../support/postgres.ts";

async function stage(t: Parameters<typeof freshSchema>[0], connections = 1) {
  const fresh = await freshSchema(t);
  const stores = await Promise.all(Array.from({ length: connections }, () => openStore(fresh)));
  // Before the schema goes.
  t.after(() => Promise.all(stores.map((store) => store.close())));
  await stores[0]!.declare([kind("mail")]);
  return { fresh, store: stores[0]!, stores };
}

test("of many that enqueue the same id at once one creates the job, and all others see it", async (t) => {
  const { stores } = await stage(t, 6);
  for (let round = 0; round < 10; round++) {
    const id = `j${round}`;
    const created = await Promise.all(
      stores.map(async (store) => {
        const [answer] = await store.enqueue([draft(id)]);
        assert.equal((await store.inspect.get(id))?.state, "queued");
        return answer!.created;
      }),
    );
    assert.equal(created.filter(Boolean).length, 1);
  }
  assert.deepEqual(await stores[0]!.upkeep.integrity(), []);
});

test("an id whose job lost its key to another is free again, also within one call", async (t) => {
  const { store } = await stage(t);
  await store.enqueue([{ ...draft("holder"), dedupeKey: "k" }]);
  const keyed = { ...draft("b"), dedupeKey: "k" };
  assert.deepEqual(await store.enqueue([keyed]), [{ id: "holder", created: false }]);
  assert.equal(await store.inspect.get("b"), null);
  assert.deepEqual(await store.upkeep.integrity(), []);
  assert.deepEqual(await store.enqueue([keyed, draft("a"), draft("b"), draft("a"), keyed]), [
    { id: "holder", created: false },
    { id: "a", created: true },
    { id: "b", created: true },
    { id: "a", created: false },
    { id: "b", created: false },
  ]);
  assert.deepEqual(await store.upkeep.integrity(), []);
});

test("who enqueues an id that a transaction under way has taken waits for its end: then it is known, or free", async (t) => {
  const { store, fresh } = await stage(t);
  await store.enqueue([{ ...draft("holder"), dedupeKey: "k" }]);
  const cases = [
    { id: "kept", options: {}, end: "COMMIT", created: false },
    { id: "rolled-back", options: {}, end: "ROLLBACK", created: true },
    { id: "lost-its-key", options: { dedupeKey: "k" }, end: "COMMIT", created: true },
  ];
  await withClient(fresh.url, async (client) => {
    for (const { id, options, end, created } of cases) {
      await client.query("BEGIN");
      await enqueueIn({ schema: fresh.schema, newId: () => id }, client, job("mail"), {}, { id, ...options });
      const answer = store.enqueue([draft(id)]);
      await somebodyWaits(store);
      await client.query(end);
      assert.deepEqual(await answer, [{ id, created }], id);
      assert.equal((await store.inspect.get(id))?.id, id);
    }
  });
  assert.deepEqual(await store.upkeep.integrity(), []);
});

test("whatever ids and keys meet in many sessions, each job that was created is there once and no id is without one", async (t) => {
  const { store, stores } = await stage(t, 5);
  const answers = await Promise.all(
    stores.map(async (one, s) => {
      const all = [];
      for (let i = 0; i < 40; i++) {
        const drafts = [i * 7 + s, i * 5 + 3 * s].map((n) => ({
          ...draft(`j${n % 30}`),
          dedupeKey: n % 3 === 0 ? null : `k${(n + i) % 9}`,
        }));
        all.push(...(await one.enqueue(drafts)));
      }
      return all;
    }),
  );
  const created = answers.flat().filter((answer) => answer.created);
  assert.equal(new Set(created.map(({ id }) => id)).size, created.length);
  const [counts] = await store.inspect.counts();
  assert.equal(counts!.ready, created.length);
  for (const { id } of answers.flat()) assert.equal((await store.inspect.get(id))?.id, id);
  assert.deepEqual(await store.upkeep.integrity(), []);
});

async function somebodyWaits(store: Store): Promise<void> {
  while ((await store.inspect.writer()) === null);
}
