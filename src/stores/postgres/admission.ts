// Admission: which of the held jobs may run now. A transaction takes wakes of keys, locks the keys, reads what is held there, has `admit` decide, and writes
// what it decided. migrations/keys.ts says where a job with keys waits and what writes a wake of a key.
import {
  type Admission,
  admit,
  type AtGate,
  gateFacts,
  gateRoom,
  type HeldCandidate,
  type KeyFacts,
  type LimitSettings,
  type Ring,
  type RingMember,
  roundsFor,
  startOf,
  takeTurns,
  THROTTLE,
  impliedSettings,
} from "../../job/limits.ts";
import { LANE, STATE } from "../rows.ts";
import { type Connection, isSessionLost } from "./connection.ts";
import { sqlState } from "./errors.ts";
import { closedUntil, type KeyColumns, keysIn as keysOf, lockPrefix, UNLIMITED } from "./keys.ts";
import { ANY_DUE_EVENT, ANY_KEY_WAKE, ANY_WAKE, isPausedSql, list, type Session, texts } from "./statements.ts";

/** How many wakes and due keys one turn takes, and how many jobs it reads at each door, at most. */
const KEYS_PER_TURN = 500;
const LEAST_KEYS_PER_TURN = 8;
const HELD_PER_KEY = 100;
/** A bulk of enqueues leaves many wakes of each key: of those of a key that are among the first so many for each key, all are taken at once. */
const WAKES_PER_KEY = 10;
/** Another worker decides about a key at this moment: how long until the next try. */
const CONTENDED_MS = 100;
/** The same for a gate, which all workers of a fair kind need all the time. */
const GATE_CONTENDED_MS = 5;

/** Jobs that a limit of their fair key holds are checked again after this: an end that did not see the limit yet has written no wake (migrations/open-gates.ts). */
const FAIR_RECHECK_MS = 1_000;

/** For how many jobs of a kind the worker has room now. */
export interface Demand {
  readonly kind: number;
  readonly demand: number;
}

export interface Admitted {
  readonly admitted: number;
  /** Jobs that came to the gate of a fair kind: some worker may have room for them. */
  readonly toGates: number;
  /** Jobs at whose gate the worker was that another visit had admitted, and that are ready for any worker. */
  readonly ready: number;
  /** In how many ms there is more to do; null: nothing is known to come. */
  readonly dueInMs: number | null;
}

/**
 * Admits the jobs for which there is room, in a transaction of its own. Jobs are only admitted while this transaction has the locks of all their keys,
 * so two workers never take the same room; whatever gives room needs no lock. No lock is waited for but that of a gate, and for that one before any other is
 * taken; what is skipped keeps its wake. If this process freezes in here, the server ends its session soon (session-gate.ts): then nothing was
 * admitted, and the keys are free.
 *
 * `atGates`: jobs wait at the gate of a fair kind, whichever.
 */
export async function admitHeld(
  connection: Connection,
  demands: readonly Demand[],
  atGates: boolean,
): Promise<Admitted> {
  const inside = (waits: boolean): Promise<Admitted> =>
    connection.brief(async (tx) => {
      if (waits) await tx.run(WAIT_FOR_GATE, [lockPrefix(connection.schema), list(demands.map(({ kind }) => kind))]);
      return admitInside(tx, connection.schema, demands);
    });
  try {
    if (!atGates || demands.length === 0) return await inside(false);
    return await inside(true).catch((thrown: unknown) => {
      if (!isLockTimeout(thrown)) throw thrown;
      return inside(false);
    });
  } catch (thrown) {
    // The wakes are still there. A server that is gone is reported by the next turn.
    if (!isSessionLost(thrown)) throw thrown;
    return { ...NONE_ADMITTED, dueInMs: CONTENDED_MS };
  }
}

/** How long a worker waits for its turn at a gate. A visit takes a few ms; one that takes longer has frozen. */
const GATE_WAIT_MS = 50;
// In the order in which they came. Of 752 visits that eight workers made which tried again every 5 ms, 109 admitted something, and the others used most of
// the machine.
const WAIT_FOR_GATE = `WITH briefly AS MATERIALIZED (SELECT set_config('lock_timeout', '${GATE_WAIT_MS}ms', true) AS is)
  SELECT pg_advisory_xact_lock(hashtextextended($1 || -g.id, 0)) FROM briefly b CROSS JOIN LATERAL (
    SELECT k.id FROM outlive.kinds k WHERE b.is IS NOT NULL AND k.id = ANY ($2::int[]) AND k.fair AND NOT ${isPausedSql("k.")}
      AND EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = -k.id) ORDER BY k.id LIMIT 1) g`;

/** How many blocks one turn moves, at most. */
const MOVED_PER_TURN = 1_000;
const TO_GATES = `SELECT outlive.to_gate(l.kind, ${MOVED_PER_TURN}) FROM outlive.lone_batches l WHERE l.kind = ANY ($1::int[])`;

/** Another batch has come: blocks of the one that was alone take turns with it from now on. Some are moved by each turn that finds them. */
export async function toGates(session: Session, kinds: readonly number[]): Promise<void> {
  await session.rows(TO_GATES, [list(kinds)]);
}

/** Whether there is something to act on: wakes of waits, events of dedupe keys, and wakes of keys. */
export interface Left {
  readonly wakes: boolean;
  readonly events: boolean;
  readonly doors: boolean;
}

export async function whatIsLeft(session: Session): Promise<Left> {
  const [row] = await session.rows<Left>(
    `SELECT ${ANY_WAKE} AS wakes, ${ANY_DUE_EVENT} AS events, ${ANY_KEY_WAKE} AS doors`,
  );
  return row!;
}

/**
 * SQL: the same with many workers. Each key that is looked at is one entry of the table in which the server keeps all locks. That has room for
 * `max_locks_per_transaction` of each connection, 6,400 as it is shipped, and whatever else needs a lock fails when it is full. All workers together take a
 * quarter of it: with up to 3 of them 500 keys each, 200 with 8, and 80 with 20.
 */
const KEYS_NOW = `least(${KEYS_PER_TURN}, greatest(${LEAST_KEYS_PER_TURN}, current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) / 4
    / greatest(1, (SELECT count(*) FROM outlive.fleet f WHERE f.state = 'live'))))`;

// A crash of the server takes this back together with the claims that follow from it (claim.ts). The locks are taken by this statement, so that
// the next one sees what was decided before them.
const TAKE = `WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true), set_config('outlive_tx.notes', 'admits', true)),
  clock AS MATERIALIZED (SELECT outlive.now_ms() AS now),
  most AS MATERIALIZED (SELECT ${KEYS_NOW} AS keys),
  first AS MATERIALIZED (SELECT n.id, n.key FROM outlive.key_wakes n ORDER BY n.id LIMIT (SELECT keys FROM most) * ${WAKES_PER_KEY}),
  several AS MATERIALIZED (SELECT array_agg(f.id) AS ids FROM first f GROUP BY f.key ORDER BY min(f.id) LIMIT (SELECT keys FROM most)),
  gone AS (DELETE FROM outlive.key_wakes w USING quick WHERE w.id = ANY (ARRAY(
    SELECT n.id FROM outlive.key_wakes n WHERE n.id = ANY (ARRAY(SELECT unnest(s.ids) FROM several s)) ORDER BY n.id FOR UPDATE SKIP LOCKED)) RETURNING w.key),
  due AS (SELECT k.id FROM outlive.keys k WHERE k.due_at <= (SELECT now FROM clock) ORDER BY k.due_at LIMIT (SELECT keys FROM most)),
  doors AS MATERIALIZED (SELECT d.door, sum(d.wakes)::int AS wakes, bool_or(d.due) AS due
    FROM (SELECT key AS door, count(*) AS wakes, false AS due FROM gone GROUP BY key UNION ALL SELECT id, 0, true FROM due) d GROUP BY d.door ORDER BY d.door)
  SELECT d.door, d.wakes, d.due, pg_try_advisory_xact_lock(hashtextextended($1 || d.door, 0)) AS locked, NULL::bigint AS next_due_ms, NULL::bigint AS now, NULL::int AS most FROM doors d
  UNION ALL SELECT -k.id::bigint, 0, false, pg_try_advisory_xact_lock(hashtextextended($1 || -k.id, 0)), NULL, NULL, NULL
    FROM outlive.kinds k WHERE k.id = ANY ($2::int[]) AND k.fair AND NOT ${isPausedSql("k.")}
  UNION ALL SELECT NULL, 0, false, false, (SELECT min(k.due_at) FROM outlive.keys k WHERE k.due_at > clock.now) - clock.now, clock.now, most.keys::int FROM clock, most`;

/** Of a door, or of a gate: then it has a number below 0. */
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
  readonly now: number;
  /** How many wakes, and how many due keys, were taken at most. */
  readonly most: number;
}

interface HeldColumns extends KeyColumns {
  readonly job: number;
  readonly keys: string;
  /** It is first at the door of its strict limit, and held at another one. */
  readonly keeps_place: boolean;
  readonly rank: number;
  /** The key by which it takes turns, its weight, and the gate of its kind; null: its kind is not fair. */
  readonly fair: number | null;
  readonly weight: number | null;
  readonly gate: number | null;
}

interface Held extends HeldColumns {
  readonly door: number;
}

const LOCK =
  "SELECT k.id FROM unnest($1::bigint[]) AS k (id) WHERE pg_try_advisory_xact_lock(hashtextextended($2 || k.id, 0))";

/** What the turns of one admission have in common: where it reads and what it knows so far. */
interface Reading {
  readonly held: readonly Held[];
  readonly facts: readonly KeyFacts[];
  readonly started: readonly Started[];
  /** Of each door, for how many jobs there is room by number, and how many are held there, up to that. */
  readonly rooms: ReadonlyMap<number, number>;
  readonly waiting: ReadonlyMap<number, number>;
  /** Doors at which keys take turns; nothing of them is in `held`. */
  readonly turns: readonly { readonly door: number; readonly room: number }[];
}

async function admitInside(tx: Session, schema: string, demands: readonly Demand[]): Promise<Admitted> {
  const prefix = lockPrefix(schema);
  const rows = await tx.rows<Door | NextDue>(TAKE, [prefix, list(demands.map(({ kind }) => kind))]);
  const doors = rows.filter((row): row is Door => row.door !== null);
  const { next_due_ms: nextDueMs, now, most } = rows.find((row): row is NextDue => row.door === null)!;
  if (doors.length === 0) return { ...NONE_ADMITTED, dueInMs: nextDueMs };
  const mine = doors.filter(({ door, locked }) => locked && !isGate(door)).map(({ door }) => door);
  const read = mine.length === 0 ? NOTHING_READ : await readDoors(tx, mine, now);
  const atDoors = read.held.map((row): Found => ({ row, candidate: candidateOf(row) }));
  for (const { door, room } of read.turns) atDoors.push(...(await turnsAt(tx, door, room)));
  const gates = demands.flatMap(({ kind, demand }) =>
    doors.some(({ door, locked }) => locked && door === gateOf(kind)) ? [{ gate: gateOf(kind), demand }] : [],
  );
  const { found, rooms, ready } = await throughGates(tx, prefix, atDoors, gates);
  const { candidates, facts, started, names, refused, cut } = await withOtherKeys(tx, prefix, mine, read, found, most);
  // More may be held at these doors than were read: as many were read as there is room, and some of them wait elsewhere now.
  const counts = countsOf(atDoors.map(({ row }) => row));
  const readFull = [...counts].filter(([door, count]) => count >= read.rooms.get(door)!).map(([door]) => door);
  const decided =
    candidates.length === 0
      ? NOTHING
      : lookingAgain(admit({ now, keys: [...facts, ...gateFactsOf(found, rooms)], candidates, readFull }), found, now);
  const admittedJobs = new Set(decided.admitted);
  const movedJobs = new Set(decided.moved.map(({ job }) => job));
  const full = new Set<number>();
  for (const { door, job } of atDoors.map(({ row }) => row))
    if (
      (movedJobs.has(job) && counts.get(door)! >= read.rooms.get(door)!) ||
      (admittedJobs.has(job) && counts.get(door) === HELD_PER_KEY)
    )
      full.add(door);
  const again = [...decided.moved.map(({ door }) => door).filter((door) => !isGate(door)), ...full];
  const passed = [...read.waiting].filter(([door, waiting]) => (counts.get(door) ?? 0) < waiting).map(([door]) => door);
  const skipped = [
    ...doors.filter(({ wakes, locked }) => wakes > 0 && !locked).map(({ door }) => door),
    ...refused.filter((door) => !isGate(door)),
    ...passed,
  ];
  const looked = doors.filter(({ due, locked }) => due && locked).map(({ door }) => door);
  const hasRate = new Set(facts.filter(({ limit }) => limit.intervalMs !== null).map(({ id }) => id));
  const rated = candidates.filter(({ keys }) => keys.some((key) => hasRate.has(key))).map(({ job }) => job);
  const strict = new Set(facts.filter(({ limit }) => limit.strict).map(({ id }) => id));
  await write(tx, { decided, names, started, rated, strict, looked, wakes: [...new Set([...again, ...skipped])] });
  const passedGates = candidates.filter(({ job, keys }) => admittedJobs.has(job) && keys.some(isGate)).length;
  const went = {
    admitted: decided.admitted.length,
    toGates: decided.moved.filter(({ door }) => isGate(door)).length,
    ready,
  };
  // Those of a gate that turned out to be held by a limit took turns of others, for which there is still room.
  const turnsLeft =
    passedGates < gates.reduce((sum, { demand }) => sum + demand, 0) &&
    candidates.some(({ job, door }) => isGate(door) && movedJobs.has(job));
  const wakes = doors.reduce((sum, door) => sum + door.wakes, 0);
  if (again.length > 0 || turnsLeft || cut || wakes >= most || looked.length >= most) return { ...went, dueInMs: 0 };
  const known = [...decided.due.values()].map((at) => Math.max(0, at - now));
  if (nextDueMs !== null) known.push(nextDueMs);
  if (skipped.length > 0 || doors.some(({ door, locked }) => !locked && !isGate(door))) known.push(CONTENDED_MS);
  if (refused.some(isGate) || doors.some(({ door, locked }) => !locked && isGate(door))) known.push(GATE_CONTENDED_MS);
  return { ...went, dueInMs: known.length === 0 ? null : Math.min(...known) };
}

function lookingAgain(decided: Admission, found: readonly Found[], now: number): Admission {
  const admitted = new Set(decided.admitted);
  const doors = new Map(decided.moved.map(({ job, door }) => [job, door]));
  const due = new Map(decided.due);
  for (const { row } of found) {
    const door = doors.get(row.job) ?? row.door;
    if (!admitted.has(row.job) && door === row.fair)
      due.set(door, Math.min(due.get(door) ?? Infinity, now + FAIR_RECHECK_MS));
  }
  return { ...decided, due };
}

function isLockTimeout(thrown: unknown): boolean {
  return sqlState(thrown) === "55P03";
}

export const NONE_ADMITTED = { admitted: 0, toGates: 0, ready: 0 } as const;

/** A held job that was read, and as core sees it. */
interface Found {
  readonly row: Held;
  readonly candidate: HeldCandidate;
}

function candidateOf(row: Held): HeldCandidate {
  const { job, door, gate, keeps_place: keepsPlace } = row;
  const keys = keysOf(row);
  return { job, door, keys: gate === null ? keys : [...keys, gate], keepsPlace };
}

// ---- fair kinds: keys take turns (job/limits.ts)

/** The gate of a kind: no key has a number below 0. */
function gateOf(kind: number): number {
  return -kind;
}

/** Every turn that has room for the kind looks at its gate: no wake is needed. */
function isGate(door: number): boolean {
  return door < 0;
}

// The next keys of a ring from where it stands: one step of the index for each, however many jobs they have.
const RING = `WITH RECURSIVE stand AS MATERIALIZED (
    SELECT coalesce(max(k.ring_at), 0) AS at, coalesce(max(k.ring_served), 0) AS served FROM outlive.keys k WHERE k.id = $1),
  ahead (id, n) AS (
    SELECT (SELECT e.ring FROM outlive.extras e WHERE e.door = $1 AND e.ring >= s.at ORDER BY e.ring LIMIT 1), 1 FROM stand s
    UNION ALL SELECT (SELECT e.ring FROM outlive.extras e WHERE e.door = $1 AND e.ring > a.id ORDER BY e.ring LIMIT 1), a.n + 1
      FROM ahead a WHERE a.id IS NOT NULL AND a.n < $2::int),
  behind (id, n) AS (
    SELECT (SELECT e.ring FROM outlive.extras e WHERE e.door = $1 AND e.ring < s.at ORDER BY e.ring LIMIT 1), 1 FROM stand s
      WHERE (SELECT count(a.id) FROM ahead a) < $2::int
    UNION ALL SELECT (SELECT e.ring FROM outlive.extras e WHERE e.door = $1 AND e.ring > b.id AND e.ring < (SELECT s.at FROM stand s) ORDER BY e.ring LIMIT 1), b.n + 1
      FROM behind b WHERE b.id IS NOT NULL AND b.n < $2::int)
  SELECT s.at, s.served, r.id AS key, coalesce(o.weight, 1) AS weight
  FROM stand s LEFT JOIN (SELECT id, n, 0 AS part FROM ahead UNION ALL SELECT id, n, 1 FROM behind) r ON r.id IS NOT NULL
    LEFT JOIN outlive.keys o ON o.id = r.id ORDER BY r.part, r.n LIMIT $2::int`;

interface RingColumns {
  readonly at: number;
  readonly served: number;
  readonly key: number | null;
  readonly weight: number;
}

/** SQL: what is read of a held job. */
const HELD_COLUMNS = `e.job, e.rank, e.key1, e.key2, e.key3, e.keys, e.place = 4 AS keeps_place, e.fair, e.gate,
  CASE WHEN e.fair IS NOT NULL THEN coalesce((SELECT o.weight FROM outlive.keys o WHERE o.id = e.fair), 1) END AS weight`;

/** The first jobs of these keys at one door, of each as many as requested. */
const TURNS = `SELECT $1::bigint AS door, r.id AS ring, h.* FROM unnest($2::bigint[], $3::int[]) AS r (id, most) CROSS JOIN LATERAL (
    SELECT ${HELD_COLUMNS}
    FROM (SELECT w.* FROM outlive.extras w WHERE w.door = $1 AND w.ring = r.id ORDER BY w.rank DESC, w.job LIMIT ${HELD_PER_KEY}) e
    JOIN outlive.jobs j ON j.seq = e.job WHERE j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.held}
    ORDER BY e.rank DESC, e.job LIMIT r.most FOR NO KEY UPDATE OF j SKIP LOCKED) h`;

interface RingRead {
  readonly ring: Ring;
  readonly members: readonly { readonly key: number; readonly weight: number; readonly rows: readonly Held[] }[];
  /** The last key that was read, because there are more; null: these are all. */
  readonly upTo: number | null;
  /** For how many jobs in all enough of each key were read. */
  readonly most: number;
}

/** The ring of a door or gate from where it stands on, with enough jobs of each key for `least` in all, or for what `mostOf` says of these keys. */
async function ringAt(
  tx: Session,
  door: number,
  least: number,
  mostOf: (keys: readonly number[]) => Promise<number> = async () => least,
): Promise<RingRead> {
  const wanted = Math.min(least + 1, KEYS_PER_TURN);
  const rows = await tx.rows<RingColumns>(RING, [door, wanted]);
  const keys = rows.flatMap(({ key, weight }) => (key === null ? [] : [{ key, weight }]));
  const most = await mostOf(keys.map(({ key }) => key));
  const rounds = roundsFor(
    most,
    keys.map(({ weight }) => weight),
  );
  const held =
    keys.length === 0
      ? []
      : await tx.rows<Held & { readonly ring: number }>(TURNS, [
          door,
          list(keys.map(({ key }) => key)),
          list(keys.map(({ weight }) => Math.min(most, weight * rounds))),
        ]);
  const members = keys.map(({ key, weight }) => ({
    key,
    weight,
    rows: held.filter(({ ring }) => ring === key).toSorted(byRank),
  }));
  const { at, served } = rows[0]!;
  return { ring: { at, served }, members, upTo: keys.length < wanted ? null : keys.at(-1)!.key, most };
}

function byRank(a: Held, b: Held): number {
  return b.rank - a.rank || a.job - b.job;
}

/** What waits at a door where keys take turns. */
async function turnsAt(tx: Session, door: number, most: number): Promise<Found[]> {
  const { ring, members, upTo } = await ringAt(tx, door, most);
  const rows = new Map(members.flatMap((member) => member.rows.map((row) => [row.job, row] as const)));
  const jobs = members.map((member) => ({ ...member, jobs: member.rows.map(candidateOf) }));
  return takeTurns(door, ring, jobs, upTo)
    .slice(0, most)
    .map((candidate) => ({ row: rows.get(candidate.job)!, candidate }));
}

interface Gate {
  readonly gate: number;
  readonly demand: number;
}

/**
 * Jobs of fair kinds compete at the gate of their kind, those that a door has room for together with those that wait there. One for which the worker has no
 * room goes to its gate.
 */
async function throughGates(
  tx: Session,
  prefix: string,
  atDoors: readonly Found[],
  gates: readonly Gate[],
): Promise<ThroughGates> {
  const open = new Set(gates.map(({ gate }) => gate));
  const found = atDoors.filter(({ row: { gate } }) => gate === null || !open.has(gate));
  const rooms = new Map<number, number>();
  let ready = 0;
  for (const { gate, demand } of gates) {
    const others = atDoors.flatMap(({ row }) => (row.gate === gate ? row.fair! : []));
    const { ring, members, upTo, most } = await ringAt(tx, gate, demand, async (keys) => {
      const found = await roomAtGate(tx, prefix, { gate, demand }, [...keys, ...others]);
      ready += found.ready;
      return found.room;
    });
    rooms.set(gate, most);
    const all = [
      ...members.flatMap(({ rows }) => rows.map((row): Found => ({ row, candidate: candidateOf(row) }))),
      ...atDoors.filter(({ row }) => row.gate === gate),
    ].sort((a, b) => byRank(a.row, b.row));
    const rows = new Map(all.map(({ row }) => [row.job, row]));
    const byKey = Map.groupBy(all, ({ row }) => row.fair!);
    const jobs = [...byKey].map(([key, own]): RingMember => ({
      key,
      weight: own[0]!.row.weight ?? 1,
      jobs: own.map(({ candidate }) => candidate),
    }));
    for (const candidate of takeTurns(gate, ring, jobs, upTo)) found.push({ row: rows.get(candidate.job)!, candidate });
  }
  return { found, rooms, ready };
}

interface ThroughGates {
  readonly found: readonly Found[];
  /** Of each gate that was visited, for how many jobs it has room. */
  readonly rooms: ReadonlyMap<number, number>;
  readonly ready: number;
}

// A lock that another session waits for is in pg_locks with its two halves.
const AT_GATE = `SELECT (SELECT count(*) FROM (SELECT 1 FROM outlive.jobs WHERE state = ${STATE.running} AND kind = $1 LIMIT ${HELD_PER_KEY}) r)::int AS running,
  (SELECT count(*) FROM (SELECT 1 FROM outlive.jobs WHERE kind = $1 AND state = ${STATE.queued} AND lane = ${LANE.open} LIMIT ${HELD_PER_KEY}) q)::int AS ready,
  (SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended($2, 0))::int AS waiting`;

async function roomAtGate(
  tx: Session,
  prefix: string,
  { gate, demand }: Gate,
  held: readonly number[],
): Promise<GateRoom> {
  const keys = new Set(held).size;
  if (keys !== 1) return { room: demand, ready: 0 };
  const [found] = await tx.rows<Pick<AtGate, "running" | "ready" | "waiting">>(AT_GATE, [-gate, `${prefix}${gate}`]);
  return { room: Math.min(HELD_PER_KEY, gateRoom({ demand, keys, ...found! })), ready: found!.ready };
}

interface GateRoom {
  readonly room: number;
  /** Jobs that are ready without being admitted by this visit, as far as it knows. */
  readonly ready: number;
}

/** A gate without a demand, or that another worker has locked, has no room in this transaction. */
function gateFactsOf(found: readonly Found[], rooms: ReadonlyMap<number, number>): KeyFacts[] {
  const seen = new Set(found.flatMap(({ row }) => row.gate ?? []));
  return [...seen].map((gate) => gateFacts(gate, rooms.get(gate) ?? 0));
}

// ---- doors and keys

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

const FACT_COLUMNS = `k.id, k.name, l.running, l.interval_ms, l.burst, l.strict,
    o.running AS own_running, o.interval_ms AS own_interval_ms, o.burst AS own_burst, o.arrival_at, o.held_off_until, o.paused_at, o.paused_until, c.taken, c.unclaimed, c.starts`;

/** Of keys whose limit is known. */
const FACTS = `SELECT ${FACT_COLUMNS}
  FROM unnest($1::bigint[], $2::text[]) AS k (id, name) LEFT JOIN outlive.limits l ON l.name = k.name LEFT JOIN outlive.keys o ON o.id = k.id
    CROSS JOIN LATERAL (${COUNTED}) c`;

/** SQL: the rate of a key in ms, also of one that no program declares; null: it has none. */
const INTERVAL_MS = `coalesce(o.interval_ms, l.interval_ms, CASE WHEN l.name IS NULL THEN substring(k.name from '^${THROTTLE}([0-9]+)$')::float8 END)`;

// `roomAt` of job/limits.ts, or more: starts that are not added to the arrival time yet raise it at least to this. Without it a key was read with all that
// waits behind it, 100 rows that were locked, for the one that its rate admits.
const ROOM_BY_RATE = `(SELECT coalesce(o.burst, l.burst, 1) - c.unclaimed - ceil(greatest(0, a.at - $2::bigint) / i.ms)
      FROM (SELECT ${INTERVAL_MS} AS ms) i CROSS JOIN LATERAL (
        SELECT greatest(greatest(coalesce(o.arrival_at, 0), min(s.at) FILTER (WHERE s.at >= 0)) + count(*) FILTER (WHERE s.at >= 0) * i.ms, max(s.at) + i.ms)
          + coalesce(sum(s.at) FILTER (WHERE s.at < 0), 0) AS at
        FROM outlive.starts s WHERE s.key = k.id) a WHERE i.ms IS NOT NULL)`;

// A key whose number alone is full has no use for the first job at its door: only an end gives it room. Of any other, one is read.
const LEAST_READ =
  "CASE WHEN t.turns OR l.name IS NULL OR coalesce(o.interval_ms, l.interval_ms) IS NOT NULL OR o.held_off_until > 0 OR o.paused_at IS NOT NULL THEN 1 ELSE 0 END";

// The name of a door's limit is that of the first job that is held there. At most as many jobs are read as there is room; which of them may run is
// decided by core. Their rows are locked, those of jobs before those of extras: whatever else writes both comes in this order. A row that another
// transaction has locked is passed, and the next one is read, except at a strict door, where the first one blocks the rest.
const DOORS = `SELECT ${FACT_COLUMNS}, h.*, t.turns, b.room, r.waiting
  FROM (SELECT d.id, n.name FROM unnest($1::bigint[]) AS d (id) CROSS JOIN LATERAL (
      SELECT (e.keys::json -> CASE d.id WHEN e.key1 THEN 0 WHEN e.key2 THEN 1 ELSE 2 END) ->> 0 AS name
      FROM outlive.extras e WHERE e.door = d.id ORDER BY e.ring, e.rank DESC, e.job LIMIT 1) n) k
    LEFT JOIN outlive.limits l ON l.name = k.name LEFT JOIN outlive.keys o ON o.id = k.id
    CROSS JOIN LATERAL (${COUNTED}) c
    CROSS JOIN LATERAL (SELECT (SELECT EXISTS (SELECT 1 FROM outlive.kinds f WHERE f.fair))
      AND EXISTS (SELECT 1 FROM outlive.extras w WHERE w.door = k.id AND w.ring > 0) AS turns OFFSET 0) t
    CROSS JOIN LATERAL (SELECT CASE WHEN l.strict THEN 1
      ELSE least(${HELD_PER_KEY}, greatest(${LEAST_READ}, least(coalesce(o.running, l.running, ${HELD_PER_KEY}) - c.taken,
        CASE WHEN l.name IS NULL OR coalesce(o.interval_ms, l.interval_ms) IS NOT NULL THEN ${ROOM_BY_RATE} END))) END::int AS room OFFSET 0) b
    CROSS JOIN LATERAL (SELECT count(*) AS waiting FROM (SELECT 1 FROM outlive.extras w WHERE w.door = k.id ORDER BY w.ring, w.rank DESC, w.job LIMIT b.room) w) r
    LEFT JOIN LATERAL (
      SELECT ${HELD_COLUMNS}
      FROM (SELECT w.* FROM outlive.extras w WHERE w.door = k.id AND w.ring = 0 ORDER BY w.rank DESC, w.job
        LIMIT CASE WHEN l.strict THEN 1 ELSE ${HELD_PER_KEY} END) e
      JOIN outlive.jobs j ON j.seq = e.job WHERE j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.held}
      ORDER BY e.rank DESC, e.job LIMIT CASE WHEN t.turns THEN 0 ELSE b.room END
      FOR NO KEY UPDATE OF j SKIP LOCKED) h ON true`;

interface FactColumns {
  readonly id: number;
  readonly name: string;
  readonly running: number | null;
  readonly interval_ms: number | null;
  readonly burst: number | null;
  readonly strict: boolean | null;
  readonly own_running: number | null;
  readonly own_interval_ms: number | null;
  readonly own_burst: number | null;
  readonly arrival_at: number | null;
  readonly held_off_until: number | null;
  readonly paused_at: number | null;
  readonly paused_until: number | null;
  readonly taken: number;
  readonly unclaimed: number;
  readonly starts: readonly (readonly [id: number, at: number])[] | null;
}

type DoorColumns = FactColumns & { readonly turns: boolean; readonly room: number; readonly waiting: number } & (
    | HeldColumns
    | { readonly job: null }
  );

/** A key whose starts were added to its arrival time. */
interface Started {
  readonly key: number;
  readonly arrivalAt: number;
  readonly starts: readonly number[];
}

const NOTHING_READ: Reading = { held: [], facts: [], started: [], rooms: new Map(), waiting: new Map(), turns: [] };

/** The jobs at doors whose keys are locked, and what is counted there. */
async function readDoors(tx: Session, doors: readonly number[], now: number): Promise<Reading> {
  const rows = await tx.rows<DoorColumns>(DOORS, [list(doors), now]);
  // Doors come in no order, and a second key that jobs of several doors have goes to the first of them.
  const held = rows.flatMap((row): Held[] => (row.job === null ? [] : [{ ...row, door: row.id }])).sort(byRank);
  const each = [...new Map(rows.map((row) => [row.id, row])).values()];
  const { facts, started } = factsOf(each);
  return {
    held,
    facts,
    started,
    rooms: new Map(each.map(({ id, room }) => [id, room])),
    waiting: new Map(each.map(({ id, waiting }) => [id, waiting])),
    turns: each.filter(({ turns }) => turns).map(({ id: door, room }) => ({ door, room })),
  };
}

interface Candidates extends Pick<Reading, "facts" | "started"> {
  readonly candidates: readonly HeldCandidate[];
  readonly names: Names;
  /** Doors and gates of jobs that were passed because another worker decides about one of their other keys. */
  readonly refused: readonly number[];
  /** There were more other keys than one admission locks. */
  readonly cut: boolean;
}

/** Adds the facts of the other keys that these jobs have, as far as they can be locked. */
async function withOtherKeys(
  tx: Session,
  prefix: string,
  mine: readonly number[],
  read: Reading,
  found: readonly Found[],
  most: number,
): Promise<Candidates> {
  const names = new Map<number, [limit: string, key: string]>();
  for (const { row } of found) {
    const keys = keysOf(row);
    (JSON.parse(row.keys) as [string, string][]).forEach((name, at) => names.set(keys[at]!, name));
  }
  const locked = new Set(mine);
  const others = [...names.keys()].filter((key) => !locked.has(key));
  const cut = others.length > most;
  if (others.length > 0)
    for (const { id } of await tx.rows<{ id: number }>(LOCK, [list(cut ? others.slice(0, most) : others), prefix]))
      locked.add(id);
  const known = new Set(read.facts.map(({ id }) => id));
  // Also doors that are locked and at which nothing was held.
  const missing = [...names.keys()].filter((key) => locked.has(key) && !known.has(key));
  const more =
    missing.length === 0
      ? { facts: [], started: [] }
      : factsOf(await tx.rows<FactColumns>(FACTS, [list(missing), texts(missing.map((key) => names.get(key)![0]))]));
  const candidates: HeldCandidate[] = [];
  const refused = new Set<number>();
  for (const { row, candidate } of found)
    if (keysOf(row).every((key) => locked.has(key))) candidates.push(candidate);
    else refused.add(row.door);
  return {
    candidates,
    facts: [...read.facts, ...more.facts],
    started: [...read.started, ...more.started],
    names,
    refused: [...refused],
    cut,
  };
}

const NOTHING: Admission = { admitted: [], moved: [], due: new Map(), rings: new Map() };

function factsOf(rows: readonly FactColumns[]): { facts: readonly KeyFacts[]; started: readonly Started[] } {
  const started: Started[] = [];
  const facts = rows.map((row): KeyFacts => {
    const declared = row.burst === null ? (impliedSettings(row.name) ?? UNLIMITED) : declaredLimit(row, row.burst);
    const limit = {
      running: row.own_running ?? declared.running,
      intervalMs: row.own_interval_ms ?? declared.intervalMs,
      burst: row.own_burst ?? declared.burst,
      strict: declared.strict,
    };
    const { id, taken: count, unclaimed: waiting } = row;
    let one: KeyFacts = {
      id,
      limit,
      taken: count,
      unclaimed: waiting,
      arrivalAt: row.arrival_at ?? 0,
      heldOffUntil: closedUntil(row),
    };
    for (const [, at] of row.starts ?? [])
      one = { ...one, arrivalAt: at < 0 ? one.arrivalAt + at : startOf(one, at).arrivalAt };
    if (row.starts !== null)
      started.push({ key: id, arrivalAt: one.arrivalAt, starts: row.starts.map(([start]) => start) });
    return one;
  });
  return { facts, started };
}

function declaredLimit(row: FactColumns, burst: number): typeof UNLIMITED | Omit<LimitSettings, "name"> {
  return { running: row.running, intervalMs: row.interval_ms, burst, strict: row.strict === true };
}

/** SQL: how many jobs of a key `k.key` run that were claimed at the instant of the job `j`. */
const alike = (key: string): string => `(SELECT count(*) FROM outlive.extras x JOIN outlive.jobs o ON o.seq = x.job
    WHERE x.${key} = k.key AND x.place = 2 AND x.place > 1 AND o.state = ${STATE.running} AND o.started_at = j.started_at)`;

// `returnedMs` of job/limits.ts, appended as claims append their starts: below 0, and an admission adds it to the arrival time. What was released together is one after the other.
const RETURN = `INSERT INTO outlive.starts (key, at)
  SELECT r.key, -floor(least(r.interval_ms, r.started_at + r.alike * r.interval_ms - r.now))::bigint
  FROM (SELECT k.key, k.interval_ms, j.started_at, outlive.now_ms() AS now,
      row_number() OVER (PARTITION BY k.key, j.started_at ORDER BY j.seq) + ${alike("key1")} + ${alike("key2")} + ${alike("key3")} AS alike
    FROM outlive.jobs j JOIN outlive.extras e ON e.job = j.seq CROSS JOIN LATERAL (
      SELECT n.id AS key, coalesce(o.interval_ms, l.interval_ms, substring(n.name from '^${THROTTLE}([0-9]+)$')::float8) AS interval_ms
      FROM unnest(ARRAY[e.key1, e.key2, e.key3]) WITH ORDINALITY AS k (id, at)
        CROSS JOIN LATERAL (SELECT k.id, (e.keys::json -> (k.at - 1)::int) ->> 0 AS name) n
        LEFT JOIN outlive.limits l ON l.name = n.name LEFT JOIN outlive.keys o ON o.id = n.id WHERE k.id IS NOT NULL) k
    WHERE j.seq = ANY ($1::bigint[]) AND j.extras AND j.rated AND e.key1 IS NOT NULL AND k.interval_ms IS NOT NULL) r
  WHERE r.started_at + r.alike * r.interval_ms - r.now >= 1`;

/** These jobs were claimed, are not running any more, and never began: the starts that their claims have spent are returned. The keys are woken by what moved the jobs. */
export async function returnStarts(session: Session, jobs: readonly number[]): Promise<void> {
  if (jobs.length > 0) await session.run(RETURN, [list(jobs)]);
}

// No trigger moves these jobs: `outlive_tx.notes` says that what it would do is done here (migrations/consequences.ts).
const WRITE = `WITH admitted AS (UPDATE outlive.extras e SET place = 2, door = NULL WHERE e.job = ANY ($1::bigint[]) RETURNING e.job),
  moved AS (UPDATE outlive.extras e SET door = m.door, place = CASE WHEN m.keeps_place THEN 4 ELSE 1 END, ring = CASE WHEN m.strict THEN 0 ELSE coalesce(e.fair, 0) END
    FROM unnest($2::bigint[], $3::bigint[], $4::boolean[], $5::boolean[]) AS m (job, door, keeps_place, strict) WHERE e.job = m.job),
  started AS (DELETE FROM outlive.starts s WHERE s.id = ANY ($6::bigint[])),
  wakes AS (INSERT INTO outlive.key_wakes (key, at) SELECT w.key, outlive.now_ms() FROM unnest($7::bigint[]) AS w (key)),
  own AS (INSERT INTO outlive.keys (id, name, key, arrival_at, due_at, ring_at, ring_served)
    SELECT o.id, o.name, o.key, o.arrival_at, o.due_at, coalesce(o.ring_at, 0), coalesce(o.ring_served, 0)
    FROM unnest($8::bigint[], $9::text[], $10::text[], $11::float8[], $12::bigint[], $15::bigint[], $16::int[])
      AS o (id, name, key, arrival_at, due_at, ring_at, ring_served) ORDER BY o.id
    ON CONFLICT (id) DO UPDATE SET arrival_at = CASE WHEN keys.id = ANY ($17::bigint[]) THEN excluded.arrival_at ELSE keys.arrival_at END,
      due_at = CASE WHEN keys.id = ANY ($13::bigint[]) THEN excluded.due_at ELSE coalesce(excluded.due_at, keys.due_at) END,
      ring_at = CASE WHEN excluded.ring_at > 0 THEN excluded.ring_at ELSE keys.ring_at END,
      ring_served = CASE WHEN excluded.ring_at > 0 THEN excluded.ring_served ELSE keys.ring_served END),
  looked AS (UPDATE outlive.keys k SET due_at = NULL WHERE k.id = ANY ($13::bigint[]) AND k.id <> ALL ($8::bigint[]))
  UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END, rated = j.seq = ANY ($14::bigint[])
  FROM admitted a WHERE j.seq = a.job`;

interface Written {
  readonly decided: Admission;
  readonly names: Names;
  readonly started: readonly Started[];
  /** Admitted jobs whose claim is a start of a rate. */
  readonly rated: readonly number[];
  /** Keys of strict limits. */
  readonly strict: ReadonlySet<number>;
  /** Keys that were due. */
  readonly looked: readonly number[];
  /** Keys that have to be looked at again. */
  readonly wakes: readonly number[];
}

async function write(tx: Session, { decided, names, started, rated, strict, looked, wakes }: Written): Promise<void> {
  const { admitted, moved, due, rings } = decided;
  const arrivals = new Map(started.map(({ key, arrivalAt }) => [key, arrivalAt]));
  const changed = new Set([...arrivals.keys(), ...due.keys(), ...rings.keys()]);
  const own = [...changed].filter((id) => isGate(id) || names.has(id));
  if (admitted.length + moved.length + wakes.length + own.length + looked.length === 0) return;
  const nameOf = (id: number): readonly [string, string] => names.get(id) ?? ["", String(id)];
  await tx.run(WRITE, [
    list(admitted),
    list(moved.map(({ job }) => job)),
    list(moved.map(({ door }) => door)),
    list(moved.map(({ keepsPlace }) => keepsPlace)),
    list(moved.map(({ door }) => strict.has(door))),
    list(started.filter(({ key }) => names.has(key)).flatMap(({ starts }) => starts)),
    list(wakes),
    list(own),
    texts(own.map((id) => nameOf(id)[0])),
    texts(own.map((id) => nameOf(id)[1])),
    list(own.map((id) => arrivals.get(id) ?? 0)),
    list(own.map((id) => due.get(id) ?? null)),
    list(looked),
    list(rated),
    list(own.map((id) => rings.get(id)?.at ?? null)),
    list(own.map((id) => rings.get(id)?.served ?? null)),
    list([...arrivals.keys()]),
  ]);
}
