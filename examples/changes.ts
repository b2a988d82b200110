// What people change, and what the audit keeps of it. Outside of this repository write:
//   import { job, open } from "outlive";
import { job, open } from "../src/index.ts";

const report = job<{ month: string }>("report", { expires: "1d", retention: { succeeded: "1h", dead: "90d" } });
report.handle(({ month }) => {
  if (!/^\d{4}-\d\d$/.test(month)) throw new Error(`${month} is not a month`);
  return `the report of ${month}`;
});

await using engine = await open("sqlite::memory:", { jobs: [report], logger: false });
await engine.enqueue(report, { month: "November" }, { id: "report-1" });
await engine.enqueue(report, { month: "2026-12" }, { id: "report-2", delay: "12h" });
await engine.enqueue(report, { month: "2026-01" }, { id: "report-3" });
await engine.cancel("report-3", { actor: "ann" });
await engine.cancel("report-1", { actor: "ann" });

await engine.pause(report, { reason: "the printer is empty", until: "2h", actor: "ann" });
await engine.promote("report-2", { actor: "ann", reason: "wanted today" });
await engine.retry("report-1", { input: { month: "2026-11" }, reason: "the month was wrong" });
const { found } = await engine.bulk("remove", { kind: "report", state: "cancelled" }, { dryRun: true });
const { changed, failures } = await engine.bulk(
  "remove",
  { kind: "report", state: "cancelled" },
  { reason: "a request" },
);
for (const { at, actor, action, target, count } of await engine.audit())
  console.log(new Date(at).toISOString(), actor, action, target, count);
console.log(`${found} found, ${changed} removed, ${failures.length} failed`);

await engine.resume(report);
await engine.runUntilIdle();
for (const done of await engine.wait(["report-1", "report-2"])) console.log(done);
