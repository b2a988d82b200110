// The check and the repair of what batches and schedules keep of their own, for integrity.ts.
import type { ScheduleRow } from "../../job/schedules.ts";
import type { Connection } from "./connection.ts";

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
    const [wrong, next, some, someEnded, ...sizes] = reply;
    missing.push(...wrong);
    count += some!;
    ended += someEnded!;
    from = next;
    if (next !== "") continue;
    const text = `the indexes of batches have ${sizes.join(", ")} entries, and there are ${count} batches, ${ended} of them ended`;
    return { missing, tooMany: sizes.join() === [count, count, ended].join() ? [] : [text] };
  }
}

async function checkSchedules(connection: Connection): Promise<Checked> {
  const missing: string[] = [];
  let [due, all] = [0, 0];
  for await (const page of schedulePages(connection)) {
    missing.push(...((await connection.eval("checkSchedules", page.args)) as string[]));
    due += page.due;
    all += page.count;
  }
  const [, ...sizes] = (await connection.eval("scheduleNames")) as unknown as [string[], ...number[]];
  const text = `the indexes of schedules have ${sizes.join(", ")} entries, and there are ${all} schedules, ${due} of them with a due time`;
  return { missing, tooMany: sizes.join() === [all, all, all, due].join() ? [] : [text] };
}

interface SchedulePage {
  /** Name, kind and due time of each. */
  readonly args: string[];
  readonly count: number;
  readonly due: number;
}

const SCHEDULES_AT_ONCE = 100;

async function* schedulePages(connection: Connection): AsyncGenerator<SchedulePage> {
  const [names] = (await connection.eval("scheduleNames")) as unknown as [string[]];
  for (let from = 0; from < names.length; from += SCHEDULES_AT_ONCE) {
    const some = names.slice(from, from + SCHEDULES_AT_ONCE);
    const bodies = (await connection.eval("scheduleBodies", [String(some.length), ...some])) as string[];
    const rows = bodies.filter((body) => body !== "").map((body) => JSON.parse(body) as ScheduleRow);
    const args = rows.flatMap(({ name, kind, dueAt }) => [name, kind, dueAt === null ? "" : String(dueAt)]);
    const due = rows.filter(({ dueAt }) => dueAt !== null).length;
    yield { args: [String(rows.length), ...args], count: rows.length, due };
  }
}
