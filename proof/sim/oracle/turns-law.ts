// The promise of fair kinds: a key whose job could start is not passed over. While it waits, no other key is served more often than a round and the rest
// of the visit that was under way allow.
import { demand } from "./violation.ts";

/** A job of a fair kind. */
export interface FairJob {
  readonly id: string;
  readonly kind: string;
  /** The name of its key. */
  readonly key: string;
}

export class TurnsLaw {
  /** How often each other key was served since this one began to wait, by kind and key. */
  #waiting = new Map<string, Map<string, number>>();

  /** After each moment. `served`: what was admitted in it; `waiting`: what has room everywhere and is held all the same; `weightOf`: of a key. */
  onMoment(served: readonly FairJob[], waiting: readonly FairJob[], weightOf: (key: string) => number): void {
    const wait = new Set(waiting.map(nameOf));
    const had = new Map<string, number>();
    for (const job of served) had.set(nameOf(job), (had.get(nameOf(job)) ?? 0) + 1);
    const before = this.#waiting;
    this.#waiting = new Map([...wait].map((name) => [name, before.get(name) ?? new Map<string, number>()]));
    for (const job of served)
      for (const [name, passes] of this.#waiting) {
        // Who began to wait with this moment was not there yet when it was decided.
        if (!before.has(name) || !name.startsWith(`${job.kind}\n`) || name === nameOf(job)) continue;
        const count = (passes.get(job.key) ?? 0) + 1;
        passes.set(job.key, count);
        // A key that was served in this moment began to wait again each time, and the order within a moment is not known.
        const most = 2 * weightOf(job.key) * (1 + (had.get(name) ?? 0));
        demand(
          count <= most,
          () =>
            `unfair: ${job.id} is the ${count}th job of ${job.key} that was admitted while one of ${name.split("\n")[1]} waited for its turn`,
        );
      }
    // Of those that were served before the last turn of a waiting key, only what must have come after it still counts.
    for (const [name, passes] of this.#waiting)
      for (const [key, count] of passes) passes.set(key, Math.max(0, count - 2 * weightOf(key) * (had.get(name) ?? 0)));
  }

  wentBack(): void {
    this.#waiting.clear();
  }
}

function nameOf({ kind, key }: FairJob): string {
  return `${kind}\n${key}`;
}
