// The kinds that the children of the PostgreSQL tests run: those of all stores, and a transfer that commits here.
import type { EventEmitter } from "node:events";
import { batch, job, open } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { effect, kinds as common, tell } from "../support/jobs.ts";

const schema = process.env["OUTLIVE_TEST_SCHEMA"] ?? "outlive";

/** Moves one unit into the ledger, exactly once. `idleMs` waits inside the transaction, at most until its session ends. */
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

/** A row of a batch. `stops`: in the first attempt it stands still there until its process is killed. */
export interface Booking {
  readonly n: number;
  readonly stops?: "at first" | "before its commit" | "inside its commit";
}

const retry = { backoff: { base: "1ms", max: "5ms" }, crashes: 3 } as const;

function standStill(): Promise<never> {
  return new Promise(() => setInterval(() => {}, 1_000));
}

/** Each row's end is durable before the next begins. */
export const careful = batch("careful", { block: 10, mark: "row", retry });
careful.handle(async ({ input }, run) => {
  const { n, stops } = input as unknown as Booking;
  tell("row", { n, attempt: run.attempt });
  if (stops && run.attempt === 1) await standStill();
  effect(`row ${n} attempt ${run.attempt}`);
});

/** Each row is booked in the ledger with its end. */
export const bookings = batch("bookings", { block: 10, retry });
bookings.handle(async (row, run) => {
  const { n, stops } = row.input as unknown as Booking;
  const stop = async (where: Booking["stops"]): Promise<void> => {
    if (stops !== where || run.attempt > 1) return;
    tell("stopped", { n });
    await standStill();
  };
  await stop("before its commit");
  await row.commit(postgres, async (tx) => {
    await tx.query(`INSERT INTO "${schema}".ledger (job, n) VALUES ($1, $2)`, [`row ${n}`, n]);
    await stop("inside its commit");
  });
});

export const { stepped, slow, poison, tick, block, compute, share } = common;

/** Pauses one tenant of `share`, over a connection of its own. */
export const pauser = job<{ tenant: string }>("pauser", { retry });
pauser.handle(async ({ tenant }) => {
  await using engine = await open(process.argv[2]!, { jobs: [share], logger: false, postgres: { schema } });
  await engine.limits.pause("fair", tenant, { reason: "a test" });
});

export const jobs = [transfer, stepped, slow, poison, tick, block, compute, careful, bookings, share, pauser];
