// Jobs with keys: where they wait, and how they are admitted. A job that is ready and has keys is held at the door of one of them, in a lane
// that no claim reads. Whatever gives a key room (a job that ends, waits, or backs off) and whatever adds a held job writes one small row, and
// the next turn of any worker reads the facts, has `admit` decide, and writes what it decided. Inside a transaction.
import {
  admit,
  type HeldCandidate,
  type JobKey,
  type KeyFacts,
  type KeyLimit,
  type LimitSettings,
  roomAt,
  startOf,
  throttleSettings,
} from "../../job/limits.ts";
import { LANE, STATE } from "../rows.ts";
import type { Database } from "./database.ts";

/** Where a job with keys is: not ready, held at a door, admitted or running, begun and not ready under a strict limit, or held at another door than that of its strict limit, where it is first. */
const PLACE = { away: 0, held: 1, taken: 2, begun: 3, first: 4 } as const;
/** The order at a door of a job of a strict limit that has begun: before all others. */
const FIRST = 1_000_000;
/** How many keys one turn looks at, and how many jobs at each door. */
const KEYS_PER_TURN = 200;
const HELD_PER_KEY = 100;

// ---- coming and going

/** A job was inserted that has keys, or got other ones. If it is ready it goes to a door. */
export function arrive(
  db: Database,
  job: number,
  draft: { readonly keys: readonly JobKey[]; readonly priority: number },
  isReady: boolean,
  now: number,
  inserted: { readonly parent: number | null; readonly latestAt: number | null } = NOT_INSERTED,
): void {
  const { keys, priority } = draft;
  const ordered = keys.find(({ limit }) => limitOf(db, limit)?.strict ?? false);
  const strict = ordered !== undefined;
  const [first, second, third] = keys.map(({ id }) => id);
  const door = ordered?.id ?? first!;
  db.sql(
    `INSERT INTO outlive_extras (job, key1, key2, key3, keys, strict, place, door, rank, parent, latest_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
     ON CONFLICT DO UPDATE SET key1 = ?2, key2 = ?3, key3 = ?4, keys = ?5, strict = ?6, place = ?7, door = ?8, rank = ?9`,
  ).run(
    job,
    first!,
    second ?? null,
    third ?? null,
    JSON.stringify(keys.map(({ limit, key }) => [limit, key])),
    strict ? 1 : 0,
    isReady ? PLACE.held : PLACE.away,
    isReady ? door : null,
    strict ? 0 : priority,
    inserted.parent,
    inserted.latestAt,
  );
  if (isReady) wakeKey(db, door, now);
}

const NOT_INSERTED = { parent: null, latestAt: null };

/** Its keys are about to be replaced: those that it counted against are looked at again. */
export function leave(db: Database, job: number, now: number): void {
  const row = db.sql("SELECT place, key1, key2, key3 FROM outlive_extras WHERE job = ?").get(job) as unknown as
    | Pick<PlacedColumns, "place" | "key1" | "key2" | "key3">
    | undefined;
  if (row === undefined || row.place < PLACE.taken) return;
  for (const key of [row.key1, row.key2, row.key3]) if (key !== null) wakeKey(db, key, now);
}

interface PlacedColumns {
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
  readonly keys: string;
  readonly strict: number;
  readonly place: number;
  readonly state: number;
  readonly lane: number;
  readonly fence: number;
  readonly priority: number;
}

/**
 * A job with extras has changed its state or its lane. If it has keys: one that has become ready goes to a door, and one that left gives its room to
 * the others. A job that ran and is ready again is admitted again, and spends another token of a rate: it starts once more.
 */
export function relocate(db: Database, job: number, now: number): void {
  const row = db
    .sql(
      "SELECT e.key1, e.key2, e.key3, e.keys, e.strict, e.place, j.state, j.lane, j.fence, j.priority FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job WHERE e.job = ? AND e.key1 IS NOT NULL",
    )
    .get(job) as unknown as PlacedColumns | undefined;
  if (row === undefined || row.state === STATE.running) return;
  const isReady = row.state === STATE.queued && row.lane !== LANE.delayed;
  const begun = row.strict === 1 && row.fence > 0;
  const place = isReady ? PLACE.held : row.state === STATE.queued && begun ? PLACE.begun : PLACE.away;
  const rank = begun ? FIRST : row.strict === 1 ? 0 : row.priority;
  const door = row.strict === 1 ? strictKey(db, row) : row.key1;
  if (isReady) db.sql("UPDATE outlive_jobs SET lane = ? WHERE seq = ?").run(LANE.held, job);
  db.sql("UPDATE outlive_extras SET place = ?, door = ?, rank = ? WHERE job = ?").run(
    place,
    isReady ? door : null,
    rank,
    job,
  );
  if (row.place >= PLACE.taken)
    for (const key of [row.key1, row.key2, row.key3]) if (key !== null) wakeKey(db, key, now);
  if (isReady && row.place < PLACE.taken) wakeKey(db, door, now);
}

/** A job of a strict limit waits at that door first: there it is seen whose turn it is. */
function strictKey(db: Database, { key1, key2, key3, keys }: PlacedColumns): number {
  const at = (JSON.parse(keys) as [string, string][]).findIndex(([limit]) => limitOf(db, limit)?.strict ?? false);
  return [key1, key2, key3][at] ?? key1;
}

function wakeKey(db: Database, key: number, now: number): void {
  db.sql("INSERT INTO outlive_key_wakes (key, at) VALUES (?, ?)").run(key, now);
}

// ---- admission

/** Admits what there is room for. Returns how many. */
export function admitHeld(db: Database, now: number): number {
  const wakes = db.sql(`SELECT id, key FROM outlive_key_wakes ORDER BY id LIMIT ${KEYS_PER_TURN}`).all() as {
    id: number;
    key: number;
  }[];
  const due = db
    .sql(`SELECT id FROM outlive_keys WHERE due_at <= ? ORDER BY due_at LIMIT ${KEYS_PER_TURN}`)
    .all(now) as { id: number }[];
  let admitted = 0;
  if (wakes.length > 0 || due.length > 0) {
    if (wakes.length > 0) db.sql("DELETE FROM outlive_key_wakes WHERE id <= ?").run(wakes.at(-1)!.id);
    for (const { id } of due) db.sql("UPDATE outlive_keys SET due_at = NULL WHERE id = ?").run(id);
    const doors = [...new Set([...due.map(({ id }) => id), ...wakes.map(({ key }) => key)])];
    admitted = admitAt(db, doors, now);
  }
  return admitted;
}

/** In how many ms there is more to do; null: nothing is known to come. */
export function nextRoomInMs(db: Database, now: number): number | null {
  if (db.sql("SELECT 1 FROM outlive_key_wakes LIMIT 1").get() !== undefined) return 0;
  const next = db.sql("SELECT min(due_at) AS at FROM outlive_keys WHERE due_at IS NOT NULL").get() as {
    at: number | null;
  };
  return next.at === null ? null : Math.max(0, next.at - now);
}

/** These jobs were claimed: those with a rate start now. */
export function spendStarts(db: Database, jobs: readonly number[], now: number): void {
  if (jobs.length === 0 || db.sql(ANY_TAKEN).get() === undefined) return;
  for (const job of jobs) {
    const row = db
      .sql("SELECT key1, key2, key3, keys FROM outlive_extras WHERE job = ? AND key1 IS NOT NULL")
      .get(job) as unknown as Omit<HeldColumns, "job"> | undefined;
    if (row === undefined) continue;
    const names = JSON.parse(row.keys) as [string, string][];
    [row.key1, row.key2, row.key3].forEach((key, at) => {
      if (key === null) return;
      const { limit, own } = settingsOf(db, key, names[at]![0]);
      if (limit.intervalMs === null) return;
      const facts = factsOf(db, key, limit, own);
      // The claim is written: the job is not among the unclaimed any more.
      const { arrivalAt, due } = startOf({ ...facts, unclaimed: facts.unclaimed + 1 }, now);
      setKey(db, key, names[at]!, "arrival_at", arrivalAt);
      if (due !== null) setKey(db, key, names[at]!, "due_at", due);
    });
  }
}

// Asked in every turn that claims, and nearly always in vain.
const ANY_TAKEN = "SELECT 1 FROM outlive_extras WHERE key1 IS NOT NULL AND place > 1 LIMIT 1";

interface HeldColumns {
  readonly job: number;
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
  readonly keys: string;
  readonly place: number;
}

const HELD = `SELECT job, key1, key2, key3, keys, place FROM outlive_extras WHERE door = ? ORDER BY rank DESC, job LIMIT ? + 0`;

function admitAt(db: Database, doors: readonly number[], now: number): number {
  const names = new Map<number, [limit: string, key: string]>();
  const facts = new Map<number, KeyFacts>();
  const factsFor = (id: number): KeyFacts => {
    const known = facts.get(id);
    if (known) return known;
    const { limit, own } = settingsOf(db, id, names.get(id)![0]);
    const read = factsOf(db, id, limit, own);
    facts.set(id, read);
    return read;
  };
  const full: number[] = [];
  const candidates = doors.flatMap((door): HeldCandidate[] => {
    const candidateOf = (row: HeldColumns): HeldCandidate => {
      const keys = [row.key1, row.key2, row.key3].filter((key) => key !== null);
      if (keys.some((key) => !names.has(key)))
        (JSON.parse(row.keys) as [string, string][]).forEach((name, at) => names.set(keys[at]!, name));
      return { job: row.job, door, keys, keepsPlace: row.place === PLACE.first };
    };
    const first = db.sql(HELD).get(door, 1) as unknown as HeldColumns | undefined;
    if (first === undefined) return [];
    const head = candidateOf(first);
    // No more than the door has room for, however many are held there.
    const wanted = Math.min(HELD_PER_KEY, roomAt(factsFor(door)));
    if (wanted <= 1) {
      if (wanted === 1) full.push(door);
      return [head];
    }
    const rows = db.sql(HELD).all(door, wanted) as unknown as HeldColumns[];
    if (rows.length === wanted) full.push(door);
    return rows.map(candidateOf);
  });
  if (candidates.length === 0) return 0;
  for (const id of names.keys()) factsFor(id);
  const decided = admit({ now, keys: [...facts.values()], candidates });
  for (const job of decided.admitted) {
    db.sql(
      `UPDATE outlive_jobs SET lane = CASE WHEN crashes + losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END WHERE seq = ?`,
    ).run(job);
    db.sql(`UPDATE outlive_extras SET place = ${PLACE.taken}, door = NULL WHERE job = ?`).run(job);
  }
  // The wake for the other door has it looked at again: its room may have grown since the facts were read elsewhere.
  for (const { job, door, keepsPlace } of decided.moved) {
    db.sql("UPDATE outlive_extras SET door = ?, place = ? WHERE job = ?").run(
      door,
      keepsPlace ? PLACE.first : PLACE.held,
      job,
    );
    wakeKey(db, door, now);
  }
  for (const [id, at] of decided.due) setKey(db, id, names.get(id)!, "due_at", at);
  // As many were read as there was room, and some of them did not take it: others may.
  const admitted = new Set(decided.admitted);
  const movedOn = new Set(decided.moved.map(({ job }) => job));
  for (const door of full) {
    const own = candidates.filter((candidate) => candidate.door === door);
    const isCut = own.length === HELD_PER_KEY && own.some(({ job }) => admitted.has(job));
    if (isCut || own.some(({ job }) => movedOn.has(job))) wakeKey(db, door, now);
  }
  return decided.admitted.length;
}

function setKey(
  db: Database,
  id: number,
  [name, key]: readonly [string, string],
  column: "arrival_at" | "due_at",
  value: number,
): void {
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, ${column}) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET ${column} = excluded.${column}`,
  ).run(id, name, key, value);
}

interface KeyColumns {
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number | null;
  readonly arrival_at: number;
  readonly held_off_until: number;
}

const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };

/** What applies to a key: its limit, and what it has of its own. */
function settingsOf(
  db: Database,
  id: number,
  name: string,
): { readonly limit: KeyFacts["limit"]; readonly own: KeyColumns | undefined } {
  const declared = limitOf(db, name) ?? UNLIMITED;
  const own = db
    .sql("SELECT running, interval_ms, burst, arrival_at, held_off_until FROM outlive_keys WHERE id = ?")
    .get(id) as unknown as KeyColumns | undefined;
  const limit = {
    ...declared,
    running: own?.running ?? declared.running,
    intervalMs: own?.interval_ms ?? declared.intervalMs,
    burst: own?.burst ?? declared.burst,
  };
  return { limit, own };
}

function factsOf(db: Database, id: number, limit: KeyFacts["limit"], own: KeyColumns | undefined): KeyFacts {
  const taken = takenBy(db, id, limit.strict ? PLACE.first : PLACE.taken);
  const unclaimed = limit.intervalMs === null ? 0 : unclaimedOf(db, id);
  return { id, limit, taken, unclaimed, arrivalAt: own?.arrival_at ?? 0, heldOffUntil: own?.held_off_until ?? 0 };
}

const TAKEN = ["key1", "key2", "key3"]
  .map((column) => `(SELECT count(*) FROM outlive_extras WHERE ${column} = ?1 AND place > 1 AND place <= ?2 + 0)`)
  .join(" + ");

function takenBy(db: Database, id: number, highest: number): number {
  return (db.sql(`SELECT ${TAKEN} AS n`).get(id, highest) as { n: number }).n;
}

/** Admitted, and no worker has claimed them yet. */
function unclaimedOf(db: Database, id: number): number {
  const count = (column: string): number =>
    (
      db
        .sql(
          `SELECT count(*) AS n FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job WHERE e.${column} = ? AND e.place = ${PLACE.taken} AND e.place > 1 AND j.state = ${STATE.queued}`,
        )
        .get(id) as { n: number }
    ).n;
  return count("key1") + count("key2") + count("key3");
}

// ---- settings

interface LimitColumns {
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number;
  readonly strict: number;
}

function limitOf(db: Database, name: string): LimitSettings | null {
  const row = db
    .sql("SELECT running, interval_ms, burst, strict FROM outlive_limits WHERE name = ?")
    .get(name) as unknown as LimitColumns | undefined;
  if (row === undefined) return throttleSettings(name);
  const { running, interval_ms: intervalMs, burst } = row;
  return { name, running, intervalMs, burst, strict: row.strict === 1 };
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
    `INSERT INTO outlive_key_wakes (key, at) SELECT DISTINCT door, ? FROM outlive_extras WHERE door IS NOT NULL`,
  ).run(now);
}

/** What a key has of its own, beyond its limit. */
export function setKeyLimit(db: Database, { id, limit, key }: JobKey, own: KeyLimit | null, now: number): void {
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, running, interval_ms, burst) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
     ON CONFLICT DO UPDATE SET running = ?4, interval_ms = ?5, burst = ?6`,
  ).run(id, limit, key, own?.running ?? null, own?.intervalMs ?? null, own?.burst ?? null);
  wakeKey(db, id, now);
}

/** Nothing of this key starts before then. A later time that is kept already stays. */
export function holdOff(db: Database, { id, limit, key }: JobKey, until: number): void {
  db.sql(
    `INSERT INTO outlive_keys (id, name, key, held_off_until) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT DO UPDATE SET held_off_until = max(held_off_until, ?4)`,
  ).run(id, limit, key, until);
}
