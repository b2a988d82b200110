// `engine.schedules`: what programs and people do with schedules at run time. Every change reads a row, decides and writes it under guard, with its audit
// entry in the same transaction.
import { type AuditAction, type AuditEntry, auditEntry, type By } from "../job/audit.ts";
import type { AnyContract } from "../job/contract.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Enqueued, EnqueuedMany, JobDraft } from "../job/job.ts";
import {
  type MissedPolicy,
  occurrencesIn,
  type OverlapPolicy,
  pausedRow,
  resumedRow,
  type SchedulePause,
  type ScheduleRow,
  setRow,
  type SkipReason,
  type Timing,
} from "../job/schedules.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { PlannedJob, Schedules } from "../stores/schedules.ts";
import { calendarFor } from "./calendar.ts";
import {
  handRunId,
  occurrenceId,
  ScheduleDeclaration,
  type ScheduleOptions,
  type Scheduling,
  specOf,
} from "./declaration.ts";
import { changeRow } from "./firing.ts";

/** A schedule as people see it. */
export interface ScheduleInfo {
  /** The schedule's name. */
  readonly name: string;
  /** The kind of job that it enqueues. */
  readonly kind: string;
  /** When it fires: a cron expression with its zone, or an interval. */
  readonly timing: Timing;
  /** What becomes of occurrences that no worker could fire in time. */
  readonly missed: MissedPolicy;
  /** How late a missed occurrence may still be fired, in milliseconds. */
  readonly withinMs: number;
  /** What becomes of an occurrence whose predecessor has not ended. */
  readonly overlap: OverlapPolicy;
  /** The maximum random delay of an occurrence, in milliseconds. */
  readonly jitterMs: number;
  /** The next occurrence, in milliseconds since 1970; null: it is paused without an end, or has none. */
  readonly nextAt: number | null;
  /** The last occurrence that was fired, in milliseconds since 1970; null if none was. */
  readonly lastAt: number | null;
  /** The job of the latest occurrence. */
  readonly lastJob: string | null;
  /** How many occurrences were enqueued. */
  readonly fired: number;
  /** How many occurrences were skipped, and why. */
  readonly skipped: Readonly<Record<SkipReason, number>>;
  /** Its pause; null if it is not paused. */
  readonly paused: SchedulePause | null;
  /** "code": programs declare it. "api": it was set at run time. */
  readonly origin: "code" | "api";
  /** Whether the program of a live worker declares it. Always true for one that was set at run time. */
  readonly declared: boolean;
  /** Its input is a function: only workers that declare it fire it. */
  readonly computed: boolean;
}

/** One planned run. */
export interface PreviewedOccurrence {
  /** When it is, in milliseconds since 1970. */
  readonly at: number;
  /** The difference of the zone to UTC then, "+02:00". */
  readonly offset: string;
}

/** What deserves a person's attention among all schedules. */
export interface SchedulesReview {
  /** Names of schedules that programs declared once and no live worker declares now, in order. */
  readonly undeclared: readonly string[];
  /** The versions of time-zone data of the live workers, if they differ and a schedule depends on them. Otherwise empty. */
  readonly differingZoneData: readonly {
    /** The version, as the IANA names it: "2026a". */
    readonly version: string;
    /** The workers that have it. */
    readonly workers: readonly string[];
  }[];
}

/** Options of a schedule's pause. */
export interface SchedulePauseOptions extends By {
  /** Until this moment of the store's clock, or for this long. Default: until it is resumed. */
  readonly until?: Date | Duration;
}

/** At most this many jobs by one backfill. */
const MAX_BACKFILL = 10_000;
/** Of Redis a script that inserts 500 of them takes 15 ms. */
const BACKFILL_AT_ONCE = 100;
const PAGE = 1_000;

export interface ScheduleClientDeps {
  readonly schedules: Schedules;
  readonly newId: () => string;
  /** Refuses a contract that the program did not pass to `open`. */
  readonly assertKnown: (contract: AnyContract) => void;
  /** The schedules of this program, by name. */
  readonly declared: ReadonlyMap<string, ScheduleDeclaration>;
}

/** `engine.schedules`: reads and changes the schedules of the store. */
export class ScheduleClient {
  readonly #deps: ScheduleClientDeps;

  /** Use `engine.schedules`. @internal */
  constructor(deps: ScheduleClientDeps) {
    this.#deps = deps;
  }

  /** Adds a schedule of a job, a request, a batch or a collection, or changes the one of this name. Takes effect at once. If its timing does not change, neither does its next occurrence. */
  async set<In>(
    name: string,
    scheduled: Scheduling<In>,
    options: ScheduleOptions<NoInfer<In>>,
    by: By = {},
  ): Promise<ScheduleInfo> {
    const declaration = new ScheduleDeclaration(name, scheduled as never, options as ScheduleOptions<never>);
    this.#deps.assertKnown(declaration.contract);
    const { schedules } = this.#deps;
    const now = await schedules.now();
    const { calendar, ...spec } = await specOf(declaration, "api", now);
    const change = (before: ScheduleRow | null): ScheduleRow | null => {
      if (before?.origin === "code") throw declaredInCode(name);
      return setRow(before, spec, now, calendar.next);
    };
    const row = await changeRow(schedules, name, change, this.#entry("schedule", name, by));
    return this.#info(row!);
  }

  /** All schedules, by name. */
  async list(): Promise<readonly ScheduleInfo[]> {
    const rows: ScheduleRow[] = [];
    for (let after: string | null = null; ; after = rows.at(-1)!.name) {
      const page: readonly ScheduleRow[] = await this.#deps.schedules.list(PAGE, after);
      rows.push(...page);
      if (page.length < PAGE) break;
    }
    const live = await this.#liveNames(rows);
    return rows.map((row) => infoOf(row, live));
  }

  /** The schedule of that name; null if there is none. */
  async get(name: string): Promise<ScheduleInfo | null> {
    assertKey(name, "The schedule's name");
    const row = await this.#deps.schedules.get(name);
    return row && this.#info(row);
  }

  /** The latest jobs of a schedule, the newest occurrence first. */
  async jobs(
    name: string,
    options: {
      /** At most this many. */
      readonly limit?: number;
    } = {},
  ): Promise<readonly PlannedJob[]> {
    assertKey(name, "The schedule's name");
    return this.#deps.schedules.fired(name, Math.min(1_000, Math.max(1, options.limit ?? 50)));
  }

  /** The next occurrences, of a schedule that is stored or of a timing that is not, with the zone's offset at each. Writes nothing. */
  async preview(
    of: string | Pick<ScheduleOptions<never>, "cron" | "zone" | "every" | "offset">,
    count = 5,
  ): Promise<readonly PreviewedOccurrence[]> {
    const { schedules } = this.#deps;
    const now = await schedules.now();
    const limit = Math.min(1_000, Math.max(1, count));
    if (typeof of === "string") {
      const { timing, nextAt } = await this.#row(of);
      const calendar = await calendarFor([timing]);
      return nextAt === null ? [] : offsets(timing, occurrencesIn(timing, nextAt, FAR, limit, calendar.next));
    }
    const unnamed = new ScheduleDeclaration("preview", NO_CONTRACT, of);
    const { calendar, timing } = await specOf(unnamed, "api", now);
    return offsets(timing, occurrencesIn(timing, now + 1, FAR, limit, calendar.next));
  }

  /** Nothing fires until it is resumed, or `until` has come. What was due meanwhile is missed, and `missed` says what is done with it. */
  async pause(name: string, options: SchedulePauseOptions = {}): Promise<void> {
    const { until = null, ...by } = options;
    const entry = this.#entry("pause", name, by);
    const at = await this.#deps.schedules.now();
    const ends =
      until === null
        ? null
        : until instanceof Date
          ? until.getTime()
          : at + durationMs(until, `until of the pause of schedule ${name}`);
    const pause = { reason: entry.reason ?? "", by: entry.actor, at, until: ends };
    await this.#change(name, (row) => pausedRow(row, pause), entry);
  }

  /** Ends the schedule's pause. What it missed meanwhile is treated as its `missed` says. */
  async resume(name: string, by: By = {}): Promise<void> {
    const entry = this.#entry("resume", name, by);
    const now = await this.#deps.schedules.now();
    await this.#change(name, (row) => (row.pause === null ? null : resumedRow(row, now)), entry);
  }

  /** Enqueues a job of the schedule now, regardless of its pause and `overlap`. Its next occurrence does not change. */
  async run(name: string, by: By = {}): Promise<Enqueued> {
    const entry = this.#entry("run", name, by);
    const now = await this.#deps.schedules.now();
    const row = await this.#row(name);
    const draft = { ...(await this.#draft(row, now)), id: handRunId(name, this.#deps.newId()) };
    const jobs = [{ draft, at: now, caughtUp: false }];
    const change = (present: ScheduleRow): ScheduleRow => ({ ...present, lastJob: draft.id, changedAt: now });
    const [answer] = await this.#fire(row.name, change, jobs, entry);
    return answer!;
  }

  /** Enqueues the occurrences from `from` to `to`, both included, that were not enqueued before. At most 10,000. */
  async backfill(name: string, from: Date, to: Date, by: By = {}): Promise<EnqueuedMany> {
    const entry = this.#entry("backfill", name, by);
    const row = await this.#row(name);
    const calendar = await calendarFor([row.timing]);
    const all = occurrencesIn(row.timing, from.getTime(), to.getTime(), MAX_BACKFILL + 1, calendar.next);
    if (all.length > MAX_BACKFILL)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The schedule ${name} has more than ${MAX_BACKFILL} occurrences in that time.`,
        "Nothing was enqueued. Backfill a shorter time, several times.",
        { schedule: name },
      );
    let created = 0;
    for (let i = 0; i < all.length; i += BACKFILL_AT_ONCE) {
      const jobs: { draft: JobDraft; at: number; caughtUp: boolean }[] = [];
      for (const at of all.slice(i, i + BACKFILL_AT_ONCE))
        jobs.push({ draft: { ...(await this.#draft(row, at)), id: occurrenceId(name, at) }, at, caughtUp: true });
      const enqueued = await this.#fire(name, (present) => present, jobs, entry);
      created += enqueued.filter((one) => one.created).length;
    }
    return { count: all.length, created };
  }

  /** Removes a schedule; its jobs stay. Returns false if there is none. If a program declares it, its next worker adds it again. */
  async remove(name: string, by: By = {}): Promise<boolean> {
    assertKey(name, "The schedule's name");
    return this.#deps.schedules.remove(name, null, this.#entry("remove", name, by));
  }

  /** What `outlive status` says about schedules, however many there are. */
  async review(): Promise<SchedulesReview> {
    const { undeclared, isAnyZoned, zoneData } = await this.#deps.schedules.review();
    return { undeclared, differingZoneData: isAnyZoned && zoneData.length > 1 ? zoneData : [] };
  }

  /** Removes schedules that programs declared once, and none of a live worker declares now. Returns their names. With `dryRun` it removes nothing. */
  async prune({
    dryRun = false,
    ...by
  }: {
    /** Removes nothing. Default false. */
    readonly dryRun?: boolean;
  } & By = {}): Promise<readonly string[]> {
    const names: string[] = [];
    for (const { name, origin, declared } of await this.list()) {
      if (origin !== "code" || declared) continue;
      if (dryRun || (await this.remove(name, by))) names.push(name);
    }
    return names;
  }

  async #fire(
    name: string,
    change: (row: ScheduleRow) => ScheduleRow,
    jobs: readonly { readonly draft: JobDraft; readonly at: number; readonly caughtUp: boolean }[],
    entry: AuditEntry,
  ): Promise<readonly Enqueued[]> {
    for (;;) {
      const [answer] = await this.#deps.schedules.fire([{ row: change(await this.#row(name)), jobs }], entry);
      if (answer!.is === "fired") return answer!.enqueued;
    }
  }

  async #draft(row: ScheduleRow, at: number): Promise<Omit<JobDraft, "id">> {
    if (row.draft !== null) return row.draft;
    const declaration = this.#deps.declared.get(row.name);
    if (declaration) return declaration.draft(at);
    throw new OutliveError(
      ErrorCode.wrongState,
      `The input of the schedule ${row.name} is a function, which this program does not have.`,
      "Do it in a program that declares the schedule and passes it to open().",
      { schedule: row.name },
    );
  }

  async #change(name: string, change: (row: ScheduleRow) => ScheduleRow | null, entry: AuditEntry): Promise<void> {
    assertKey(name, "The schedule's name");
    const changed = (row: ScheduleRow | null): ScheduleRow | null => {
      if (row === null) throw missing(name);
      return change(row);
    };
    await changeRow(this.#deps.schedules, name, changed, entry);
  }

  #entry(action: AuditAction, name: string, by: By): AuditEntry {
    return auditEntry(this.#deps.newId(), action, `schedule ${name}`, by);
  }

  async #row(name: string): Promise<ScheduleRow> {
    assertKey(name, "The schedule's name");
    const row = await this.#deps.schedules.get(name);
    if (row === null) throw missing(name);
    return row;
  }

  async #info(row: ScheduleRow): Promise<ScheduleInfo> {
    return infoOf(row, await this.#liveNames([row]));
  }

  async #liveNames(rows: readonly ScheduleRow[]): Promise<ReadonlySet<string>> {
    if (rows.every(({ origin }) => origin === "api")) return new Set();
    return new Set((await this.#deps.schedules.declared()).map(({ schedule }) => schedule));
  }
}

/** The latest instant of ECMAScript's Date. */
const FAR = 8.64e15;
const NO_CONTRACT = { name: "preview", schema: null, keysOf: null, fairOf: null } as unknown as AnyContract;

function infoOf(row: ScheduleRow, live: ReadonlySet<string>): ScheduleInfo {
  const { name, kind, timing, missed, withinMs, overlap, jitterMs, lastJob, fired, skipped, origin, pause } = row;
  return {
    name,
    kind,
    timing,
    missed,
    withinMs,
    overlap,
    jitterMs,
    nextAt: pause !== null && pause.until === null ? null : row.nextAt,
    lastAt: row.lastAt,
    lastJob,
    fired,
    skipped,
    paused: pause,
    origin,
    declared: origin === "api" || live.has(name),
    computed: row.draft === null,
  };
}

function offsets(timing: Timing, all: readonly number[]): readonly PreviewedOccurrence[] {
  const format = new Intl.DateTimeFormat("en", {
    timeZone: "cron" in timing ? timing.zone : "UTC",
    timeZoneName: "longOffset",
  });
  return all.map((at) => {
    const name = format.formatToParts(new Date(at)).find(({ type }) => type === "timeZoneName")?.value ?? "";
    return { at, offset: name.replace(/^(GMT|UTC)/, "") || "+00:00" };
  });
}

function missing(name: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no schedule ${JSON.stringify(name)}.`,
    "Check the name: outlive schedules lists them.",
    { schedule: name },
  );
}

function declaredInCode(name: string): OutliveError {
  return new OutliveError(
    ErrorCode.wrongState,
    `The schedule ${JSON.stringify(name)} is declared in code, so it can't be set at run time.`,
    "Change it in the code, or use another name. You can still pause, run and backfill it here.",
    { schedule: name },
  );
}
