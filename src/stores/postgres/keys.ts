// Limits and single keys: what programs declare, what a key has of its own, its pause, and its state. admission.ts admits.
import {
  FAIR,
  type JobKey,
  type KeyLimit,
  type KeyPause,
  type KeyState,
  type LimitSettings,
  impliedSettings,
} from "../../job/limits.ts";
import type { KeyQuery } from "../port.ts";
import { LANE, STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { list, type Session, texts, type TransactingSession } from "./statements.ts";

/**
 * Where a job with keys is: not ready, held at a door, admitted or running, begun and not ready under a strict limit, or held at another door than
 * that of its strict limit, where it is first.
 */
const PLACE = { away: 0, held: 1, taken: 2, begun: 3, first: 4 } as const;

const DECLARE = `WITH changed AS (
    INSERT INTO outlive.limits (name, running, interval_ms, burst, strict)
    SELECT * FROM unnest($1::text[], $2::int[], $3::float8[], $4::int[], $5::boolean[]) AS l (name, running, interval_ms, burst, strict) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET running = excluded.running, interval_ms = excluded.interval_ms, burst = excluded.burst, strict = excluded.strict
    WHERE ROW (limits.running, limits.interval_ms, limits.burst, limits.strict)
      IS DISTINCT FROM ROW (excluded.running, excluded.interval_ms, excluded.burst, excluded.strict) RETURNING 1)
  INSERT INTO outlive.key_wakes (key, at) SELECT DISTINCT e.door, outlive.now_ms() FROM outlive.extras e WHERE e.door > 0 AND EXISTS (SELECT 1 FROM changed)`;

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
    INSERT INTO outlive.keys (id, name, key, running, interval_ms, burst, weight) VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (id) DO UPDATE SET running = excluded.running, interval_ms = excluded.interval_ms, burst = excluded.burst, weight = excluded.weight)
  INSERT INTO outlive.key_wakes (key, at) VALUES ($1, outlive.now_ms())`;

/** A batch whose blocks wait as plain jobs: they wait and count for its key from now on. The caller has the lock of the key. */
const BOUND = "SELECT outlive.bound_batch($1)";

/** What a key has of its own, instead of what its limit says. Its pause, its hold-off and the starts that it has spent stay. */
export async function setKeyLimit(
  session: Session,
  schema: string,
  { id, limit, key }: JobKey,
  own: KeyLimit | null,
): Promise<void> {
  if (limit === FAIR) await session.run(LOCK_KEY, [`${lockPrefix(schema)}${id}`]);
  await session.run(SET_LIMIT, [
    id,
    limit,
    key,
    own?.running ?? null,
    own?.intervalMs ?? null,
    own?.burst ?? null,
    own?.weight ?? null,
  ]);
  if (limit === FAIR) await session.run(BOUND, [id]);
}

// ---- pauses

const PAUSE = `INSERT INTO outlive.keys (id, name, key, paused_at, paused_until, reason)
  SELECT $1, $2, $3, CASE WHEN $4::boolean THEN clock.now END, clock.now + $5::bigint, $6 FROM (SELECT outlive.now_ms() AS now) AS clock
  ON CONFLICT (id) DO UPDATE SET paused_at = excluded.paused_at, paused_until = excluded.paused_until, reason = excluded.reason`;

const UNCLAIMED = ["key1", "key2", "key3"]
  .map((key) => `SELECT e.job FROM outlive.extras e WHERE e.${key} = $1 AND e.place = ${PLACE.taken} AND e.place > 1`)
  .join(" UNION ALL ");
const LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
/** Waits for a claim in progress, and sees then whether the job was claimed. */
const LOCK_UNCLAIMED = `SELECT j.seq FROM outlive.jobs j WHERE j.seq = ANY (ARRAY(${UNCLAIMED})) AND j.state + 0 = ${STATE.queued}
  ORDER BY j.seq FOR NO KEY UPDATE`;
/** Away, and then ready in another lane: the trigger of jobs brings them to the door where they waited first. */
const TAKE_BACK = `UPDATE outlive.extras e SET place = ${PLACE.away} WHERE e.job = ANY ($1::bigint[]) RETURNING e.key1, e.key2, e.key3`;
const READY_AGAIN = `UPDATE outlive.jobs j SET lane = CASE j.lane WHEN ${LANE.open} THEN ${LANE.suspect} ELSE ${LANE.open} END WHERE j.seq = ANY ($1::bigint[])`;
const WAKE =
  "INSERT INTO outlive.key_wakes (key, at) SELECT w.key, outlive.now_ms() FROM unnest($1::bigint[]) AS w (key)";

/**
 * Nothing of this key starts after the commit: what was admitted and not claimed is held again. The lock of the key is waited for, as an admission has it
 * for a moment only (session-gate.ts): one that has read the key before commits before. Null: it may start again.
 */
export function pauseKey(
  connection: Connection,
  { id, limit, key }: JobKey,
  pause: KeyPause | null,
  note: (tx: Session) => Promise<void>,
): Promise<void> {
  return connection.brief(async (tx) => {
    await note(tx);
    await tx.run(LOCK_KEY, [`${lockPrefix(connection.schema)}${id}`]);
    await tx.run(PAUSE, [id, limit, key, pause !== null, pause?.forMs ?? null, pause?.reason ?? null]);
    // Also when it is paused: what is held there learns when that ends.
    const woken = [id];
    if (pause !== null) {
      if (limit === FAIR) await tx.run(BOUND, [id]);
      const jobs = list((await tx.rows<{ seq: number }>(LOCK_UNCLAIMED, [id])).map(({ seq }) => seq));
      for (const keys of await tx.rows<KeyColumns>(TAKE_BACK, [jobs])) woken.push(...keysIn(keys));
      await tx.run(READY_AGAIN, [jobs]);
    }
    await tx.run(WAKE, [list([...new Set(woken)])]);
  });
}

/** What the names of the locks of keys begin with. */
export function lockPrefix(schema: string): string {
  return `outlive key ${schema} `;
}

export interface KeyColumns {
  readonly key1: number;
  readonly key2: number | null;
  readonly key3: number | null;
}

export function keysIn({ key1, key2, key3 }: KeyColumns): number[] {
  return [key1, key2, key3].filter((key) => key !== null);
}

/** Before when nothing of the key starts; infinite: not before it is resumed. */
export function closedUntil({
  held_off_until: heldOff,
  paused_at: pausedAt,
  paused_until: until,
}: ClosedColumns): number {
  return pausedAt === null ? (heldOff ?? 0) : Math.max(heldOff ?? 0, until ?? Number.POSITIVE_INFINITY);
}

interface ClosedColumns {
  readonly held_off_until: number | null;
  readonly paused_at: number | null;
  readonly paused_until: number | null;
}

/** SQL: keys `k` without settings of their own and that nothing waits for. Without their row they are the same. */
export const IDLE_KEY = `k.id > 0 AND k.running IS NULL AND k.interval_ms IS NULL AND k.burst IS NULL AND k.weight IS NULL
  AND (k.paused_at IS NULL OR k.paused_until <= outlive.now_ms()) AND k.held_off_until <= outlive.now_ms() AND k.arrival_at <= outlive.now_ms()
  AND coalesce(k.due_at, 0) <= outlive.now_ms() AND NOT EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = k.id)
  AND NOT EXISTS (SELECT 1 FROM outlive.starts s WHERE s.key = k.id)`;

// ---- wakes while no worker runs

/** From so many wakes of keys on, each key keeps its latest one. Workers take them faster than they come; while none runs, every call that adds held jobs adds some. */
const MOST_WAKES = 10_000;
const IS_MUCH = `SELECT coalesce(max(id) - min(id), 0) >= ${MOST_WAKES} AS much FROM outlive.key_wakes`;
const LATEST = "SELECT max(id) AS id FROM outlive.key_wakes GROUP BY key HAVING count(*) > 1";
const LOCK_LATEST = "SELECT id FROM outlive.key_wakes WHERE id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED";
/** Sorted once: a join with the latest ones would be a loop over all wakes for each key, because these sessions allow no hash join. */
const REMOVE_EARLIER = `DELETE FROM outlive.key_wakes WHERE id = ANY (ARRAY(
  SELECT w.id FROM (SELECT id, max(id) OVER (PARTITION BY key) AS latest FROM outlive.key_wakes) w WHERE w.id < w.latest AND w.latest = ANY ($1::bigint[])))`;

/**
 * Keeps the latest wake of each key if there are many. It is locked meanwhile, so no admission has it: whichever takes it reads the door later, and sees
 * what the earlier ones were written for. A wake that an admission has just taken may have missed those, and its key is left as it is.
 */
export async function foldKeyWakes(session: Pick<TransactingSession, "rows" | "transaction">): Promise<void> {
  const [found] = await session.rows<{ much: boolean }>(IS_MUCH);
  if (!found!.much) return;
  await session.transaction(async (tx) => {
    const latest = await tx.rows<{ id: number }>(LATEST);
    const locked = await tx.rows<{ id: number }>(LOCK_LATEST, [list(latest.map(({ id }) => id))]);
    if (locked.length > 0) await tx.run(REMOVE_EARLIER, [list(locked.map(({ id }) => id))]);
  });
}

// ---- what people read

interface StateColumns extends ClosedColumns {
  readonly name: string;
  readonly key: string;
  readonly now: number;
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number | null;
  readonly weight: number | null;
  readonly reason: string | null;
  readonly limit_running: number | null;
  readonly limit_interval_ms: number | null;
  readonly limit_burst: number | null;
  readonly limit_strict: boolean | null;
  readonly taken: number;
  readonly held: number;
}

const takenOf = (key: string): string =>
  `(SELECT count(*) FROM outlive.extras e WHERE e.${key} = k.id AND e.place = ${PLACE.taken} AND e.place > 1)`;
const stateOf = (
  keys: string,
): string => `SELECT k.name, k.key, outlive.now_ms() AS now, o.running, o.interval_ms, o.burst, o.weight, o.held_off_until,
    o.paused_at, o.paused_until, o.reason, l.running AS limit_running, l.interval_ms AS limit_interval_ms, l.burst AS limit_burst, l.strict AS limit_strict,
    ${takenOf("key1")} + ${takenOf("key2")} + ${takenOf("key3")} AS taken, (SELECT count(*) FROM outlive.extras e WHERE e.door = k.id) AS held
  FROM (${keys}) k LEFT JOIN outlive.keys o ON o.id = k.id LEFT JOIN outlive.limits l ON l.name = k.name ORDER BY k.name, k.key COLLATE "C"`;
const STATE_OF_ONE = stateOf("SELECT $1::bigint AS id, $2::text AS name, $3::text AS key");
const STATES =
  stateOf(`SELECT n.id, n.name, n.key FROM outlive.keys n WHERE n.id > 0 AND ($1::text IS NULL OR n.name = $1)
    AND (n.running IS NOT NULL OR n.interval_ms IS NOT NULL OR n.burst IS NOT NULL OR n.weight IS NOT NULL OR n.paused_at IS NOT NULL
      OR n.held_off_until > outlive.now_ms()) ORDER BY n.name COLLATE "C", n.key COLLATE "C" LIMIT $2::int`);

export async function keyStates(session: Session, query: KeyQuery): Promise<KeyState[]> {
  const rows =
    "key" in query
      ? await session.rows<StateColumns>(STATE_OF_ONE, [query.key.id, query.key.limit, query.key.key])
      : await session.rows<StateColumns>(STATES, [query.limit, query.most]);
  return rows.map(keyState);
}

function keyState(row: StateColumns): KeyState {
  const { name: limit, key, now, running, interval_ms: intervalMs, burst, weight, taken, held } = row;
  const declared =
    row.limit_burst === null
      ? (impliedSettings(limit) ?? UNLIMITED)
      : {
          running: row.limit_running,
          intervalMs: row.limit_interval_ms,
          burst: row.limit_burst,
          strict: row.limit_strict === true,
        };
  const { paused_at: at, paused_until: until, held_off_until: heldOff } = row;
  return {
    limit,
    key,
    applies: {
      running: running ?? declared.running,
      intervalMs: intervalMs ?? declared.intervalMs,
      burst: burst ?? declared.burst,
      strict: declared.strict,
    },
    own: {
      ...(running !== null && { running }),
      ...(intervalMs !== null && { intervalMs }),
      ...(burst !== null && { burst }),
      ...(weight !== null && { weight }),
    },
    taken,
    held,
    paused: at !== null && (until === null || until > now) ? { reason: row.reason ?? "", at, until } : null,
    heldOffUntil: heldOff !== null && heldOff > now ? heldOff : null,
  };
}

/** Of a key whose limit no program has declared. */
export const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };
