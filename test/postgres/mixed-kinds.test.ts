// A worker whose kinds may wait for a slot only in part claims ahead up to the first job that may not wait.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Room } from "../../src/stores/port.ts";
import { draft, TestWorker, idsOf, kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, type FreshSchema, withClient } from "../support/postgres.ts";

/** Jobs named m may wait, jobs named s may not. */
const room = (total: number, ahead = 5): Room => ({
  total,
  kinds: [
    { kind: "mail", room: 9, ahead: true },
    { kind: "sms", room: 9 },
  ],
  ahead,
});

interface Here {
  readonly fresh: FreshSchema;
  readonly worker: TestWorker;
  readonly turn: (room: Room) => Promise<{ readonly ids: readonly string[]; readonly nextDueInMs: number | null }>;
}

async function here(t: TestContext, ...ids: readonly string[]): Promise<Here> {
  const fresh = await freshSchema(t);
  const store = await openStore(fresh);
  t.after(() => store.close());
  await store.declare([kind("mail"), kind("sms"), kind("other")]);
  const { epoch } = await store.register(workerRecord("w"));
  const kinds: Readonly<Record<string, string>> = { m: "mail", s: "sms", o: "other" };
  await store.enqueue(ids.map((id) => draft({ id, kind: kinds[id[0]!]! })));
  return {
    fresh,
    worker: new TestWorker(store, "w", epoch),
    turn: async (asked) => {
      const { claimed, nextDueInMs } = await store.turn("w", [], asked);
      return { ids: idsOf(claimed), nextDueInMs };
    },
  };
}

test("what is claimed ahead ends at the first job that may not wait, which the next free slot gets", async (t) => {
  const { worker } = await here(t, "m1", "m2", "s1", "m3", "s2", "m4");
  assert.deepEqual(idsOf(await worker.claim(room(1))), ["m1", "m2"]);
  assert.deepEqual(idsOf(await worker.claim(room(0))), []);
  assert.deepEqual(idsOf(await worker.claim(room(1))), ["s1", "m3"]);
  assert.deepEqual(idsOf(await worker.claim(room(2))), ["s2", "m4"]);
});

test("as many as slots are free are claimed of any kind, and jobs of kinds that are not the worker's stop nothing", async (t) => {
  const { worker } = await here(t, "s1", "o1", "s2", "m1", "o2", "m2", "s3", "m3");
  assert.deepEqual(idsOf(await worker.claim(room(2))), ["s1", "s2", "m1", "m2"]);
  assert.deepEqual(idsOf(await worker.claim(room(1, 1))), ["s3", "m3"]);
});

test("a job that may not wait stops nothing while its kind is paused", async (t) => {
  const { fresh, worker } = await here(t, "m1", "s1", "m2");
  await fresh.query(`UPDATE "${fresh.schema}".kinds SET paused = true WHERE name = 'sms'`);
  assert.deepEqual(idsOf(await worker.claim(room(1))), ["m1", "m2"]);
});

test("a slot that others leave free, because they take what is in front, is not left empty for long", async (t) => {
  const { fresh, turn } = await here(t, "s1", "s2");
  await withClient(fresh.url, async (client) => {
    await client.query("BEGIN");
    await client.query(`SELECT 1 FROM "${fresh.schema}".jobs WHERE id = 's1' FOR UPDATE`);
    // The first one is another worker's at this moment, and the second one is behind the free slot.
    const first = await turn(room(1));
    assert.deepEqual(first, { ids: [], nextDueInMs: 0 });
    assert.deepEqual((await turn(room(1))).ids, ["s2"]);
    await client.query("ROLLBACK");
  });
});

test("a worker of several kinds claims ahead again with its second turn after others took all that is in front", async (t) => {
  const { fresh, turn } = await here(t, ...Array.from({ length: 99 }, (_, n) => `m${n}`));
  const both: Room = { total: 2, kinds: room(2).kinds.map((each) => ({ ...each, ahead: true })), ahead: 5 };
  await withClient(fresh.url, async (client) => {
    await client.query("BEGIN");
    await client.query(`SELECT 1 FROM "${fresh.schema}".jobs ORDER BY seq LIMIT 70 FOR UPDATE`);
    assert.deepEqual(await turn(both), { ids: [], nextDueInMs: 0 });
    assert.deepEqual((await turn(both)).ids, ["m70", "m71"]);
    await client.query("ROLLBACK");
  });
  assert.equal((await turn(both)).ids.length, 7);
});

test("without a free slot a worker that finds a job that may not wait is not asked to come again at once", async (t) => {
  const { turn } = await here(t, "s1");
  assert.deepEqual(await turn(room(0)), { ids: [], nextDueInMs: null });
});

test("a worker that found nothing because its kinds were paused claims ahead again with its second turn", async (t) => {
  const { fresh, worker } = await here(t, ...Array.from({ length: 99 }, (_, n) => `m${n}`));
  const pause = (paused: boolean): Promise<unknown> =>
    fresh.query(`UPDATE "${fresh.schema}".kinds SET paused = ${paused} WHERE name = 'mail'`);
  await pause(true);
  // What is in front is not for it, and it looks at each of its kinds for a while.
  for (let turn = 0; turn < 3; turn++) assert.deepEqual(idsOf(await worker.claim(room(2))), []);
  await pause(false);
  assert.deepEqual(idsOf(await worker.claim(room(2))), ["m0", "m1"]);
  assert.equal((await worker.claim(room(2))).length, 7);
});
