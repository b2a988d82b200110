// One worker process, as a user would write it, and what the parent needs of it: it tells what the engine says, drains on
// SIGTERM, leaves Ctrl-C to the parent, and does not outlive it.
import { flushCompileCache } from "node:module";
import { open } from "../index.ts";
import type { EngineEvent } from "../index.ts";
import { JOBS, workAt } from "./jobs.ts";
import { CONCURRENCY, HEARTBEAT, LEASE } from "./settings.ts";
import { type Scene, sceneOptions, vaultAt } from "./vault.ts";

/** What a worker process tells its parent. */
export interface FromWorker {
  readonly event: EngineEvent;
}

const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
process.on("SIGINT", () => {});
process.on("disconnect", () => {
  process.kill(0, "SIGCONT"); // a sibling that was frozen when the parent died would stay so for ever
  process.exit(1);
});

main(JSON.parse(process.argv[2]!) as Scene).catch((thrown: unknown) => {
  console.error(thrown);
  process.exit(1);
});

async function main(scene: Scene): Promise<void> {
  workAt(vaultAt(scene));
  await using engine = await open(scene.url, {
    ...sceneOptions(scene),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
    onEvent: tell,
  });
  // Written when a process ends, which most of these never do by themselves; with it a new one starts twice as fast.
  flushCompileCache();
  await engine.work({ concurrency: CONCURRENCY, signal: stop.signal, grace: "5s" });
  process.removeAllListeners("disconnect");
  process.disconnect();
}

function tell(event: EngineEvent): void {
  if (process.connected) process.send!({ event } satisfies FromWorker);
}
