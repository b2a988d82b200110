// The batches that the tests' child processes run, and submit. What rows do outside the store goes to an append-only file (jobs.ts).
import { setTimeout as pause } from "node:timers/promises";
import { batch, TerminalError } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { effect, tell } from "./jobs.ts";

export type Payment = {
  readonly n: number;
  /** Fails for good. */
  readonly bad?: true;
  /** Kills its process in every attempt. */
  readonly poison?: true;
};

const retry = { backoff: { base: "1ms", max: "5ms" }, crashes: 2 } as const;

/** Each row's end is durable before the next begins. */
export const careful = batch("careful", { block: 10, mark: "row", retry });
careful.handle(({ input }, run) => {
  effect(`row ${(input as { n: number }).n} attempt ${run.attempt}`);
});
careful.done((end) => effect(`done ${end.state} ${JSON.stringify(end.rows)}`));

/** Each row is written to the ledger, once; some fail; all that succeed write a line. */
export const payments = batch("payments", { block: 5, retry });
payments.handle(async (row, run) => {
  const { n, bad, poison } = row.input as Payment;
  if (poison) process.kill(process.pid, "SIGKILL");
  if (bad) throw new TerminalError(`${n} is bad`);
  row.write("paid.csv", `${row.line},${n}\n`);
  await row.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger (job, n) VALUES (?, ?)", run.batch, n));
});
payments.done((end) => {
  effect(`done ${end.state} ${end.rows.succeeded} ${end.rows.failed} ${end.rows.quarantined}`);
  tell("done", { outputs: end.outputs });
});

/** A block of a hundred rows. */
export const hundred = batch("hundred", { block: 100, retry });
hundred.handle(({ input }, run) => {
  const { n, poison } = input as Payment;
  effect(`hundred ${n} attempt ${run.attempt}`);
  if (poison) process.kill(process.pid, "SIGKILL");
});

/** Rows that take time, of which their process tells. A block takes as long as it takes. */
export const slow = batch("slow", { block: 10, retry });
slow.handle(async ({ input }, run) => {
  const { n, ms } = input as { n: number; ms: number };
  effect(`slow ${n} attempt ${run.attempt}`);
  tell("began", { n });
  await pause(ms);
  effect(`slow ${n} ended`);
});

export const batches = [careful, payments, hundred, slow];
