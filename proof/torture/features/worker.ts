// One worker process of the rig for waiting and keys: `node worker.ts URL`.
import { open } from "../../../src/index.ts";
import { KINDS } from "./kinds.ts";

const engine = await open(process.argv[2]!, {
  jobs: KINDS,
  logger: false,
  heartbeat: { interval: "1s", lease: "20s", probe: "50ms", sweep: "1s" },
});
const worker = await engine.start({ concurrency: 8 });
process.on("SIGTERM", () => void worker.stop({ grace: "5s" }));
process.send?.("working");
await worker.stopped;
await engine.close();
process.disconnect?.();
