// One worker process of the rig, as a user would write it. It tells its parent who it is and what it recovers, drains on SIGTERM, and does
// not outlive its parent.
import { flushCompileCache } from "node:module";
import { type EngineEvent, open } from "../index.ts";
import { JOBS, rejected } from "./jobs.ts";
import { CONCURRENCY, HEARTBEAT, LEASE, storeOptions } from "./settings.ts";

/** What a worker process tells its parent. */
export interface FromWorker {
  readonly event: EngineEvent;
}

/** What the parent acts upon; the rest is in the histories and in the store. */
const FOR_PARENT: ReadonlySet<string> = new Set(["worker.started", "worker.gone", "worker.disowned"]);

const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
process.on("SIGINT", () => {});
process.on("disconnect", () => {
  process.kill(0, "SIGCONT"); // a sibling that was frozen when the parent died would stay so for ever
  process.exit(1);
});

main(process.argv[2]!).catch((thrown: unknown) => {
  console.error(thrown);
  process.exit(1);
});

async function main(url: string): Promise<void> {
  await using engine = await open(url, {
    ...storeOptions(),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
    onEvent: tell,
  });
  flushCompileCache();
  await engine.work({ concurrency: CONCURRENCY, signal: stop.signal, grace: "5s" });
  process.removeAllListeners("disconnect");
  process.disconnect();
}

function tell(event: EngineEvent): void {
  if (event.name === "write.rejected") rejected(event.lease.jobId, event.tried);
  if (FOR_PARENT.has(event.name) && process.connected) process.send!({ event } satisfies FromWorker);
}
