// One worker process of the rig for batches: `node worker.ts URL BLOBS`.
import { flushCompileCache } from "node:module";
import { type EngineEvent, open } from "../../../src/index.ts";
import { runUnderParent, tellParent } from "../../../src/torture/fleet.ts";
import { say } from "./history.ts";
import { attach, KINDS } from "./kinds.ts";
import { HEARTBEAT } from "./settings.ts";
import { tablesOf } from "./tables.ts";

const [url, blobs] = process.argv.slice(2) as [string, string];
attach(await tablesOf(url));

function heard(event: EngineEvent): void {
  if (event.name === "batch.ended") say({ what: "ended", id: event.batch, round: event.round });
  if (event.name === "worker.started" || event.name === "write.rejected") tellParent({ event });
}

runUnderParent(async (signal) => {
  await using engine = await open(url, { jobs: KINDS, blobs, heartbeat: HEARTBEAT, logger: false, onEvent: heard });
  flushCompileCache();
  await engine.work({ concurrency: 4, signal, grace: "5s" });
});
