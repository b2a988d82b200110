// A process that works on batches and stops on SIGTERM, or submits one, whose key is its kind if none is given. Arguments: the store's url, a folder for
// output files, and a JSON of BatchProcess.
import { type Duration, type EngineOptions, open } from "../../src/index.ts";
import { batches, type Payment, payments } from "./batch-jobs.ts";
import { tell } from "./jobs.ts";
import { PATIENT } from "./processes.ts";

const [url, blobs, given] = process.argv.slice(2);
export interface BatchProcess {
  readonly submit?: readonly Payment[];
  readonly key?: string;
  readonly heartbeat?: EngineOptions["heartbeat"];
  /** A folder that it watches while it works. */
  readonly watch?: string;
  /** Of its stop. */
  readonly grace?: Duration;
}
const { submit, watch, key = "payments", heartbeat = PATIENT, grace = "30s" } = JSON.parse(given!) as BatchProcess;

const engine = await open(url!, { jobs: batches, blobs: blobs!, logger: false, heartbeat });
if (submit) {
  tell("submitted", { ...(await engine.submit(payments, submit, { key })) });
  await engine.close();
} else {
  // One block at a time: rows that end at once share a transaction, and a test could not say which one is the N-th.
  const worker = await engine.start({ concurrency: 1 });
  if (watch !== undefined) await engine.watchFolder(payments, watch, { format: "ndjson", every: "20ms" });
  tell("working");
  process.once("SIGTERM", () => void worker.stop({ grace }).then(() => process.exit(0)));
}
