// A process that uses a store's file and stays until it is killed. Arguments: the store's url, its path, and a JSON of
// { enqueue: jobs }, { read: true } for a read transaction that is never ended, or { uncommitted: rows } for a write transaction.
import { DatabaseSync } from "node:sqlite";
import { open } from "../../src/index.ts";
import { jobs, tell, transfer } from "./jobs.ts";

const [url, path, given] = process.argv.slice(2);
const { enqueue, read, uncommitted } = JSON.parse(given!) as { enqueue?: number; read?: true; uncommitted?: number };

// Keeps the process alive.
process.on("message", () => {});

if (enqueue !== undefined) {
  const engine = await open(url!, { jobs, logger: false });
  await engine.enqueueMany(
    transfer,
    Array.from({ length: enqueue }, (_, n) => ({ n })),
  );
  tell("enqueued");
} else {
  const db = new DatabaseSync(path!, { timeout: 10_000 });
  if (read) {
    db.exec("BEGIN");
    db.prepare("SELECT count(*) FROM outlive_jobs").get();
    tell("reading");
  } else {
    // So few pages in memory that most of the transaction is in the log already.
    db.exec("PRAGMA cache_size = 10; PRAGMA wal_autocheckpoint = 0; BEGIN IMMEDIATE");
    const insert = db.prepare("INSERT INTO ledger (job, n) VALUES (?, ?)");
    for (let n = 0; n < uncommitted!; n++) insert.run("never committed ".repeat(10), n);
    tell("written");
  }
  // Collected, it would close the connection.
  Object.assign(globalThis, { db });
}
