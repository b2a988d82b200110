// The jobs of a run, contracts and handlers: transfers, transfers with steps, and the one that kills its worker.
import { setTimeout as pause } from "node:timers/promises";
import { job } from "../index.ts";
import { type Tables, tablesOf } from "./tables.ts";

let tables: Promise<Tables> | undefined;

/** In which schema the handlers of this process write; null: the store is a file. */
export function writeTo(schema: string | null): void {
  tables = tablesOf(schema);
}

export interface Transfer {
  readonly from: number;
  readonly to: number;
  readonly amount: number;
  /** Stands for what a real job would wait for. */
  readonly workMs: number;
}

/** Money from one account to another. Ignores its signal: what is stale must be refused even if the handler never listens. */
export const transfer = job<Transfer>("transfer");
transfer.handle(async ({ from, to, amount, workMs }, run) => {
  await pause(workMs);
  await (await tables!).commit(run, { jobId: run.id, from, to, amount, fee: 0, attempt: run.attempt });
});

/** The same in steps: what a dead attempt has finished, the next one does not do again. */
export const checkedTransfer = job<Transfer>("checked-transfer");
checkedTransfer.handle(async ({ from, to, amount, workMs }, run) => {
  await run.step("screen", () => pause(workMs / 2));
  const fee = await run.step("fee", () => feeOf(amount));
  await pause(workMs / 2, undefined, { signal: run.signal });
  await (await tables!).commit(run, { jobId: run.id, from, to, amount, fee, attempt: run.attempt });
});

function feeOf(amount: number): number {
  return Math.ceil(amount / 100);
}

/** Kills its process whenever it runs, as a handler that runs out of memory or into a native crash does. */
export const poison = job<Record<string, never>>("poison");
poison.handle(() => {
  process.kill(process.pid, "SIGKILL");
});

export const JOBS = [transfer, checkedTransfer, poison] as const;
