// A process that takes the write lock of a SQLite file and keeps it until its parent says that it may let go. Argument: the path.
import { DatabaseSync } from "node:sqlite";

const db = new DatabaseSync(process.argv[2]!, { timeout: 60_000 });
db.exec("BEGIN IMMEDIATE");
process.send!({ fact: "held" });
process.once("message", () => {
  db.exec("ROLLBACK");
  db.close();
  process.disconnect();
});
