// Limits per key: how many jobs with the same key may run, or start in a period. A job with keys waits at the door of one of them, outside of the
// ready index, until it is admitted. What is counted is rows, so nothing is acquired that could leak, be released twice, or be lost with
// its holder. Stores read the facts and write what `admit` decides. Pure.
import { ErrorCode, OutliveError } from "./errors.ts";

/** A limit as it is declared. It applies to each of its keys; kinds that name the same limit share its keys. */
export interface LimitSettings {
  /** The limit's name. */
  readonly name: string;
  /** How many jobs of a key may run at once; null: any number. */
  readonly running: number | null;
  /** The least time between two starts of a key, on average, in ms; null: no rate. */
  readonly intervalMs: number | null;
  /** How many may start at once after a pause. At least 1. */
  readonly burst: number;
  /** The jobs of a key run one after the other in the order in which they were enqueued, and the first blocks the rest until it has ended. */
  readonly strict: boolean;
}

/** What is set for one key alone. What is omitted is as the limit says. */
export type KeyLimit = Partial<Pick<LimitSettings, "running" | "intervalMs" | "burst">> & {
  /** How many jobs of the key start while other keys wait for their turn, where a kind is fair by it. Omitted: 1. */
  readonly weight?: number;
};

/** Nothing of a paused key starts. Running jobs continue. */
export interface KeyPause {
  readonly reason: string;
  /** How long; null: until it is resumed. */
  readonly forMs: number | null;
}

/** One key as people see it. */
export interface KeyState {
  /** The limit's name. */
  readonly limit: string;
  /** The key. */
  readonly key: string;
  /** What applies to it: its limit, with what is set for it alone. */
  readonly applies: Omit<LimitSettings, "name">;
  /** What was set for this key alone. */
  readonly own: KeyLimit;
  /** Jobs that run or are admitted. */
  readonly taken: number;
  /** Jobs that wait for its room; of a key by which a kind is fair, not those that only wait for its turn. */
  readonly held: number;
  /** Its pause; null if the key is not paused. */
  readonly paused: {
    /** Why. */
    readonly reason: string;
    /** Since when, in milliseconds since 1970. */
    readonly at: number;
    /** Until when, in milliseconds since 1970; null: until it is resumed. */
    readonly until: number | null;
  } | null;
  /** Until when nothing of the key starts, in milliseconds since 1970; null: it is not held off. */
  readonly heldOffUntil: number | null;
}

/** What one job counts against. */
export interface JobKey {
  /** The limit's name. */
  readonly limit: string;
  /** The key. */
  readonly key: string;
  /** A number made of both, by which stores know the key. */
  readonly id: number;
}

/** At most this many keys of one job: two limits, and one by which its kind is fair or that throttles it. */
export const MAX_KEYS = 3;
/** The name of the keys of a kind that is fair by a function alone. */
export const FAIR = "fair";
/** The largest weight of a key. */
export const MAX_WEIGHT = 100;

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

/** What the name of the limit behind `throttle` begins with. Its period follows, so that every process knows it without a declaration. */
export const THROTTLE = "throttle/";

export function throttleKey(kind: string, key: string, everyMs: number): JobKey {
  return jobKey(`${THROTTLE}${everyMs}`, `${kind}/${key}`);
}

/** The settings of a throttle, by its name; null: it is not one. */
export function throttleSettings(name: string): LimitSettings | null {
  if (!name.startsWith(THROTTLE)) return null;
  const intervalMs = Number(name.slice(THROTTLE.length));
  return { name, running: null, intervalMs, burst: 1, strict: false };
}

/** The limit behind a schedule whose occurrences queue: its jobs run one after the other, in their order. Known without a declaration, too. */
const QUEUED = "schedule/queue";

export function scheduleKey(schedule: string): JobKey {
  return jobKey(QUEUED, schedule);
}

/** The settings of a limit that no program declares, by its name; null: it is not such a limit. */
export function impliedSettings(name: string): LimitSettings | null {
  return name === QUEUED ? { name, running: 1, intervalMs: null, burst: 1, strict: true } : throttleSettings(name);
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
  /** Nothing starts before then; 0: not held off; infinite: it is paused until it is resumed. */
  readonly heldOffUntil: number;
}

/** A job that waits at a door. */
export interface HeldCandidate {
  readonly job: number;
  readonly door: number;
  readonly keys: readonly number[];
  /** It was first at the door of a strict key, and waits at another one now: nothing else of the strict key may start meanwhile. Omitted: false. */
  readonly keepsPlace?: boolean;
  /** Where the rings of its door, and of the gate of its kind, stand after it was looked at. Omitted: it belongs to none. */
  readonly visits?: readonly Visit[];
}

export interface AdmissionFacts {
  readonly now: number;
  /** Of every key that a candidate has. */
  readonly keys: readonly KeyFacts[];
  /** Of each door in the order in which they are admitted. */
  readonly candidates: readonly HeldCandidate[];
  /** Doors at which jobs may wait that are not among the candidates: time may give room to those, too. Omitted: none. */
  readonly readFull?: readonly number[];
}

interface Move {
  readonly job: number;
  readonly door: number;
  /** As in `HeldCandidate`. */
  readonly keepsPlace: boolean;
}

export interface Admission {
  readonly admitted: readonly number[];
  /** Jobs that wait at another door from now on: the key that has no room for them. */
  readonly moved: readonly Move[];
  /** When a key has to be looked at again because time gives it room. */
  readonly due: ReadonlyMap<number, number>;
  /** Where the rings of doors and gates stand from now on. */
  readonly rings: ReadonlyMap<number, Ring>;
}

/** Which of the candidates may run. No key ever has more taken than its limit, and a full key hides no job of another. */
export function admit({ now, keys, candidates, readFull = [] }: AdmissionFacts): Admission {
  const rooms = new Map(keys.map((facts) => [facts.id, new Room(facts)]));
  const admitted: number[] = [];
  const moved: Move[] = [];
  const due = new Map<number, number>();
  const rings = new Map<number, Ring>();
  for (const { job, door, keys: own, keepsPlace = false, visits = [] } of candidates) {
    const others = own.filter((key) => key !== door);
    if (keepsPlace) for (const key of others) rooms.get(key)!.leavePlace();
    // The door itself first: if it is full, the job stays where it is.
    const blocking = [door, ...others].find((key) => !rooms.get(key)!.hasRoom(now));
    if (blocking !== door) for (const { at, ring } of visits) if (at !== blocking) rings.set(at, ring);
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
  for (const door of readFull) {
    const opensAt = rooms.get(door)!.opensAt(now);
    if (opensAt !== null) due.set(door, opensAt);
  }
  return { admitted, moved, due, rings };
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

/**
 * A job of a key with a rate was claimed and released, and never began: how much of its start is returned to `arrivalAt`. Time has returned the rest, for a start
 * costs nothing after `intervalMs`. So the next start of the key is not earlier than if this one had never been (the whole of it would mint a start), and
 * not later either. `alike`: how many starts of the key are of the same instant, this one included, and not returned yet; fewer return less.
 */
export function returnedMs(intervalMs: number, startedAt: number, alike: number, now: number): number {
  return Math.max(0, Math.min(intervalMs, startedAt + alike * intervalMs - now));
}

/** How many jobs a key could take now; at least 1, so that one is looked at when it waits for time. */
export function roomAt({ limit, taken, unclaimed, arrivalAt }: KeyFacts, now: number): number {
  const { running, intervalMs, burst, strict } = limit;
  const byNumber = Math.min(running ?? Number.POSITIVE_INFINITY, strict ? 1 : Number.POSITIVE_INFINITY) - taken;
  const spent = intervalMs === null ? 0 : unclaimed + Math.ceil(Math.max(0, arrivalAt - now) / intervalMs);
  return Math.max(1, intervalMs === null ? byNumber : Math.min(byNumber, burst - spent));
}

/** How many more jobs a key takes if nothing but their number counts: no rate, no order, no pause. Null: `admit` decides about each. */
export function roomByNumber({
  limit,
  taken,
  heldOffUntil,
}: Pick<KeyFacts, "limit" | "taken" | "heldOffUntil">): number | null {
  if (limit.running === null || limit.strict || limit.intervalMs !== null || heldOffUntil > 0) return null;
  return Math.max(0, limit.running - taken);
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
    return at > now && at < Number.POSITIVE_INFINITY ? at : null;
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

// ---- fairness: the keys of a kind take turns
//
// A job of a fair kind waits at the gate of its kind. A gate is a key whose room is what a worker can take now (`gateRoom`), so that the
// order inside the ready index does not matter. Its keys stand in a ring, and each visit of the ring takes as many jobs of a
// key as its weight: whatever others have queued, a key with one job waits for one round. A job that a limit has no room for waits at the door of that
// limit, where keys take turns, too; when there is room it competes at the gate again. A ring is a position and nothing else: a process that is killed
// loses nothing with it.

/** The key that was served last, and how often in its present visit. */
export interface Ring {
  readonly at: number;
  readonly served: number;
}

export const NEW_RING: Ring = { at: 0, served: 0 };

/** Where the ring of a door or a gate stands after a job of it was looked at. */
export interface Visit {
  readonly at: number;
  readonly ring: Ring;
}

/** The jobs of one key at a door or gate, in their order. */
export interface RingMember {
  readonly key: number;
  readonly weight: number;
  readonly jobs: readonly HeldCandidate[];
}

/** What workers do about one kind at the moment in which one of them visits its gate. */
export interface AtGate {
  /** For how many jobs the visiting worker has room. */
  readonly demand: number;
  /** How many workers wait to visit it next. */
  readonly waiting: number;
  /** How many keys have jobs here. */
  readonly keys: number;
  /** Jobs of the kind that run. */
  readonly running: number;
  /** Jobs of the kind that were admitted, and that no worker has claimed yet. */
  readonly ready: number;
}

/**
 * For how many jobs a gate has room. While several keys wait, for those that the visiting worker takes at once, so that the order in which jobs are
 * claimed does not matter. While one key waits alone, for one round of the fleet: what the workers that wait here take, and one job for each that
 * runs. They claim those without a visit of their own, and a key that comes now waits for no longer than behind the jobs that run.
 */
export function gateRoom({ demand, waiting, keys, running, ready }: AtGate): number {
  return keys > 1 ? demand : Math.max(0, demand * (1 + waiting) + running - ready);
}

/** The facts of a gate: room for this many jobs, and no other bound. */
export function gateFacts(gate: number, room: number): KeyFacts {
  const limit = { running: room, intervalMs: null, burst: 1, strict: false };
  return { id: gate, limit, taken: 0, unclaimed: 0, arrivalAt: 0, heldOffUntil: 0 };
}

/**
 * The jobs in the order in which their keys take turns, beginning where the ring of this door or gate stands. `upTo`: the last key that was read, because
 * the ring has more; jobs of keys behind it come last and do not move the ring. Null: these are all keys.
 */
export function takeTurns(
  door: number,
  { at, served }: Ring,
  members: readonly RingMember[],
  upTo: number | null = null,
): HeldCandidate[] {
  const isRead = ({ key }: RingMember): boolean => upTo === null || distance(at, key) <= distance(at, upTo);
  const inOrder = members.toSorted((a, b) => distance(at, a.key) - distance(at, b.key));
  const ring = inOrder.filter(isRead);
  // Its visit has not ended, or it is the last whose turn it is.
  const [first] = ring;
  const before = first?.key === at && served < first.weight ? served : 0;
  if (first?.key === at && before === 0) ring.push(ring.shift()!);
  const taken = new Map<number, number>();
  const turns: HeldCandidate[] = [];
  for (let isFirstVisit = true, left = true; left; isFirstVisit = false) {
    left = false;
    for (const { key, weight, jobs } of ring) {
      const from = taken.get(key) ?? 0;
      const had = isFirstVisit && key === at ? before : 0;
      const now = jobs.slice(from, from + weight - had);
      now.forEach((job, i) => turns.push(visiting(job, { at: door, ring: { at: key, served: had + i + 1 } })));
      taken.set(key, from + now.length);
      left ||= from + now.length < jobs.length;
    }
  }
  return [...turns, ...inOrder.filter((member) => !isRead(member)).flatMap(({ jobs }) => jobs)];
}

function visiting(job: HeldCandidate, visit: Visit): HeldCandidate {
  return { ...job, visits: [...(job.visits ?? []), visit] };
}

/** How far a key is ahead of where a ring stands: the key itself first, the one before it last. */
function distance(at: number, key: number): number {
  return key >= at ? key - at : key - at + RING_SIZE;
}

/** Above every number of a key. */
const RING_SIZE = 2 ** 52;

/** How many jobs of each key have to be read so that `most` are found, if every key has enough of them: of a key with weight 1. */
export function roundsFor(most: number, weights: readonly number[]): number {
  const perRound = weights.reduce((sum, weight) => sum + weight, 0);
  return perRound === 0 ? 0 : Math.ceil(most / perRound);
}

// ---- what happens to an enqueue whose dedupe key an unfinished job holds

/** Omitted in a draft: the job that is there is kept. */
export interface DedupePolicy {
  /**
   * replace: a job that has not begun gets this input, priority and time; any other is kept. rerun: the same, and a job that has begun runs
   * again after it has ended, with the latest input.
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
    "Use fewer limits: at most two, and in addition `throttle` or a key of its own for `fair`. A `fair` key that is the key of one of the limits does not count.",
    { kind, keys: count },
  );
}
