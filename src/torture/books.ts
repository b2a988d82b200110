// The user's own tables, in the same database as the jobs: a ledger with a row for each transfer, and nothing in it that would keep a
// transfer from being written twice. One form per store, because the transaction's handle differs.
import type { Engine, Run } from "../index.ts";
import { sqlite } from "../sqlite.ts";

export interface Entry {
  readonly job: string;
  readonly amount: number;
  readonly fence: string;
}

export interface Books {
  create(engine: Engine): Promise<void>;
  /** Completes the job in the same transaction as its row. */
  commit(run: Run, entry: Entry): Promise<unknown>;
  entries(engine: Engine): Promise<readonly Entry[]>;
}

const CREATE = "CREATE TABLE torture_ledger (job TEXT NOT NULL, amount INTEGER NOT NULL, fence TEXT NOT NULL)";
const ALL = "SELECT job, amount, fence FROM torture_ledger";

const onSqlite: Books = {
  create: (engine) => engine.transaction(sqlite, (tx) => tx.exec(CREATE)),
  commit: (run, { job, amount, fence }) =>
    run.commit(sqlite, (tx) => void tx.run("INSERT INTO torture_ledger VALUES (?, ?, ?)", job, amount, fence)),
  entries: (engine) => engine.transaction(sqlite, (tx) => tx.all<Entry>(ALL)),
};

export function booksOf(_url: string): Books {
  return onSqlite;
}
