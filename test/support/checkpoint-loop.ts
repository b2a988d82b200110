// Loaded into a child with --import: a thread that checkpoints the database without pause, so that a SIGKILL at any moment most
// likely comes during a checkpoint. Node loads it into every thread of the child; only its own one loops.
import { DatabaseSync } from "node:sqlite";
import { isMainThread, Worker, workerData } from "node:worker_threads";

const path = process.env["OUTLIVE_CHECKPOINT"];
if (path && isMainThread) {
  new Worker(new URL(import.meta.url), { name: "checkpoints", workerData: "checkpoints", execArgv: [] }).unref();
} else if (path && workerData === "checkpoints") {
  const db = new DatabaseSync(path, { timeout: 0 });
  for (;;) {
    try {
      db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    } catch {
      // Busy: again.
    }
  }
}
