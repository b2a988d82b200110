// One worker process, as a user would write it, and what the parent needs of it: it tells what the engine says.
import { flushCompileCache } from "node:module";
import { open } from "../index.ts";
import type { EngineEvent } from "../index.ts";
import { runUnderParent, tellParent } from "./child.ts";
import { JOBS, workAt } from "./jobs.ts";
import { CONCURRENCY, HEARTBEAT, LEASE } from "./settings.ts";
import { type Scene, sceneOptions, vaultAt } from "./vault.ts";

/** What a worker process tells its parent. */
export interface FromWorker {
  readonly event: EngineEvent;
}

const scene = JSON.parse(process.argv[2]!) as Scene;

runUnderParent(async (signal) => {
  workAt(vaultAt(scene));
  await using engine = await open(scene.url, {
    ...sceneOptions(scene),
    jobs: JOBS,
    heartbeat: { interval: HEARTBEAT, lease: LEASE },
    logger: false,
    onEvent: (event) => tellParent({ event } satisfies FromWorker),
  });
  // Written when a process ends, which most of these never do by themselves; with it a new one starts twice as fast.
  flushCompileCache();
  await engine.work({ concurrency: CONCURRENCY, signal, grace: "5s" });
});
