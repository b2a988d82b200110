// Money moves between accounts, each transfer in a `commit`: its rows and the job's success are one transaction, or neither is.
import { sqlite } from "../../../src/stores/sqlite/transaction.ts";
import { ACCOUNTS, auditTables } from "./tables.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const TRANSFER = "transfer";

interface Transfer {
  readonly source: number;
  readonly target: number;
  readonly amount: number;
}

export const money: Workload = {
  name: "money",
  share: 1,
  weight: 8,
  kinds: { [TRANSFER]: ORDINARY },

  wish(random) {
    const source = random.below(ACCOUNTS);
    const target = (source + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
    const input: Transfer = { source, target, amount: 1 + random.below(50) };
    const key = random.below(3);
    return random.chance(0.3) ? { kind: TRANSFER, input, dedupeKey: `key-${key}` } : { kind: TRANSFER, input };
  },

  handlers({ work, random, commits }) {
    return {
      async [TRANSFER]({ source, target, amount }: Transfer, run) {
        await work(random.chance(0.2) ? 4_000 : 400);
        await run.commit(sqlite, (tx) => {
          commits(run);
          tx.run("UPDATE accounts SET balance = balance - ? WHERE id = ?", amount, source);
          tx.run("UPDATE accounts SET balance = balance + ? WHERE id = ?", amount, target);
          tx.run("INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", run.id, run.attempt, source, target, amount);
        });
      },
    };
  },

  audit: (db) => auditTables(db, TRANSFER),
};
