// A claim that begins at the floors of its worker: what it takes, in which order, and that what lies below is found by the next look from the front.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { systemClock } from "../../src/platform/clock.ts";
import type { Room, Store } from "../../src/stores/port.ts";
import { LAG_MS, LOOK_AT_MOST_MS } from "../../src/stores/postgres/floors.ts";
import {
  draft,
  TestWorker,
  idsOf,
  kind,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, type FreshSchema } from "../support/postgres.ts";

interface Here {
  readonly store: Store;
  readonly worker: TestWorker;
  /** Moves the clock of the worker's process. */
  readonly pass: (ms: number) => void;
  /** As another process does it, of which this one hears nothing. */
  readonly makeReady: (id: string) => Promise<void>;
}

/** Every look at the clock takes 10 ms, so that each claim is a slow one. */
async function here(t: TestContext): Promise<Here> {
  const fresh = await freshSchema(t);
  let mono = 1_000;
  const store = await openStore(fresh, { clock: { ...systemClock, mono: () => (mono += 10) } });
  t.after(() => store.close());
  await store.declare([kind("mail"), kind("sms")]);
  const { epoch } = await store.register(workerRecord("w"));
  const query: FreshSchema["query"] = (text, values) =>
    fresh.query(text.replaceAll("outlive.", `"${fresh.schema}".`), values);
  return {
    store,
    worker: new TestWorker(store, "w", epoch),
    pass: (ms) => void (mono += ms),
    makeReady: async (id) => void (await query("UPDATE outlive.jobs SET state = 0, lane = 1 WHERE id = $1", [id])),
  };
}

const MIXED: Room = {
  total: 1,
  kinds: [
    { kind: "mail", room: 2, ahead: true },
    { kind: "sms", room: 2 },
  ],
  ahead: 1,
};

for (const [what, room] of [
  ["one kind", roomFor(2, ["mail"])],
  ["the front of two kinds", roomFor(2, ["mail", "sms"])],
  ["the front of two kinds of which one may not wait", MIXED],
] as readonly (readonly [string, Room])[]) {
  const add = (store: Store, ...ids: string[]): Promise<unknown> =>
    store.enqueue(ids.map((id) => draft({ id, priority: id.startsWith("high") ? 7 : id.startsWith("low") ? -1 : 0 })));

  /** Two claims, far enough apart: the floor is at `b`. */
  const atFloor = async ({ store, worker, pass }: Here): Promise<void> => {
    await add(store, "a", "b", "c", "d");
    assert.deepEqual(idsOf(await worker.claim(room)), ["a", "b"]);
    pass(LAG_MS);
    assert.deepEqual(idsOf(await worker.claim(room)), ["c", "d"]);
  };

  test(`${what}: what is above the floor is claimed in its order, of higher and lower priorities too`, async (t) => {
    const one = await here(t);
    await atFloor(one);
    await add(one.store, "low1", "e", "high1", "f", "high2");
    assert.deepEqual(idsOf(await one.worker.claim(room)), ["high1", "high2"]);
    assert.deepEqual(idsOf(await one.worker.claim(room)), ["e", "f"]);
    assert.deepEqual(idsOf(await one.worker.claim(room)), ["low1"]);
  });

  test(`${what}: a job that another process has made ready below the floor is claimed by the next look, which the answer announces`, async (t) => {
    const one = await here(t);
    await atFloor(one);
    await one.makeReady("a");
    await add(one.store, "e");
    const answer = await one.worker.turn([], room);
    assert.deepEqual(idsOf(answer.claimed), ["e"], "a is below the floor");
    assert.ok(answer.nextDueInMs !== null && answer.nextDueInMs <= LOOK_AT_MOST_MS, `${answer.nextDueInMs}`);
    one.pass(answer.nextDueInMs);
    assert.deepEqual(idsOf(await one.worker.claim(room)), ["a"]);
  });

  test(`${what}: a job that this worker returns is claimed by its next turn`, async (t) => {
    const one = await here(t);
    const { store, worker, pass } = one;
    await add(store, "a", "b", "c", "d");
    const [a] = await worker.claim(room);
    pass(LAG_MS);
    await worker.claim(room);
    await worker.settle(SETTLE.release(a!));
    assert.deepEqual(idsOf(await worker.claim(room)), ["a"]);
  });

  test(`${what}: a job that is retried by hand in this process is claimed by the next turn`, async (t) => {
    const one = await here(t);
    const { store, worker, pass } = one;
    await add(store, "a", "b", "c", "d");
    const [a] = await worker.claim(room);
    await worker.settle(SETTLE.succeed(a!));
    pass(LAG_MS);
    await worker.claim(room);
    await store.operate.retry("a", "ann");
    assert.deepEqual(idsOf(await worker.claim(room)), ["a"]);
  });
}
