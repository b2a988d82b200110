// One worker process of the rig, as a user would write it. It tells its parent who it is and what it recovers.
import { flushCompileCache } from "node:module";
import { runUnderParent, tellParent } from "../demo/child.ts";
import { type EngineEvent, open } from "../index.ts";
import { JOBS, rejected } from "./jobs.ts";
import { CONCURRENCY, HEARTBEAT, LEASE, storeOptions } from "./settings.ts";

/** What the parent acts upon; the rest is in the histories and in the store. */
const FOR_PARENT: ReadonlySet<string> = new Set(["worker.started", "recovery.started", "worker.disowned"]);

runUnderParent(async (signal) => {
  await using engine = await open(process.argv[2]!, {
    ...storeOptions(),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
    onEvent: tell,
  });
  flushCompileCache();
  await engine.work({ concurrency: CONCURRENCY, signal, grace: "5s" });
});

function tell(event: EngineEvent): void {
  if (event.name === "write.rejected") rejected(event.lease.jobId, event.tried);
  if (FOR_PARENT.has(event.name)) tellParent({ event });
}
