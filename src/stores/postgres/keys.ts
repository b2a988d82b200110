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
import { type Connection, isSessionLost } from "./connection.ts";
import { list, type Session, texts } from "./statements.ts";

/** How many wakes and due keys one turn takes, and how many jobs it reads at each door, at most. */
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
 * so two workers never take the same room; whatever gives room needs no lock. No lock is waited for, and what is skipped keeps its wake. If
 * this process freezes in here, the server ends its session soon (session-gate.ts): then nothing was admitted, and the keys are free.
 */
export async function admitHeld(connection: Connection): Promise<Admitted> {
  try {
    return await connection.brief((tx) => admitInside(tx, connection.schema));
  } catch (thrown) {
    // The wakes are still there. A server that is gone is reported by the next turn.
    if (!isSessionLost(thrown)) throw thrown;
    return { admitted: 0, dueInMs: CONTENDED_MS };
  }
}

/** Whether there is something to act on: wakes of waits, events of dedupe keys, and wakes of keys. */
export interface Left {
  readonly wakes: boolean;
  readonly events: boolean;
  readonly doors: boolean;
}

export async function whatIsLeft(session: Session): Promise<Left> {
  const [row] = await session.rows<Left>(
    `SELECT EXISTS (SELECT 1 FROM outlive.wakes) AS wakes, EXISTS (SELECT 1 FROM outlive.reruns WHERE due) AS events,
       EXISTS (SELECT 1 FROM outlive.key_wakes) AS doors`,
  );
  return row!;
}

// A crash of the server takes this back together with the claims that follow from it (claim.ts). The locks are taken by this statement, so that
// the next one sees what was decided before them.
const TAKE = `WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true), set_config('outlive_tx.notes', 'admits', true)),
  clock AS MATERIALIZED (SELECT outlive.now_ms() AS now),
  gone AS (DELETE FROM outlive.key_wakes w USING quick
    WHERE w.id = ANY (ARRAY(SELECT n.id FROM outlive.key_wakes n ORDER BY n.id LIMIT ${KEYS_PER_TURN} FOR UPDATE SKIP LOCKED)) RETURNING w.key),
  due AS (SELECT k.id FROM outlive.keys k WHERE k.due_at <= (SELECT now FROM clock) ORDER BY k.due_at LIMIT ${KEYS_PER_TURN}),
  doors AS MATERIALIZED (SELECT d.door, sum(d.wakes)::int AS wakes, bool_or(d.due) AS due
    FROM (SELECT key AS door, count(*) AS wakes, false AS due FROM gone GROUP BY key UNION ALL SELECT id, 0, true FROM due) d GROUP BY d.door)
  SELECT d.door, d.wakes, d.due, pg_try_advisory_xact_lock(hashtextextended($1 || d.door, 0)) AS locked, NULL::bigint AS next_due_ms FROM doors d
  UNION ALL SELECT NULL, 0, false, false, (SELECT min(k.due_at) FROM outlive.keys k WHERE k.due_at > clock.now) - clock.now FROM clock`;

interface Door {
  readonly door: number;
  readonly wakes: number;
  readonly due: boolean;
  readonly locked: boolean;
}

/** The row that is not a door: in how many ms time gives the next key room. */
interface NextDue {
  readonly door: null;
  readonly next_due_ms: number | null;
}

interface HeldColumns {
  readonly job: number;
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
  readonly keys: string;
  /** It is first at the door of its strict limit, and held at another one. */
  readonly keeps_place: boolean;
}

interface Held extends HeldColumns {
  readonly door: number;
}

const LOCK =
  "SELECT k.id FROM unnest($1::bigint[]) AS k (id) WHERE pg_try_advisory_xact_lock(hashtextextended($2 || k.id, 0))";

/** What the turns of one admission have in common: where it reads and what it knows so far. */
interface Reading {
  readonly now: number;
  readonly held: readonly Held[];
  readonly facts: readonly KeyFacts[];
  readonly started: readonly Started[];
  readonly names: Names;
  /** Doors at which a job was not read because another transaction has its row. */
  readonly passed: readonly number[];
}

async function admitInside(tx: Session, schema: string): Promise<Admitted> {
  const prefix = `outlive key ${schema} `;
  const rows = await tx.rows<Door | NextDue>(TAKE, [prefix]);
  const doors = rows.filter((row): row is Door => row.door !== null);
  const { next_due_ms: nextDueMs } = rows.find((row): row is NextDue => row.door === null)!;
  if (doors.length === 0) return { admitted: 0, dueInMs: nextDueMs };
  const mine = doors.filter(({ locked }) => locked).map(({ door }) => door);
  const read = mine.length === 0 ? NOTHING_READ : await readDoors(tx, mine);
  const { candidates, facts, started, names, refused } = await withOtherKeys(tx, prefix, mine, read);
  const decided = candidates.length === 0 ? NOTHING : admit({ now: read.now, keys: facts, candidates });
  // More may be held at these doors than were read: as many were read as there is room, and some of them wait elsewhere now.
  const admittedJobs = new Set(decided.admitted);
  const movedJobs = new Set(decided.moved.map(({ job }) => job));
  const counts = countsOf(read.held);
  const full = new Set<number>();
  for (const { job, door } of read.held)
    if (movedJobs.has(job) || (admittedJobs.has(job) && counts.get(door) === HELD_PER_KEY)) full.add(door);
  const again = [...decided.moved.map(({ door }) => door), ...full];
  const skipped = [
    ...doors.filter(({ wakes, locked }) => wakes > 0 && !locked).map(({ door }) => door),
    ...refused,
    ...read.passed,
  ];
  const looked = doors.filter(({ due, locked }) => due && locked).map(({ door }) => door);
  const hasRate = new Set(facts.filter(({ limit }) => limit.intervalMs !== null).map(({ id }) => id));
  const rated = candidates.filter(({ keys }) => keys.some((key) => hasRate.has(key))).map(({ job }) => job);
  await write(tx, { decided, names, started, rated, looked, wakes: [...new Set([...again, ...skipped])] });
  const admitted = decided.admitted.length;
  if (
    again.length > 0 ||
    doors.reduce((sum, { wakes }) => sum + wakes, 0) >= KEYS_PER_TURN ||
    looked.length >= KEYS_PER_TURN
  )
    return { admitted, dueInMs: 0 };
  const known = [...decided.due.values()].map((at) => Math.max(0, at - read.now));
  if (nextDueMs !== null) known.push(nextDueMs);
  if (skipped.length > 0 || doors.some(({ locked }) => !locked)) known.push(CONTENDED_MS);
  return { admitted, dueInMs: known.length === 0 ? null : Math.min(...known) };
}

function keysOf({ key1, key2, key3 }: Pick<HeldColumns, "key1" | "key2" | "key3">): number[] {
  return [key1, key2, key3].filter((key) => key !== null);
}

function countsOf(held: readonly Held[]): ReadonlyMap<number, number> {
  const counts = new Map<number, number>();
  for (const { door } of held) counts.set(door, (counts.get(door) ?? 0) + 1);
  return counts;
}

type Names = ReadonlyMap<number, readonly [limit: string, key: string]>;

const taken = (key: string): string =>
  `(SELECT count(*) FROM outlive.extras e WHERE e.${key} = k.id AND e.place > 1 AND e.place <= CASE WHEN l.strict THEN 4 ELSE 2 END)`;

// Also those whose claim is not committed yet: it has no start yet.
const unclaimed = (key: string): string =>
  `(SELECT count(*) FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job WHERE e.${key} = k.id AND e.place = 2 AND e.place > 1 AND j.state = ${STATE.queued})`;

/** SQL, `OFFSET 0` because it would be evaluated wherever it is named: what is counted, of keys `k` with their limits `l` and what they have of their own, `o`. Only what their limit needs. */
const COUNTED = `SELECT
    CASE WHEN l.strict OR coalesce(o.running, l.running) IS NOT NULL THEN ${taken("key1")} + ${taken("key2")} + ${taken("key3")} ELSE 0 END AS taken,
    CASE WHEN l.name IS NULL OR coalesce(o.interval_ms, l.interval_ms) IS NOT NULL
      THEN ${unclaimed("key1")} + ${unclaimed("key2")} + ${unclaimed("key3")} ELSE 0 END AS unclaimed,
    CASE WHEN l.name IS NULL OR coalesce(o.interval_ms, l.interval_ms) IS NOT NULL
      THEN (SELECT json_agg(json_build_array(s.id, s.at) ORDER BY s.id) FROM outlive.starts s WHERE s.key = k.id) END AS starts OFFSET 0`;

const FACT_COLUMNS = `k.id, k.name, outlive.now_ms() AS now, l.running, l.interval_ms, l.burst, l.strict,
    o.running AS own_running, o.interval_ms AS own_interval_ms, o.burst AS own_burst, o.arrival_at, o.held_off_until, c.taken, c.unclaimed, c.starts`;

/** Of keys whose limit is known. */
const FACTS = `SELECT ${FACT_COLUMNS}
  FROM unnest($1::bigint[], $2::text[]) AS k (id, name) LEFT JOIN outlive.limits l ON l.name = k.name LEFT JOIN outlive.keys o ON o.id = k.id
    CROSS JOIN LATERAL (${COUNTED}) c`;

// The name of a door's limit is that of the first job that is held there. At most as many jobs are read as there is room; which of them may run is
// decided by core. Their rows are locked, those of jobs before those of extras: whatever else writes both comes in this order. A row that another
// transaction has locked is passed, and the next one is read, except at a strict door, where the first one blocks the rest.
const DOORS = `SELECT ${FACT_COLUMNS}, h.job, h.key1, h.key2, h.key3, h.keys, h.keeps_place, r.waiting
  FROM (SELECT d.id, n.name FROM unnest($1::bigint[]) AS d (id) CROSS JOIN LATERAL (
      SELECT (e.keys::json -> CASE d.id WHEN e.key1 THEN 0 WHEN e.key2 THEN 1 ELSE 2 END) ->> 0 AS name
      FROM outlive.extras e WHERE e.door = d.id ORDER BY e.rank DESC, e.job LIMIT 1) n) k
    LEFT JOIN outlive.limits l ON l.name = k.name LEFT JOIN outlive.keys o ON o.id = k.id
    CROSS JOIN LATERAL (${COUNTED}) c
    CROSS JOIN LATERAL (SELECT CASE WHEN l.strict THEN 1 ELSE least(${HELD_PER_KEY}, greatest(1, coalesce(o.running, l.running, ${HELD_PER_KEY}) - c.taken)) END AS room OFFSET 0) b
    CROSS JOIN LATERAL (SELECT count(*) AS waiting FROM (SELECT 1 FROM outlive.extras w WHERE w.door = k.id ORDER BY w.rank DESC, w.job LIMIT b.room) w) r
    LEFT JOIN LATERAL (
      SELECT e.job, e.key1, e.key2, e.key3, e.keys, e.place = 4 AS keeps_place
      FROM (SELECT w.* FROM outlive.extras w WHERE w.door = k.id ORDER BY w.rank DESC, w.job LIMIT CASE WHEN l.strict THEN 1 ELSE ${HELD_PER_KEY} END) e
      JOIN outlive.jobs j ON j.seq = e.job WHERE j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.held}
      ORDER BY e.rank DESC, e.job LIMIT b.room
      FOR NO KEY UPDATE OF j SKIP LOCKED) h ON true`;

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

/** `waiting`: how many are held at the door, up to its room. */
type DoorColumns = FactColumns & { readonly waiting: number } & (HeldColumns | { readonly job: null });

/** A key whose starts were added to its arrival time. */
interface Started {
  readonly key: number;
  readonly arrivalAt: number;
  readonly starts: readonly number[];
}

const NOTHING_READ: Reading = { now: 0, held: [], facts: [], started: [], names: new Map(), passed: [] };

/** The jobs at doors whose keys are locked, and what is counted there. */
async function readDoors(tx: Session, doors: readonly number[]): Promise<Reading> {
  const rows = await tx.rows<DoorColumns>(DOORS, [list(doors)]);
  const held = rows.flatMap((row): Held[] => (row.job === null ? [] : [{ ...row, door: row.id }]));
  const names = new Map<number, [limit: string, key: string]>();
  for (const row of held) {
    const keys = keysOf(row);
    (JSON.parse(row.keys) as [string, string][]).forEach((name, at) => names.set(keys[at]!, name));
  }
  const counts = countsOf(held);
  const passed = rows.filter(({ id, waiting }) => (counts.get(id) ?? 0) < waiting).map(({ id }) => id);
  const { facts, started } = factsOf([...new Map(rows.map((row) => [row.id, row])).values()]);
  return { now: Math.max(0, ...rows.map(({ now }) => now)), held, facts, started, names, passed: [...new Set(passed)] };
}

interface Candidates extends Pick<Reading, "facts" | "started" | "names"> {
  readonly candidates: readonly HeldCandidate[];
  /** Doors of jobs that were passed because another worker decides about one of their other keys. */
  readonly refused: readonly number[];
}

/** Adds the facts of the other keys that these jobs have, as far as they can be locked. */
async function withOtherKeys(tx: Session, prefix: string, mine: readonly number[], read: Reading): Promise<Candidates> {
  const { held, names } = read;
  const locked = new Set(mine);
  const others = [...new Set(held.flatMap(keysOf))].filter((key) => !locked.has(key));
  const own: number[] = [];
  if (others.length > 0) for (const { id } of await tx.rows<{ id: number }>(LOCK, [list(others), prefix])) own.push(id);
  for (const id of own) locked.add(id);
  const known = new Set(read.facts.map(({ id }) => id));
  // Also doors that are locked and at which nothing was held.
  const missing = [...new Set(held.flatMap(keysOf))].filter((key) => locked.has(key) && !known.has(key));
  const more =
    missing.length === 0
      ? { facts: [], started: [] }
      : factsOf(await tx.rows<FactColumns>(FACTS, [list(missing), texts(missing.map((key) => names.get(key)![0]))]));
  const candidates: HeldCandidate[] = [];
  const refused = new Set<number>();
  for (const row of held) {
    const keys = keysOf(row);
    if (keys.every((key) => locked.has(key)))
      candidates.push({ job: row.job, door: row.door, keys, keepsPlace: row.keeps_place });
    else refused.add(row.door);
  }
  return {
    candidates,
    facts: [...read.facts, ...more.facts],
    started: [...read.started, ...more.started],
    names,
    refused: [...refused],
  };
}

const NOTHING: Admission = { admitted: [], moved: [], due: new Map(), rings: new Map() };
const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };

function factsOf(rows: readonly FactColumns[]): { facts: readonly KeyFacts[]; started: readonly Started[] } {
  const started: Started[] = [];
  const facts = rows.map((row): KeyFacts => {
    const declared = row.burst === null ? (throttleSettings(row.name) ?? UNLIMITED) : declaredLimit(row, row.burst);
    const limit = {
      running: row.own_running ?? declared.running,
      intervalMs: row.own_interval_ms ?? declared.intervalMs,
      burst: row.own_burst ?? declared.burst,
      strict: declared.strict,
    };
    const { id, taken: count, unclaimed: waiting, held_off_until: heldOffUntil } = row;
    let one: KeyFacts = {
      id,
      limit,
      taken: count,
      unclaimed: waiting,
      arrivalAt: row.arrival_at ?? 0,
      heldOffUntil: heldOffUntil ?? 0,
    };
    for (const [, at] of row.starts ?? []) one = { ...one, arrivalAt: startOf(one, at).arrivalAt };
    if (row.starts !== null)
      started.push({ key: id, arrivalAt: one.arrivalAt, starts: row.starts.map(([start]) => start) });
    return one;
  });
  return { facts, started };
}

function declaredLimit(row: FactColumns, burst: number): typeof UNLIMITED | Omit<LimitSettings, "name"> {
  return { running: row.running, intervalMs: row.interval_ms, burst, strict: row.strict === true };
}

// No trigger moves these jobs: `outlive_tx.notes` says that what it would do is done here (migrations/consequences.ts).
const WRITE = `WITH admitted AS (UPDATE outlive.extras e SET place = 2, door = NULL WHERE e.job = ANY ($1::bigint[]) RETURNING e.job),
  moved AS (UPDATE outlive.extras e SET door = m.door, place = CASE WHEN m.keeps_place THEN 4 ELSE 1 END
    FROM unnest($2::bigint[], $3::bigint[], $4::boolean[]) AS m (job, door, keeps_place) WHERE e.job = m.job),
  started AS (DELETE FROM outlive.starts s WHERE s.id = ANY ($5::bigint[])),
  wakes AS (INSERT INTO outlive.key_wakes (key, at) SELECT w.key, outlive.now_ms() FROM unnest($6::bigint[]) AS w (key)),
  own AS (INSERT INTO outlive.keys (id, name, key, arrival_at, due_at)
    SELECT o.* FROM unnest($7::bigint[], $8::text[], $9::text[], $10::float8[], $11::bigint[]) AS o (id, name, key, arrival_at, due_at) ORDER BY o.id
    ON CONFLICT (id) DO UPDATE SET arrival_at = greatest(keys.arrival_at, excluded.arrival_at),
      due_at = CASE WHEN keys.id = ANY ($12::bigint[]) THEN excluded.due_at ELSE coalesce(excluded.due_at, keys.due_at) END),
  looked AS (UPDATE outlive.keys k SET due_at = NULL WHERE k.id = ANY ($12::bigint[]) AND k.id <> ALL ($7::bigint[]))
  UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END, rated = j.seq = ANY ($13::bigint[]) FROM admitted a WHERE j.seq = a.job`;

interface Written {
  readonly decided: Admission;
  readonly names: Names;
  readonly started: readonly Started[];
  /** Admitted jobs whose claim is a start of a rate. */
  readonly rated: readonly number[];
  /** Keys that were due. */
  readonly looked: readonly number[];
  /** Keys that have to be looked at again. */
  readonly wakes: readonly number[];
}

async function write(tx: Session, { decided, names, started, rated, looked, wakes }: Written): Promise<void> {
  const { admitted, moved, due } = decided;
  const arrivals = new Map(started.map(({ key, arrivalAt }) => [key, arrivalAt]));
  const own = [...new Set([...arrivals.keys(), ...due.keys()])].filter((key) => names.has(key));
  if (admitted.length + moved.length + wakes.length + own.length + looked.length === 0) return;
  await tx.run(WRITE, [
    list(admitted),
    list(moved.map(({ job }) => job)),
    list(moved.map(({ door }) => door)),
    list(moved.map(({ keepsPlace }) => keepsPlace)),
    list(started.filter(({ key }) => names.has(key)).flatMap(({ starts }) => starts)),
    list(wakes),
    list(own),
    texts(own.map((id) => names.get(id)![0])),
    texts(own.map((id) => names.get(id)![1])),
    list(own.map((id) => arrivals.get(id) ?? 0)),
    list(own.map((id) => due.get(id) ?? null)),
    list(looked),
    list(rated),
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
