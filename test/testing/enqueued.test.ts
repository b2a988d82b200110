// What tests of programs use: assertions on what was enqueued, and a clock with which retries, delays, sleeps and schedules pass without waiting.
import assert from "node:assert/strict";
import { test } from "node:test";
import { job, type JobDetails, schedule } from "../../src/index.ts";
import { assertEnqueued, enqueued, virtualClock } from "../../src/testing/index.ts";
import { memory } from "../engine/engines.ts";

const mail = job<{ to: string; tags?: { a: number; b: number } }>("mail").handle(() => {});
const other = job("other").handle(() => {});

test("enqueued returns the jobs whose inputs match, in order, also those that have run", async (t) => {
  const engine = await memory(t, [mail, other]);
  await engine.enqueue(mail, { to: "ann", tags: { a: 1, b: 2 } });
  await engine.runUntilIdle();
  await engine.enqueue(mail, { to: "bob" });
  const to = (found: readonly JobDetails[]): string[] => found.map(({ input }) => (input as { to: string }).to);
  assert.deepEqual(to(await enqueued(engine, mail)), ["ann", "bob"]);
  assert.deepEqual(to(await enqueued(engine, mail, { tags: { b: 2 } })), ["ann"]);
  assert.deepEqual(to(await enqueued(engine, mail, { tags: { b: 3 } })), []);
  assert.deepEqual(to(await enqueued(engine, mail, (input) => input.to > "b")), ["bob"]);
});

test("assertEnqueued throws with what is there instead", async (t) => {
  const engine = await memory(t, [mail, other]);
  const { id } = await engine.enqueue(mail, { to: "ann" });
  assert.equal((await assertEnqueued(engine, mail, { to: "ann" }))[0]?.id, id);
  await assertEnqueued(engine, other, undefined, { times: 0 });
  await assert.rejects(assertEnqueued(engine, other), { name: "AssertionError", message: /No other job was enqueued/ });
  await assert.rejects(assertEnqueued(engine, mail, { to: "bob" }), /0 mail jobs with \{"to":"bob"\}.*\n.*"ann"/);
  await assert.rejects(assertEnqueued(engine, mail, { to: "ann" }, { times: 2 }), /1 mail jobs .* and 2 should be/);
});

test("retries, delays, sleeps and schedules pass without waiting on the virtual clock", async (t) => {
  const clock = virtualClock();
  const ran: string[] = [];
  const noted = (what: string): void => void ran.push(`${what} ${new Date(clock.now()).toISOString().slice(11, 16)}`);
  const retried = job("retried", {
    retry: { attempts: 2, backoff: { base: "24m", max: "24m", jitter: 0 } },
    timeout: "1m",
  }).handle((_, run) => {
    noted(`retried ${run.attempt}`);
    if (run.attempt === 1) throw new Error("later");
  });
  const delayed = job("delayed").handle(() => noted("delayed"));
  const sleeper = job("sleeper").handle(async (_, run) => {
    await run.sleep("30m");
    noted("slept");
  });
  const often = job("often").handle(() => noted("often"));
  const engine = await memory(
    t,
    [retried, delayed, sleeper, often, schedule("s", often, { every: "24m", offset: "3m" })],
    {
      clock,
      poll: "10m",
      heartbeat: { interval: "1d", lease: "3d", probe: "1d", sweep: "1d" },
    },
  );
  await engine.start();
  await engine.enqueue(retried, null);
  await engine.enqueue(delayed, null, { delay: "12m" });
  await engine.enqueue(sleeper, null);
  await clock.advance(31 * 60_000);
  assert.deepEqual(ran, [
    "retried 1 00:00",
    "often 00:03",
    "delayed 00:12",
    "retried 2 00:24",
    "often 00:27",
    "slept 00:30",
  ]);
  const closing = engine.close({ grace: "0ms" });
  await clock.advance(1_000);
  await closing;
});
