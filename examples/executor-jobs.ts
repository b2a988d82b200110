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
// A call of somebody else's time-stamping service.
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
  runTsa.handle((_, run) => alive(run, () => run.step("timestamp", () => work(1_000))));
  submitAnchorPolygon.handle((_, run) => alive(run, () => run.step("submit", () => work(1_000))));
  submitAnchorBitcoin.handle((_, run) => alive(run, () => run.step("submit", () => work(1_000))));
  buildArtifact.handle((_, run) => alive(run, () => run.step("build", () => work(500))));

  await using engine = await open(process.env["DATABASE_URL"] ?? "sqlite:./executor.db", { jobs: executorJobs });
  const stop = new AbortController();
  process.once("SIGTERM", () => stop.abort());
  console.log("working");
  await engine.work({ concurrency: 10, signal: stop.signal });
}

/** Says every 15 s that the attempt is alive: its deadline is then a whole timeout away again. */
async function alive(run: Run, task: () => Promise<unknown>): Promise<void> {
  const timer = setInterval(() => void run.heartbeat().catch(() => {}), 15_000);
  try {
    await task();
  } finally {
    clearInterval(timer);
  }
}
