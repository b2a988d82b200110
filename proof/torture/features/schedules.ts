// 1,000 schedules while workers are killed: each occurrence has exactly one job, however often those who fire die in it.
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, job, open } from "../../../src/index.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { type Findings, NO_FINDINGS } from "./audit.ts";
import { type Database, databaseAt } from "./database.ts";
import { isPlanted } from "./plants.ts";
import type { Scenario } from "./stage.ts";
import { Workers } from "./workers.ts";

const SCHEDULES = 1_000;
const EVERY_MS = 10_000;
/** Below the full size, so that a short run need not wait for long. */
const SMALL_EVERY_MS = 3_000;
const WORKERS = 4;
const KILL_EVERY_MS = 200;

export const planned = job<{ readonly n: number }>("planned", { retry: { attempts: 1_000, crashes: 1_000 } });
planned.handle(() => {});

export const KINDS = [planned] as const;

export const schedules: Scenario = {
  name: "schedules",
  stores: ["sqlite", "postgres", "redis"],

  async run(place, sizes) {
    if (!place.url.startsWith("sqlite:")) await (await migrationsOf(place.url)).up();
    await using engine = await open(place.url, { jobs: KINDS, logger: false });
    await using db = place.url.startsWith("redis:") ? null : await databaseAt(place.url);
    // One of sixteen jobs is not inserted, and its row moves.
    if (isPlanted("schedules")) {
      if (db === null) throw new Error("--plant schedules: it is a trigger, and redis has none.");
      await db.trigger({ on: "jobs", when: "before insert", ignoreIf: "substr(NEW.id, 1, 2) = 's7'" });
    }
    const count = Math.round(SCHEDULES * sizes.scale);
    const everyMs = sizes.scale < 1 ? SMALL_EVERY_MS : EVERY_MS;
    const first = new Map<string, number>();
    for (let n = 0; n < count; n++) {
      const name = `schedule-${n}`;
      const offset = `${Math.floor((n * everyMs) / count)}ms` as const;
      const info = await engine.schedules.set(name, planned, {
        every: `${everyMs}ms`,
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
    await pause(everyMs);
    const until = Date.now() - 1_000;
    const giveUpAt = performance.now() + sizes.endedWithinMs;
    while (performance.now() < giveUpAt) {
      if ((await engine.schedules.list()).every(({ nextAt }) => nextAt! > until)) break;
      await pause(200);
    }
    await fleet.killAll();
    const fired = await (db === null ? firedOnRedis(engine, [...first.keys()]) : firedInTables(db));
    const late = fired.map(({ at, createdAt }) => createdAt - at).sort((a, b) => a - b);
    const share = (of: number): number => Math.round(late[Math.floor((late.length - 1) * of)] ?? 0);
    return {
      kills: fleet.killedAt.size,
      enqueued: fired.length,
      findings: { ...NO_FINDINGS, ...auditOccurrences({ first, fired, everyMs, until }) },
      figures: { schedules: count, lateP50Ms: share(0.5), lateP99Ms: share(0.99), lateMaxMs: share(1) },
    };
  },
};

interface Fired {
  readonly schedule: string;
  readonly at: number;
  readonly createdAt: number;
}

async function firedInTables(db: Database): Promise<Fired[]> {
  const rows = await db.rows<{ schedule: string; at: number | string; created: number | string }>(
    `SELECT o.schedule, o.at, j.created_at AS created FROM ${db.table("occurrences")} o JOIN ${db.table("jobs")} j ON j.id = o.job`,
  );
  return rows.map(({ schedule, at, created }) => ({ schedule, at: Number(at), createdAt: Number(created) }));
}

/** There a job has in its own record what it was planned for. One that has nothing there is an occurrence of a schedule that does not exist. */
async function firedOnRedis(engine: Engine, names: readonly string[]): Promise<Fired[]> {
  const planned = new Map<string, { readonly schedule: string; readonly at: number }>();
  for (const name of names)
    for (const { job: id, at } of await engine.schedules.jobs(name, { limit: 1_000 }))
      planned.set(id, { schedule: name, at });
  const fired: Fired[] = [];
  let after: string | undefined;
  do {
    const page = await engine.list({ kind: "planned", limit: 1_000, ...(after !== undefined && { after }) });
    for (const { id, createdAt } of page.jobs)
      fired.push({ ...(planned.get(id) ?? { schedule: `nothing, job ${id}`, at: createdAt }), createdAt });
    after = page.next ?? undefined;
  } while (after !== undefined);
  return fired;
}

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
  // A job that belongs to no occurrence of a schedule is one too many.
  for (const { schedule, at } of fired) {
    const begin = first.get(schedule);
    if (begin === undefined || at < begin || (at - begin) % everyMs !== 0)
      occurrencesTwice.push(`${schedule} has no occurrence at ${new Date(at).toISOString()}, and a job for it`);
  }
  return { occurrencesTwice, occurrencesMissed };
}
