// Enqueues in bulk, and stands still once its second batch is stored. Arguments: the address, the schema, how many jobs.
import { job, open } from "../../src/index.ts";
import { tell } from "../support/jobs.ts";

const [url, schema, count] = process.argv.slice(2);
const plain = job<{ n: number }>("plain");
const engine = await open(url!, { jobs: [plain], logger: false, postgres: { schema: schema! } });
const inputs = Array.from({ length: Number(count) }, (_, n) => ({ n }));
let batches = 0;
const enqueued = await engine.enqueueMany(plain, inputs, {
  onBatch() {
    if (++batches === 2) process.kill(process.pid, "SIGSTOP");
  },
});
await engine.close();
tell("enqueued", { ...enqueued });
