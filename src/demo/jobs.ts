// The jobs of the demo, contracts and handlers: transfers, transfers with steps, and the one that kills its worker.
import { setTimeout as pause } from "node:timers/promises";
import { job } from "../index.ts";
import { movement } from "./bank.ts";
import { sqliteVault, type Vault } from "./vault.ts";

let vault: Vault = sqliteVault;

/** Where the handlers of this process write. */
export function workAt(there: Vault): void {
  vault = there;
}

export interface Transfer {
  readonly from: number;
  readonly to: number;
  readonly amount: number;
  /** Stands for what a real job would wait for. */
  readonly workMs: number;
}

/** Money from one account to another. Looks at no signal: what is stale must be refused even if the handler never listens. */
export const transfer = job<Transfer>("transfer");
transfer.handle(async ({ from, to, amount, workMs }, run) => {
  await pause(workMs);
  await vault.commit(run, movement({ jobId: run.id, from, to, amount, fee: 0, attempt: run.attempt }));
});

/** The same in steps: what a dead attempt has finished, the next one does not do again. */
export const checkedTransfer = job<Transfer>("checked-transfer");
checkedTransfer.handle(async ({ from, to, amount, workMs }, run) => {
  await run.step("screen", () => pause(workMs / 2));
  const fee = await run.step("fee", () => Math.ceil(amount / 100));
  await pause(workMs / 2, undefined, { signal: run.signal });
  await vault.commit(run, movement({ jobId: run.id, from, to, amount, fee, attempt: run.attempt }));
});

/** Kills its process whenever it runs, as a handler that runs out of memory or into a native crash does. */
export const poison = job<Record<string, never>>("poison");
poison.handle(() => {
  process.kill(process.pid, "SIGKILL");
});

export const JOBS = [transfer, checkedTransfer, poison] as const;
export const POISON_ID = "poison-1";
