// A program of its own that takes the write lock of a database, `BEGIN IMMEDIATE`, and keeps it for as long as its arguments say.
import { DatabaseSync } from "node:sqlite";

const [file, ms] = process.argv.slice(2) as [string, string];
/** For a turn among writers that never pause. */
const TURN_MS = 10_000;
process.on("disconnect", () => process.exit(1));
const db = new DatabaseSync(file, { timeout: TURN_MS });
db.exec("BEGIN IMMEDIATE");
process.send?.({ held: true });
setTimeout(() => {
  db.exec("ROLLBACK");
  db.close();
  process.removeAllListeners("disconnect");
  process.disconnect?.();
}, Number(ms));
