// Jobs with keys: where they wait, and what their keys have of their own. A job that is ready and has keys is held at the door of one of them, or at
// the gate of its kind if that is fair, in a lane that no claim reads. Whatever gives a key room (a job that ends, waits, or backs off) and whatever adds
// a held job writes one small row, or hands the key to the turn that it is part of; admission.ts admits. Inside a transaction.
import {
  type JobKey,
  type KeyFacts,
  type KeyLimit,
  type KeyPause,
  type KeyState,
  type LimitSettings,
  impliedSettings,
} from "../../job/limits.ts";
import type { KeyQuery } from "../port.ts";
import { LANE, STATE } from "../rows.ts";
import type { Database } from "./database.ts";
import { doorHeads } from "./door-heads.ts";

/** Where a job with keys is: not ready, held at a door, admitted or running, begun and not ready under a strict limit, or held at another door than that of its strict limit, where it is first. */
export const PLACE = { away: 0, held: 1, taken: 2, begun: 3, first: 4 } as const;
/** The order at a door of a job of a strict limit that has begun: before all others. */
const FIRST = 1_000_000;
/** The rank of a job whose claim was a start of a rate. It is at no door while it is taken, and gets a rank again when it comes to one. */
export const SPENT = -1_000_000;

/**
 * An entry `d` of a door is that of the job `e` only while the extras of the job say the same and the job is held; otherwise it is stale, and every reader skips it. Admission
 * leaves its entries behind and removes those of a key several at a time (door-visit.ts). Removed one by one, each wrote a page of its own: with 1,000
 * keys and 20,000 jobs a drain wrote 1.46 pages per job.
 */
export const AT_DOOR = `e.job = d.job AND e.door = d.door AND e.ring = d.ring AND e.rank = d.rank
  AND EXISTS (SELECT 1 FROM outlive_jobs h WHERE h.seq = d.job AND h.state = ${STATE.queued} AND h.lane = ${LANE.held})`;
/** A job with one key that was claimed at its door. Its row is its slot, and its extras stay as they were while it waited: nothing but the row is written. */
export const CLAIMED_AT_DOOR = `state = ${STATE.running} AND lane = ${LANE.held}`;
const ENTER = "INSERT INTO outlive_doors (door, ring, rank, job) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING";
export const LEAVE = "DELETE FROM outlive_doors WHERE door = ? AND ring = ? AND rank = ? AND job = ?";

// ---- coming and going

/** A draft with keys, as far as they matter. */
interface KeyedDraft {
  readonly keys: readonly JobKey[];
  readonly priority: number;
  readonly fair?: number;
}

/** A job was inserted that has keys, or got other ones. If it is ready it goes to a door; that is returned if it has to be checked. */
export function arrive(
  db: Database,
  limits: Limits,
  { job, kind }: { readonly job: number; readonly kind: number },
  { keys, priority, fair }: KeyedDraft,
  isReady: boolean,
  inserted: { readonly parent: number | null; readonly latestAt: number | null } = NOT_INSERTED,
): number | null {
  const names = keys.map(({ limit, key }) => [limit, key] as const);
  const ids = keys.map(({ id }) => id);
  const gate = fair === undefined ? null : gateOf(kind);
  const at = limits.doorOf(names, ids, fair ?? null, gate);
  db.sql(
    `INSERT INTO outlive_extras (job, key1, key2, key3, keys, strict, place, door, ring, rank, fair, gate, parent, latest_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
     ON CONFLICT DO UPDATE SET key1 = ?2, key2 = ?3, key3 = ?4, keys = ?5, strict = ?6, place = ?7, door = ?8, ring = ?9, rank = ?10, fair = ?11, gate = ?12`,
  ).run(
    job,
    ids[0]!,
    ids[1] ?? null,
    ids[2] ?? null,
    JSON.stringify(names),
    at.strict ? 1 : 0,
    isReady ? PLACE.held : PLACE.away,
    isReady ? at.door : null,
    at.ring,
    at.strict ? 0 : priority,
    fair ?? null,
    gate,
    inserted.parent,
    inserted.latestAt,
  );
  if (isReady) enter(db, at.door, at.ring, at.strict ? 0 : priority, job);
  return isReady && !isGate(at.door) ? at.door : null;
}

function enter(db: Database, door: number, ring: number, rank: number, job: number): void {
  doorHeads(db).entered(door, rank, job);
  db.sql(ENTER).run(door, ring, rank, job);
}

const NOT_INSERTED = { parent: null, latestAt: null };

/** The gate of a kind: no key has a number below 0. */
export function gateOf(kind: number): number {
  return -kind;
}

/** Every turn that has room for the kind checks its gate: no worker has to be woken. */
export function isGate(door: number): boolean {
  return door < 0;
}

/** Its keys are about to be replaced: those that it counted against are looked at again. */
export function leave(db: Database, job: number, now: number): void {
  const row = db
    .sql("SELECT job, place, door, ring, rank, key1, key2, key3 FROM outlive_extras WHERE job = ?")
    .get(job) as unknown as (KeyColumns & DoorColumns & Pick<PlacedColumns, "place">) | undefined;
  if (row === undefined) return;
  leaveDoor(db, row);
  if (row.place >= PLACE.taken) wakeKeys(db, keysIn(row), now);
}

function leaveDoor(db: Database, { job, door, ring, rank }: DoorColumns): void {
  if (door === null) return;
  doorHeads(db).forget(door);
  db.sql(LEAVE).run(door, ring, rank, job);
}

interface DoorColumns {
  readonly job: number;
  readonly door: number | null;
  readonly ring: number;
  readonly rank: number;
}

export interface KeyColumns {
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
}

export function keysIn({ key1, key2, key3 }: KeyColumns): number[] {
  return key2 === null ? [key1] : key3 === null ? [key1, key2] : [key1, key2, key3];
}

interface PlacedColumns extends KeyColumns, DoorColumns {
  readonly keys: string;
  readonly strict: number;
  readonly place: number;
  readonly fair: number | null;
  readonly gate: number | null;
  readonly state: number;
  readonly lane: number;
  readonly fence: number;
  readonly priority: number;
}

const PLACED = `SELECT e.job, e.door, e.ring, e.rank, e.key1, e.key2, e.key3, e.keys, e.strict, e.place, e.fair, e.gate, j.state, j.lane, j.fence, j.priority
  FROM json_each(?) AS i CROSS JOIN outlive_extras e ON e.job = i.value CROSS JOIN outlive_jobs j ON j.seq = e.job
  WHERE e.key1 IS NOT NULL AND j.state <> ${STATE.running}`;

/**
 * Jobs with extras have changed their state or their lane. If they have keys: one that has become ready goes to a door, and one that left gives its room to
 * the others. A job that ran and is ready again is admitted again, and spends another token of a rate: it starts again. What was released before it began has got
 * its token back (`returnStarts` in key-facts.ts).
 */
export function relocate(db: Database, jobs: readonly number[], now: number): void {
  const rows = db.sql(PLACED).all(JSON.stringify(jobs)) as unknown as PlacedColumns[];
  if (rows.length === 0) return;
  const limits = new Limits(db);
  const woken: number[] = [];
  for (const row of rows) {
    const isReady = row.state === STATE.queued && row.lane !== LANE.delayed;
    const begun = row.strict === 1 && row.fence > 0;
    const place = isReady ? PLACE.held : row.state === STATE.queued && begun ? PLACE.begun : PLACE.away;
    const rank = begun ? FIRST : row.strict === 1 ? 0 : row.priority;
    const at = limits.doorOf(namesIn(row.keys), keysIn(row), row.fair, row.gate);
    leaveDoor(db, row);
    if (isReady) db.sql("UPDATE outlive_jobs SET lane = ? WHERE seq = ?").run(LANE.held, row.job);
    db.sql("UPDATE outlive_extras SET place = ?, door = ?, ring = ?, rank = ? WHERE job = ?").run(
      place,
      isReady ? at.door : null,
      at.ring,
      rank,
      row.job,
    );
    if (isReady) enter(db, at.door, at.ring, rank, row.job);
    // One that was claimed at its door is still held there by its extras.
    if (row.place >= PLACE.held) woken.push(...keysIn(row));
    else if (isReady && !isGate(at.door)) woken.push(at.door);
  }
  wakeKeys(db, woken, now);
}

type Names = readonly (readonly [limit: string, key: string])[];

/** Parsed names of keys: there are many jobs of each key, and the same keys come again in every turn. Parsing cost 4 us per job of a drain. */
const parsedNames = new Map<string, Names>();
const MAX_PARSED_NAMES = 10_000;

export function namesIn(keys: string): Names {
  const known = parsedNames.get(keys);
  if (known) return known;
  const names = JSON.parse(keys) as Names;
  if (parsedNames.size >= MAX_PARSED_NAMES) parsedNames.clear();
  parsedNames.set(keys, names);
  return names;
}

const NOT_AWAKE = "NOT EXISTS (SELECT 1 FROM outlive_key_wakes w WHERE w.key = k.key)";
const WAKE = `INSERT INTO outlive_key_wakes (key, at) SELECT k.key, ?2 FROM (SELECT ?1 AS key) k WHERE ${NOT_AWAKE}`;
const WAKE_ALL = `INSERT INTO outlive_key_wakes (key, at) SELECT k.key, ?2 FROM (SELECT value AS key FROM json_each(?1)) k WHERE ${NOT_AWAKE}`;

/**
 * The next turn of any worker looks at these keys. A wake that is there already is enough, because the turn that takes it is a later transaction and sees what this
 * one writes: so there are never more wakes than keys. Jobs that are added in bulk left one for each call before, and a drain spent a third of its visits on them.
 */
export function wakeKeys(db: Database, keys: Iterable<number>, now: number): void {
  const distinct = [...new Set(keys)];
  if (distinct.length === 1) db.sql(WAKE).run(distinct[0]!, now);
  else if (distinct.length > 1) db.sql(WAKE_ALL).run(JSON.stringify(distinct), now);
}

// ---- limits, and what a key has of its own

interface LimitColumns {
  readonly name: string;
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number;
  readonly strict: number;
}

const UNLIMITED: LimitSettings = { name: "", running: null, intervalMs: null, burst: 1, strict: false };

/** The declared limits as they are in this transaction. There are as many as programs declare, not as there are keys: all are read, once. */
export class Limits {
  readonly #db: Database;
  #declared: Map<string, LimitSettings> | null = null;

  constructor(db: Database) {
    this.#db = db;
  }

  of(name: string): LimitSettings {
    this.#declared ??= this.#read();
    const known = this.#declared.get(name);
    if (known) return known;
    const settings = impliedSettings(name) ?? UNLIMITED;
    this.#declared.set(name, settings);
    return settings;
  }

  #read(): Map<string, LimitSettings> {
    const rows = this.#db
      .sql("SELECT name, running, interval_ms, burst, strict FROM outlive_limits")
      .all() as unknown as LimitColumns[];
    return new Map(
      rows.map(({ name, running, interval_ms: intervalMs, burst, strict }) => [
        name,
        { name, running, intervalMs, burst, strict: strict === 1 },
      ]),
    );
  }

  /** Where a job waits first. One of a strict limit at that door: there it is seen whose turn it is, and keys take no turns there. One of a fair kind at its gate. */
  doorOf(
    names: readonly (readonly [string, string])[],
    ids: readonly number[],
    fair: number | null,
    gate: number | null,
  ): { readonly door: number; readonly ring: number; readonly strict: boolean } {
    const strict = names.findIndex(([limit]) => this.of(limit).strict);
    if (strict >= 0) return { door: ids[strict]!, ring: 0, strict: true };
    return { door: gate ?? ids[0]!, ring: fair ?? 0, strict: false };
  }

  /** What applies to a key. */
  settingsOf(name: string, own: OwnColumns | undefined): KeyFacts["limit"] {
    const declared = this.of(name);
    if (own === undefined) return declared;
    return {
      running: own.running ?? declared.running,
      intervalMs: own.interval_ms ?? declared.intervalMs,
      burst: own.burst ?? declared.burst,
      strict: declared.strict,
    };
  }
}

/** What a key has of its own. */
export interface OwnColumns {
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number | null;
  readonly weight: number | null;
  readonly arrival_at: number;
  readonly held_off_until: number;
  readonly paused_at: number | null;
  readonly paused_until: number | null;
}

/** Before when nothing of the key starts; infinite: not before it is resumed. */
export function closedUntil({ held_off_until: heldOff, paused_at: pausedAt, paused_until: until }: OwnColumns): number {
  return pausedAt === null ? heldOff : Math.max(heldOff, until ?? Number.POSITIVE_INFINITY);
}

/** Keys of a limit that has changed are looked at again. */
export function declareLimits(db: Database, limits: readonly LimitSettings[], now: number): void {
  for (const { name, running, intervalMs, burst, strict } of limits) {
    const { changes } = db
      .sql(
        `INSERT INTO outlive_limits (name, running, interval_ms, burst, strict) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET running = ?2, interval_ms = ?3, burst = ?4, strict = ?5
         WHERE running IS NOT ?2 OR interval_ms IS NOT ?3 OR burst <> ?4 OR strict <> ?5`,
      )
      .run(name, running, intervalMs, burst, strict ? 1 : 0);
    if (changes > 0) wakeAllDoors(db, now);
  }
}

function wakeAllDoors(db: Database, now: number): void {
  db.sql(
    `INSERT INTO outlive_key_wakes (key, at) SELECT k.key, ? FROM (SELECT DISTINCT door AS key FROM outlive_doors WHERE door > 0) k WHERE ${NOT_AWAKE}`,
  ).run(now);
}

/** What a key has of its own, beyond its limit. Its pause, its hold-off and the starts that it has spent stay. */
export function setKeyLimit(db: Database, { id, limit, key }: JobKey, own: KeyLimit | null, now: number): void {
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, running, interval_ms, burst, weight) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
     ON CONFLICT DO UPDATE SET running = ?4, interval_ms = ?5, burst = ?6, weight = ?7`,
  ).run(id, limit, key, own?.running ?? null, own?.intervalMs ?? null, own?.burst ?? null, own?.weight ?? null);
  wakeKeys(db, [id], now);
}

/** Nothing of this key starts before then. A later time that is kept already stays. */
export function holdOff(db: Database, { id, limit, key }: JobKey, until: number): void {
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, held_off_until) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT DO UPDATE SET held_off_until = max(held_off_until, ?4)`,
  ).run(id, limit, key, until);
}

/** Admitted and not claimed yet: what a pause takes back. */
const UNCLAIMED = ["key1", "key2", "key3"]
  .map(
    (column) =>
      `SELECT e.job FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
       WHERE j.state = ${STATE.queued} AND e.${column} = ?1 AND e.place = ${PLACE.taken} AND e.place > 1`,
  )
  .join(" UNION ALL ");

/** Nothing of this key starts from now on: what was admitted and not claimed goes back to its door. Null: it may start again. */
export function pauseKey(db: Database, { id, limit, key }: JobKey, pause: KeyPause | null, now: number): void {
  const forMs = pause?.forMs ?? null;
  const until = forMs === null ? null : now + forMs;
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, paused_at, paused_until, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
     ON CONFLICT DO UPDATE SET paused_at = ?4, paused_until = ?5, reason = ?6`,
  ).run(id, limit, key, pause === null ? null : now, until, pause?.reason ?? null);
  if (pause !== null) {
    const jobs = (db.sql(UNCLAIMED).all(id) as { job: number }[]).map(({ job }) => job);
    if (jobs.length > 0) relocate(db, jobs, now);
  }
  // Also when it is paused: what is held there learns when that ends.
  wakeKeys(db, [id], now);
}

// ---- what people read

interface StateColumns extends OwnColumns {
  readonly id: number;
  readonly name: string;
  readonly key: string;
  readonly reason: string | null;
}

const OWN = `SELECT id, name, key, running, interval_ms, burst, weight, arrival_at, held_off_until, paused_at, paused_until, reason FROM outlive_keys`;
/** What was set for it, and what holds it off. */
const HAS_SETTINGS =
  "(running IS NOT NULL OR interval_ms IS NOT NULL OR burst IS NOT NULL OR weight IS NOT NULL OR paused_at IS NOT NULL)";

export function keyStates(db: Database, query: KeyQuery, now: number): KeyState[] {
  const limits = new Limits(db);
  if ("key" in query) {
    const { id, limit: name, key } = query.key;
    const row = db.sql(`${OWN} WHERE id = ?`).get(id) as unknown as StateColumns | undefined;
    return [keyState(db, limits, row ?? { ...NOTHING_OWN, id, name, key }, now)];
  }
  const rows = db
    .sql(
      `${OWN} WHERE id > 0 AND (${HAS_SETTINGS} OR held_off_until > ?1) AND (?2 IS NULL OR name = ?2) ORDER BY name, key LIMIT ?3 + 0`,
    )
    .all(now, query.limit, query.most) as unknown as StateColumns[];
  return rows.map((row) => keyState(db, limits, row, now));
}

const NOTHING_OWN: OwnColumns & { readonly reason: string | null } = {
  running: null,
  interval_ms: null,
  burst: null,
  weight: null,
  arrival_at: 0,
  held_off_until: 0,
  paused_at: null,
  paused_until: null,
  reason: null,
};

function keyState(db: Database, limits: Limits, row: StateColumns, now: number): KeyState {
  const { id, name: limit, key, running, interval_ms: intervalMs, burst, weight } = row;
  const count = (sql: string, ...values: number[]): number => (db.sql(sql).get(...values) as { n: number }).n;
  const taken = ["key1", "key2", "key3"].map((column) =>
    count(`SELECT count(*) AS n FROM outlive_extras WHERE ${column} = ? AND place = ${PLACE.taken} AND place > 1`, id),
  );
  taken.push(count(`SELECT count(*) AS n FROM outlive_jobs WHERE only_key = ? AND ${CLAIMED_AT_DOOR}`, id));
  const { name: _, ...applies } = { name: limit, ...limits.settingsOf(limit, row) };
  return {
    limit,
    key,
    applies,
    own: {
      ...(running !== null && { running }),
      ...(intervalMs !== null && { intervalMs }),
      ...(burst !== null && { burst }),
      ...(weight !== null && { weight }),
    },
    taken: taken.reduce((sum, n) => sum + n, 0),
    held: count(
      `SELECT count(*) AS n FROM outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} WHERE d.door = ?`,
      id,
    ),
    paused: isPaused(row, now) ? { reason: row.reason ?? "", at: row.paused_at!, until: row.paused_until } : null,
    heldOffUntil: row.held_off_until > now ? row.held_off_until : null,
  };
}

function isPaused({ paused_at: at, paused_until: until }: OwnColumns, now: number): boolean {
  return at !== null && (until === null || until > now);
}

/** Keys without settings of their own and that nothing waits for: without their row they are the same. `?1`: now. */
export const IDLE_KEY = `id > 0 AND (NOT ${HAS_SETTINGS} OR running IS NULL AND interval_ms IS NULL AND burst IS NULL AND weight IS NULL AND paused_until <= ?1)
  AND ifnull(due_at, 0) <= ?1 AND held_off_until <= ?1 AND arrival_at <= ?1 AND NOT EXISTS (SELECT 1 FROM outlive_doors d WHERE d.door = outlive_keys.id)`;
