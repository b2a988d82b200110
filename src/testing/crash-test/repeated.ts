// What a run that was killed did more often than the run that nobody killed. That one is the measure: a job may do the same thing twice
// on purpose, and keys or texts that are new in every run are as many there as here.
import type { Effect } from "./effects.ts";

export interface Repeated {
  /** Effects that happened more than once, though nothing told their receiver that they were the same. */
  readonly twice: readonly string[];
  /** Effects that happened more than once under one idempotency key: one, to a receiver that honours it. */
  readonly twiceUnderOneKey: readonly string[];
}

/** How often one thing was done. */
interface Tally {
  readonly keyless: number;
  /** Under how many keys. */
  readonly keys: number;
  /** How often under a key that it had been done under before. */
  readonly again: number;
}

const NEVER: Tally = { keyless: 0, keys: 0, again: 0 };

export function repeated(undisturbed: readonly Effect[], killed: readonly Effect[]): Repeated {
  const before = tallies(undisturbed);
  const now = tallies(killed);
  const beyond = (part: keyof Tally): string[] => {
    // A text that the undisturbed run does not know stands for one of that run's that is not here: it may name something that is new
    // in every run. There are only so many of those.
    let renamed = [...before].reduce(
      (sum, [what, was]) => sum + Math.max(0, was[part] - (now.get(what) ?? NEVER)[part]),
      0,
    );
    return [...now].flatMap(([what, is]) => {
      let more = is[part] - (before.get(what) ?? NEVER)[part];
      if (!before.has(what)) {
        const excused = Math.min(renamed, more);
        renamed -= excused;
        more -= excused;
      }
      return more > 0 ? [what] : [];
    });
  };
  return {
    twice: [...new Set([...beyond("keyless"), ...beyond("keys")])],
    twiceUnderOneKey: beyond("again"),
  };
}

function tallies(effects: readonly Effect[]): Map<string, Tally> {
  const byWhat = Map.groupBy(effects, ({ what }) => what);
  return new Map(
    [...byWhat].map(([what, times]) => {
      const keyed = times.flatMap(({ key }) => (key === null ? [] : [key]));
      const keys = new Set(keyed).size;
      return [what, { keyless: times.length - keyed.length, keys, again: keyed.length - keys }];
    }),
  );
}
