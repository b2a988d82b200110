// When a schedule has its occurrences. The only file that knows `croner`: it parses patterns and computes instants, and its timers are never
// started. The package is loaded when the first pattern is asked for, so a program without one does not pay for it.
import type * as croner from "croner";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { NextOccurrence, Timing } from "../job/schedules.ts";

/** A pattern longer than this is refused before it is parsed. */
const MAX_PATTERN = 100;
/** Parsed patterns that are kept: parsing costs as much as an occurrence, 0.2 to 0.4 ms. */
const MAX_PARSED = 1_000;

type Croner = typeof croner.Cron;
type Pattern = croner.Cron;

/** The version of the time-zone data of this process. */
export function zoneDataVersion(): string {
  return process.versions["tz"] ?? "unknown";
}

export interface Calendar {
  readonly next: NextOccurrence;
  /** Throws if it is not a timing that has occurrences. `what` names the schedule in the error. */
  check(timing: Timing, what: string, now: number): void;
}

/** Loads what these timings need. */
export async function calendarFor(timings: readonly Timing[]): Promise<Calendar> {
  return timings.some((timing) => "cron" in timing)
    ? (loaded ??= new Patterns((await import("croner")).Cron))
    : PERIODS;
}

let loaded: Calendar | undefined;

function nextPeriod({ everyMs, fromMs }: Extract<Timing, { everyMs: number }>, after: number): number {
  return fromMs + (Math.floor((after - fromMs) / everyMs) + 1) * everyMs;
}

/** Without patterns. */
const PERIODS: Calendar = {
  next(timing, after) {
    if ("everyMs" in timing) return nextPeriod(timing, after);
    throw new Error("A calendar that was loaded for periods was asked for a pattern.");
  },
  check() {},
};

/** A pattern, and the two instants between which it has no occurrence, as they were computed last. */
interface PatternCache {
  readonly pattern: Pattern;
  from: number;
  /** Null: none follows. */
  next: number | null;
}

class Patterns implements Calendar {
  readonly #Cron: Croner;
  readonly #parsed = new Map<string, PatternCache>();

  constructor(cron: Croner) {
    this.#Cron = cron;
  }

  readonly next: NextOccurrence = (timing, after) => {
    if ("everyMs" in timing) return nextPeriod(timing, after);
    const parsed = this.#pattern(timing);
    // Many schedules have the same pattern, and a firing asks for the same occurrence twice. 1,000 that were due at once fired 0.27 s late without this, 0.10 s with it.
    if (after >= parsed.from && (parsed.next === null || after < parsed.next)) return parsed.next;
    parsed.next = parsed.pattern.nextRun(new Date(after))?.getTime() ?? null;
    parsed.from = after;
    return parsed.next;
  };

  check(timing: Timing, what: string, now: number): void {
    if ("everyMs" in timing) return;
    const { cron, zone } = timing;
    const refuse = (why: string, hint: string): OutliveError =>
      new OutliveError(ErrorCode.optionInvalid, `The schedule ${what} ${why}.`, hint, { schedule: what, cron, zone });
    const asPattern = 'Write five parts, or six with seconds first: "0 3 * * *" is every day at 03:00.';
    if (typeof cron !== "string" || cron.length > MAX_PATTERN)
      throw refuse(`has a cron pattern of more than ${MAX_PATTERN} characters`, asPattern);
    if (!isZone(zone)) throw refuse(`has the time zone ${JSON.stringify(zone)}, which is not known here`, ZONES);
    // croner takes an instant for a pattern that occurs once, and words such as @daily: neither is one of the two forms.
    const parts = cron.trim().split(/\s+/).length;
    if (parts !== 5 && parts !== 6) throw refuse(`has ${JSON.stringify(cron)}, which is not a cron pattern`, asPattern);
    let first: number | null;
    try {
      first = this.next(timing, now);
    } catch (thrown) {
      const why = thrown instanceof Error ? thrown.message : String(thrown);
      throw refuse(`has ${JSON.stringify(cron)}, which is not a cron pattern (${why})`, asPattern);
    }
    if (first === null) throw refuse(`has ${JSON.stringify(cron)}, which never occurs`, "Check the day and the month.");
  }

  #pattern({ cron, zone }: { readonly cron: string; readonly zone: string }): PatternCache {
    const name = `${zone} ${cron}`;
    let parsed = this.#parsed.get(name);
    if (parsed === undefined) {
      if (this.#parsed.size >= MAX_PARSED) this.#parsed.clear();
      const pattern = new this.#Cron(cron, { mode: "5-or-6-parts", paused: true, timezone: zone });
      parsed = { pattern, from: Number.POSITIVE_INFINITY, next: null };
      this.#parsed.set(name, parsed);
    }
    return parsed;
  }
}

const ZONES = 'Use a name of the IANA database, for instance "Europe/Berlin", or "UTC".';

const knownZones = new Set<string>();

function isZone(zone: unknown): boolean {
  if (typeof zone !== "string" || zone === "") return false;
  if (knownZones.has(zone)) return true;
  try {
    new Intl.DateTimeFormat("en", { timeZone: zone });
    knownZones.add(zone);
    return true;
  } catch {
    return false;
  }
}
