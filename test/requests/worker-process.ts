// One process that sends requests: `node worker-process.ts STORE`. It says what happened to its parent.
import { open } from "../../src/index.ts";
import { HEARTBEAT, KINDS } from "./kinds.ts";

const engine = await open(process.argv[2]!, { jobs: KINDS, logger: false, heartbeat: HEARTBEAT });
const worker = await engine.start({ concurrency: { again: 500, once: 100, asking: 100 } });
process.on("SIGTERM", () => void worker.stop({ grace: "200ms" }));
process.send!({ fact: "working", worker: worker.id });
await worker.stopped;
await engine.close();
process.disconnect();
