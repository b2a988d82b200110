// Kinds whose commits are slow, wait for other connections or are frozen in the middle.
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, job } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { tell } from "../support/jobs.ts";

const retry = { backoff: { base: "1ms", max: "5ms" } } as const;

let engine: Engine | undefined;
/** The handlers that enqueue by the engine itself need it. */
export function useEngine(opened: Engine): void {
  engine = opened;
}

/** Its first attempt waits inside the transaction for `ms`; a later one commits at once. */
export const hold = job<{ ms: number }>("hold", { retry });
hold.handle(async ({ ms }, run) => {
  tell("started", { id: run.id, attempt: run.attempt });
  await run.commit(postgres, async (tx) => {
    const [row] = await tx.query<object>(
      "SELECT current_setting('application_name') AS name, current_setting('idle_in_transaction_session_timeout') AS idle",
    );
    tell("inside", { id: run.id, attempt: run.attempt, ...row });
    if (run.attempt === 1) await pause(ms);
  });
});

/** As `hold`, with a statement that runs all the time. */
export const busy = job<object>("busy", { retry });
busy.handle(async (_, run) => {
  await run.commit(postgres, async (tx) => {
    tell("inside", { id: run.id, attempt: run.attempt });
    if (run.attempt === 1) await tx.query("SELECT pg_sleep(600)");
  });
});

export const nap = job<{ ms: number }>("nap", { retry });
nap.handle(async ({ ms }, run) => {
  tell("started", { id: run.id, attempt: run.attempt });
  await pause(ms);
});

/** Enqueues by the engine, on another connection than the one of its transaction, after all others had time to begin theirs. */
export const chained = job<object>("chained", { retry, timeout: "20s", grace: "500ms" });
chained.handle(async (_, run) => {
  tell("started", { id: run.id, attempt: run.attempt });
  await run.commit(postgres, async () => {
    tell("inside", { id: run.id });
    await pause(500);
    await engine!.enqueue(nap, { ms: 0 });
  });
});

export const jobs = [hold, busy, nap, chained];
