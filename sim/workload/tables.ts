// The user's own tables, in the engine's own file: accounts that only `commit` writes to, and a ledger of what it did.
import type { Database } from "../../src/stores/sqlite/database.ts";

export const ACCOUNTS = 6;
export const BALANCE = 1_000;

export function createTables(db: Database): void {
  db.exec("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)");
  db.exec(
    "CREATE TABLE ledger (job TEXT NOT NULL, fence INTEGER NOT NULL, source INTEGER NOT NULL, target INTEGER NOT NULL, amount INTEGER NOT NULL)",
  );
}

export function openAccounts(db: Database): void {
  for (let id = 0; id < ACCOUNTS; id++) db.sql("INSERT INTO accounts VALUES (?, ?)").run(id, BALANCE);
}
