// SIGTERM, as a deploy sends it: the worker takes nothing more, what runs may finish, and what can't is aborted by its signal and
// released at no cost. The next process goes on where it stopped, because its finished steps are kept.
// The library installs no signal handler; the program does. Outside of this repository write:
//   import { job, open } from "outlive";
import { setTimeout as sleep } from "node:timers/promises";
import { job, open } from "../src/index.ts";

const report = job<{ pages: number }>("report", { timeout: "1h" });

report.handle(async ({ pages }, run) => {
  if (run.interrupted) console.log(`going on after ${run.interrupted.lastStep ?? "nothing"} (${run.interrupted.how})`);
  for (let page = 1; page <= pages; page++) {
    await run.step(`page ${page}`, async () => {
      // Passed on, the signal ends what can be ended; the attempt is then released and costs nothing.
      await sleep(100, undefined, { signal: run.signal });
      console.log(`page ${page}`);
    });
  }
});

await using engine = await open("sqlite:./reports.db", { jobs: [report] });
await engine.enqueue(report, { pages: 12 }, { id: "yearly" });

// Listen before you work: jobs run before `work` has anything to say. `on`, not `once`: without a listener the second of two signals,
// as process groups send them, would kill the process while its jobs finish.
const stop = new AbortController();
process.on("SIGTERM", () => {
  console.log("stopping");
  stop.abort();
});
engine.on("job.succeeded", () => {
  console.log("done");
  stop.abort();
});

console.log("working");
// The grace must be shorter than what the platform allows before it kills (30 s in Kubernetes, 10 s in Docker).
await engine.work({ concurrency: 2, signal: stop.signal, grace: "500ms" });

const { state, counters } = (await engine.get("yearly"))!;
console.log(`the report is ${state}, ${counters.errors} errors, ${counters.interruptions} interruptions`);
