// Jobs with keys: how they are admitted, and the settings of limits and keys. migrations/keys.ts says where such a job waits and what writes a
// wake of a key.
import {
  type Admission,
  admit,
  type HeldCandidate,
  type JobKey,
  type KeyFacts,
  type KeyLimit,
  type LimitSettings,
  startOf,
  throttleSettings,
} from "../../job/limits.ts";
import { LANE, STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { list, type Session, texts } from "./statements.ts";

/** How many wakes and due keys one turn takes, and how many jobs it reads at each door. */
const KEYS_PER_TURN = 200;
const HELD_PER_KEY = 100;
/** Another worker decides about a key at this moment: how long until the next try. */
const CONTENDED_MS = 100;

export interface Admitted {
  readonly admitted: number;
  /** In how many ms there is more to do; null: nothing is known to come. */
  readonly dueInMs: number | null;
}

/**
 * Admits the jobs for which there is room, in a transaction of its own. Jobs are only admitted while this transaction has the locks of all their keys,
 * so two workers never take the same room; whatever gives room needs no lock. No lock is waited for: a process that freezes in here stops
 * its own keys, until the server ends its session, and no worker. What is skipped keeps its wake.
 */
export function admitHeld(connection: Connection): Promise<Admitted> {
  return connection.transaction((tx) => admitInside(tx, connection.schema));
}

/** Whether there is something to act on: events of dedupe keys, and wakes of keys. */
export async function keysLeft(session: Session): Promise<{ readonly events: boolean; readonly doors: boolean }> {
  const [row] = await session.rows<{ events: boolean; doors: boolean }>(
    "SELECT EXISTS (SELECT 1 FROM outlive.reruns WHERE due) AS events, EXISTS (SELECT 1 FROM outlive.key_wakes) AS doors",
  );
  return row!;
}

// A crash of the server takes this back together with the claims that follow from it (claim.ts).
const TAKE = `WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
  gone AS (DELETE FROM outlive.key_wakes w USING quick
    WHERE w.id = ANY (ARRAY(SELECT n.id FROM outlive.key_wakes n ORDER BY n.id LIMIT ${KEYS_PER_TURN} FOR UPDATE SKIP LOCKED)) RETURNING w.key),
  due AS (SELECT k.id FROM outlive.keys k WHERE k.due_at <= (SELECT outlive.now_ms()) ORDER BY k.due_at LIMIT ${KEYS_PER_TURN})
  SELECT d.door, sum(d.wakes)::int AS wakes, bool_or(d.due) AS due
  FROM (SELECT key AS door, count(*) AS wakes, false AS due FROM gone GROUP BY key UNION ALL SELECT id, 0, true FROM due) d GROUP BY d.door ORDER BY d.door`;

interface Door {
  readonly door: number;
  readonly wakes: number;
  readonly due: boolean;
}

const HELD = `SELECT c.* FROM unnest($1::bigint[]) AS d (door) CROSS JOIN LATERAL (
    SELECT e.job, e.door, e.rank, e.key1, e.key2, e.key3, e.keys, e.place = 4 AS keeps_place FROM outlive.extras e WHERE e.door = d.door
    ORDER BY e.rank DESC, e.job LIMIT ${HELD_PER_KEY}) c
  ORDER BY c.door, c.rank DESC, c.job`;

interface HeldColumns {
  readonly job: number;
  readonly door: number;
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
  readonly keys: string;
  /** It is first at the door of its strict limit, and held at another one. */
  readonly keeps_place: boolean;
}

const LOCK =
  "SELECT k.id FROM unnest($1::bigint[]) AS k (id) WHERE pg_try_advisory_xact_lock(hashtextextended($2 || k.id, 0))";

async function admitInside(tx: Session, schema: string): Promise<Admitted> {
  const doors = await tx.rows<Door>(TAKE);
  if (doors.length === 0) return { admitted: 0, dueInMs: await nextDue(tx) };
  const ids = list(doors.map(({ door }) => door));
  const seen = await tx.rows<HeldColumns>(HELD, [ids]);
  const wanted = new Set([...doors.map(({ door }) => door), ...seen.flatMap(keysOf)]);
  const locked = new Set(
    (await tx.rows<{ id: number }>(LOCK, [list([...wanted]), `outlive key ${schema} `])).map(({ id }) => id),
  );
  // Read again: what others decided before these locks were taken is visible now.
  const held = seen.length === 0 ? [] : await tx.rows<HeldColumns>(HELD, [ids]);
  const candidates = held.filter((row) => locked.has(row.door) && keysOf(row).every((key) => locked.has(key)));
  const skipped = new Set([
    ...doors.filter(({ door, wakes }) => wakes > 0 && !locked.has(door)).map(({ door }) => door),
    ...held.filter((row) => !keysOf(row).every((key) => locked.has(key))).map(({ door }) => door),
  ]);
  const { decided, refused, names, started } = await decide(tx, candidates);
  for (const { door } of refused) skipped.add(door);
  const looked = doors.filter(({ door, due }) => due && locked.has(door)).map(({ door }) => door);
  if (looked.length > 0)
    await tx.run("UPDATE outlive.keys SET due_at = NULL WHERE id = ANY ($1::bigint[])", [list(looked)]);
  const went = decided.admitted.length + decided.moved.length > 0;
  // More are held at these doors than were read.
  const full = went ? doors.map(({ door }) => door).filter((door) => countAt(held, door) === HELD_PER_KEY) : [];
  const again = [...decided.moved.map(({ door }) => door), ...full];
  await write(tx, decided, names, started, [...new Set([...again, ...skipped])]);
  const wakes = doors.reduce((sum, door) => sum + door.wakes, 0);
  if (again.length > 0 || wakes >= KEYS_PER_TURN) return { admitted: decided.admitted.length, dueInMs: 0 };
  const contended = skipped.size > 0 || doors.some(({ door }) => !locked.has(door));
  const dueInMs = await nextDue(tx);
  return {
    admitted: decided.admitted.length,
    dueInMs: contended ? Math.min(CONTENDED_MS, dueInMs || CONTENDED_MS) : dueInMs,
  };
}

function keysOf({ key1, key2, key3 }: Pick<HeldColumns, "key1" | "key2" | "key3">): number[] {
  return [key1, key2, key3].filter((key) => key !== null);
}

function countAt(held: readonly HeldColumns[], at: number): number {
  return held.filter(({ door }) => door === at).length;
}

async function nextDue(session: Session): Promise<number | null> {
  const [row] = await session.rows<{ ms: number | null }>(
    "SELECT greatest(0, min(due_at) - outlive.now_ms()) AS ms FROM outlive.keys WHERE due_at IS NOT NULL",
  );
  return row!.ms;
}

type Names = ReadonlyMap<number, readonly [limit: string, key: string]>;

// The rows of jobs before those of extras: whatever else writes both comes in this order.
const LOCK_JOBS = `SELECT j.seq FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[]) AND j.state = ${STATE.queued} AND j.lane = ${LANE.held}
  ORDER BY j.seq FOR NO KEY UPDATE SKIP LOCKED`;

/** What is decided about candidates whose keys are locked. A job whose row another transaction has locked is refused, and the others are decided about without it. */
async function decide(
  tx: Session,
  rows: readonly HeldColumns[],
): Promise<{ decided: Admission; refused: readonly HeldColumns[]; names: Names; started: readonly Started[] }> {
  const names = new Map<number, [limit: string, key: string]>();
  for (const row of rows) {
    const keys = keysOf(row);
    (JSON.parse(row.keys) as [string, string][]).forEach((name, at) => names.set(keys[at]!, name));
  }
  if (rows.length === 0) return { decided: NOTHING, refused: [], names, started: [] };
  const { started, ...facts } = await readFacts(tx, names);
  const refused: HeldColumns[] = [];
  const mine = new Set<number>();
  for (;;) {
    const left = rows.filter((row) => !refused.includes(row));
    const candidates = left.map((row): HeldCandidate => ({
      job: row.job,
      door: row.door,
      keys: keysOf(row),
      keepsPlace: row.keeps_place,
    }));
    const decided = admit({ now: facts.now, keys: facts.keys, candidates });
    const going = [...decided.admitted, ...decided.moved.map(({ job }) => job)].filter((job) => !mine.has(job));
    if (going.length === 0) return { decided, refused, names, started };
    for (const { seq } of await tx.rows<{ seq: number }>(LOCK_JOBS, [list(going)])) mine.add(seq);
    const lost = left.filter(({ job }) => going.includes(job) && !mine.has(job));
    if (lost.length === 0) return { decided, refused, names, started };
    refused.push(...lost);
  }
}

const NOTHING: Admission = { admitted: [], moved: [], due: new Map(), rings: new Map() };

const taken = (key: string): string =>
  `(SELECT count(*) FROM outlive.extras e WHERE e.${key} = k.id AND e.place > 1 AND e.place <= CASE WHEN l.strict THEN 4 ELSE 2 END)`;

// Also those whose claim is not committed yet: it has no start yet.
const unclaimed = (key: string): string =>
  `(SELECT count(*) FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job WHERE e.${key} = k.id AND e.place = 2 AND e.place > 1 AND j.state = ${STATE.queued})`;

const FACTS = `SELECT k.id, k.name, outlive.now_ms() AS now, l.running, l.interval_ms, l.burst, l.strict,
    o.running AS own_running, o.interval_ms AS own_interval_ms, o.burst AS own_burst, o.arrival_at, o.held_off_until,
    ${taken("key1")} + ${taken("key2")} + ${taken("key3")} AS taken,
    ${unclaimed("key1")} + ${unclaimed("key2")} + ${unclaimed("key3")} AS unclaimed,
    (SELECT json_agg(json_build_array(s.id, s.at) ORDER BY s.id) FROM outlive.starts s WHERE s.key = k.id) AS starts
  FROM unnest($1::bigint[], $2::text[]) AS k (id, name) LEFT JOIN outlive.limits l ON l.name = k.name LEFT JOIN outlive.keys o ON o.id = k.id`;

interface FactColumns {
  readonly id: number;
  readonly name: string;
  readonly now: number;
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number | null;
  readonly strict: boolean | null;
  readonly own_running: number | null;
  readonly own_interval_ms: number | null;
  readonly own_burst: number | null;
  readonly arrival_at: number | null;
  readonly held_off_until: number | null;
  readonly taken: number;
  readonly unclaimed: number;
  readonly starts: readonly (readonly [id: number, at: number])[] | null;
}

/** A key whose starts were added to its arrival time. */
interface Started {
  readonly key: number;
  readonly arrivalAt: number;
  readonly starts: readonly number[];
}

const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };

async function readFacts(
  tx: Session,
  names: Names,
): Promise<{ now: number; keys: readonly KeyFacts[]; started: readonly Started[] }> {
  const started: Started[] = [];
  const rows = await tx.rows<FactColumns>(FACTS, [
    list([...names.keys()]),
    texts([...names.values()].map(([limit]) => limit)),
  ]);
  const keys = rows.map((row): KeyFacts => {
    const declared = row.burst === null ? (throttleSettings(row.name) ?? UNLIMITED) : declaredLimit(row, row.burst);
    const limit = {
      running: row.own_running ?? declared.running,
      intervalMs: row.own_interval_ms ?? declared.intervalMs,
      burst: row.own_burst ?? declared.burst,
      strict: declared.strict,
    };
    const { id, taken: count, unclaimed: waiting, held_off_until: heldOffUntil } = row;
    let facts: KeyFacts = {
      id,
      limit,
      taken: count,
      unclaimed: waiting,
      arrivalAt: row.arrival_at ?? 0,
      heldOffUntil: heldOffUntil ?? 0,
    };
    for (const [, at] of row.starts ?? []) facts = { ...facts, arrivalAt: startOf(facts, at).arrivalAt };
    if (row.starts !== null)
      started.push({ key: id, arrivalAt: facts.arrivalAt, starts: row.starts.map(([start]) => start) });
    return facts;
  });
  return { now: Math.max(...rows.map(({ now }) => now)), keys, started };
}

function declaredLimit(row: FactColumns, burst: number): typeof UNLIMITED | Omit<LimitSettings, "name"> {
  return { running: row.running, intervalMs: row.interval_ms, burst, strict: row.strict === true };
}

// The trigger of jobs finds the places that this statement has written.
const WRITE = `WITH admitted AS (UPDATE outlive.extras e SET place = 2, door = NULL WHERE e.job = ANY ($1::bigint[]) RETURNING e.job),
  moved AS (UPDATE outlive.extras e SET door = m.door, place = CASE WHEN m.keeps_place THEN 4 ELSE 1 END
    FROM unnest($2::bigint[], $3::bigint[], $10::boolean[]) AS m (job, door, keeps_place) WHERE e.job = m.job),
  started AS (DELETE FROM outlive.starts s WHERE s.id = ANY ($11::bigint[])),
  wakes AS (INSERT INTO outlive.key_wakes (key, at) SELECT w.key, outlive.now_ms() FROM unnest($4::bigint[]) AS w (key)),
  own AS (INSERT INTO outlive.keys (id, name, key, arrival_at, due_at)
    SELECT o.* FROM unnest($5::bigint[], $6::text[], $7::text[], $8::float8[], $9::bigint[]) AS o (id, name, key, arrival_at, due_at) ORDER BY o.id
    ON CONFLICT (id) DO UPDATE SET arrival_at = greatest(keys.arrival_at, excluded.arrival_at), due_at = coalesce(excluded.due_at, keys.due_at))
  UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END FROM admitted a WHERE j.seq = a.job`;

async function write(
  tx: Session,
  decided: Admission,
  names: Names,
  started: readonly Started[],
  wakes: readonly number[],
): Promise<void> {
  const { admitted, moved, due } = decided;
  const arrivals = new Map(started.map(({ key, arrivalAt }) => [key, arrivalAt]));
  const own = [...new Set([...arrivals.keys(), ...due.keys()])];
  if (admitted.length + moved.length + wakes.length + own.length === 0) return;
  await tx.run(WRITE, [
    list(admitted),
    list(moved.map(({ job }) => job)),
    list(moved.map(({ door }) => door)),
    list(wakes),
    list(own),
    texts(own.map((id) => names.get(id)![0])),
    texts(own.map((id) => names.get(id)![1])),
    list(own.map((id) => arrivals.get(id) ?? 0)),
    list(own.map((id) => due.get(id) ?? null)),
    list(moved.map(({ keepsPlace }) => keepsPlace)),
    list(started.flatMap(({ starts }) => starts)),
  ]);
}

// ---- settings

const DECLARE = `WITH changed AS (
    INSERT INTO outlive.limits (name, running, interval_ms, burst, strict)
    SELECT * FROM unnest($1::text[], $2::int[], $3::float8[], $4::int[], $5::boolean[]) AS l (name, running, interval_ms, burst, strict) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET running = excluded.running, interval_ms = excluded.interval_ms, burst = excluded.burst, strict = excluded.strict
    WHERE ROW (limits.running, limits.interval_ms, limits.burst, limits.strict)
      IS DISTINCT FROM ROW (excluded.running, excluded.interval_ms, excluded.burst, excluded.strict) RETURNING 1)
  INSERT INTO outlive.key_wakes (key, at) SELECT DISTINCT e.door, outlive.now_ms() FROM outlive.extras e WHERE e.door IS NOT NULL AND EXISTS (SELECT 1 FROM changed)`;

/** If a limit has changed, all doors are checked again. */
export async function declareLimits(session: Session, limits: readonly LimitSettings[]): Promise<void> {
  // One statement may not touch a row twice: of a name that is there twice the last counts.
  const last = [...new Map(limits.map((limit) => [limit.name, limit])).values()];
  if (last.length === 0) return;
  await session.run(DECLARE, [
    texts(last.map(({ name }) => name)),
    list(last.map(({ running }) => running)),
    list(last.map(({ intervalMs }) => intervalMs)),
    list(last.map(({ burst }) => burst)),
    list(last.map(({ strict }) => strict)),
  ]);
}

const SET_LIMIT = `WITH own AS (
    INSERT INTO outlive.keys (id, name, key, running, interval_ms, burst) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (id) DO UPDATE SET running = excluded.running, interval_ms = excluded.interval_ms, burst = excluded.burst)
  INSERT INTO outlive.key_wakes (key, at) VALUES ($1, outlive.now_ms())`;

/** What a key has of its own, instead of what its limit says. */
export async function setKeyLimit(session: Session, { id, limit, key }: JobKey, own: KeyLimit | null): Promise<void> {
  await session.run(SET_LIMIT, [id, limit, key, own?.running ?? null, own?.intervalMs ?? null, own?.burst ?? null]);
}
