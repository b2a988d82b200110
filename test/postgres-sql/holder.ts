// A worker process of the executor's kinds whose handlers hold their jobs until the process ends. Arguments: the address, the schema, the lease.
import { executorJobs } from "../../examples/executor-jobs.ts";
import { open } from "../../src/index.ts";

const [url, schema, lease = "8s"] = process.argv.slice(2);
for (const kind of executorJobs) {
  kind.handle(async (_, run) => {
    await run.step("begin", () => "begun");
    process.send!({ fact: "holding", job: run.id, fence: run.fence.number });
    await new Promise((resolve) => run.signal.addEventListener("abort", resolve));
  });
}
const engine = await open(url!, {
  jobs: executorJobs,
  logger: false,
  heartbeat: { interval: "500ms", lease: lease as "8s" },
  postgres: { schema: schema! },
});
const worker = await engine.start({ concurrency: 5 });
process.send!({ fact: "working", worker: worker.id });
