// Tests of jobs without waiting: a retry after an hour, a sleep of three days and a nightly schedule run in moments, because the test moves the clock.
// Run it as any test: node --test examples/testing.ts. Outside of this repository write:
//   import { job, open, schedule } from "outlive";
//   import { assertEnqueued, virtualClock } from "outlive/testing";
import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open, schedule } from "../src/index.ts";
import { assertEnqueued, virtualClock } from "../src/testing/index.ts";

const HOUR_MS = 3_600_000;
const sent: string[] = [];

const mail = job<{ to: string }>("mail", { retry: { backoff: { base: "1h", jitter: 0 } } });
mail.handle(({ to }, run) => {
  if (run.attempt === 1) throw new Error("the mail server is away");
  sent.push(to);
});

const remind = job<{ to: string }>("remind");
remind.handle(async ({ to }, run) => {
  await run.sleep("3d");
  await run.enqueue(mail, { to });
});

const nightly = schedule("nightly", remind, { cron: "0 3 * * *", input: { to: "all" }, overlap: "allow" });

test("a reminder is mailed after three days, also if the mail server is away at first", async (t) => {
  const clock = virtualClock(Date.UTC(2026, 0, 1));
  // Rare signs of life, so that days pass in moments: each is a timer, and `advance` runs all of them.
  const heartbeat = { interval: "1h", lease: "1d", probe: "1h", sweep: "1h" } as const;
  const jobs = [mail, remind, nightly];
  const engine = await open("sqlite::memory:", { jobs, clock, heartbeat, poll: "10m", logger: false });
  t.after(async () => {
    const closing = engine.close({ grace: "0ms" });
    await clock.advance(1_000);
    await closing;
  });
  await engine.start();
  await engine.enqueue(remind, { to: "ann" });
  await assertEnqueued(engine, mail, { to: "ann" }, { times: 0 });

  await clock.advance(3 * 24 * HOUR_MS);
  await assertEnqueued(engine, mail, { to: "ann" }, { times: 1 });
  assert.deepEqual(sent, [], "its first attempt failed");

  await clock.advance(2 * HOUR_MS);
  assert.deepEqual(sent, ["ann"]);
  await assertEnqueued(engine, remind, { to: "all" }, { times: 3 });
});
