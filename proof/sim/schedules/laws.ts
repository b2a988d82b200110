// What must hold of schedules, read from the rows by triggers and SQL, and computed a second way from each schedule's own timing:
//
// - twice: no occurrence is enqueued twice.
// - early: none is enqueued before its time by the store's clock, and none that is not an occurrence at all.
// - missing: the row moves past every occurrence exactly once: what was enqueued and what was skipped are all that lie before the next one. Of a schedule that skips
//   nothing by its policy, every one is enqueued.
// - stuck: while a worker is left in peace, nothing stays due.
import { Cron } from "croner";
import {
  type MissedPolicy,
  ON_TIME_MS,
  type OverlapPolicy,
  type ScheduleRow,
  type Timing,
} from "../../../src/job/schedules.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { VirtualClock } from "../../../src/testing/virtual-clock.ts";

/** How long a process waits at most before it reads what is due. */
export const POLL_MS = 600_000;
/** A worker that nothing happens to fires within this: a poll, and calls that were slow. */
export const HEALTHY_MS = POLL_MS + 60_000;

/** What a schedule of the history is. */
export interface Planted {
  readonly name: string;
  readonly timing: Timing;
  readonly missed: MissedPolicy;
  readonly withinMs: number;
  readonly overlap: OverlapPolicy;
}

interface Fired {
  readonly job: string;
  readonly schedule: string;
  readonly at: number;
  readonly seen: number;
  /** Jobs of the same schedule that had not ended. */
  readonly unfinished: number;
}

export class ScheduleLaws {
  readonly #db: Database;
  readonly #clock: VirtualClock;
  readonly #planted = new Map<string, Planted>();
  readonly #fired = new Map<string, Set<number>>();
  /** The first occurrence of each, when its row came. */
  readonly #first = new Map<string, number>();
  /** How many occurrences of each lie before the one at which its row stands. */
  readonly #walks = new Map<string, { at: number; count: number }>();

  constructor(db: Database, clock: VirtualClock) {
    this.#db = db;
    this.#clock = clock;
    db.exec("CREATE TABLE sim_fired (job TEXT, schedule TEXT, at INTEGER, seen INTEGER, unfinished INTEGER)");
    db.exec(`CREATE TRIGGER sim_jobs AFTER INSERT ON outlive_jobs BEGIN
      INSERT INTO sim_fired (job, schedule, at, seen) VALUES (NEW.id, NULL, NULL, NEW.created_at); END`);
    db.exec(`CREATE TRIGGER sim_occurrences AFTER INSERT ON outlive_occurrences BEGIN
      UPDATE sim_fired SET schedule = NEW.schedule, at = NEW.at, unfinished =
        (SELECT count(*) FROM outlive_occurrences o JOIN outlive_jobs j ON j.id = o.job WHERE o.schedule = NEW.schedule AND j.state < 2 AND o.job <> NEW.job)
      WHERE job = NEW.job AND schedule IS NULL; END`);
  }

  know(planted: readonly Planted[]): void {
    for (const one of planted) {
      this.#planted.set(one.name, one);
      this.#fired.set(one.name, new Set());
    }
  }

  /** Occurrences that became jobs. */
  get firedCount(): number {
    return [...this.#fired.values()].reduce((sum, own) => sum + own.size, 0);
  }

  /** `healthyMs`: for how long a worker has been left in peace. */
  look(healthyMs: number): void {
    const rows = this.#db.sql("SELECT * FROM sim_fired").all() as unknown as Fired[];
    this.#db.exec("DELETE FROM sim_fired");
    for (const { job, schedule, at, seen, unfinished } of rows) {
      if (schedule === null) throw new Error(`missing: job ${job} was enqueued without an occurrence`);
      const planted = this.#planted.get(schedule)!;
      const own = this.#fired.get(schedule)!;
      if (own.has(at)) throw new Error(`twice: ${schedule} at ${iso(at)}`);
      own.add(at);
      if (seen < at) throw new Error(`early: ${schedule} for ${iso(at)} was enqueued at ${iso(seen)}`);
      if (planted.overlap === "skip" && unfinished > 0)
        throw new Error(
          `overlap: ${schedule} for ${iso(at)} was enqueued while ${unfinished} job(s) of it had not ended`,
        );
      if (seen - at > Math.max(planted.withinMs, ON_TIME_MS) + JITTER_MS)
        throw new Error(`too old: ${schedule} for ${iso(at)} was enqueued at ${iso(seen)}`);
      if (planted.missed === "skip" && seen - at > ON_TIME_MS + JITTER_MS)
        throw new Error(`too old: ${schedule} for ${iso(at)} was missed, and enqueued all the same`);
      if (nextAfter(planted, at - 1) !== at) throw new Error(`early: ${iso(at)} is not an occurrence of ${schedule}`);
    }
    for (const row of this.#rows()) {
      if (!this.#first.has(row.name))
        this.#first.set(row.name, nextAfter(this.#planted.get(row.name)!, row.createdAt)!);
      this.#account(row);
      const lateMs = row.dueAt === null ? 0 : this.#clock.now() - row.dueAt;
      if (healthyMs > 2 * HEALTHY_MS && lateMs > HEALTHY_MS)
        throw new Error(`stuck: ${row.name} is due since ${iso(row.dueAt!)}, ${lateMs} ms, and a worker is in peace`);
    }
  }

  /** At the end, after a while in peace. */
  audit(): void {
    this.look(0);
    if (this.#rows().length !== this.#planted.size) throw new Error("missing: a schedule is gone");
    for (const row of this.#rows()) {
      const planted = this.#planted.get(row.name)!;
      if (row.nextAt === null || row.nextAt <= this.#clock.now() - HEALTHY_MS)
        throw new Error(`missing: ${row.name} stands at ${row.nextAt === null ? "nothing" : iso(row.nextAt)}`);
      if (planted.missed === "all" && planted.overlap !== "skip" && planted.withinMs >= WITHIN_ALL_MS) {
        const { missed, overlap } = row.skipped;
        if (missed + overlap > 0) throw new Error(`missing: ${row.name} skipped what its policy runs`);
      }
      if (row.missed !== planted.missed || row.overlap !== planted.overlap)
        throw new Error(`missing: ${row.name} has another policy than it was set with`);
    }
  }

  /** All occurrences from the first to the next one were either enqueued or skipped. */
  #account({ name, nextAt, fired, skipped }: ScheduleRow): void {
    const planted = this.#planted.get(name)!;
    const own = this.#fired.get(name)!;
    if (own.size !== fired)
      throw new Error(`missing: ${name} says that it fired ${fired}, and ${own.size} jobs are there`);
    if (nextAt === null) return;
    const walk = this.#walks.get(name) ?? { at: this.#first.get(name)!, count: 0 };
    if (nextAt < walk.at) throw new Error(`twice: ${name} went back from ${iso(walk.at)} to ${iso(nextAt)}`);
    while (walk.at < nextAt) {
      walk.at = nextAfter(planted, walk.at)!;
      walk.count++;
    }
    this.#walks.set(name, walk);
    const all = walk.count;
    const known = fired + skipped.missed + skipped["too-old"] + skipped.overlap;
    if (all !== known)
      throw new Error(
        `missing: ${name} has ${all} occurrences before ${iso(nextAt)}, and ${known} of them are accounted for`,
      );
    if (own.has(nextAt)) throw new Error(`twice: ${name} is about to fire ${iso(nextAt)} again`);
  }

  #rows(): ScheduleRow[] {
    const rows = this.#db.sql("SELECT body FROM outlive_schedules ORDER BY name").all() as { body: string }[];
    return rows.map(({ body }) => JSON.parse(body) as ScheduleRow);
  }
}

const JITTER_MS = 30_000;

/** No history has an outage as long as this. */
const WITHIN_ALL_MS = 7 * 86_400_000;

const patterns = new Map<string, Cron>();
const cache = new Map<string, number | null>();

/** A second way to the next occurrence; remembered, because a history asks for the same ones again and again. */
function nextAfter({ timing }: Planted, after: number): number | null {
  if ("everyMs" in timing) return (Math.floor(after / timing.everyMs) + 1) * timing.everyMs;
  const { cron, zone } = timing;
  const key = `${zone} ${cron} ${after}`;
  let found = cache.get(key);
  if (found !== undefined) return found;
  let pattern = patterns.get(`${zone} ${cron}`);
  if (pattern === undefined) {
    pattern = new Cron(cron, { timezone: zone, paused: true, mode: "5-part" });
    patterns.set(`${zone} ${cron}`, pattern);
  }
  found = pattern.nextRun(new Date(after))?.getTime() ?? null;
  if (cache.size > 500_000) cache.clear();
  cache.set(key, found);
  return found;
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
