// Admission: a turn looks for the keys that may have room and for the gates of fair kinds, visits them (door-visit.ts), and hands what was admitted to the claim. A
// few statements in each turn, whatever it settled and admits: one from Node costs 2 to 5 us, and with twelve of them for every job those with keys drained
// at a quarter of the rate of plain ones. Inside a transaction.
import type { Room } from "../port.ts";
import { LANE, STATE } from "../rows.ts";
import type { Database } from "./database.ts";
import { doorHeads } from "./door-heads.ts";
import type { Kinds, Marks } from "./enqueue.ts";
import { gateOf, wakeKeys } from "./keys.ts";
import { type AtDoor, type Gate, KEYS_PER_TURN, NONE_RUN, DoorVisit } from "./door-visit.ts";

/** How often one turn goes round a gate whose jobs turn out to be held by limits. */
const ROUNDS_PER_TURN = 4;

interface Admitting {
  readonly db: Database;
  readonly kinds: Kinds;
  readonly marks: Marks;
  readonly now: number;
}

export interface AdmittedHeld {
  /** The jobs that some worker may take now. */
  readonly ready: readonly number[];
  /** These jobs are admitted and not in the ready index: the claim takes them from here, and makes the rest ready. */
  readonly toClaim: readonly number[];
  /** These jobs are not admitted yet: their claim takes their slots, and what it does not take is admitted. */
  readonly atDoors: readonly AtDoor[];
  /** Whether more may follow at once. */
  readonly more: boolean;
  /** Keys with room were left for later turns, because this worker takes no more. */
  readonly left: boolean;
  /** What is claimed of these jobs may be a start of a rate. */
  readonly starts: boolean;
}

/** Admits what there is room for. `roomy`: keys that settlements of this turn gave room. `direct`: how many jobs the worker takes straight from their doors; null: none. */
export function admitHeld(
  { db, kinds, marks, now }: Admitting,
  room: Room,
  roomy: ReadonlySet<number>,
  direct: number | null,
): AdmittedHeld {
  if (direct !== null && !areRanked(db)) return admitToClaim(db, marks, roomy, now, direct);
  const doors = wokenDoors(db, roomy, now);
  const gates = openGates(db, kinds, marks, room, doors.length > 0);
  if (doors.length === 0 && gates.length === 0) return NOTHING;
  const visit = new DoorVisit(db, now, marks);
  const first = visit.runAll(doors, gates);
  const ready = [...first.ready];
  let { moved } = first;
  for (let rounds = 1; moved && gates.some(({ demand }) => demand > 0); rounds++) {
    if (rounds === ROUNDS_PER_TURN) return { ...NOTHING, ready, more: true };
    const next = visit.runAll(
      [],
      gates.filter(({ demand }) => demand > 0),
    );
    ready.push(...next.ready);
    moved = next.moved;
  }
  return { ...NOTHING, ready };
}

const NOTHING: AdmittedHeld = { ready: [], toClaim: [], atDoors: [], more: false, left: false, starts: true };
const NO_GATES: readonly Gate[] = [];

// ---- a worker that takes jobs straight from their doors
//
// With many keys far more jobs have room than one worker takes, and each that is made ready for all is written into two indexes only for a claim to remove it.
// So a turn visits no more doors than its worker takes jobs, in the order in which they were woken, and the claim takes what they admit. The doors that are left
// keep their wakes. This order knows no priorities: while a held job has one, and for keys that have waited for a while, jobs are made ready for all workers.

/** For how long a key with room waits for a worker that takes its jobs. Then they are made ready for all, as counts and `why` show them. */
export const WAITS_FOR_WORKER_MS = 250;

/** Whether a held job has another priority than most. Of a strict limit the order at its door is another one, and its jobs wait for WAITS_FOR_WORKER_MS at most. */
function areRanked(db: Database): boolean {
  return db.sql("SELECT 1 FROM outlive_doors WHERE rank <> 0 AND rank < 1000000 LIMIT 1").get() !== undefined;
}

/** How often a turn goes on to more doors because the first ones did not admit enough. */
const STAGES_PER_TURN = 4;

function admitToClaim(db: Database, marks: Marks, roomy: ReadonlySet<number>, now: number, most: number): AdmittedHeld {
  const limit = Math.max(most, KEYS_PER_TURN);
  const wakes = db
    .sqlArrays("SELECT id, key, at FROM outlive_key_wakes ORDER BY id LIMIT ? + 0")
    .all(limit) as unknown as [id: number, key: number, at: number][];
  const young = wakes.findIndex(([, , at]) => Math.abs(now - at) < WAITS_FOR_WORKER_MS);
  const late = Math.min(KEYS_PER_TURN, young === -1 ? wakes.length : young);
  const heads = doorHeads(db);
  const fresh = wakes.length < limit ? [...roomy] : [];
  const visit = new DoorVisit(db, now, marks);
  const ready: number[] = [];
  const atDoors: AtDoor[] = [];
  const toGates: number[] = [];
  const due = dueKeys(db, now);
  // Those that are not visited now wait as if they had been woken.
  let doors: Iterable<number> = due.slice(0, most);
  if (due.length > most) wakeKeys(db, due.slice(most), now);
  // No door is visited twice: what was found there is written by the claim, and until then its rows say that it waits.
  const visited = new Set<number>();
  const wokenAgain: number[] = [];
  let [woken, given] = [0, 0];
  let starts = false;
  for (let stage = 0; stage < STAGES_PER_TURN; stage++) {
    const before = ready.length + atDoors.length;
    const count = Math.max(Math.ceil((most - before) / heads.perDoor), stage === 0 ? late : 0);
    const from = woken;
    woken = Math.min(wakes.length, from + count);
    if (woken > from) db.sql("DELETE FROM outlive_key_wakes WHERE id <= ?").run(wakes[woken - 1]![0]);
    const next = new Set(doors);
    doors = [];
    // A worker of an earlier version may have written a second wake, which was enough for this turn and is deleted here.
    for (const [, key] of wakes.slice(from, woken))
      if (visited.has(key)) wokenAgain.push(key);
      else next.add(key);
    for (; next.size < count && given < fresh.length; given++) if (!visited.has(fresh[given]!)) next.add(fresh[given]!);
    if (next.size === 0) break;
    for (const door of next) visited.add(door);
    // What has waited for long is admitted, whether this worker takes it or not.
    const wanted = Math.max(most - before, stage === 0 ? late : 0);
    const plain = visit.takePlain([...next], wanted, atDoors);
    const left = wanted - ready.length - atDoors.length + before;
    const others = plain.others.length === 0 ? NONE_RUN : visit.run(plain.others, NO_GATES, left);
    for (const job of others.ready) ready.push(job);
    starts ||= others.ready.length > 0;
    for (const job of others.toGates) toGates.push(job);
    const admitted = ready.length + atDoors.length;
    heads.gave(plain.visited + others.visited, admitted - before);
    if (admitted >= most) break;
  }
  const later = [...roomy].filter((key) => !visited.has(key));
  wakeKeys(db, [...later, ...wokenAgain], now);
  const left = woken < wakes.length || wakes.length === limit || later.length > 0 || due.length > most;
  const all = [...ready, ...toGates, ...atDoors.map(([job]) => job)];
  return { ready: all, toClaim: ready, atDoors, more: false, left, starts };
}

// ---- which doors and gates

function wokenDoors(db: Database, roomy: ReadonlySet<number>, now: number): number[] {
  const wakes = db.sql(`SELECT id, key FROM outlive_key_wakes ORDER BY id LIMIT ${KEYS_PER_TURN}`).all() as {
    id: number;
    key: number;
  }[];
  const due = dueKeys(db, now);
  if (wakes.length > 0) db.sql("DELETE FROM outlive_key_wakes WHERE id <= ?").run(wakes.at(-1)!.id);
  return [...new Set([...due, ...wakes.map(({ key }) => key), ...roomy])];
}

/** Keys that time has given room. */
function dueKeys(db: Database, now: number): number[] {
  const due = db
    .sqlArrays(`SELECT id FROM outlive_keys WHERE due_at <= ? ORDER BY due_at LIMIT ${KEYS_PER_TURN}`)
    .all(now) as unknown as [id: number][];
  const ids = due.map(([id]) => id);
  if (ids.length > 0)
    db.sql("UPDATE outlive_keys SET due_at = NULL WHERE id IN (SELECT value FROM json_each(?))").run(
      JSON.stringify(ids),
    );
  return ids;
}

/** The gates for which the worker has more room than is ready already, and at which jobs wait, or may come to in this turn. */
function openGates(
  db: Database,
  kinds: Kinds,
  { fair, paused }: Marks,
  { total, kinds: rooms }: Room,
  mayCome: boolean,
): Gate[] {
  if (fair.size === 0 || total === 0) return [];
  return rooms.flatMap(({ kind, room }): Gate[] => {
    const id = kinds.idOf(kind);
    const most = Math.min(room, total);
    if (id === undefined || !fair.has(id) || paused.has(id) || most === 0) return [];
    if (!mayCome && db.sql(ANY_AT).get(gateOf(id)) === undefined) return [];
    const { n } = db.sql(READY).get(id, most) as { n: number };
    return n >= most ? [] : [{ gate: gateOf(id), demand: most - n }];
  });
}

/** Whether jobs of a kind that the worker runs are left at its gate: they are let through as slots become free. */
export function isAnyAtGate(db: Database, kinds: Kinds, { fair, paused }: Marks, room: Room): boolean {
  return room.kinds.some(({ kind }) => {
    const id = kinds.idOf(kind);
    return id !== undefined && fair.has(id) && !paused.has(id) && db.sql(ANY_AT).get(gateOf(id)) !== undefined;
  });
}

const ANY_AT = "SELECT 1 FROM outlive_doors WHERE door = ? LIMIT 1";
const READY = `SELECT count(*) AS n FROM (SELECT 1 FROM outlive_jobs WHERE kind = ? AND state = ${STATE.queued} AND lane = ${LANE.open} LIMIT ? + 0)`;

/** In how many ms there is more to do; null: nothing is known to come. `leaves`: this worker is full, and keys with room wait for another one for a while. */
export function nextRoomInMs(db: Database, now: number, leaves: boolean): number | null {
  const first = db.sqlArrays("SELECT at FROM outlive_key_wakes ORDER BY id LIMIT 1").get() as [number] | undefined;
  if (first !== undefined && !leaves) return 0;
  const wakes = first === undefined ? null : Math.max(1, WAITS_FOR_WORKER_MS - Math.abs(now - first[0]));
  const next = db.sql("SELECT min(due_at) AS at FROM outlive_keys WHERE due_at IS NOT NULL").get() as {
    at: number | null;
  };
  if (next.at === null) return wakes;
  return Math.min(Math.max(0, next.at - now), wakes ?? Number.POSITIVE_INFINITY);
}
