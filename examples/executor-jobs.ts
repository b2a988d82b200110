// Six kinds of a document service on PostgreSQL, each with the time that one attempt may take. The times are written into the
// table of kinds when a worker starts, so that plain SQL (`SELECT * FROM outlive.reclaim_stale_jobs()`) knows them when no worker is left.
//   outlive migrate up --store "$DATABASE_URL"
//   node executor-jobs.ts                                          (a worker)
//   psql "$DATABASE_URL" -c "SELECT * FROM outlive.enqueue('run_tsa', '{\"documentId\":\"d1\"}', dedupe_key => 'd1')"
// Outside of this repository write:
//   import { job, open, type Run } from "outlive";
import { setTimeout as work } from "node:timers/promises";
import * as z from "zod";
import { job, open, type Run } from "../src/index.ts";

const input = z.object({ documentId: z.string().min(1) });

// Fast cryptography.
export const protectDocument = job("protect_document_v2", { input, timeout: "5m" });
export const documentProtected = job("document.protected", { input, timeout: "5m" });
// A call of an external time-stamping service.
export const runTsa = job("run_tsa", { input, timeout: "30m" });
// Transactions on a chain.
export const submitAnchorPolygon = job("submit_anchor_polygon", { input, timeout: "60m" });
export const submitAnchorBitcoin = job("submit_anchor_bitcoin", { input, timeout: "60m" });
// Making the proof.
export const buildArtifact = job("build_artifact", { input, timeout: "15m" });

export const executorJobs = [
  protectDocument,
  documentProtected,
  runTsa,
  submitAnchorPolygon,
  submitAnchorBitcoin,
  buildArtifact,
];

if (import.meta.main) {
  protectDocument.handle(async ({ documentId }, run) => {
    await run.step("hash", () => work(100));
    // A later attempt enqueues the same job again, which adds nothing.
    await run.enqueue(documentProtected, { documentId });
  });
  documentProtected.handle(async ({ documentId }, run) => {
    await run.enqueue(runTsa, { documentId }, { dedupeKey: documentId });
    await run.enqueue(buildArtifact, { documentId }, { dedupeKey: documentId });
  });
  // The signal ends the work itself when the attempt has ended.
  const slowly = (run: Run, step: string, ms: number): Promise<void> =>
    alive(run, () => run.step(step, () => work(ms, undefined, { signal: run.signal })));
  runTsa.handle((_, run) => slowly(run, "timestamp", 1_000));
  submitAnchorPolygon.handle((_, run) => slowly(run, "submit", 1_000));
  submitAnchorBitcoin.handle((_, run) => slowly(run, "submit", 1_000));
  buildArtifact.handle((_, run) => slowly(run, "build", 500));

  await using engine = await open(process.env["DATABASE_URL"] ?? "sqlite:./executor.db", { jobs: executorJobs });
  const stop = new AbortController();
  process.on("SIGTERM", () => stop.abort());
  console.log("working");
  await engine.work({ concurrency: 10, signal: stop.signal });
}

/**
 * Says every 15 s that the attempt is alive: its deadline is then a whole timeout away again. A heartbeat that is refused, because the job
 * has a new owner or was cancelled, ends the attempt with that error. One that the store could not take now is logged and sent again.
 */
export async function alive<T>(run: Run, task: () => Promise<T>, everyMs = 15_000): Promise<T> {
  const refused = Promise.withResolvers<never>();
  const timer = setInterval(() => {
    run.heartbeat().catch((thrown: unknown) => {
      if (run.signal.aborted) refused.reject(thrown);
      else console.error(`heartbeat of job ${run.id} failed and is sent again:`, thrown);
    });
  }, everyMs);
  try {
    return await Promise.race([task(), refused.promise]);
  } finally {
    clearInterval(timer);
  }
}
