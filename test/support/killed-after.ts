// `node killed-after.ts FILE STATEMENT...`: begins a transaction on a SQLite file, sends these statements, and dies before its commit.
import { DatabaseSync } from "node:sqlite";

const [path, ...statements] = process.argv.slice(2);
const db = new DatabaseSync(path!);
db.exec("BEGIN IMMEDIATE");
for (const statement of statements) db.exec(statement);
process.kill(process.pid, "SIGKILL");
