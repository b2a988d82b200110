// The user's own tables, in the engine's own file: accounts that only `commit` writes to, and a ledger of what it did.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { noRows } from "../oracle/audit-rows.ts";
import { demand } from "../oracle/violation.ts";

export const ACCOUNTS = 6;
export const BALANCE = 1_000;

export function createTables(db: Database): void {
  createRows(db);
  db.exec("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)");
  db.exec(
    "CREATE TABLE ledger (job TEXT NOT NULL, fence INTEGER NOT NULL, source INTEGER NOT NULL, target INTEGER NOT NULL, amount INTEGER NOT NULL)",
  );
}

/** What rows of batches commit. */
function createRows(db: Database): void {
  db.exec("CREATE TABLE committed_rows (batch TEXT NOT NULL, round INTEGER NOT NULL, line INTEGER NOT NULL)");
}

export function openAccounts(db: Database): void {
  for (let id = 0; id < ACCOUNTS; id++) db.sql("INSERT INTO accounts VALUES (?, ?)").run(id, BALANCE);
}

/** One row of the ledger for each success of `kind`, and accounts that follow from the ledger. */
export function auditTables(db: Database, kind: string): void {
  noRows(
    db,
    `SELECT j.id, j.state, (SELECT count(*) FROM ledger l WHERE l.job = j.id) AS rows,
       (SELECT count(*) FROM outlive_history h WHERE h.job = j.seq AND h.event = 'retry' AND h.from_state = 2) AS retried
     FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
     WHERE k.name = '${kind}' AND rows <> retried + (j.state = 2)`,
    "ledger rows and successes differ",
  );
  noRows(db, "SELECT job, fence FROM ledger GROUP BY job, fence HAVING count(*) > 1", "committed twice");
  const { sum } = db.sql("SELECT sum(balance) AS sum FROM accounts").get() as { sum: number };
  demand(sum === ACCOUNTS * BALANCE, () => `the sum of the accounts was ${ACCOUNTS * BALANCE} and is ${sum}`);
  noRows(
    db,
    `SELECT a.id, a.balance, ${BALANCE} + (SELECT ifnull(sum(CASE WHEN l.target = a.id THEN l.amount ELSE -l.amount END), 0)
       FROM ledger l WHERE l.target = a.id OR l.source = a.id) AS expected FROM accounts a WHERE a.balance <> expected`,
    "accounts do not follow from the ledger",
  );
}
