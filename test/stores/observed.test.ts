// Holds the wrapper around a store to what it adds to every call: words, wake-ups, refusals, measurements and faults.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, OutliveError, toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { type Observation, observed, type SomeVerbs, type Verb, VERBS, withVerbs } from "../../src/stores/observed.ts";
import { draft, kind, roomFor, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { transactionsFor } from "../../src/worker/run.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { memory } from "../engine/engines.ts";
import { fakeStore } from "../support/samples.ts";

const wakeups = () => {
  const notified: string[] = [];
  return { notified, channel: { notify: () => void notified.push("wake"), onWakeup: () => () => {} } };
};

function wrapped(verbs: SomeVerbs, how: Observation) {
  return observed(fakeStore({ close: async () => {}, ...verbs }), how);
}

test("an error of the driver is worded with what the store was doing, from the arguments of the call", async () => {
  const store = wrapped(
    {
      declare: () => Promise.reject(new Error("disk")),
      inspect: { get: () => Promise.reject(new Error("disk")) },
    },
    { words: (doing, thrown) => new Error(`${doing}: ${(thrown as Error).message}`) },
  );
  await assert.rejects(store.declare([]), /^Error: declaring kinds: disk$/);
  await assert.rejects(store.inspect.get("job-7"), /^Error: reading job job-7: disk$/);
});

test("a call that made work ready wakes the other processes and the listeners of this one; any other wakes none", async () => {
  const { notified, channel } = wakeups();
  const heard: string[] = [];
  const store = wrapped(
    {
      enqueue: async () => [],
      operate: { setPaused: async () => true },
      losses: { judge: async () => true },
    },
    { wakeups: channel },
  );
  const unhear = store.onWakeup(() => void heard.push("heard"));
  await store.operate.setPaused("mail", true);
  await store.losses.judge("incident", []);
  assert.deepEqual([notified, heard], [[], []]);
  await store.operate.setPaused("mail", false);
  await store.enqueue([]);
  unhear();
  await store.enqueue([]);
  assert.deepEqual([notified.length, heard.length], [3, 2]);
});

test("a verb that sends its wake-up within its own transaction wakes only the listeners of this process", async () => {
  const { notified, channel } = wakeups();
  const heard: string[] = [];
  const store = wrapped({ enqueue: async () => [] }, { wakeups: channel, notifyThemselves: ["enqueue"] });
  store.onWakeup(() => void heard.push("heard"));
  await store.enqueue([]);
  assert.deepEqual([notified, heard], [[], ["heard"]]);
});

test("a call that failed wakes none", async () => {
  const { notified, channel } = wakeups();
  const store = wrapped({ enqueue: () => Promise.reject(new Error("full")) }, { wakeups: channel });
  await assert.rejects(store.enqueue([]), /full/);
  assert.deepEqual(notified, []);
});

test("on a read-only store every verb that writes is refused without asking the store, and every other one is asked", async () => {
  const asked: Verb[] = [];
  const real = await openStore(virtualClock(), ":memory:");
  const store = observed(real, {
    readOnly: true,
    around: async (verb) => {
      asked.push(verb);
      return null;
    },
  });
  const refused: Verb[] = [];
  for (const verb of Object.keys(VERBS) as Verb[]) {
    const [part, name] = verb.split(".") as [string, string | undefined];
    const owner = (name === undefined ? store : store[part as "inspect"]) as never as Record<
      string,
      () => Promise<null>
    >;
    if (!owner[name ?? part]) continue;
    await owner[name ?? part]!().catch((thrown: unknown) => {
      assert.equal((thrown as OutliveError).code, ErrorCode.storeReadOnly, verb);
      refused.push(verb);
    });
  }
  await real.close();
  assert.ok(refused.includes("turn") && refused.includes("transactions.commit") && refused.includes("upkeep.repair"));
  assert.ok(asked.includes("workers") && asked.includes("heldBy") && asked.includes("inspect.list"));
  assert.deepEqual(
    refused.filter((verb) => VERBS[verb].writes === undefined),
    [],
  );
  assert.deepEqual(
    asked.filter((verb) => VERBS[verb].writes !== undefined),
    [],
  );
});

test("a closed store refuses every call, and closing it twice closes it once", async () => {
  let closes = 0;
  const store = wrapped({ close: async () => void closes++, inspect: { counts: async () => [] } }, {});
  await store.inspect.counts();
  await Promise.all([store.close(), store.close()]);
  assert.equal(closes, 1);
  await assert.rejects(store.inspect.counts(), { code: ErrorCode.closed });
});

test("each call is measured, with its outcome, only for listeners that ask for it by name", async () => {
  const clock = virtualClock();
  const events = new EventBus(toStoredError);
  const any: string[] = [];
  events.onAny(({ name }) => void any.push(name));
  const store = wrapped(
    {
      inspect: { counts: async () => (await clock.advance(7), []), health: () => Promise.reject(new Error("down")) },
    },
    { telemetry: { events, clock } },
  );
  await store.inspect.counts();
  const calls: unknown[] = [];
  events.on("store.called", (call) => void calls.push(call));
  await store.inspect.counts();
  await assert.rejects(store.inspect.health());
  assert.deepEqual(calls, [
    { verb: "inspect.counts", ok: true, durationMs: 7 },
    { verb: "inspect.health", ok: false, durationMs: 0 },
  ]);
  assert.deepEqual(any, []);
});

test("the engine's listeners hear the calls to its store by name", async (t) => {
  const engine = await memory(t, []);
  const verbs: string[] = [];
  engine.on("store.called", ({ verb }) => void verbs.push(verb));
  await engine.counts();
  assert.deepEqual(verbs, ["inspect.counts"]);
});

test("a fault may keep a call from the store, or lose its answer", async () => {
  let writes = 0;
  let lost: "request" | "answer" = "request";
  const store = wrapped(
    { enqueue: async () => (writes++, []) },
    {
      async around(_verb, _args, call) {
        if (lost === "answer") await call();
        throw new Error(`the ${lost} was lost`);
      },
    },
  );
  await assert.rejects(store.enqueue([]), /the request was lost/);
  assert.equal(writes, 0);
  lost = "answer";
  await assert.rejects(store.enqueue([]), /the answer was lost/);
  assert.equal(writes, 1);
});

test("a part that a store does not offer is not there in the wrapped store either", async () => {
  const real = await openStore(virtualClock(), ":memory:");
  const { transactions: _, ...bare } = real;
  const store = observed(bare, {});
  assert.equal(store.transactions, undefined);
  assert.equal("advice" in store.upkeep, false);
  await store.close();
});

test("commit on a store without transactions is refused with a code of its own, whatever the form", () => {
  const form = { store: "memory", mode: "async" } as const;
  assert.throws(
    () => transactionsFor({ name: "memory" }, form, "Job 7 called commit"),
    (thrown: unknown) =>
      thrown instanceof OutliveError &&
      thrown.code === ErrorCode.commitUnsupported &&
      thrown.message.startsWith("Job 7 called commit, but the open store, memory, has no transactions"),
  );
});

test("verbs that are replaced, in a part too, leave the others as they were", async () => {
  const real = await openStore(virtualClock(), ":memory:");
  const store = withVerbs(real, { workers: async () => [], inspect: { counts: async () => [] } });
  await real.declare([kind("mail")]);
  await real.enqueue([draft("a")]);
  assert.deepEqual([await store.inspect.counts(), (await real.inspect.counts()).length], [[], 1]);
  assert.equal((await store.inspect.get("a"))?.state, "queued");
  await real.register(workerRecord("w"));
  assert.deepEqual([await store.workers({}), (await real.workers({})).length], [[], 1]);
  assert.equal((await store.turn("w", [], roomFor(1))).claimed.length, 1);
  await real.close();
});
