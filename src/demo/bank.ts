// The user's own tables, beside the jobs in the same store: accounts, and a ledger with a row for each transfer. Nothing in them
// keeps a transfer from being written twice; only `commit` does. So a double would stay, and the audit would find it.
import type { Engine } from "../index.ts";
import { type Statement, vaultOf } from "./vault.ts";

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
  await vaultOf(engine).write(engine, [
    { sql: "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)" },
    {
      sql: `CREATE TABLE ledger (
        job_id TEXT NOT NULL,
        from_account INTEGER NOT NULL,
        to_account INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        fee INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        pid INTEGER NOT NULL
      )`,
    },
    ...Array.from({ length: ACCOUNTS + 1 }, (_, id) => ({
      sql: "INSERT INTO accounts VALUES (?, ?)",
      values: [BANK + id, OPENING_BALANCE],
    })),
  ]);
}

/** What a movement writes. Accounts in the order of their numbers: two movements never wait for each other in a circle. */
export function movement({ jobId, from, to, amount, fee, attempt }: Movement): Statement[] {
  const changes = [
    { id: from, change: -(amount + fee) },
    { id: to, change: amount },
    ...(fee > 0 ? [{ id: BANK, change: fee }] : []),
  ].sort((a, b) => a.id - b.id);
  return [
    ...changes.map(({ id, change }) => ({
      sql: "UPDATE accounts SET balance = balance + ? WHERE id = ?",
      values: [change, id],
    })),
    {
      sql: "INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)",
      values: [jobId, from, to, amount, fee, attempt, process.pid],
    },
  ];
}
