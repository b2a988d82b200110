// A schedule as a program writes it: `schedule(...)` in code, or the options of `engine.schedules.set`. From these to what is stored.
import { createHash } from "node:crypto";
import type { AnyContract, JobContract } from "../job/contract.ts";
import { makeDraft, MAX_PRIORITY } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { JobDraft } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import { MAX_KEYS, scheduleKey, tooManyKeys } from "../job/limits.ts";
import {
  MISSED_POLICIES,
  type MissedPolicy,
  OVERLAP_POLICIES,
  type OverlapPolicy,
  SCHEDULED,
  type ScheduledTarget,
  type ScheduleRow,
  type ScheduleSpec,
  type Timing,
} from "../job/schedules.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { type Calendar, calendarFor, zoneDataVersion } from "./calendar.ts";

/** What an input function gets. */
export interface PlannedFor {
  /** The name of the schedule. */
  readonly schedule: string;
  /** The occurrence: an instant in ISO 8601, in UTC. */
  readonly at: string;
}

/** When a schedule fires, with which input, and what becomes of what it missed. */
export interface ScheduleOptions<In = Json> {
  /** A cron pattern of five parts, or six with seconds first, at most 100 characters. Either this or `every`. */
  readonly cron?: string;
  /** The time zone of `cron`, by its IANA name. Default "UTC". */
  readonly zone?: string;
  /** A fixed distance between occurrences, from "1s" to "3650d", counted from the start of 1970 in UTC: "1h" is at every full hour. Either this or `cron`. */
  readonly every?: Duration;
  /** Moves the occurrences of `every` by this much, less than `every`. Default "0s". */
  readonly offset?: Duration;
  /** The input of each job. A function, of declared schedules only, gets the occurrence; workers whose program has it fire the schedule. Default: null. */
  readonly input?: In | ((planned: PlannedFor) => In);
  /** What is done with occurrences that no worker fired within a minute, or before the next one was due: "skip" them, run the "latest", or "all" of them. Default "latest". */
  readonly missed?: MissedPolicy;
  /** Missed occurrences older than this are skipped. Default "1d"; at most "3650d". */
  readonly within?: Duration;
  /** While the job before has not ended: "skip" the occurrence, "queue" it after that job, or "allow" both at once. Default "skip". */
  readonly overlap?: OverlapPolicy;
  /** Each occurrence fires up to this much later, so that many schedules do not fire at once. Every process computes the same delay for an occurrence. Default "0s"; at most "1d". */
  readonly jitter?: Duration;
  /** The priority of its jobs. Default 0, from -1000 to 1000. */
  readonly priority?: number;
}

type Known = keyof ScheduleOptions;
const OPTIONS = [
  "cron",
  "zone",
  "every",
  "offset",
  "input",
  "missed",
  "within",
  "overlap",
  "jitter",
  "priority",
] as const satisfies readonly Known[];

/** The longest name of a schedule. */
const MAX_NAME = 200;
const DAY_MS = 86_400_000;

/** A schedule in a program's code. */
export class ScheduleDeclaration {
  /** The schedule's name. */
  readonly name: string;
  /** @internal The kind of job that it enqueues. */
  readonly contract: AnyContract;
  /** When it fires, and with which input. */
  readonly options: ScheduleOptions<never>;
  readonly #inputOf: ScheduledTarget["inputOf"];

  /** @internal */
  constructor(name: string, scheduled: AnyContract | Schedulable, options: ScheduleOptions<never>) {
    this.name = name;
    const { contract, inputOf } = targetOf(scheduled);
    this.contract = contract;
    this.#inputOf = inputOf;
    this.options = options;
  }

  /** @internal The job of one occurrence. */
  async draft(at: number): Promise<Omit<JobDraft, "id">> {
    const { input } = this.options as ScheduleOptions<unknown>;
    const value =
      typeof input === "function"
        ? (input as (planned: PlannedFor) => unknown)({ schedule: this.name, at: new Date(at).toISOString() })
        : input;
    return draftOf(this.name, this.contract, await this.#inputOf(value), this.options);
  }
}

/** A batch or a collection. */
export interface Schedulable {
  /** What a schedule of it enqueues. */
  readonly scheduled: ScheduledTarget;
}

/** What a schedule of this enqueues. A job and a request are enqueued themselves. */
function targetOf(scheduled: AnyContract | Schedulable): ScheduledTarget {
  if (typeof scheduled === "object" && scheduled !== null && "scheduled" in scheduled) return scheduled.scheduled;
  return { contract: scheduled, inputOf: (input) => input };
}

/**
 * Declares a schedule of a job, a request, a batch or a collection. Pass it to `open` in `jobs`, next to what it schedules; a worker of the program then keeps it. A deploy that no longer declares it
 * deletes nothing: `outlive schedules prune` does.
 */
export function schedule<In>(
  name: string,
  scheduled: Scheduling<In>,
  options: ScheduleOptions<NoInfer<In>>,
): ScheduleDeclaration {
  timingOf(name, options as ScheduleOptions<never>);
  return new ScheduleDeclaration(name, scheduled as never, options as ScheduleOptions<never>);
}

/** What can be scheduled with this input: a job or a request, a collection, or a batch, whose input is the file that it reads. */
export type Scheduling<In> =
  | JobContract<In, never, never>
  | JobContract<In, never, unknown>
  | JobContract<In, unknown, unknown>
  | ScheduledWith<In>;

/** A batch or a collection, by the input of its schedule. */
export interface ScheduledWith<In> extends Schedulable {
  /** For the compiler only: the input of its schedule. */
  readonly scheduledWith?: In;
}

/** Checked by shape: the program's copy of outlive may differ from the command line's. */
export function isScheduleDeclaration(value: unknown): value is ScheduleDeclaration {
  if (typeof value !== "object" || value === null) return false;
  const { name, contract, options, draft } = value as Partial<ScheduleDeclaration>;
  return (
    typeof name === "string" &&
    typeof contract === "object" &&
    typeof options === "object" &&
    typeof draft === "function"
  );
}

/** What is stored of it. `now`: the store's clock, for the check that it ever occurs. */
export async function specOf(
  declaration: ScheduleDeclaration,
  origin: ScheduleRow["origin"],
  now: number,
): Promise<ScheduleSpec & { readonly calendar: Calendar }> {
  const { name, contract, options } = declaration;
  const timing = timingOf(name, options);
  const calendar = await calendarFor([timing]);
  calendar.check(timing, name, now);
  const isComputed = typeof options.input === "function";
  if (isComputed && origin === "api")
    throw invalid(
      name,
      "input is a function, which can't be stored",
      "Pass the input itself, or declare the schedule with schedule().",
    );
  const draft = isComputed ? null : await declaration.draft(0);
  const policies = {
    missed: oneOf(name, "missed", options.missed ?? "latest", MISSED_POLICIES),
    withinMs: length(name, "within", options.within ?? "1d", 0, 3_650 * DAY_MS),
    overlap: oneOf(name, "overlap", options.overlap ?? "skip", OVERLAP_POLICIES),
    jitterMs: length(name, "jitter", options.jitter ?? "0s", 0, DAY_MS),
  };
  const { priority = 0 } = options;
  const stored = { kind: contract.name, timing, ...policies, draft };
  const digest = hash(JSON.stringify([stored, isComputed ? [String(options.input), priority] : null]));
  const zoneData = "cron" in timing && timing.zone !== "UTC" ? zoneDataVersion() : null;
  return { name, ...stored, origin, digest, zoneData, calendar };
}

/** The id of the job of an occurrence: the same for whichever process fires it, and after a restore. */
export function occurrenceId(schedule: string, at: number): string {
  return `${SCHEDULED}${hash(`${schedule}\n${at}`)}`;
}

/** The id of a job that was run by hand. */
export function handRunId(schedule: string, newId: string): string {
  return `${SCHEDULED}${hash(`${schedule}\nrun ${newId}`)}`;
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 31);
}

async function draftOf(
  name: string,
  contract: AnyContract,
  input: unknown,
  { priority = 0, overlap = "skip" }: ScheduleOptions<never>,
): Promise<Omit<JobDraft, "id">> {
  if (!Number.isInteger(priority) || Math.abs(priority) > MAX_PRIORITY)
    throw invalid(name, `priority is ${priority}`, `Use a whole number from -${MAX_PRIORITY} to ${MAX_PRIORITY}.`);
  const { id: _, ...draft } = await makeDraft(contract, input, { priority }, () => "");
  if (overlap !== "queue") return draft;
  const keys = [...(draft.keys ?? []), scheduleKey(name)];
  if (keys.length > MAX_KEYS) throw tooManyKeys(contract.name, keys.length);
  return { ...draft, keys };
}

function timingOf(name: string, options: ScheduleOptions<never>): Timing {
  if (typeof name !== "string" || name.length === 0 || name.length > MAX_NAME || /[\p{Cc}\p{Cs}]/u.test(name))
    throw invalid(
      typeof name === "string" ? name.slice(0, MAX_NAME) : String(name),
      `the name has ${typeof name === "string" ? name.length : 0} characters, or control characters`,
      `Use 1 to ${MAX_NAME} printable characters.`,
    );
  const unknown = Object.keys(options ?? {}).find((key) => !(OPTIONS as readonly string[]).includes(key));
  if (unknown !== undefined)
    throw invalid(name, `there is no option ${JSON.stringify(unknown)}`, `The options are ${OPTIONS.join(", ")}.`);
  const { cron, zone, every, offset } = options;
  if ((cron === undefined) === (every === undefined))
    throw invalid(name, "it needs either cron or every", 'Write cron: "0 3 * * *", or every: "1h".');
  if (cron !== undefined) {
    if (offset !== undefined)
      throw invalid(name, "offset belongs to every, not to cron", "Remove it, or change the pattern.");
    return { cron, zone: zone ?? "UTC" };
  }
  if (zone !== undefined) throw invalid(name, "zone belongs to cron, not to every", "Remove it, or use cron.");
  const everyMs = length(name, "every", every!, 1_000, 3_650 * DAY_MS);
  return { everyMs, fromMs: length(name, "offset", offset ?? "0s", 0, everyMs - 1) };
}

function length(name: string, option: string, value: Duration, min: number, max: number): number {
  const ms = durationMs(value, `${option} of schedule ${name}`);
  if (ms >= min && ms <= max) return ms;
  throw invalid(name, `${option} is ${JSON.stringify(value)}`, `Use ${min} to ${max} ms.`);
}

function oneOf<T extends string>(name: string, option: string, value: T, known: readonly T[]): T {
  if (known.includes(value)) return value;
  throw invalid(name, `${option} is ${JSON.stringify(value)}`, `Use one of ${known.join(", ")}.`);
}

function invalid(name: string, what: string, hint: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `The schedule ${JSON.stringify(name)} is not valid: ${what}.`,
    hint,
    {
      schedule: name,
    },
  );
}
