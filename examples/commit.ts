// Money moves exactly once: the two balances and the job's success are one transaction. Kill this program with `kill -9` as
// often as you like and start it again: the sum of the accounts never changes and no transfer is booked twice.
// Outside of this repository write:
//   import { job, open, TerminalError } from "outlive";
//   import { sqlite } from "outlive/sqlite";
import * as z from "zod";
import { job, open, TerminalError } from "../src/index.ts";
import { sqlite } from "../src/sqlite.ts";

const transfer = job("transfer", {
  input: z.object({ from: z.string(), to: z.string(), cents: z.int().positive() }),
});

transfer.handle(async ({ from, to, cents }, run) => {
  await run.commit(sqlite, (tx) => {
    const { changes } = tx.run(
      "UPDATE accounts SET cents = cents - ? WHERE name = ? AND cents >= ?",
      cents,
      from,
      cents,
    );
    // Thrown out of the callback, it undoes the transaction; being terminal, it ends the job without another attempt.
    if (changes === 0) throw new TerminalError(`${from} does not have ${cents} cents`);
    tx.run("UPDATE accounts SET cents = cents + ? WHERE name = ?", cents, to);
    tx.run("INSERT INTO ledger (job, sender, receiver, cents) VALUES (?, ?, ?, ?)", run.id, from, to, cents);
  });
});

await using engine = await open("sqlite:./bank.db", { jobs: [transfer], logger: false });

// Your own tables live in the same file, next to the engine's.
await engine.transaction(sqlite, (tx) => {
  tx.exec(`CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
           CREATE TABLE IF NOT EXISTS ledger (job TEXT, sender TEXT, receiver TEXT, cents INTEGER NOT NULL);
           INSERT OR IGNORE INTO accounts VALUES ('ada', 10000), ('bob', 10000)`);
});

// Ids of your own make a second start of this program harmless: each transfer is there already.
const transfers = Array.from({ length: 500 }, (_, n) =>
  n % 2 === 0 ? { from: "ada", to: "bob", cents: n + 1 } : { from: "bob", to: "ada", cents: n + 1 },
);
await engine.enqueueMany(transfer, transfers, { each: (_, n) => ({ id: `transfer-${n}` }) });
await engine.enqueue(transfer, { from: "ada", to: "bob", cents: 999_999_999 }, { id: "too-much" });

const worker = await engine.start({ concurrency: 20 });
console.log("working");
for (let left = 1; left > 0; await new Promise((resolve) => setTimeout(resolve, 20))) {
  const [counts] = await engine.counts();
  left = counts!.ready + counts!.delayed + counts!.running;
}
await worker.stop();

const sums = await engine.transaction(sqlite, (tx) => ({
  accounts: tx.all<{ name: string; cents: number }>("SELECT name, cents FROM accounts ORDER BY name"),
  booked: tx.get<{ n: number; jobs: number }>("SELECT count(*) AS n, count(DISTINCT job) AS jobs FROM ledger")!,
}));
for (const { name, cents } of sums.accounts) console.log(`${name} has ${cents} cents`);
console.log(`together ${sums.accounts.reduce((sum, { cents }) => sum + cents, 0)} cents`);
console.log(`${sums.booked.n} bookings of ${sums.booked.jobs} jobs`);
const tooMuch = (await engine.get("too-much"))!;
console.log(`too-much is ${tooMuch.state}: ${tooMuch.error?.message}`);
