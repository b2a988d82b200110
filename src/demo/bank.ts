// The user's own tables, in the same file as the jobs: accounts, and a ledger with a row for each transfer. Nothing in them
// keeps a transfer from being written twice; only `commit` does. So a double would stay, and the audit would find it.
import type { Engine } from "../index.ts";
import { sqlite, type SqliteTransaction } from "../sqlite.ts";

export const ACCOUNTS = 50;
/** In cents. */
export const OPENING_BALANCE = 100_000;
/** Where fees go. */
export const BANK = 0;

export interface Movement {
  readonly jobId: string;
  readonly from: number;
  readonly to: number;
  readonly amount: number;
  readonly fee: number;
  /** Which attempt of the job wrote it. */
  readonly attempt: number;
}

export async function openBank(engine: Engine): Promise<void> {
  await engine.transaction(sqlite, (tx) => {
    tx.exec(`
      CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
      CREATE TABLE ledger (
        job_id TEXT NOT NULL,
        from_account INTEGER NOT NULL,
        to_account INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        fee INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        pid INTEGER NOT NULL
      );
    `);
    for (let id = BANK; id <= ACCOUNTS; id++) tx.run("INSERT INTO accounts VALUES (?, ?)", id, OPENING_BALANCE);
  });
}

export function moveMoney(tx: SqliteTransaction, { jobId, from, to, amount, fee, attempt }: Movement): void {
  tx.run("UPDATE accounts SET balance = balance - ? WHERE id = ?", amount + fee, from);
  tx.run("UPDATE accounts SET balance = balance + ? WHERE id = ?", amount, to);
  if (fee > 0) tx.run("UPDATE accounts SET balance = balance + ? WHERE id = ?", fee, BANK);
  tx.run("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", jobId, from, to, amount, fee, attempt, process.pid);
}
