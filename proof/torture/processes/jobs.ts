// The jobs of the rig. Each handler tells its history what it does, at the instant at which it does it; none looks whether another process
// did it before: only the engine may keep it from happening twice.
import { setTimeout as pause } from "node:timers/promises";
import { job, type Json, type Run } from "../../../src/index.ts";
import { ledgerOf } from "./ledger.ts";
import { teller } from "./history.ts";

const FOLDER = process.env["OUTLIVE_TORTURE_HISTORY"];
const SCHEMA = process.env["OUTLIVE_POSTGRES_SCHEMA"] ?? null;

/** In the rig's own processes only: a process that merely names the kinds keeps no history. */
const tell = FOLDER === undefined ? () => {} : teller(FOLDER);
const ledger = ledgerOf(SCHEMA);
const retry = { backoff: { base: "20ms", max: "200ms" } } as const;

const fenceOf = ({ fence }: Run): string => `${fence.epoch}.${fence.number}`;

function start(run: Run, kind: string): void {
  tell({ what: "start", id: run.id, kind, fence: fenceOf(run) });
}

interface Transfer {
  readonly amount: number;
  readonly workMs: number;
  /** How long its transaction stays open, on PostgreSQL. Default: no longer than it needs. */
  readonly commitMs?: number;
}

let reportCommitting: (id: string) => void = () => {};

/** For the worker process: reports each long commit while its transaction is open. */
export function onCommitting(report: (id: string) => void): void {
  reportCommitting = report;
}

/** One row in the ledger, exactly once. Looks at no signal. */
export const transfer = job<Transfer>("torture.transfer", { retry });
transfer.handle(async ({ amount, workMs, commitMs = 0 }, run) => {
  start(run, "transfer");
  await pause(workMs);
  const kept = await ledger;
  const result = await kept.commit(run, { job: run.id, amount, fence: fenceOf(run) }, async () => {
    if (commitMs === 0) return;
    reportCommitting(run.id);
    await pause(commitMs);
  });
  // Not settled yet.
  if (kept.isOfResults) return result as Json;
  tell({ what: "committed", id: run.id, fence: fenceOf(run) });
  return null;
});

/** Takes its time, so that a strike meets it in flight. */
export const nap = job<{ readonly ms: number }>("torture.nap", { retry });
nap.handle(async ({ ms }, run) => {
  start(run, "nap");
  await pause(ms);
});

/** Ends at once or nearly so. A worker that runs nothing else claims many of them ahead. */
export const tick = job<{ readonly ms: number }>("torture.tick", { retry });
tick.handle(async ({ ms }, run) => {
  start(run, "tick");
  if (ms > 0) await pause(ms);
});

export const STEPS = ["first", "second", "third"] as const;

/** Three steps. What is kept is not run again by a later attempt. */
export const stepped = job<{ readonly workMs: number }>("torture.stepped", { retry });
stepped.handle(async ({ workMs }, run) => {
  start(run, "stepped");
  for (const name of STEPS) {
    await run.step(name, async () => {
      tell({ what: "step", id: run.id, name, attempt: run.attempt });
      await pause(workMs / STEPS.length);
    });
    tell({ what: "kept", id: run.id, name, attempt: run.attempt });
  }
});

/** Fails a few times before it succeeds. */
export const flaky = job<{ readonly failures: number }>("torture.flaky", { retry: { ...retry, attempts: 10 } });
flaky.handle(async ({ failures }, run) => {
  start(run, "flaky");
  await pause(5);
  if (run.attempt <= failures) throw new Error(`failure ${run.attempt} of ${failures}`);
});

/** Stands on the loop: its worker is busy, not dead. Shorter each time: an innocent that the killer hits again and again looks guilty. */
export const block = job<{ readonly ms: number }>("torture.block", { retry });
block.handle(({ ms }, run) => {
  start(run, "block");
  // Without burning the core that others need to boot on.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms / run.attempt);
});

/** Kills its process whenever it runs. */
export const poison = job<Record<string, never>>("torture.poison", { retry });
poison.handle((_, run) => {
  start(run, "poison");
  process.kill(process.pid, "SIGKILL");
});

/** Takes more memory than its process may have, and quickly: what a collector does for nothing takes a core from everybody else. */
export const hog = job<Record<string, never>>("torture.hog", { retry });
hog.handle((_, run) => {
  start(run, "hog");
  const first = Array.from({ length: 100_000 }, () => 0.5);
  for (const kept = [first]; ;) kept.push([...first]);
});

export const JOBS = [transfer, nap, tick, stepped, flaky, block, poison, hog] as const;

/** Kinds that end their worker: they end in quarantine, and no others do. */
export const GUILTY: ReadonlySet<string> = new Set([poison.name, hog.name]);

/** For the worker process: a write of an attempt that does not own its job any more. */
export function rejected(id: string, write: string): void {
  tell({ what: "rejected", id, write });
}
