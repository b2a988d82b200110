// The part of the store port that schedules need, offered as a property of the store. A schedule has no owner: any worker may fire it. Rows cross
// as data, and every write of one is guarded by the version that was read, so of two processes that decide at once one succeeds. Where an audit entry is
// given, it is written in the transaction of the change, and only if something was changed.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { AuditEntry } from "../job/audit.ts";
import type { Enqueued, JobDraft } from "../job/job.ts";
import type { ScheduleRow } from "../job/schedules.ts";

export interface Schedules {
  /** Schedules that are due by the store's clock, the most overdue first, at most `limit`. Reads only: with nothing due, one look at one index. */
  due(limit: number): Promise<DueSchedules>;

  /**
   * Of each, in one transaction: writes the row, and inserts its jobs and what they were planned for, if the row there still has the version of `row`; otherwise
   * nothing of it is written, and it is answered with `stale`. A job whose id is known adds nothing. With an entry, which counts the jobs that were inserted,
   * all of it is one transaction.
   */
  fire(firings: readonly Firing[], entry?: AuditEntry): Promise<readonly FiringAnswer[]>;

  /** Writes the row, with a version one higher, if the one that is there has its version; version 0: if none is there. Returns whether it did. */
  write(row: ScheduleRow, entry?: AuditEntry): Promise<boolean>;

  /** Deletes the row, if it has this version; null: whatever it has. Its jobs stay. */
  remove(name: string, version: number | null, entry?: AuditEntry): Promise<boolean>;

  /** Rejects if what is stored is not what was written. */
  get(name: string): Promise<ScheduleRow | null>;

  /** By name, at most `limit`, only names greater than `after`. Damaged ones are omitted. */
  list(limit: number, after: string | null): Promise<readonly ScheduleRow[]>;

  /** What these jobs were planned for; those that no schedule enqueued are omitted. */
  occurrences(jobs: readonly string[]): Promise<readonly PlannedJob[]>;

  /** The latest jobs of a schedule, the newest occurrence first. */
  fired(name: string, limit: number): Promise<readonly PlannedJob[]>;

  /** One transaction: this worker declares these schedules, and no other ones. Rows of workers that have ended are removed. */
  declare(worker: string, declared: readonly Declared[]): Promise<void>;

  /** What the live workers declare. */
  declared(): Promise<readonly (Declared & { readonly worker: string })[]>;

  /** Notes the time-zone data of a worker that declares no schedule. `declare` of the same worker replaces the note. */
  noteZoneData(worker: string, zoneData: string): Promise<void>;

  /** What is worth a person's attention among all schedules, however many there are. Reads each row once; damaged ones count as what they seem to be. */
  review(): Promise<ScheduleReview>;

  /** The store's clock, in ms. */
  now(): Promise<number>;
}

export interface DueSchedules {
  /** The store's clock when they were read. */
  readonly now: number;
  readonly due: readonly {
    readonly row: ScheduleRow;
    readonly isKindPaused: boolean;
  }[];
  /** In how many ms the first of the others is due; null: none is. */
  readonly nextInMs: number | null;
  /** Names of due ones that are not what was written, and do not fire. Omitted: none. */
  readonly damaged?: readonly string[];
}

/** Jobs on their way into the store, with what they were planned for. */
export interface Firing {
  /** The row after it; its version is the one that was read. */
  readonly row: ScheduleRow;
  readonly jobs: readonly { readonly draft: JobDraft; readonly at: number; readonly caughtUp: boolean }[];
}

/** How many jobs were inserted. */
export function createdCount(answers: readonly FiringAnswer[]): number {
  return answers.reduce(
    (sum, answer) => sum + (answer.is === "fired" ? answer.enqueued.filter(({ created }) => created).length : 0),
    0,
  );
}

export type FiringAnswer = { readonly is: "fired"; readonly enqueued: readonly Enqueued[] } | { readonly is: "stale" };

/** A job and the occurrence for which it was enqueued. */
export interface PlannedJob {
  /** The job's id. */
  readonly job: string;
  /** The name of the schedule. */
  readonly schedule: string;
  /** The occurrence, in milliseconds since 1970. */
  readonly at: number;
  /** It was enqueued late, after it was missed. */
  readonly caughtUp: boolean;
}

/** A schedule that a worker's program has in its code. */
export interface Declared {
  readonly schedule: string;
  readonly digest: string;
  /** The version of its time-zone data. */
  readonly zoneData: string;
}

export interface ScheduleReview {
  /** Names of schedules that programs declared and no live worker declares now, in order. */
  readonly undeclared: readonly string[];
  /** Whether the occurrences of any schedule depend on time-zone data. */
  readonly isAnyZoned: boolean;
  /** The versions of time-zone data that live workers have, and which of them has each. */
  readonly zoneData: readonly { readonly version: string; readonly workers: readonly string[] }[];
}

/**
 * What the text of a stored row contains, so that a store can ask it without reading 100,000 rows as JSON, some of which may be damaged. Texts inside
 * of a row have their quotes escaped, so these can't be part of one.
 */
export const IN_BODY = { declared: '"origin":"code"', notZoned: '"zoneData":null' } as const;

/** Which workers have which version. */
export function byZoneData(
  noted: readonly { readonly worker: string; readonly zoneData: string }[],
): ScheduleReview["zoneData"] {
  const workers = Map.groupBy(noted, ({ zoneData }) => zoneData);
  return [...workers]
    .map(([version, of]) => ({ version, workers: [...new Set(of.map(({ worker }) => worker))].sort() }))
    .sort((a, b) => (a.version < b.version ? -1 : 1));
}

/** The name under which the time-zone data of a worker is noted that declares no schedule. No schedule can have it. */
export const NO_SCHEDULE = "";

/** What is stored of it is not what was written. */
export function damagedSchedule(name: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeDamaged,
    `What is stored of the schedule ${name} is not what was written: the store is damaged.`,
    `Nothing is enqueued by it. Remove it and set it again: outlive schedules remove ${name}.`,
    { schedule: name },
  );
}
