// Where a claim begins to read. Claimed jobs leave dead entries in front of the live ones in the index of ready jobs, and while any session of the server is
// idle in a transaction none of them can be removed: a claim that begins at the front walks over all of them. So a worker remembers how far its claims
// have come, for each priority, and begins there: at its floors.
//
// A job below a floor may still become ready: one that returns (a retry, a release, an admission), and one whose enqueue commits late. So floors are used only while
// reading from the front is slow, and a claim looks from the front again after a while that depends on how long the last look took, at most LOOK_AT_MOST_MS. What this
// process itself has returned makes it look at once, and a floor stays behind what was claimed by LAG_MS, so that an enqueue that commits within that time is never below it.
// So no ready job is hidden for longer than LOOK_AT_MOST_MS (proof/sim/floors.ts).
export interface Floor {
  readonly priority: number;
  readonly seq: number;
}

/** What a claim took, and how it was read. */
export interface Read {
  readonly taken: readonly { readonly priority: number; readonly seq: number }[];
  /** It took all that it asked for: there may be more behind. */
  readonly isFull: boolean;
  /** It began at the floors, not at the front. */
  readonly bounded: boolean;
  readonly beganMono: number;
  readonly endedMono: number;
}

/** How far a floor stays behind what was claimed: an enqueue under way has its number, and commits a moment later. */
export const LAG_MS = 250;
/** Looks from the front take one in this many ms. */
const LOOK_SHARE = 40;
export const LOOK_AT_MOST_MS = 2_000;
/** A look that takes longer than this, and this for each claimed job, walks over the dead. */
const SLOW_MS = 4;
const SLOW_EACH_MS = 0.03;
/** With more priorities than this, the others are read from their front. */
const MAX_FLOORS = 4;

export class Floors {
  readonly #lagMs: number;
  readonly #lookAtMostMs: number;
  #of: unknown = null;
  /** The highest number claimed, by priority. */
  #reached = new Map<number, number>();
  /** The same as it was a while ago, and when. */
  #before: { readonly atMono: number; readonly floors: readonly Floor[] } = { atMono: 0, floors: [] };
  #floors: readonly Floor[] = [];
  /** From then on a claim begins at the front again. */
  #lookAtMono = Number.NEGATIVE_INFINITY;

  constructor(lagMs = LAG_MS, lookAtMostMs = LOOK_AT_MOST_MS) {
    this.#lagMs = lagMs;
    this.#lookAtMostMs = lookAtMostMs;
  }

  /** Where a claim of these kinds begins, the highest priority first; null: at the front. `kinds` are the same as before if they are identical. */
  of(kinds: unknown, mono: number): readonly Floor[] | null {
    if (kinds !== this.#of) this.#forget(kinds);
    return mono < this.#lookAtMono && this.#floors.length > 0 ? this.#floors : null;
  }

  /** In how many ms a look from the front is due. */
  lookInMs(mono: number): number {
    return Math.max(0, this.#lookAtMono - mono);
  }

  /** Something below the floors may have become ready. */
  lookAgain(): void {
    this.#lookAtMono = Number.NEGATIVE_INFINITY;
  }

  /** How far a claim has come. */
  read(read: Read): void {
    const { taken, isFull, bounded, beganMono, endedMono } = read;
    const last = lastOf(taken);
    // A full claim has not read what is behind its last job.
    const hasRead = ({ priority, seq }: Floor): boolean =>
      !isFull || (last !== null && (priority > last.priority || (priority === last.priority && seq <= last.seq)));
    if (!bounded) this.#looked(read, this.#floors.every(hasRead));
    if (beganMono - this.#before.atMono >= this.#lagMs) {
      // What was under way when these were reached was ready for this claim, unless it was not read.
      const former = new Map(this.#floors.map((floor) => [floor.priority, floor]));
      this.#floors = this.#before.floors.flatMap((floor) =>
        hasRead(floor) ? [floor] : (former.get(floor.priority) ?? []),
      );
      this.#reach(taken);
      this.#before = { atMono: endedMono, floors: this.#highest() };
    } else this.#reach(taken);
  }

  #reach(taken: Read["taken"]): void {
    for (const { priority, seq } of taken)
      if (seq > (this.#reached.get(priority) ?? 0)) this.#reached.set(priority, seq);
  }

  /** A look that took nothing shows nothing: the kind may be paused. One that did not come up to the floors may have left something below them. */
  #looked({ taken, beganMono, endedMono }: Read, isWhole: boolean): void {
    if (taken.length === 0) return;
    const ms = endedMono - beganMono;
    const isSlow = ms > SLOW_MS + SLOW_EACH_MS * taken.length;
    const inMs = Math.min(this.#lookAtMostMs, ms * LOOK_SHARE);
    this.#lookAtMono = isSlow && isWhole ? endedMono + inMs : Number.NEGATIVE_INFINITY;
  }

  /** The latest numbers have the most dead before them. */
  #highest(): Floor[] {
    const all = [...this.#reached].map(([priority, seq]) => ({ priority, seq }));
    const latest = all.sort((a, b) => b.seq - a.seq).slice(0, MAX_FLOORS);
    if (all.length > MAX_FLOORS) this.#reached = new Map(latest.map(({ priority, seq }) => [priority, seq]));
    return latest.sort((a, b) => b.priority - a.priority);
  }

  #forget(kinds: unknown): void {
    this.#of = kinds;
    this.#reached = new Map();
    this.#before = { atMono: 0, floors: [] };
    this.#floors = [];
    this.lookAgain();
  }
}

/** The job that would be claimed after all others of these. */
function lastOf(taken: Read["taken"]): Floor | null {
  let last: Floor | null = null;
  for (const one of taken)
    if (last === null || one.priority < last.priority || (one.priority === last.priority && one.seq > last.seq))
      last = one;
  return last;
}

const HIGHEST = 2 ** 31 - 1;
const LOWEST = -(2 ** 31);

/** The ranges of a claim in their order: of one priority from its floor on, and of all priorities between two of those. */
export interface Range {
  readonly highest: number;
  readonly lowest: number;
  readonly floor: number | null;
}

export function rangesOf(floors: readonly Floor[]): Range[] {
  const ranges: Range[] = [];
  let highest = HIGHEST;
  for (const { priority, seq } of floors) {
    if (priority < highest) ranges.push({ highest, lowest: priority + 1, floor: null });
    ranges.push({ highest: priority, lowest: priority, floor: seq });
    highest = priority - 1;
  }
  if (highest >= LOWEST) ranges.push({ highest, lowest: LOWEST, floor: null });
  return ranges;
}
