// Claiming ahead: a busy worker claims more jobs than it has slots for, so that a slot that becomes free need not wait for the next turn. What waits here is
// held like any other job: it has an owner, a fence and a deadline, and is a suspect if the worker dies. So only jobs that a death costs nothing wait:
// fresh ones, of kinds that run again after a crash, whose handlers are fast.
//
// How many: about 20 ms of work at the measured rate, within MAX_AHEAD jobs and MAX_BYTES of input. None if handlers take longer than that. Whatever still waits
// after MAX_WAIT_MS is released, by the loop, or by the maintenance if the loop is blocked (ahead-cells.ts).
import type { KindSettings } from "../job/job.ts";
import { type AheadCells, CELLS } from "../recovery/ahead-cells.ts";
import { type Attempt } from "./attempt.ts";

const WORK_MS = 20;
export const MAX_AHEAD = 450;
const MAX_BYTES = 4 * 2 ** 20;
/** How much the latest measurement counts. */
const WEIGHT = 0.3;

/** Whether jobs of a kind may wait: a death costs them nothing, and nothing else counts on when they start. */
export function mayWait({ onCrash, keyed = [] }: KindSettings): boolean {
  // A limit of how many run counts a job from its admission on, so that one that waits here is counted already. The starts of a rate are counted by claims. Of
  // kinds whose keys take turns stores claim nothing ahead while a job waits for its turn.
  const isRated = keyed.some(({ intervalMs }) => intervalMs !== null);
  return (onCrash === "retry" || onCrash === "requeue") && !isRated;
}

export class Ahead {
  readonly #cells: AheadCells;
  readonly #fixed: number | undefined;
  /** In the order of their claim; those before `#first` are gone. */
  #waiting: Attempt[] = [];
  #first = 0;
  readonly #freeCells = Array.from({ length: CELLS }, (_, cell) => cell);
  /** How long handlers take, in ms, by kind, and of all kinds together. */
  readonly #durations = new Map<string, number>();
  #duration = Number.POSITIVE_INFINITY;
  /** Changes with what `isFast` returns. */
  version = 0;
  /** Jobs that ended per ms in which there was one to run; infinite: not known. */
  #rate = Number.POSITIVE_INFINITY;
  #ratedMono = 0;
  /** Since when there is none to run; null: there is one. */
  #starvedMono: number | null = 0;
  /** For how long there was none since the last turn began. */
  #starvedMs = 0;
  /** The size of an input. */
  #bytes = 0;

  /** `fixed`: so many, whatever is measured. */
  constructor(cells: AheadCells, fixed?: number) {
    this.#cells = cells;
    this.#fixed = fixed;
  }

  get size(): number {
    return this.#waiting.length - this.#first;
  }

  /** False: there is no place for it. */
  add(attempt: Attempt): boolean {
    const cell = this.#freeCells.pop();
    if (cell === undefined) return false;
    this.#cells.put(cell, attempt.job.lease, attempt.claimedMono);
    attempt.cell = cell;
    this.#waiting.push(attempt);
    return true;
  }

  /** Takes the next one out; undefined: none waits. Not `ours`: the maintenance has released it. */
  next(): { readonly attempt: Attempt; readonly ours: boolean } | undefined {
    if (this.size === 0) return undefined;
    const attempt = this.#waiting[this.#first++]!;
    if (this.#first > 512 || this.size === 0) {
      this.#waiting = this.#waiting.slice(this.#first);
      this.#first = 0;
    }
    return { attempt, ours: this.#take(attempt) };
  }

  /** Takes out those that `which` names. */
  takeOut(which: (attempt: Attempt) => boolean): { readonly attempt: Attempt; readonly ours: boolean }[] {
    if (this.size === 0) return [];
    const waiting = this.#waiting.slice(this.#first);
    const out = waiting.filter(which);
    if (out.length === 0) return [];
    const gone = new Set(out);
    this.#waiting = waiting.filter((attempt) => !gone.has(attempt));
    this.#first = 0;
    return out.map((attempt) => ({ attempt, ours: this.#take(attempt) }));
  }

  /** Takes out those that were claimed before then (monotonic). They waited for slots that did not become free: the rate is not what it was. */
  takeOverdue(mono: number): { readonly attempt: Attempt; readonly ours: boolean }[] {
    const overdue = this.takeOut(({ claimedMono }) => claimedMono < mono);
    if (overdue.length > 0) this.#rate = Number.POSITIVE_INFINITY;
    return overdue;
  }

  #take(attempt: Attempt): boolean {
    const { cell } = attempt;
    attempt.cell = -1;
    this.#freeCells.push(cell);
    return this.#cells.take(cell);
  }

  // ---- how many

  /** A handler has ended. */
  ended(kind: string, durationMs: number, inputLength: number): void {
    const all = this.#duration;
    const own = this.#durations.get(kind) ?? all;
    this.#duration = weighted(all, durationMs);
    const now = weighted(this.#durations.get(kind) ?? Number.POSITIVE_INFINITY, durationMs);
    this.#durations.set(kind, now);
    if (isShort(own) !== isShort(now) || isShort(all) !== isShort(this.#duration)) this.version++;
    this.#bytes = weighted(this.#bytes, inputLength * 2);
  }

  /** So many have ended since the turn before. */
  turned(ended: number, mono: number): void {
    if (this.#starvedMono !== null) {
      this.#starvedMs += mono - this.#starvedMono;
      this.#starvedMono = mono;
    }
    if (ended > 0) this.#rate = weighted(this.#rate, ended / Math.max(0.05, mono - this.#ratedMono - this.#starvedMs));
    this.#ratedMono = mono;
    this.#starvedMs = 0;
  }

  /**
   * All that was claimed has ended. The time until there is more is the store's, not that of the handlers: a slow store would make the turns small,
   * and small turns make it slower.
   */
  starved(mono: number): void {
    this.#starvedMono ??= mono;
  }

  /** There is a job to run again. */
  fed(mono: number): void {
    if (this.#starvedMono === null) return;
    this.#starvedMs += mono - this.#starvedMono;
    this.#starvedMono = null;
  }

  /** Of a kind that was not measured yet it is as with all others. */
  isFast(kind: string): boolean {
    return this.#fixed !== undefined || isShort(this.#durations.get(kind) ?? this.#duration);
  }

  /** How many more to claim: 0 while at least half of what should wait does. */
  room(): number {
    const rate = Number.isFinite(this.#rate) ? this.#rate : 0;
    const measured = Math.min(MAX_AHEAD, rate * WORK_MS, MAX_BYTES / Math.max(1, this.#bytes));
    const wanted = this.#fixed ?? Math.floor(measured);
    return this.size * 2 > wanted ? 0 : wanted - this.size;
  }
}

function isShort(durationMs: number): boolean {
  return durationMs < WORK_MS;
}

/** The first measurement counts alone. */
function weighted(before: number, now: number): number {
  return Number.isFinite(before) ? before + WEIGHT * (now - before) : now;
}
