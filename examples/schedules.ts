// Schedules: a report every night at three in Berlin, and a schedule for one customer that is set at run time. The clock is a virtual one, so that two
// days pass in a moment; a program in production omits it. Outside of this repository write:
//   import { job, open, schedule } from "outlive";
//   import { virtualClock } from "outlive/testing";
import * as z from "zod";
import { job, open, schedule } from "../src/index.ts";
import { virtualClock } from "../src/testing/index.ts";

const report = job("report", { input: z.object({ day: z.string() }) });

report.handle(({ day }, run) => {
  const { schedule: name, at, caughtUp } = run.scheduled!;
  console.log(`${name}: the report of ${day}, planned for ${at}${caughtUp ? ", late" : ""}`);
});

const nightly = schedule("nightly", report, {
  cron: "0 3 * * *",
  zone: "Europe/Berlin",
  input: ({ at }) => ({ day: at.slice(0, 10) }),
  missed: "latest",
  within: "1d",
  overlap: "skip",
});

const clock = virtualClock(Date.UTC(2026, 2, 28, 12));
const engine = await open("sqlite::memory:", {
  jobs: [report, nightly],
  clock,
  logger: false,
  poll: "10m",
  heartbeat: { interval: "1h", lease: "1d", probe: "1h", sweep: "1h" },
});
const worker = await engine.start();

await engine.schedules.set("acme", report, { every: "12h", input: { day: "any" }, jitter: "1m" });

// Clocks go forward in Berlin on 29 March: 03:00 is 01:00 UTC from then on.
await clock.advance(30 * 3_600_000);

// No worker lives for a day. What was missed meanwhile is done by the policy: the latest one runs.
await engine.schedules.pause("acme", { reason: "the customer moves", until: "10d" });
clock.freeze(26 * 3_600_000);
await clock.advance(60_000);

for (const { at, offset } of await engine.schedules.preview("nightly", 2))
  console.log(`next: ${new Date(at).toISOString()} (${offset})`);
const { skipped } = (await engine.schedules.get("nightly"))!;
console.log(`skipped: ${skipped.missed}`);

const stopping = worker.stop({ grace: "0s" });
await clock.advance(1_000);
await stopping;
await engine.close();
