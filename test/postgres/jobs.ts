// The kinds that the children of the PostgreSQL tests run: those of all stores, and a transfer that commits here.
import type { EventEmitter } from "node:events";
import { job } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { kinds as common, tell } from "../support/jobs.ts";

const schema = process.env["OUTLIVE_TEST_SCHEMA"] ?? "outlive";

/** Moves one unit into the ledger, exactly once. `idleMs` waits inside the transaction, at most until its session is over. */
export const transfer = job<{ n: number; idleMs?: number }>("transfer", {
  retry: { backoff: { base: "1ms", max: "5ms" } },
});
transfer.handle(async ({ n, idleMs = 0 }, run) => {
  tell("started", { kind: "transfer", id: run.id, attempt: run.attempt });
  await run.commit(postgres, async (tx) => {
    await tx.query(`INSERT INTO "${schema}".ledger (job, n) VALUES ($1, $2)`, [run.id, n]);
    if (idleMs > 0 && run.attempt === 1) {
      const [row] = await tx.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
      tell("inside", { id: run.id, backend: row!.pid });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, idleMs);
        (tx.client as unknown as EventEmitter).once("end", () => resolve(clearTimeout(timer)));
      });
    }
  });
});

export const { stepped, slow, poison, block, compute } = common;
export const jobs = [transfer, stepped, slow, poison, block, compute];
