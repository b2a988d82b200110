// The check and the repair of what batches and schedules keep of their own, for integrity.ts.
import type { ScheduleRow } from "../../job/schedules.ts";
import type { Connection } from "./connection.ts";
import { fieldsOf } from "./encoding.ts";

export interface Checked {
  /** What should be there and is not: certain, also while others write. */
  readonly missing: readonly string[];
  /** Sizes that do not fit: certain if nothing was written meanwhile. */
  readonly tooMany: readonly string[];
}

export async function checkFeatures(connection: Connection): Promise<Checked> {
  const [batches, schedules] = [await checkBatches(connection), await checkSchedules(connection)];
  return {
    missing: [...batches.missing, ...schedules.missing],
    tooMany: [...batches.tooMany, ...schedules.tooMany],
  };
}

/** Jobs have been put into their indexes before. */
export async function repairFeatures(connection: Connection): Promise<void> {
  for (let from = "1:0"; from !== ""; from = (await connection.eval("repairBatches", [from])) as string);
  for await (const { args } of schedulePages(connection)) await connection.eval("repairSchedules", args);
}

/** Indexes whose names are known, and that have nothing but what follows from the records of batches and schedules. */
export const OF_FEATURES = ["bi", "bl", "be", "bx", "sk", "sn", "sd"] as const;

async function checkBatches(connection: Connection): Promise<Checked> {
  const missing: string[] = [];
  let [count, ended] = [0, 0];
  for (let from = "1:0"; ;) {
    const reply = (await connection.eval("checkBatches", [from])) as unknown as [string[], string, ...number[]];
    const [wrong, next, some = 0, someEnded = 0, ...sizes] = reply;
    missing.push(...wrong);
    count += some;
    ended += someEnded;
    from = next;
    if (next !== "") continue;
    const text = `the indexes of batches have ${sizes.join(", ")} entries, and there are ${count} batches, ${ended} of them ended`;
    return { missing, tooMany: sizes.join() === [count, count, ended].join() ? [] : [text] };
  }
}

async function checkSchedules(connection: Connection): Promise<Checked> {
  const missing: string[] = [];
  let [due, sizes]: [number, readonly number[]] = [0, []];
  for await (const page of schedulePages(connection)) {
    missing.push(...((await connection.eval("checkSchedules", page.args)) as string[]));
    due += page.due;
    ({ sizes } = page);
  }
  const [versions, kinds, names, dues, all] = sizes;
  const text = `the indexes of schedules have ${sizes.slice(0, 4).join(", ")} entries, and there are ${all} schedules, ${due} of them with a due time`;
  const fits = versions === all && kinds === all && names === all && dues === due;
  return { missing, tooMany: fits ? [] : [text] };
}

interface SchedulePage {
  /** Name, kind and due time of each. */
  readonly args: string[];
  readonly due: number;
  readonly sizes: readonly number[];
}

async function* schedulePages(connection: Connection): AsyncGenerator<SchedulePage> {
  for (let cursor = ""; cursor !== "0";) {
    const reply = await connection.eval("scheduleBodies", [cursor || "0"]);
    const [next, flat, ...sizes] = reply as unknown as [string, string[], ...number[]];
    const rows = Object.values(fieldsOf(flat)).map((body) => JSON.parse(body) as ScheduleRow);
    const args = rows.flatMap(({ name, kind, dueAt }) => [name, kind, dueAt === null ? "" : String(dueAt)]);
    yield { args: [String(rows.length), ...args], due: rows.filter(({ dueAt }) => dueAt !== null).length, sizes };
    cursor = next;
  }
}
