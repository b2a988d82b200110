// Limits per key: how many jobs with the same key may run, or start in a period. A job with keys waits at the door of one of them, outside of the
// ready index, until it is admitted. What is counted is rows, so nothing is acquired that could leak, be released twice, or be lost with
// its holder. Stores read the facts and write what `admit` decides. Pure.
import { ErrorCode, OutliveError } from "./errors.ts";

/** A limit as it is declared. It applies to each of its keys; kinds that name the same limit share its keys. */
export interface LimitSettings {
  readonly name: string;
  /** How many jobs of a key may run at once; null: any number. */
  readonly running: number | null;
  /** The least time between two starts of a key, on average; null: no rate. */
  readonly intervalMs: number | null;
  /** How many may start at once after a pause. At least 1. */
  readonly burst: number;
  /** The jobs of a key run one after the other in the order in which they were enqueued, and the first blocks the rest until it has ended. */
  readonly strict: boolean;
}

/** What one key has of its own. What is omitted is as the limit says. */
export type KeyLimit = Partial<Pick<LimitSettings, "running" | "intervalMs" | "burst">>;

/** What one job counts against. */
export interface JobKey {
  readonly limit: string;
  readonly key: string;
  /** A number made of both, by which stores know the key. */
  readonly id: number;
}

/** At most this many keys of one job: two limits, and one for throttling. */
export const MAX_KEYS = 3;

export function jobKey(limit: string, key: string): JobKey {
  return { limit, key, id: keyId(`${limit}\0${key}`) };
}

/**
 * 52 bits of a hash. Two of a million keys have the same number with odds of one in ten thousand, and would then share their room. A number
 * that is made of the key needs no row that two transactions would have to agree on: an enqueue inside an open transaction of the user's locks nothing.
 */
function keyId(text: string): number {
  let a = 0x9e3779b9;
  let b = 0x85ebca6b;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    a = Math.imul(a ^ code, 0x27d4eb2d);
    b = Math.imul(b ^ code, 0x165667b1);
    a ^= b >>> 15;
    b ^= a >>> 13;
  }
  a = Math.imul(a ^ (a >>> 16), 0x7feb352d);
  b = Math.imul(b ^ (b >>> 15), 0x846ca68b);
  return ((a ^ (b >>> 16)) >>> 0) * 0x100000 + ((b ^ (a >>> 16)) >>> 12);
}

/** The limit behind `throttle`: its period is in its name, so that every process knows it without a declaration. */
const THROTTLE = "throttle/";

export function throttleKey(kind: string, key: string, everyMs: number): JobKey {
  return jobKey(`${THROTTLE}${everyMs}`, `${kind}/${key}`);
}

/** The settings of a throttle, by its name; null: it is not one. */
export function throttleSettings(name: string): LimitSettings | null {
  if (!name.startsWith(THROTTLE)) return null;
  const intervalMs = Number(name.slice(THROTTLE.length));
  return { name, running: null, intervalMs, burst: 1, strict: false };
}

/** What is stored about a key, and how many jobs count against it. */
export interface KeyFacts {
  readonly id: number;
  readonly limit: Omit<LimitSettings, "name">;
  /** Jobs that run or are admitted; for a strict limit also those that have begun and have not ended, or that keep their place. */
  readonly taken: number;
  /** Of those, admitted and not claimed yet. Each has a start of the rate set aside, which its claim spends (`startOf`). */
  readonly unclaimed: number;
  /** When the next start would be on time: the theoretical arrival time of GCRA. 0: no start yet. */
  readonly arrivalAt: number;
  /** Nothing starts before then; 0: not held off. */
  readonly heldOffUntil: number;
}

/** A job that waits at a door. */
export interface HeldCandidate {
  readonly job: number;
  readonly door: number;
  readonly keys: readonly number[];
  /** It was first at the door of a strict key, and waits at another one now: nothing else of the strict key may start meanwhile. Omitted: false. */
  readonly keepsPlace?: boolean;
}

export interface AdmissionFacts {
  readonly now: number;
  /** Of every key that a candidate has. */
  readonly keys: readonly KeyFacts[];
  /** Of each door in the order in which they are admitted. */
  readonly candidates: readonly HeldCandidate[];
}

interface Moved {
  readonly job: number;
  readonly door: number;
  /** As in `HeldCandidate`. */
  readonly keepsPlace: boolean;
}

export interface Admission {
  readonly admitted: readonly number[];
  /** Jobs that wait at another door from now on: the key that has no room for them. */
  readonly moved: readonly Moved[];
  /** When a key has to be looked at again because time gives it room. */
  readonly due: ReadonlyMap<number, number>;
}

/** Which of the candidates may run. No key ever has more taken than its limit, and a full key hides no job of another. */
export function admit({ now, keys, candidates }: AdmissionFacts): Admission {
  const rooms = new Map(keys.map((facts) => [facts.id, new Room(facts)]));
  const admitted: number[] = [];
  const moved: Moved[] = [];
  const due = new Map<number, number>();
  for (const { job, door, keys: own, keepsPlace = false } of candidates) {
    const others = own.filter((key) => key !== door);
    if (keepsPlace) for (const key of others) rooms.get(key)!.leavePlace();
    // The door itself first: if it is full, the job stays where it is.
    const blocking = [door, ...others].find((key) => !rooms.get(key)!.hasRoom(now));
    if (blocking === undefined) {
      for (const key of own) rooms.get(key)!.take();
      admitted.push(job);
      continue;
    }
    const isElsewhere = keepsPlace || blocking !== door;
    const kept = isElsewhere ? own.filter((key) => key !== blocking && rooms.get(key)!.keepPlace()) : [];
    if (blocking !== door) moved.push({ job, door: blocking, keepsPlace: kept.length > 0 });
    const opensAt = rooms.get(blocking)!.opensAt(now);
    if (opensAt !== null) due.set(blocking, opensAt);
  }
  return { admitted, moved, due };
}

/**
 * A job of a key with a rate was claimed. Its start counts from now on, and not from its admission: however long it waited for a worker, the next
 * one keeps its distance. `facts` are those before the claim. `due`: when the key has to be looked at again; null: that is known already, or another claim says so.
 */
export function startOf(facts: KeyFacts, now: number): { readonly arrivalAt: number; readonly due: number | null } {
  const arrivalAt = Math.max(now, facts.arrivalAt) + (facts.limit.intervalMs ?? 0);
  const after = { ...facts, arrivalAt, unclaimed: Math.max(0, facts.unclaimed - 1) };
  const opensAt = new Room(after).opensByRateAt(now);
  return { arrivalAt, due: opensAt !== null && opensAt > now ? opensAt : null };
}

/** How many jobs a key could take, by number alone; at least 1, so that one is looked at when it waits for time. */
export function roomAt({ limit, taken }: KeyFacts): number {
  const bound = Math.min(limit.running ?? Number.POSITIVE_INFINITY, limit.strict ? 1 : Number.POSITIVE_INFINITY);
  return Math.max(1, bound - taken);
}

class Room {
  readonly #facts: KeyFacts;
  readonly #bound: number;
  #taken: number;
  #unclaimed: number;

  constructor(facts: KeyFacts) {
    const { running, strict } = facts.limit;
    this.#facts = facts;
    this.#bound = Math.min(running ?? Number.POSITIVE_INFINITY, strict ? 1 : Number.POSITIVE_INFINITY);
    this.#taken = facts.taken;
    this.#unclaimed = facts.unclaimed;
  }

  hasRoom(now: number): boolean {
    const byRate = this.opensByRateAt(now);
    return this.#taken < this.#bound && byRate !== null && Math.max(byRate, this.#facts.heldOffUntil) <= now;
  }

  take(): void {
    this.#taken++;
    this.#unclaimed++;
  }

  /** For a job that waits elsewhere: if the key is strict and it is this job's turn, it stays its turn. Returns whether it does. */
  keepPlace(): boolean {
    if (!this.#facts.limit.strict || this.#taken >= this.#bound) return false;
    this.#taken++;
    return true;
  }

  leavePlace(): void {
    if (this.#facts.limit.strict) this.#taken--;
  }

  /** When time alone gives it room; null: it has room, or time does not give any. */
  opensAt(now: number): number | null {
    const byRate = this.opensByRateAt(now);
    if (byRate === null || this.#taken >= this.#bound) return null;
    const at = Math.max(byRate, this.#facts.heldOffUntil);
    return at > now ? at : null;
  }

  /** When the rate allows one more; null: not before one of those that were admitted is claimed. */
  opensByRateAt(now: number): number | null {
    const { limit, arrivalAt } = this.#facts;
    const { intervalMs, burst } = limit;
    if (intervalMs === null) return 0;
    const spare = burst - 1 - this.#unclaimed;
    return spare < 0 ? null : Math.ceil(Math.max(now, arrivalAt) - spare * intervalMs);
  }
}

// ---- what happens to an enqueue whose dedupe key an unfinished job holds

/** Omitted in a draft: the job that is there is kept. */
export interface DedupePolicy {
  /**
   * replace: a job that has not begun gets this input, priority and time; any other is kept. rerun: the same, and a job that has begun runs
   * once more after it has ended, with the latest input.
   */
  readonly then: "replace" | "rerun";
  /** Debounce: it runs when no further one has come for `waitMs`, and `maxMs` after the first at the latest. */
  readonly debounce?: { readonly waitMs: number; readonly maxMs: number | null };
}

/** What became of an enqueue that added no job. */
export type Became = "kept" | "replaced" | "rerun";

export function tooManyKeys(kind: string, count: number): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `A ${kind} job would have ${count} keys, and at most ${MAX_KEYS} are allowed.`,
    "Use fewer limits: at most two, and `throttle` in addition.",
    { kind, keys: count },
  );
}
