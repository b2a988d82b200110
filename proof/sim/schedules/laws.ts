// What must hold of schedules, read from the rows without the port, and computed a second way from each schedule's own timing:
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
import type { PlannedJob } from "../../../src/stores/schedules.ts";
import type { VirtualClock } from "../../../src/testing/virtual-clock.ts";
import type { Ground } from "./ground.ts";

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

export class ScheduleLaws {
  readonly #ground: Ground;
  readonly #clock: VirtualClock;
  readonly #planted = new Map<string, Planted>();
  readonly #fired = new Map<string, Set<number>>();
  /** The first occurrence of each, when its row came. */
  readonly #first = new Map<string, number>();
  /** How many occurrences of each lie before the one at which its row stands. */
  readonly #walks = new Map<string, { at: number; count: number }>();

  constructor(ground: Ground, clock: VirtualClock) {
    this.#ground = ground;
    this.#clock = clock;
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
    for (const { job, schedule, at, seen, unfinished } of this.#ground.fired()) {
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
    for (const row of this.#ground.rows()) {
      if (!this.#first.has(row.name))
        this.#first.set(row.name, nextAfter(this.#planted.get(row.name)!, row.createdAt)!);
      this.#account(row);
      const lateMs = row.dueAt === null ? 0 : this.#clock.now() - row.dueAt;
      if (healthyMs > 2 * HEALTHY_MS && lateMs > HEALTHY_MS)
        throw new Error(`stuck: ${row.name} is due since ${iso(row.dueAt!)}, ${lateMs} ms, and a worker is in peace`);
    }
  }

  /** The store lost its latest scripts, and these occurrences with them: they are to be enqueued again, and rows stand where they stood. */
  lost(planned: readonly PlannedJob[]): void {
    for (const { schedule, at } of planned) this.#fired.get(schedule)!.delete(at);
    this.#walks.clear();
  }

  /** At the end, after a while in peace. */
  audit(): void {
    this.look(0);
    if (this.#ground.rows().length !== this.#planted.size) throw new Error("missing: a schedule is gone");
    for (const row of this.#ground.rows()) {
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
