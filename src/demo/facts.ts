// What the store itself says, by plain SQL over the user's tables and the engine's. Reads only; nothing here trusts a counter
// that the demo kept in memory.
import type { Engine } from "../index.ts";
import { vaultOf } from "./vault.ts";

export async function rows<T>(engine: Engine, sql: string, ...values: (string | number)[]): Promise<T[]> {
  return vaultOf(engine).rows<T>(engine, sql, values);
}

export async function number(engine: Engine, sql: string, ...values: (string | number)[]): Promise<number> {
  const [row] = await rows<{ n: number | null }>(engine, sql, ...values);
  return row?.n ?? 0;
}

/** Writes of attempts that did not own their job any more, each refused and recorded. */
export function rejectedWrites(engine: Engine): Promise<number> {
  return number(engine, "SELECT count(*) AS n FROM outlive_history WHERE event = 'write.rejected'");
}

export function rejectedWritesOf(engine: Engine, workerId: string): Promise<number> {
  return number(
    engine,
    "SELECT count(*) AS n FROM outlive_history WHERE event = 'write.rejected' AND actor = ?",
    `worker/${workerId}`,
  );
}

/** Workers that were taken for dead because they were silent, and then wrote: zombies. */
export function zombies(engine: Engine): Promise<number> {
  return number(
    engine,
    `SELECT count(*) AS n FROM outlive_incidents i WHERE i.how = 'silent' AND EXISTS
       (SELECT 1 FROM outlive_history h WHERE h.event = 'write.rejected' AND h.actor = 'worker/' || i.worker)`,
  );
}

/** Steps that an attempt had finished before it died and that the attempt which succeeded did not do again. */
export function keptSteps(engine: Engine): Promise<number> {
  return number(
    engine,
    "SELECT count(*) AS n FROM outlive_steps s JOIN outlive_jobs j ON j.seq = s.job WHERE j.state = 2 AND s.fence < j.fence",
  );
}

/** When the last job ended, in ms. */
export function lastEnd(engine: Engine): Promise<number> {
  return number(engine, "SELECT max(finished_at) AS n FROM outlive_jobs");
}

/** Every job that is there, with the code of its state. */
export function jobStates(engine: Engine): Promise<{ id: string; state: number }[]> {
  return rows(engine, "SELECT id, state FROM outlive_jobs");
}
