// 1,000 schedules while workers are killed: each occurrence has exactly one job, however often those who fire die in it.
import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "../../../src/index.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { type Findings, NO_FINDINGS } from "./audit.ts";
import { databaseAt } from "./database.ts";
import { isPlanted } from "./plants.ts";
import type { Scenario } from "./stage.ts";
import { Workers } from "./workers.ts";

const SCHEDULES = 1_000;
const EVERY_MS = 10_000;
const WORKERS = 4;
const KILL_EVERY_MS = 200;

export const planned = job<{ readonly n: number }>("planned", { retry: { attempts: 1_000, crashes: 1_000 } });
planned.handle(() => {});

export const KINDS = [planned] as const;

export const schedules: Scenario = {
  name: "schedules",
  stores: ["sqlite", "postgres"],

  async run(place, sizes) {
    if (!place.url.startsWith("sqlite:")) await (await migrationsOf(place.url)).up();
    await using engine = await open(place.url, { jobs: KINDS, logger: false });
    await using db = await databaseAt(place.url);
    // One of sixteen jobs is not inserted, and its row moves.
    if (isPlanted("schedules"))
      await db.trigger({ on: "jobs", when: "before insert", ignoreIf: "substr(NEW.id, 1, 2) = 's7'" });
    const count = Math.round(SCHEDULES * sizes.scale);
    const first = new Map<string, number>();
    for (let n = 0; n < count; n++) {
      const name = `schedule-${n}`;
      const offset = `${Math.floor((n * EVERY_MS) / count)}ms` as const;
      const info = await engine.schedules.set(name, planned, {
        every: `${EVERY_MS}ms`,
        offset,
        input: { n },
        missed: "all",
        overlap: "allow",
      });
      first.set(name, info.nextAt!);
    }
    const fleet = new Workers({ ...place, count: sizes.workers ?? WORKERS, kinds: new URL(import.meta.url) });
    await fleet.start();
    const chance = new Chance(sizes.seed);
    for (let killed = 0; killed < sizes.kills; killed++) {
      await pause(KILL_EVERY_MS);
      fleet.killOne(chance);
    }
    // One more round of all of them in peace, and then none may be due that was due before.
    await pause(EVERY_MS);
    const until = Date.now() - 1_000;
    const giveUpAt = performance.now() + sizes.endedWithinMs;
    while (performance.now() < giveUpAt) {
      if ((await engine.schedules.list()).every(({ nextAt }) => nextAt! > until)) break;
      await pause(200);
    }
    await fleet.killAll();
    const rows = await db.rows<{ schedule: string; at: number | string; late: number | string }>(
      `SELECT o.schedule, o.at, j.created_at - o.at AS late FROM ${db.table("occurrences")} o JOIN ${db.table("jobs")} j ON j.id = o.job`,
    );
    const fired = rows.map(({ schedule, at }) => ({ schedule, at: Number(at) }));
    const late = rows.map((row) => Number(row.late)).sort((a, b) => a - b);
    const share = (of: number): number => Math.round(late[Math.floor((late.length - 1) * of)] ?? 0);
    return {
      kills: fleet.killedAt.size,
      enqueued: rows.length,
      findings: { ...NO_FINDINGS, ...auditOccurrences({ first, fired, everyMs: EVERY_MS, until }) },
      figures: { schedules: count, lateP50Ms: share(0.5), lateP99Ms: share(0.99), lateMaxMs: share(1) },
    };
  },
};

export interface OccurrenceFacts {
  /** The first occurrence of each schedule. */
  readonly first: ReadonlyMap<string, number>;
  /** Jobs that are there, with what they were planned for. */
  readonly fired: readonly { readonly schedule: string; readonly at: number }[];
  readonly everyMs: number;
  /** What was due by then must be there. */
  readonly until: number;
}

export function auditOccurrences({
  first,
  fired,
  everyMs,
  until,
}: OccurrenceFacts): Pick<Findings, "occurrencesTwice" | "occurrencesMissed"> {
  const counts = new Map<string, number>();
  for (const { schedule, at } of fired) {
    const name = `${schedule} at ${new Date(at).toISOString()}`;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const occurrencesMissed: string[] = [];
  for (const [schedule, begin] of first)
    for (let at = begin; at <= until; at += everyMs) {
      const name = `${schedule} at ${new Date(at).toISOString()}`;
      if (!counts.has(name)) occurrencesMissed.push(`${name} has no job`);
    }
  const occurrencesTwice = [...counts].flatMap(([name, count]) => (count > 1 ? [`${name} has ${count} jobs`] : []));
  return { occurrencesTwice, occurrencesMissed };
}
