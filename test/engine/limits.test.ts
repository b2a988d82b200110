// Limits per key, dedupe with rerun, debounce and throttle as a program sees them, with the real loop and the real store.
import assert from "node:assert/strict";
import { test } from "node:test";
import { z } from "zod";
import { ErrorCode, job } from "../../src/index.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { memory, says } from "./engines.ts";

test("a key never has more jobs running than its limit, and every job ends", async (t) => {
  const running = new Map<string, number>();
  let most = 0;
  const sync = job("sync", {
    input: z.object({ tenant: z.string(), n: z.number() }),
    limits: [{ name: "tenant", key: ({ tenant }) => tenant, running: 2 }],
  });
  sync.handle(async ({ tenant }) => {
    const now = (running.get(tenant) ?? 0) + 1;
    running.set(tenant, now);
    most = Math.max(most, now);
    await new Promise((resolve) => setImmediate(resolve));
    running.set(tenant, running.get(tenant)! - 1);
  });
  const engine = await memory(t, [sync]);
  const inputs = Array.from({ length: 200 }, (_, n) => ({ tenant: `t${n % 3}`, n }));
  await engine.enqueueMany(sync, inputs);
  const [counts] = await engine.runUntilIdle({ concurrency: 20 });
  assert.equal(counts?.succeeded, 200);
  assert.equal(most, 2);
});

test("why names the key that has no room, and a limit of one key can be raised while it works", async (t) => {
  const gate = Promise.withResolvers<void>();
  const slow = job<{ tenant: string }>("slow", {
    limits: [{ name: "tenant", key: ({ tenant }) => tenant, running: 1 }],
  });
  slow.handle(() => gate.promise);
  const engine = await memory(t, [slow]);
  await engine.start();
  const first = await engine.enqueue(slow, { tenant: "acme" });
  await untilState(engine, first.id, "running");
  const second = await engine.enqueue(slow, { tenant: "acme" });
  await untilTrue(
    () => engine.why(second.id),
    (why) => why?.because === "limit",
    "it is held",
  );
  const why = await engine.why(second.id);
  assert.match(why!.text, /key "acme" of the limit "tenant" is full: 1 of 1/);
  await engine.limits.set("tenant", "acme", { running: 2 });
  await untilState(engine, second.id, "running");
  gate.resolve();
  await assert.rejects(engine.limits.set("tenant", "acme", { running: 0 }), says(ErrorCode.optionInvalid, "running 0"));
});

test("a rate spreads the starts of a key, and a handler can hold its key off", async (t) => {
  const starts: number[] = [];
  const call = job<null>("call", { limits: [{ name: "crm", rate: 50, per: "1s", burst: 2 }] });
  call.handle(async (_, run) => {
    starts.push(performance.now());
    if (starts.length === 4) await run.holdOff("crm", "200ms");
    await assert.rejects(run.holdOff("other", "1s"), says(ErrorCode.optionInvalid, "other"));
  });
  const engine = await memory(t, [call]);
  await engine.enqueueMany(
    call,
    Array.from({ length: 6 }, () => null),
  );
  await engine.start();
  await untilTrue(
    () => starts.length,
    (count) => count === 6,
    "all have started",
  );
  // Two at once, then one every 20 ms, by the store's clock: a busy process may call the first handler later than the others.
  const { jobs } = await engine.list({ kind: "call" });
  const claims = jobs.map(({ startedAt }) => startedAt!).toSorted((a, b) => a - b);
  assert.ok(claims[3]! - claims[0]! >= 39, `${claims[3]! - claims[0]!}`);
  assert.ok(claims[4]! - claims[3]! >= 190, `${claims[4]! - claims[3]!}`);
});

test("an event during a run is seen by a run that begins after it, with the last input", async (t) => {
  const gate = Promise.withResolvers<void>();
  const seen: number[] = [];
  const index = job<{ n: number }>("index");
  index.handle(async ({ n }) => {
    seen.push(n);
    if (n === 1) await gate.promise;
  });
  const engine = await memory(t, [index]);
  await engine.start();
  const rerun = { dedupe: { key: "doc", then: "rerun" } } as const;
  const first = await engine.enqueue(index, { n: 1 }, rerun);
  await untilState(engine, first.id, "running");
  for (const n of [2, 3]) {
    const again = await engine.enqueue(index, { n }, rerun);
    assert.deepEqual(again, { id: first.id, created: false, became: "rerun" });
  }
  gate.resolve();
  await untilTrue(
    () => seen.join(),
    (all) => all === "1,3",
    "it ran once more",
  );
});

test("debounce and throttle join events into one run with the last input", async (t) => {
  const seen: string[] = [];
  const note = job<string>("note");
  note.handle((text) => void seen.push(text));
  const engine = await memory(t, [note]);
  for (const text of ["a", "b", "c"]) await engine.enqueue(note, text, { debounce: { key: "d", wait: "30ms" } });
  for (const text of ["x", "y", "z"]) await engine.enqueue(note, text, { throttle: { key: "t", every: "100ms" } });
  await engine.start();
  await untilTrue(
    () => seen.toSorted().join(),
    (all) => all === "c,z",
    "one of each",
  );
});

test("options of limits and keys that are wrong are refused with a sentence that helps", async (t) => {
  const limit = (more: object) => () => job<{ t: string }>("bad", { limits: [{ name: "l", ...more }] as never });
  assert.throws(limit({}), says(ErrorCode.optionInvalid, '"l"', "limits nothing"));
  assert.throws(limit({ running: 0 }), says(ErrorCode.optionInvalid, "running 0"));
  assert.throws(limit({ rate: -1 }), says(ErrorCode.optionInvalid, "rate -1"));
  assert.throws(limit({ running: 1, brust: 3 }), says(ErrorCode.optionInvalid, "brust"));
  const three = ["a", "b", "c"].map((name) => ({ name, running: 1 }));
  assert.throws(() => job<null>("three", { limits: three }), says(ErrorCode.optionInvalid, "3 limits"));
  const keyed = job<{ t?: string }>("keyed", { limits: [{ name: "l", key: ({ t: key }) => key!, running: 1 }] });
  const engine = await memory(t, [keyed]);
  await assert.rejects(engine.enqueue(keyed, {}), says(ErrorCode.keyInvalid, '"l"', "keyed"));
  const both = { dedupeKey: "k", debounce: { key: "k", wait: "1s" } } as const;
  await assert.rejects(engine.enqueue(keyed, { t: "a" }, both), says(ErrorCode.optionInvalid, "only one of"));
  const short = { debounce: { key: "k", wait: "2s", max: "1s" } } as const;
  await assert.rejects(engine.enqueue(keyed, { t: "a" }, short), says(ErrorCode.optionInvalid, "max"));
});

test("why tells a full key, a spent rate, a strict order and a debounce apart", async (t) => {
  const gate = Promise.withResolvers<void>();
  t.after(() => gate.resolve());
  const rated = job<null>("rated", { limits: [{ name: "hourly", rate: 1, per: "1h" }] });
  const strict = job<null>("strict", { limits: [{ name: "account", order: "strict" }] });
  const calm = job<null>("calm");
  for (const one of [rated, strict, calm]) one.handle(() => gate.promise);
  const engine = await memory(t, [rated, strict, calm]);
  await engine.start();
  const because = async (id: string, reason: string): Promise<void> => {
    await untilTrue(
      async () => (await engine.why(id))?.because,
      (is) => is === reason,
      `${id} waits because of ${reason}`,
    );
  };
  for (const one of [rated, strict]) {
    const { id } = await engine.enqueue(one, null);
    await untilState(engine, id, "running");
  }
  await because((await engine.enqueue(rated, null)).id, "rate");
  await because((await engine.enqueue(strict, null)).id, "strict-order");
  await because((await engine.enqueue(calm, null, { debounce: { key: "k", wait: "1h" } })).id, "debounced");
  await because((await engine.enqueue(calm, null, { debounce: { key: "m", wait: "1h", max: "1h" } })).id, "debounced");
  await because((await engine.enqueue(calm, null, { delay: "1h" })).id, "not-due");
});
