// One worker process of the rig for waiting and keys: `node worker.ts URL MODULE`. The module has the kinds, and the times if they are others.
import { flushCompileCache } from "node:module";
import { type EngineOptions, open } from "../../../src/index.ts";

interface Program {
  readonly KINDS: NonNullable<EngineOptions["jobs"]>;
  readonly HEARTBEAT?: EngineOptions["heartbeat"];
  readonly CONCURRENCY?: number | Readonly<Record<string, number>>;
}

const [url, module] = process.argv.slice(2) as [string, string];
const { KINDS, HEARTBEAT, CONCURRENCY } = (await import(module)) as Program;
const engine = await open(url, {
  jobs: KINDS,
  logger: false,
  heartbeat: HEARTBEAT ?? { interval: "1s", lease: "20s", probe: "50ms", sweep: "1s" },
});
engine.on("write.rejected", () => void process.send?.("rejected"));
const worker = await engine.start({ concurrency: CONCURRENCY ?? 8 });
process.on("SIGTERM", () => void worker.stop({ grace: "5s" }));
process.send?.("working");
// For the next ones: a process that is killed does not come to it.
flushCompileCache();
await worker.stopped;
await engine.close();
process.disconnect?.();
