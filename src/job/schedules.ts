// Schedules: what enqueues jobs by the clock. A schedule is one row with the next occurrence in it. Firing it moves the row and inserts the jobs in
// one transaction, guarded by the row's version, so any worker may fire and one succeeds. What is due, what was missed, and where the row
// moves is decided here. Which instant comes next is asked of a calculator, because calendars and time zones need a library. Pure.
import type { AnyContract } from "./contract.ts";
import type { JobDraft } from "./job.ts";

/** With what the ids of scheduled jobs begin: 31 hexadecimal digits follow. */
export const SCHEDULED = "s";

/** When a schedule has occurrences: by a cron pattern in a time zone, or at fixed distances. */
export type Timing =
  | {
      /** The cron pattern. */
      readonly cron: string;
      /** Its time zone, by its IANA name. */
      readonly zone: string;
    }
  | {
      /** The distance between two occurrences, in ms. */
      readonly everyMs: number;
      /** The instant from which they are counted, in milliseconds since 1970. */
      readonly fromMs: number;
    };

/** What a schedule of something else than a job enqueues: a job of this kind, which does it. */
export interface ScheduledTarget {
  /** The kind of that job. */
  readonly contract: AnyContract;
  /** The input of that job, made of what the schedule says. Throws or rejects if it does not fit. */
  readonly inputOf: (input: unknown) => unknown;
}

export const MISSED_POLICIES = ["skip", "latest", "all"] as const;
/** What is done with occurrences that no worker could fire in time. */
export type MissedPolicy = (typeof MISSED_POLICIES)[number];

export const OVERLAP_POLICIES = ["skip", "queue", "allow"] as const;
/** What is done with an occurrence while the job of the one before has not ended. */
export type OverlapPolicy = (typeof OVERLAP_POLICIES)[number];

export interface Policies {
  readonly missed: MissedPolicy;
  /** A missed occurrence older than this is skipped. */
  readonly withinMs: number;
  readonly overlap: OverlapPolicy;
  /** Each occurrence fires up to this much later, by a share that is fixed for it. */
  readonly jitterMs: number;
}

/** The pause of a schedule. */
export interface SchedulePause {
  /** Why it is paused. */
  readonly reason: string;
  /** Who paused it. */
  readonly by: string;
  /** Since when, in milliseconds since 1970. */
  readonly at: number;
  /** Until when, in milliseconds since 1970 by the store's clock; null: until it is resumed. */
  readonly until: number | null;
}

/** Why occurrences were not enqueued. */
export type SkipReason = "missed" | "too-old" | "overlap";

/** Everything about one schedule. Crosses the store port as it is; stores index `dueAt` and guard by `version`. */
export interface ScheduleRow extends Policies {
  readonly name: string;
  readonly kind: string;
  /** Rises with every write of the row. */
  readonly version: number;
  readonly timing: Timing;
  /** The job of each occurrence without its id; null: its input is a function, which only programs that declare the schedule have. */
  readonly draft: Omit<JobDraft, "id"> | null;
  /** The next occurrence that is neither enqueued nor skipped; null: there is none. */
  readonly nextAt: number | null;
  /** When something has to be done about it, in ms of the store's clock; null: nothing, it is paused or has no next occurrence. */
  readonly dueAt: number | null;
  /** The latest occurrence that was enqueued, and its job. */
  readonly lastAt: number | null;
  readonly lastJob: string | null;
  readonly fired: number;
  readonly skipped: Readonly<Record<SkipReason, number>>;
  readonly pause: SchedulePause | null;
  /** "code": declared by programs. "api": set at run time. */
  readonly origin: "code" | "api";
  /** What tells one declaration of this name from another. */
  readonly digest: string;
  /** Declarations that this one replaced, the latest first. */
  readonly former: readonly string[];
  /** The version of the time-zone data with which `nextAt` was computed; null: it does not depend on it. */
  readonly zoneData: string | null;
  readonly createdAt: number;
  readonly changedAt: number;
}

/** What a program or a call wants a schedule to be. */
export type ScheduleSpec = Policies &
  Pick<ScheduleRow, "name" | "kind" | "timing" | "draft" | "origin" | "digest" | "zoneData">;

/** The first occurrence after an instant (ms); null: there is none. */
export type NextOccurrence = (timing: Timing, after: number) => number | null;

/** An occurrence that fires later than this counts as missed. */
export const ON_TIME_MS = 60_000;
/** At most this many jobs of one schedule in one transaction; the rest follow in the next ones. */
export const MAX_FIRED_AT_ONCE = 100;
/** Declarations that are remembered as replaced. */
const MAX_FORMER = 16;
/** How soon a schedule whose kind is paused is considered again. */
export const KIND_PAUSED_AGAIN_MS = 5_000;
/** Skipped occurrences are counted up to this many; beyond it their number is not known. */
const MAX_COUNTED = 1_000;

/** One occurrence that becomes a job. */
export interface Occurrence {
  readonly at: number;
  /** It fires late, after it was missed. */
  readonly caughtUp: boolean;
}

/** Occurrences that are not enqueued. */
export interface Skipped {
  readonly reason: SkipReason;
  readonly from: number;
  readonly to: number;
  /** At least this many. */
  readonly count: number;
}

/** What to do about a schedule that is due. */
export interface FiringDecision {
  readonly occurrences: readonly Occurrence[];
  readonly skipped: readonly Skipped[];
  /** The row after it, if nothing else has changed it. Its `lastJob` is filled in with the ids. */
  readonly row: ScheduleRow;
}

export interface FiringFacts {
  /** The store's clock. */
  readonly now: number;
  /** The job of the latest occurrence has not ended. */
  readonly isPreviousUnfinished: boolean;
  readonly isKindPaused: boolean;
  readonly zoneData: string | null;
}

/**
 * Null: nothing is due. An occurrence is missed if it is more than a minute late, or if the one after it is due, too. Occurrences are taken in
 * their order, and the row moves past each of them exactly once, whatever is done with it.
 */
export function decideFiring(row: ScheduleRow, facts: FiringFacts, next: NextOccurrence): FiringDecision | null {
  const { now } = facts;
  if (row.dueAt === null || row.dueAt > now || row.nextAt === null) return null;
  if (row.pause !== null && row.pause.until === null) return null;
  const resumed = row.pause === null ? row : { ...row, pause: null };
  // Nothing moves: what was due meanwhile is missed when the kind goes on.
  if (facts.isKindPaused) return nothingMoves({ ...resumed, dueAt: now + KIND_PAUSED_AGAIN_MS }, now);
  if (dueAtOf(row, row.nextAt) > now) return nothingMoves({ ...resumed, dueAt: dueAtOf(row, row.nextAt) }, now);
  const latest = latestDue(row, row.nextAt, now, next);
  const kept = row.missed === "all" ? dueWithin(row, row.nextAt, latest, now, next) : [latest];
  const fired: Occurrence[] = [];
  const skipped: Skipped[] = [];
  const first = kept[0]!;
  if (row.nextAt < first) {
    const reason = row.missed === "all" ? "too-old" : "missed";
    skipped.push({ reason, ...counted(row.timing, row.nextAt, first, next) });
  }
  let isUnfinished = facts.isPreviousUnfinished;
  for (const at of kept) {
    const lateMs = now - dueAtOf(row, at);
    const isLate = lateMs > ON_TIME_MS || at < latest;
    const reason: SkipReason | null =
      isLate && row.missed === "skip"
        ? "missed"
        : isLate && now - at > row.withinMs
          ? "too-old"
          : row.overlap === "skip" && isUnfinished
            ? "overlap"
            : null;
    if (reason !== null) {
      skipped.push({ reason, from: at, to: at, count: 1 });
      continue;
    }
    fired.push({ at, caughtUp: isLate });
    isUnfinished = true;
  }
  const nextAt = next(row.timing, kept.at(-1)!);
  const counts = { ...row.skipped };
  for (const { reason, count } of skipped) counts[reason] += count;
  const moved = {
    ...resumed,
    nextAt,
    dueAt: nextAt === null ? null : dueAtOf(row, nextAt),
    lastAt: fired.at(-1)?.at ?? row.lastAt,
    fired: row.fired + fired.length,
    skipped: counts,
    zoneData: row.zoneData === null ? null : facts.zoneData,
    changedAt: now,
  };
  return { occurrences: fired, skipped, row: moved };
}

function nothingMoves(row: ScheduleRow, now: number): FiringDecision {
  return { occurrences: [], skipped: [], row: { ...row, changedAt: now } };
}

/** When an occurrence fires: with its share of the jitter, which is the same for every process that asks. */
export function dueAtOf({ name, jitterMs }: Pick<ScheduleRow, "name" | "jitterMs">, at: number): number {
  return jitterMs === 0 ? at : at + Math.floor(jitterMs * shareOf(`${name} ${at}`));
}

/** A number in [0, 1) made of a text: the same everywhere, and spread evenly. */
function shareOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  hash ^= hash >>> 16;
  hash = Math.imul(hash, 0x7feb352d);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x846ca68b);
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}

/** Spans in which to look back for the latest occurrence, so that a pattern that fires every second is not walked from the start of an outage. */
const LOOK_BACK_MS = [60_000, 3_600_000, 86_400_000, 32 * 86_400_000, 366 * 86_400_000];

/** The last occurrence that is due, not before `first`. */
function latestDue(row: ScheduleRow, first: number, now: number, next: NextOccurrence): number {
  if ("everyMs" in row.timing && row.jitterMs === 0) {
    const { everyMs, fromMs } = row.timing;
    return Math.max(first, fromMs + Math.floor((now - fromMs) / everyMs) * everyMs);
  }
  const span = LOOK_BACK_MS.find((ms) => {
    const at = now - ms > first ? next(row.timing, now - ms) : first;
    return at !== null && dueAtOf(row, at) <= now;
  });
  let latest = first;
  const from = span === undefined || now - span <= first ? first : next(row.timing, now - span);
  for (let at = from; at !== null && at <= now; at = next(row.timing, at)) if (dueAtOf(row, at) <= now) latest = at;
  return latest;
}

/** Of "all": the oldest ones that are not too old, at most so many that fit into a transaction. If all are too old, the latest. */
function dueWithin(row: ScheduleRow, first: number, latest: number, now: number, next: NextOccurrence): number[] {
  const oldest = now - row.withinMs;
  const due: number[] = [];
  let at = first < oldest ? next(row.timing, oldest - 1) : first;
  while (at !== null && at <= latest && due.length < MAX_FIRED_AT_ONCE) {
    due.push(at);
    at = next(row.timing, at);
  }
  return due.length > 0 ? due : [latest];
}

/** From an occurrence up to, and without, another. */
function counted(
  timing: Timing,
  from: number,
  before: number,
  next: NextOccurrence,
): { readonly from: number; readonly to: number; readonly count: number } {
  if ("everyMs" in timing)
    return { from, to: before - timing.everyMs, count: Math.round((before - from) / timing.everyMs) };
  let count = 0;
  let to = from;
  for (let at: number | null = from; at !== null && at < before && count < MAX_COUNTED; at = next(timing, at)) {
    count++;
    to = at;
  }
  return { from, to, count };
}

// ---- how a row comes to be and changes

const NOTHING_SKIPPED: ScheduleRow["skipped"] = { missed: 0, "too-old": 0, overlap: 0 };

/**
 * The row of a schedule as it is set now. If its timing is as before, the next occurrence stays where it is, so a program that declares it at every start
 * neither skips nor repeats one. Null: the row is that already.
 */
export function setRow(
  row: ScheduleRow | null,
  spec: ScheduleSpec,
  now: number,
  next: NextOccurrence,
): ScheduleRow | null {
  if (row !== null && row.digest === spec.digest && row.origin === spec.origin) return null;
  const isSameTiming = row !== null && JSON.stringify(row.timing) === JSON.stringify(spec.timing);
  const nextAt = isSameTiming ? row.nextAt : next(spec.timing, now);
  const { lastAt = null, lastJob = null, fired = 0, skipped = NOTHING_SKIPPED, pause = null } = row ?? {};
  const former = row === null || row.digest === spec.digest ? (row?.former ?? []) : [row.digest, ...row.former];
  return {
    ...spec,
    version: row?.version ?? 0,
    nextAt,
    dueAt: pausedDueAt(pause, nextAt === null ? null : dueAtOf(spec, nextAt)),
    lastAt,
    lastJob,
    fired,
    skipped,
    pause,
    former: former.filter((digest) => digest !== spec.digest).slice(0, MAX_FORMER),
    createdAt: row?.createdAt ?? now,
    changedAt: now,
  };
}

function pausedDueAt(pause: SchedulePause | null, dueAt: number | null): number | null {
  if (pause === null || dueAt === null) return dueAt;
  return pause.until === null ? null : Math.max(pause.until, dueAt);
}

/**
 * Whether a program that declares `digest` may replace the row. A declaration that was never seen is newer. One that was replaced before comes from an
 * older version of the program, and waits until no live worker declares the present one: then it is a rollback.
 */
export function mayDeclare(row: ScheduleRow, digest: string, isDeclaredElsewhere: boolean): boolean {
  if (row.digest === digest) return true;
  return !row.former.includes(digest) || !isDeclaredElsewhere;
}

export function pausedRow(row: ScheduleRow, pause: SchedulePause): ScheduleRow {
  const dueAt = row.nextAt === null ? null : dueAtOf(row, row.nextAt);
  return { ...row, pause, dueAt: pausedDueAt(pause, dueAt), changedAt: pause.at };
}

/** What was due during the pause is missed, and treated so by the next worker. */
export function resumedRow(row: ScheduleRow, now: number): ScheduleRow {
  return { ...row, pause: null, dueAt: row.nextAt === null ? null : dueAtOf(row, row.nextAt), changedAt: now };
}

/** The occurrences in [from, to], for previews and backfills, at most `limit`. */
export function occurrencesIn(
  timing: Timing,
  from: number,
  to: number,
  limit: number,
  next: NextOccurrence,
): readonly number[] {
  const found: number[] = [];
  for (let at = next(timing, from - 1); at !== null && at <= to && found.length < limit; at = next(timing, at))
    found.push(at);
  return found;
}
