// One worker process of a run, as a user would write it. It sends every event of its engine to its parent.
import { flushCompileCache } from "node:module";
import { open } from "../index.ts";
import { type FromProcess, runUnderParent, tellParent } from "./fleet.ts";
import { CONCURRENCY, HEARTBEAT, JOBS, LEASE, storeOptions, writeTo } from "./tables.ts";

const [url, schema = null] = process.argv.slice(2) as [string, string?];

runUnderParent(async (signal) => {
  writeTo(url, schema);
  await using engine = await open(url, {
    ...storeOptions(schema),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
    onEvent: (event) => tellParent({ event } satisfies FromProcess),
  });
  // Node writes the cache when a process exits, which most of these never do. With the cache a new process starts twice
  // as fast.
  flushCompileCache();
  await engine.work({ concurrency: CONCURRENCY, signal, grace: "5s" });
});
