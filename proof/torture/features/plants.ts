// Bugs on purpose: each switches one protection off, and the laws have to see it (test/torture/features.test.ts). Some are declarations that
// differ from what the audit expects, some are rows that disappear.
import type { Database } from "./database.ts";

/** By name, with the law that has to see it. */
export const PLANTS = {
  /** A key runs five jobs at once. */
  limit: "overLimit",
  /** A key starts five times as many. */
  rate: "overLimit",
  /** A handler holds its key off for an hour. */
  room: "stuckKeys",
  /** Jobs are claimed by age, whichever tenant they are of (only in `fairness`). */
  fair: "stuckKeys",
  /** The jobs of a line run side by side. */
  order: "orderBroken",
  /** One signal in three is deleted as soon as it is kept, however often it is sent. */
  signals: "signalsLost",
  /** What ends a child wakes no parent. */
  wakes: "parentsAsleep",
  /** An event that finds a job of its key adds nothing. */
  events: "rerunsLost",
  /** Some of the jobs that schedules enqueue are not inserted (only in `schedules`). */
  schedules: "occurrencesMissed",
} as const;

export type Plant = keyof typeof PLANTS;

/** Asked by the processes of the fleet when they declare their kinds, and by the producer. */
export function isPlanted(plant: Plant): boolean {
  return (process.env["OUTLIVE_FEATURES_PLANT"] ?? "").split(",").includes(plant);
}

export function plantsNamed(text: string | undefined): readonly Plant[] {
  const names = text === undefined ? [] : text.split(",");
  for (const name of names)
    if (!(name in PLANTS)) throw new Error(`--plant ${name}: use ${Object.keys(PLANTS).join(", ")}.`);
  return names as Plant[];
}

/** What is planted in the tables. */
export async function plantRows(db: Database): Promise<void> {
  if (isPlanted("signals"))
    await db.trigger({
      on: "signals",
      when: "after insert",
      sql: `DELETE FROM ${db.table("signals")} WHERE ord = NEW.ord AND CAST(payload AS integer) % 3 = 0`,
    });
  if (isPlanted("wakes"))
    await db.trigger({
      on: "wakes",
      when: "before insert",
      ignoreIf: `EXISTS (SELECT 1 FROM ${db.table("jobs")} j JOIN ${db.table("kinds")} k ON k.id = j.kind WHERE j.seq = NEW.job AND k.name IN ('parent', 'ward'))`,
    });
}
