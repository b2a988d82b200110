// A process that works on collections, and puts parts if it is asked to: all ordinals of both series, from the first, again and again as a producer
// would after a crash. Arguments: the store's url, a folder for blobs, and a JSON of CollectionProcess.
import { open } from "../../src/index.ts";
import { brief, collections, content, scan } from "./collection-jobs.ts";
import { tell } from "./jobs.ts";
import { PATIENT } from "./processes.ts";

export interface CollectionProcess {
  /** Opens this collection and puts so many parts of each series. */
  readonly collect?: { readonly id: string; readonly kind: "scan" | "brief"; readonly parts: number };
  /** Runs jobs, too. Default true. */
  readonly works?: boolean;
}

const [url, blobs, given] = process.argv.slice(2);
const { collect, works = true } = JSON.parse(given!) as CollectionProcess;

const engine = await open(url!, { jobs: collections, blobs: blobs!, logger: false, heartbeat: PATIENT });
if (works) {
  // One job at a time: which transaction is the N-th is the same in every run.
  await engine.start({ concurrency: 1 });
  tell("working");
}
if (collect) {
  const { id, kind, parts } = collect;
  const answers: string[] = [];
  if (kind === "scan") {
    await engine.collect(scan, { id }, { id, expect: { files: parts } });
    for (let ordinal = parts; ordinal >= 1; ordinal--)
      answers.push(await engine.put(scan, id, "files", ordinal, content("files", ordinal)));
    await engine.announce(scan, id, { notes: 1 });
    answers.push(await engine.put(scan, id, "notes", 1, content("notes", 1)));
  } else {
    await engine.collect(brief, { id }, { id, expect: { files: parts + 1 } });
    for (let ordinal = 1; ordinal <= parts; ordinal++)
      answers.push(await engine.put(brief, id, "files", ordinal, content("files", ordinal)));
  }
  tell("collected", { answers });
}
if (!works) await engine.close();
