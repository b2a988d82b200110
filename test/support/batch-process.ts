// A process that works on batches, or submits one: its key is its kind. Arguments: the store's url, a folder for output files, and a JSON of
// { submit: rows } or {}.
import { open } from "../../src/index.ts";
import { batches, type Payment, payments } from "./batch-jobs.ts";
import { tell } from "./jobs.ts";
import { PATIENT } from "./processes.ts";

const [url, blobs, given] = process.argv.slice(2);
const { submit } = JSON.parse(given!) as { submit?: readonly Payment[] };

const engine = await open(url!, { jobs: batches, blobs: blobs!, logger: false, heartbeat: PATIENT });
if (submit) {
  tell("submitted", { ...(await engine.submit(payments, submit, { key: "payments" })) });
  await engine.close();
}
// One block at a time: rows that end at once share a transaction, and a test could not say which one is the N-th.
else await engine.start({ concurrency: 1 });
