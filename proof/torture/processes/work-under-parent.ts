// The life of a worker process of the rig, as a user would write it. It tells its parent who it is, what it recovers, and when it stays
// inside a commit.
import { flushCompileCache } from "node:module";
import { type EngineEvent, type EngineOptions, open } from "../../../src/index.ts";
import { runUnderParent, tellParent } from "../../../src/torture/fleet.ts";
import { JOBS, onCommitting, rejected } from "./jobs.ts";
import { CONCURRENCY, HEARTBEAT, LEASE } from "./settings.ts";

/** What the parent acts upon; the rest is in the histories and in the store. */
const FOR_PARENT: ReadonlySet<string> = new Set(["worker.started", "recovery.started", "worker.disowned"]);

/** `only`: the name of the one kind that it runs. */
export function workUnderParent(url: string, { postgres }: Pick<EngineOptions, "postgres">, only?: string): void {
  const kinds = JOBS.filter(({ name }) => only === undefined || name === only);
  onCommitting((committing) => tellParent({ committing }));
  runUnderParent(async (signal) => {
    await using engine = await open(url, {
      ...(postgres && { postgres }),
      jobs: JOBS,
      heartbeat: { interval: HEARTBEAT, lease: LEASE },
      logger: false,
      onEvent: tell,
    });
    flushCompileCache();
    await engine.work({ concurrency: CONCURRENCY, only: kinds, signal, grace: "5s" });
  });
}

function tell(event: EngineEvent): void {
  if (event.name === "write.rejected") rejected(event.lease.jobId, event.tried);
  if (FOR_PARENT.has(event.name)) tellParent({ event });
}
