// One visit of doors and gates: what waits there is read, `admit` decides, and what it decided is written. Inside a transaction.
import {
  admit,
  gateFacts,
  type HeldCandidate,
  type KeyFacts,
  NEW_RING,
  type Ring,
  type RingMember,
  roomAt,
  roomByNumber,
  roundsFor,
  takeTurns,
} from "../../job/limits.ts";
import { type Database, readRows, updateRows } from "./database.ts";
import { type DoorHead, type DoorHeads, doorHeads } from "./door-heads.ts";
import type { Marks } from "./enqueue.ts";
import { factsOf, setDue, takenAt } from "./key-facts.ts";
import { AT_DOOR, isGate, type KeyColumns, keysIn, LEAVE, Limits, namesIn, PLACE, wakeKeys } from "./keys.ts";
import { LANE, STATE } from "../rows.ts";

/** How many keys one visit looks at, and how many jobs at each door. */
export const KEYS_PER_TURN = 200;
const HELD_PER_KEY = 100;

/** What a gate can let through in this turn. */
export interface Gate {
  readonly gate: number;
  demand: number;
}

/** A held job as it is read: in an array, which costs half of an object. */
type Held = readonly [
  at: number,
  job: number,
  rank: number,
  place: number,
  key1: number,
  key2: number | null,
  key3: number | null,
  keys: string,
  fair: number | null,
  gate: number | null,
  /** The job of the entry of its door that is after this many others; null: there are fewer. Read of the first job of a door only. */
  later?: number | null,
];

const HELD_COLUMNS = "e.job, e.rank, e.place, e.key1, e.key2, e.key3, e.keys, e.fair, e.gate";
const heldAt = (door: string, where: string, limit: string): string =>
  `SELECT k.value, ${HELD_COLUMNS} FROM json_each(?1) AS k CROSS JOIN outlive_extras e ON e.job IN
    (SELECT d.job FROM outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} WHERE d.door = ${door}${where} ORDER BY d.ring, d.rank DESC, d.job LIMIT ${limit})`;
/** How many stale entries a door may have in front of its first job. More read more of them at each visit, fewer write more pages. */
const MAX_STALE = 8;
/**
 * The same of a door whose position this connection remembers (door-heads.ts): nothing reads over them, until another connection commits. With 1,000 keys and 100,000
 * jobs a commit of 444 of them wrote 58 pages of doors with 8, of 172 in all, and 2 us of the 15 that a job took.
 */
const MAX_STALE_REMEMBERED = 32;
/** The first job of each of these doors. Without the list of the general form, for which SQLite makes a small table for each door. */
const HEAD_AT = `SELECT k.value, ${HELD_COLUMNS},
    (SELECT job FROM outlive_doors WHERE door = k.value ORDER BY ring, rank DESC, job LIMIT 1 OFFSET ${MAX_STALE - 1})
  FROM json_each(?1) AS k CROSS JOIN outlive_extras e ON e.job =
    (SELECT d.job FROM outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} WHERE d.door = k.value ORDER BY d.ring, d.rank DESC, d.job LIMIT 1)`;
/** For each of these doors the next job of a rank after one. An object of doors and jobs: as arrays in an array they cost twice as much. */
const NEXT_AT = `SELECT CAST(k.key AS INTEGER), ${HELD_COLUMNS} FROM json_each(?1) AS k CROSS JOIN outlive_extras e ON e.job =
    (SELECT d.job FROM outlive_doors d CROSS JOIN outlive_extras e ON ${AT_DOOR} WHERE d.door = CAST(k.key AS INTEGER) AND d.ring = 0 AND d.rank = ?2 AND d.job > k.value
     ORDER BY d.job LIMIT 1)`;
/** The same of a door whose entries have no rank, along its entries alone. */
const REMOVE_UNRANKED_UP_TO = "DELETE FROM outlive_doors WHERE door = ? AND ring = 0 AND rank = 0 AND job <= ?";
const REMOVE_UP_TO =
  "DELETE FROM outlive_doors WHERE door = ?1 AND ring = 0 AND rank >= ?2 AND (rank > ?2 OR job <= ?3)";
/** How many entries of a door are read beyond those that are taken now. */
const READ_AHEAD = 32;
const NEXT_ENTRIES =
  "SELECT job FROM outlive_doors WHERE door = ? AND ring = 0 AND rank = 0 AND job > ? ORDER BY job LIMIT ? + 0";
/** A job that its door has room for, as its claim reads it. Suspects are claimed by other rules, and `run` admits them. */
export type AtDoor = readonly [
  seq: number,
  id: string,
  fence: number,
  input: string,
  inputSum: number,
  kind: number,
  key: number | null,
];
const HELD_WITH_KEY = `SELECT seq, id, fence + 1, input, input_sum, kind, only_key FROM outlive_jobs NOT INDEXED
  WHERE state = ${STATE.queued} AND lane = ${LANE.held} AND priority = 0 AND crashes + losses = 0 AND`;
/** Workers of earlier versions do not count the slots of running rows. */
const ANY_EARLIER = "SELECT 1 FROM outlive_workers WHERE state IN ('live', 'recovering') AND counts_rows = 0 LIMIT 1";
const ADMIT = `UPDATE outlive_extras SET place = ${PLACE.taken}, door = NULL WHERE`;
/** The first jobs of each of these doors, if no key takes turns there. */
const FIRST_AT = heldAt("k.value", "", "?2 + 0");
/** The first jobs of each of these keys at one door. */
const FIRST_OF = heldAt("?2", " AND d.ring = k.value", "?3 + 0");
/** The doors of these at which keys take turns. */
const RINGS_AT =
  "SELECT k.value FROM json_each(?) AS k WHERE (SELECT max(ring) FROM outlive_doors WHERE door = k.value) > 0";
/** The next keys of a ring, with their weights: one step of the index for each, however many jobs they have. */
const RING = `WITH RECURSIVE keys (id) AS (
    SELECT (SELECT ring FROM outlive_doors WHERE door = ?1 AND ring >= ?2 AND ring < ?3 ORDER BY ring LIMIT 1)
    UNION ALL SELECT (SELECT ring FROM outlive_doors WHERE door = ?1 AND ring > keys.id AND ring < ?3 ORDER BY ring LIMIT 1)
      FROM keys WHERE keys.id IS NOT NULL LIMIT ?4 + 0)
  SELECT keys.id, ifnull(o.weight, 1) FROM keys LEFT JOIN outlive_keys o ON o.id = keys.id WHERE keys.id IS NOT NULL`;

interface RingRead {
  readonly ring: Ring;
  readonly members: readonly { readonly key: number; readonly weight: number; readonly rows: readonly Held[] }[];
  /** The last key that was read, because there are more; null: these are all. */
  readonly upTo: number | null;
  /** Fewer jobs were read than were asked for, because some keys have less than their share, and others may have more. */
  readonly isShort: boolean;
}

export class DoorVisit {
  readonly #db: Database;
  readonly #now: number;
  readonly #anyFair: boolean;
  readonly #limits: Limits;
  readonly #heads: DoorHeads;
  readonly #names = new Map<number, readonly [limit: string, key: string]>();
  readonly #texts = new Set<string>();
  /** Jobs that may have an entry in a ring. */
  readonly #ringed = new Set<number>();
  /** How many jobs were found at the doors of keys, whose slots their claims will take: no row counts them yet. */
  readonly #found = new Map<number, number>();
  #facts = new Map<number, KeyFacts>();

  constructor(db: Database, now: number, { fair }: Marks) {
    this.#db = db;
    this.#now = now;
    this.#anyFair = fair.size > 0;
    this.#limits = new Limits(db);
    this.#heads = doorHeads(db);
    this.#heads.begin(db);
  }

  // ---- doors whose jobs count against one key, by number alone

  /**
   * Finds what may be claimed at the doors of which this is known, at most `most`, and adds it to `found`. Nothing of it is written: its claim takes the slot with the
   * row of the job, and what is not claimed goes through `admitFound`. `others`: doors that have to be looked at by `run`.
   */
  takePlain(
    doors: readonly number[],
    most: number,
    found: AtDoor[],
  ): { readonly others: readonly number[]; readonly visited: number } {
    if (this.#db.sql(ANY_EARLIER).get() !== undefined) return { others: doors, visited: 0 };
    const known: DoorHead[] = [];
    const others: number[] = [];
    for (const door of doors) {
      const head = this.#heads.of(door);
      if (head === undefined || head.limit === null || head.rank !== 0) others.push(door);
      else known.push(head);
    }
    if (known.length === 0) return { others, visited: 0 };
    const rooms = this.#roomsAt(known);
    const taken = new Map<number, number>();
    const woken: number[] = [];
    let left = most;
    let visited = 0;
    for (const [at, head] of known.entries()) {
      const { door } = head;
      const room = rooms[at]!;
      if (room === null) others.push(door);
      else if (left <= 0) woken.push(door);
      else {
        visited++;
        if (room === 0) continue;
        const count = this.#takeNext(head, Math.min(room, left), taken);
        if (count === 0) others.push(door);
        else if (count < room && count === left) woken.push(door);
        left -= count;
      }
    }
    if (taken.size > 0) others.push(...this.#find(taken, found));
    wakeKeys(this.#db, woken, this.#now);
    return { others, visited };
  }

  /** The room at each of these doors; null: it is not decided by number alone. */
  #roomsAt(heads: readonly DoorHead[]): readonly (number | null)[] {
    const ids = heads.map(({ door }) => door);
    const taken = takenAt(this.#db, ids);
    if (taken !== null)
      return heads.map(({ door, limit }, at) => {
        const count = taken[at]![0] + (this.#found.get(door) ?? 0);
        return roomByNumber({ limit: this.#limits.of(limit!), taken: count, heldOffUntil: 0 });
      });
    const limits = new Map(heads.map(({ door, limit }) => [door, limit!]));
    const facts = factsOf(this.#db, this.#limits, ids, (id) => limits.get(id)!, false);
    const rooms = new Map(facts.map((one) => [one.id, roomByNumber(this.#withFound(one))]));
    return ids.map((id) => rooms.get(id)!);
  }

  #withFound(facts: KeyFacts): KeyFacts {
    const found = this.#found.get(facts.id);
    return found === undefined ? facts : { ...facts, taken: facts.taken + found };
  }

  /** Takes the next entries of a door. Fewer: there are no others of this rank. */
  #takeNext(head: DoorHead, most: number, taken: Map<number, number>): number {
    const { door } = head;
    // Only what earlier visits have admitted: of what is taken now, some may wait on.
    if (head.stale >= MAX_STALE_REMEMBERED) {
      this.#db.sql(REMOVE_UNRANKED_UP_TO).run(door, head.job);
      head.stale = 0;
    }
    if (head.next.length - head.from < most && !head.whole) {
      const rows = this.#db.sqlArrays(NEXT_ENTRIES).all(door, head.job, READ_AHEAD + most) as unknown as [number][];
      head.next = rows.map(([job]) => job);
      head.from = 0;
      head.whole = rows.length < READ_AHEAD + most;
    }
    const count = Math.min(most, head.next.length - head.from);
    if (count === 0) {
      this.#heads.forget(door);
      return 0;
    }
    for (let i = 0; i < count; i++) taken.set((head.job = head.next[head.from++]!), door);
    head.stale += count;
    return count;
  }

  /**
   * Of these jobs and their doors, those that wait there and count against nothing else. An entry of any other job was stale, or is for `run`: its door is returned. If
   * something was found there it is woken instead, because `run` would find that again.
   */
  #find(taken: ReadonlyMap<number, number>, found: AtDoor[]): readonly number[] {
    const jobs = [...taken.keys()].sort((a, b) => a - b);
    const rejected = new Map(taken);
    for (const row of readRows<AtDoor>(this.#db, HELD_WITH_KEY, "seq", jobs)) {
      const key = row[6];
      if (key === null || taken.get(row[0]) !== key) continue;
      rejected.delete(row[0]);
      found.push(row);
      this.#found.set(key, (this.#found.get(key) ?? 0) + 1);
    }
    const doors = [...new Set(rejected.values())];
    for (const door of doors) this.#heads.forget(door);
    wakeKeys(
      this.#db,
      doors.filter((door) => this.#found.has(door)),
      this.#now,
    );
    return doors.filter((door) => !this.#found.has(door));
  }

  // ---- all doors and gates

  /** As `run`, and what is admitted is ready for all workers. */
  runAll(
    doors: readonly number[],
    gates: readonly Gate[],
  ): { readonly ready: readonly number[]; readonly moved: boolean } {
    const { ready, toGates, moved } = this.run(doors, gates, Number.POSITIVE_INFINITY);
    makeReady(this.#db, ready);
    return { ready: [...ready, ...toGates], moved };
  }

  /** Reads no more at doors than `most`, and leaves a wake where there is room for more. The lane of what is admitted is the caller's to write. */
  run(
    doors: readonly number[],
    gates: readonly Gate[],
    most: number,
  ): {
    readonly ready: readonly number[];
    readonly toGates: readonly number[];
    readonly moved: boolean;
    /** How many doors were looked at. */
    readonly visited: number;
  } {
    this.#facts = new Map(gates.map(({ gate, demand }) => [gate, gateFacts(gate, demand)]));
    const full: FullDoors = { read: [], cut: new Set(), unread: [] };
    const atDoors = this.#atDoors(doors, full, most);
    const candidates = this.#inTurns(atDoors, gates);
    if (full.unread.length > 0) wakeKeys(this.#db, full.unread, this.#now);
    const visited = doors.length - full.unread.length;
    if (candidates.length === 0) return { ...NONE_RUN, visited };
    this.#readFacts(candidates);
    const decided = admit({ now: this.#now, keys: [...this.#facts.values()], candidates, readFull: full.read });
    this.#write(decided, full, candidates);
    this.#pass(atDoors, decided);
    if (gates.length > 0) {
      const passed = new Set(decided.admitted);
      for (const one of gates)
        one.demand -= candidates.filter(({ job, keys }) => passed.has(job) && keys.includes(one.gate)).length;
    }
    // What went to a gate, another worker may have room for.
    const toGates = decided.moved.flatMap(({ job, door }) => (isGate(door) ? [job] : []));
    return { ready: decided.admitted, toGates, moved: decided.moved.length > 0, visited };
  }

  /** What waits at the doors of keys, no more of each than it has room for. */
  #atDoors(
    doors: readonly number[],
    full: FullDoors,
    most: number,
  ): { readonly row: Held; readonly candidate: HeldCandidate }[] {
    if (doors.length === 0) return [];
    const list = JSON.stringify(doors);
    const inTurns = this.#anyFair
      ? new Set((this.#db.sqlArrays(RINGS_AT).all(list) as unknown as [number][]).map(([door]) => door))
      : NO_DOORS;
    const plain = inTurns.size === 0 ? doors : doors.filter((door) => !inTurns.has(door));
    const byDoor = new Map<number, Held[]>();
    for (const row of this.#next(plain.flatMap((door) => this.#heads.of(door) ?? []))) byDoor.set(row[0], [row]);
    const unread = byDoor.size === 0 ? plain : plain.filter((door) => !byDoor.has(door));
    if (unread.length > 0) {
      for (const row of this.#rows(HEAD_AT, JSON.stringify(unread))) byDoor.set(row[0], [row]);
      removeStale(this.#db, unread, byDoor);
    }
    for (const door of inTurns) byDoor.set(door, this.#firstIn(door));
    this.#readFactsOf([...byDoor.keys()]);
    this.#readSecond(byDoor, inTurns);
    let left = most;
    return [...byDoor].flatMap(([door, heads]) => {
      const room = roomAt(this.#facts.get(door)!, this.#now);
      if (left <= 0) {
        full.unread.push(door);
        return NONE_FOUND;
      }
      const wanted = Math.min(HELD_PER_KEY, room, left);
      const rows = inTurns.has(door) ? [] : this.#upTo(door, heads, wanted);
      const { found, isShort } = inTurns.has(door)
        ? this.#turnsAt(door, wanted)
        : { found: rows.map((row) => ({ row, candidate: candidateOf(row, door) })), isShort: false };
      if (found.length >= wanted || isShort) full.read.push(door);
      if ((found.length >= wanted && wanted < room) || isShort) full.cut.add(door);
      left -= found.length;
      return found;
    });
  }

  /** Of each door the next job after an entry, if one of the same rank is left. */
  #next(after: readonly { readonly door: number; readonly rank: number; readonly job: number }[]): Held[] {
    const texts = new Map<number, string>();
    for (const { door, rank, job } of after) {
      const text = texts.get(rank);
      texts.set(rank, `${text === undefined ? "{" : `${text},`}"${door}":${job}`);
    }
    return [...texts].flatMap(([rank, text]) => this.#rows(NEXT_AT, `${text}}`, rank));
  }

  /** Doors with room for one more than is read, all at once. */
  #readSecond(byDoor: ReadonlyMap<number, Held[]>, inTurns: ReadonlySet<number>): void {
    const after = [...byDoor].flatMap(([door, [head]]) =>
      !inTurns.has(door) && head![8] === null && roomAt(this.#facts.get(door)!, this.#now) === 2
        ? [{ door, rank: head![2], job: head![1] }]
        : [],
    );
    if (after.length > 0) for (const row of this.#next(after)) byDoor.get(row[0])!.push(row);
  }

  /** One of them, for the name of the door. */
  #firstIn(door: number): Held[] {
    return this.#rows(HEAD_AT, JSON.stringify([door]));
  }

  /** One job of a door is read before its room is known: the rows of a key lie far apart, and with 4 of each a drain cost 20 us more per job. */
  #upTo(door: number, heads: readonly Held[], wanted: number): readonly Held[] {
    if (wanted <= heads.length) return heads;
    return this.#rows(FIRST_AT, JSON.stringify([door]), wanted).toSorted(byRank);
  }

  #turnsAt(
    door: number,
    most: number,
  ): { readonly found: { readonly row: Held; readonly candidate: HeldCandidate }[]; readonly isShort: boolean } {
    const { ring, members, upTo, isShort } = this.#ringAt(door, most);
    const rows = new Map(members.flatMap(({ rows: own }) => own.map((row) => [row[1], row] as const)));
    const turns = takeTurns(
      door,
      ring,
      members.map((member) => ({ ...member, jobs: member.rows.map((row) => candidateOf(row, door)) })),
      upTo,
    );
    const found = turns.slice(0, most).map((candidate) => ({ row: rows.get(candidate.job)!, candidate }));
    return { found, isShort };
  }

  /** The ring of a door or gate from where it stands on, with enough jobs of each key for `most` in all. */
  #ringAt(door: number, most: number): RingRead {
    const row = this.#db.sql("SELECT ring_at AS at, ring_served AS served FROM outlive_keys WHERE id = ?").get(door) as
      | Ring
      | undefined;
    const ring = row ?? NEW_RING;
    const wanted = Math.min(most + 1, KEYS_PER_TURN);
    const keys = this.#ringKeys(door, ring.at, MAX_KEY, wanted);
    if (keys.length < wanted) keys.push(...this.#ringKeys(door, 0, ring.at, wanted - keys.length));
    const rounds = roundsFor(
      most,
      keys.map(([, weight]) => weight),
    );
    const share = (weight: number): number => Math.min(most, weight * rounds);
    const found = new Map<number, Held[]>();
    for (const weight of new Set(keys.map(([, one]) => one))) {
      const alike = keys.flatMap(([key, one]) => (one === weight ? [key] : []));
      for (const held of this.#rows(FIRST_OF, JSON.stringify(alike), door, share(weight))) group(found, held[0], held);
    }
    const members = keys.map(([key, weight]) => ({ key, weight, rows: (found.get(key) ?? []).toSorted(byRank) }));
    const count = members.reduce((sum, { rows }) => sum + rows.length, 0);
    const isShort = count < most && members.some(({ weight, rows }) => rows.length === share(weight));
    return { ring, members, upTo: keys.length < wanted ? null : keys.at(-1)![0], isShort };
  }

  #ringKeys(door: number, from: number, below: number, limit: number): [key: number, weight: number][] {
    return this.#db.sqlArrays(RING).all(door, from, below, limit) as unknown as [number, number][];
  }

  #rows(text: string, ...values: (string | number)[]): Held[] {
    const rows = this.#db.sqlArrays(text).all(...values) as unknown as Held[];
    for (const row of rows) this.#noted(row);
    return rows;
  }

  #noted(row: Held): void {
    this.#name(row);
    if (row[8] !== null) this.#ringed.add(row[1]);
  }

  #name(row: Held): void {
    const text = row[7];
    if (this.#texts.has(text)) return;
    this.#texts.add(text);
    const ids = keysIn(columns(row));
    namesIn(text).forEach((name, at) => this.#names.set(ids[at]!, name));
  }

  /**
   * Jobs of fair kinds compete at the gate of their kind, those that a door has room for together with those that wait there: the keys take turns. One for which
   * the worker has no room goes to its gate.
   */
  #inTurns(
    atDoors: readonly { readonly row: Held; readonly candidate: HeldCandidate }[],
    gates: readonly Gate[],
  ): HeldCandidate[] {
    const plain: HeldCandidate[] = [];
    const returning = new Map<number, { readonly row: Held; readonly candidate: HeldCandidate }[]>();
    const open = new Set(gates.map(({ gate }) => gate));
    for (const one of atDoors) {
      const gate = one.row[9];
      if (gate !== null && open.has(gate)) group(returning, gate, one);
      else plain.push(one.candidate);
      if (gate !== null && !open.has(gate)) this.#facts.set(gate, gateFacts(gate, 0));
    }
    const turns = gates.flatMap(({ gate, demand }) => {
      const { ring, members, upTo } = this.#ringAt(gate, demand);
      const jobs = new Map<number, { rank: number; job: HeldCandidate }[]>();
      for (const { key, rows } of members)
        for (const row of rows) group(jobs, key, { rank: row[2], job: candidateOf(row, gate) });
      for (const { row, candidate } of returning.get(gate) ?? [])
        group(jobs, row[8]!, { rank: row[2], job: candidate });
      const weights = new Map(members.map(({ key, weight }) => [key, weight]));
      const all = [...jobs].map(([key, own]): RingMember => {
        const inOrder = own.toSorted((a, b) => b.rank - a.rank || a.job.job - b.job.job);
        return { key, weight: weights.get(key) ?? this.#weightOf(key), jobs: inOrder.map(({ job }) => job) };
      });
      return takeTurns(gate, ring, all, upTo);
    });
    return [...plain, ...turns];
  }

  #weightOf(key: number): number {
    const row = this.#db.sql("SELECT weight FROM outlive_keys WHERE id = ?").get(key) as
      | { weight: number | null }
      | undefined;
    return row?.weight ?? 1;
  }

  #readFacts(candidates: readonly HeldCandidate[]): void {
    this.#readFactsOf([...new Set(candidates.flatMap(({ keys }) => keys))]);
  }

  #readFactsOf(keys: readonly number[]): void {
    const missing = keys.filter((key) => !this.#facts.has(key));
    for (const strict of [false, true]) {
      const ids = missing.filter((key) => this.#limits.of(this.#names.get(key)![0]).strict === strict);
      if (ids.length === 0) continue;
      for (const facts of factsOf(this.#db, this.#limits, ids, (key) => this.#names.get(key)![0], strict))
        this.#facts.set(facts.id, this.#withFound(facts));
    }
  }

  #write(
    { admitted, moved, due, rings }: ReturnType<typeof admit>,
    full: FullDoors,
    candidates: readonly HeldCandidate[],
  ): void {
    const db = this.#db;
    this.#leaveRings(admitted, moved);
    if (admitted.length > 0) {
      db.sql(`${ADMIT} job IN (SELECT value FROM json_each(?))`).run(JSON.stringify(admitted));
    }
    // The wake for the other door has it looked at again: its room may have grown since the facts were read elsewhere.
    const woken = moved.flatMap(({ door }) => (isGate(door) ? [] : [door]));
    for (const { job, door, keepsPlace } of moved) {
      const strict = !isGate(door) && this.#limits.of(this.#names.get(door)![0]).strict;
      db.sql(
        "UPDATE outlive_extras SET door = ?, place = ?, ring = CASE WHEN ? THEN 0 ELSE ifnull(fair, 0) END WHERE job = ?",
      ).run(door, keepsPlace ? PLACE.first : PLACE.held, strict ? 1 : 0, job);
      this.#heads.forget(door);
      db.sql(ENTER_AS_EXTRAS).run(job);
    }
    for (const [id, at] of due) setDue(db, id, this.#names.get(id)!, at);
    for (const [id, { at, served }] of rings) this.#setRing(id, at, served);
    // As many were read as there was room, and some of them did not take it: others may.
    if (moved.length > 0 || full.cut.size > 0) woken.push(...stillRoomy(full, candidates, admitted, moved));
    wakeKeys(db, woken, this.#now);
  }

  /** Keeps how far each door has been admitted, and removes entries that were left behind. */
  #pass(
    atDoors: readonly { readonly row: Held; readonly candidate: HeldCandidate }[],
    { admitted, moved }: ReturnType<typeof admit>,
  ): void {
    const passed = new Set(admitted);
    const gone = moved.length === 0 ? passed : new Set([...admitted, ...moved.map(({ job }) => job)]);
    // What has come to a door from another one may be in front.
    const stopped = new Set(moved.map(({ door }) => door));
    for (const { row, candidate } of atDoors) {
      const { door } = candidate;
      const [, job, rank, , , , , , fair] = row;
      if (fair !== null || !passed.has(job)) stopped.add(door);
      // Whether a held job has a priority is asked of the entries alone (`areRanked`).
      if (rank !== 0 && fair === null && gone.has(job)) this.#db.sql(LEAVE).run(door, 0, rank, job);
      if (stopped.has(door)) continue;
      const stale = (this.#heads.of(door)?.stale ?? 0) + 1;
      if (stale >= MAX_STALE) this.#db.sql(REMOVE_UP_TO).run(door, rank, job);
      const limit = isPlain(row) && !this.#facts.get(door)!.limit.strict ? namesIn(row[7])[0]![0] : null;
      const left = stale >= MAX_STALE ? 0 : stale;
      this.#heads.passed({ door, rank, job, stale: left, limit, next: [], from: 0, whole: false });
    }
  }

  /** An entry of a ring goes at once: a ring is read by its entries alone. */
  #leaveRings(admitted: readonly number[], moved: readonly { readonly job: number }[]): void {
    if (this.#ringed.size === 0) return;
    const jobs = [...admitted, ...moved.map(({ job }) => job)].filter((job) => this.#ringed.has(job));
    for (const job of jobs) this.#db.sql(LEAVE_RING).run(job);
  }

  #setRing(id: number, at: number, served: number): void {
    const [name, key] = isGate(id) ? (["", String(id)] as const) : this.#names.get(id)!;
    this.#db
      .sql(
        `INSERT INTO outlive_keys (id, name, key, ring_at, ring_served) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT DO UPDATE SET ring_at = ?4, ring_served = ?5`,
      )
      .run(id, name, key, at, served);
  }
}

const ENTER_AS_EXTRAS =
  "INSERT INTO outlive_doors (door, ring, rank, job) SELECT door, ring, rank, job FROM outlive_extras WHERE job = ? ON CONFLICT DO NOTHING";
const LEAVE_RING = `DELETE FROM outlive_doors WHERE (door, ring, rank, job) IN (SELECT door, ring, rank, job FROM outlive_extras WHERE job = ? AND ring > 0)`;

/** Everything in front of the first job of a door is stale, and at a door without one everything is. */
function removeStale(db: Database, doors: readonly number[], heads: ReadonlyMap<number, readonly Held[]>): void {
  const empty = doors.filter((door) => !heads.has(door));
  if (empty.length > 0)
    db.sql("DELETE FROM outlive_doors WHERE door IN (SELECT value FROM json_each(?))").run(JSON.stringify(empty));
  for (const [head] of heads.values()) {
    const [door, job, rank, , , , , , , , later = null] = head!;
    // By the number of the job alone: with several priorities it may be wrong, and then entries go now or at a later visit.
    if (later === null || later >= job) continue;
    db.sql("DELETE FROM outlive_doors WHERE door = ? AND ring = 0 AND rank = ? AND job < ?").run(door, rank, job);
    db.sql("DELETE FROM outlive_doors WHERE door = ? AND ring = 0 AND rank > ?").run(door, rank);
  }
}

/** The doors of these that others may pass. */
function stillRoomy(
  { read, cut }: FullDoors,
  candidates: readonly HeldCandidate[],
  admitted: readonly number[],
  moved: readonly { readonly job: number }[],
): number[] {
  const passed = new Set(admitted);
  const movedOn = new Set(moved.map(({ job }) => job));
  const byDoor = Map.groupBy(candidates, ({ door }) => door);
  return read.filter((door) => {
    const own = byDoor.get(door) ?? [];
    const isCut = cut.has(door) && own.some(({ job }) => passed.has(job));
    return isCut || own.some(({ job }) => movedOn.has(job));
  });
}

interface FullDoors {
  /** Doors at which more may wait: as many were read as there is room, or as were to be read. */
  readonly read: number[];
  /** Of these, doors that have room for more. */
  readonly cut: Set<number>;
  /** Doors of which none was to be read any more. */
  readonly unread: number[];
}

const NONE_FOUND: never[] = [];

export const NONE_RUN = { ready: [], toGates: [], moved: false, visited: 0 } as const;

/** Whether a job counts against one key alone, and waits at its door. */
function isPlain([door, , rank, place, key1, key2, , , fair, gate]: Held): boolean {
  return rank === 0 && place === PLACE.held && key1 === door && key2 === null && fair === null && gate === null;
}
const NO_DOORS: ReadonlySet<number> = new Set();
/** Above every number of a key. */
const MAX_KEY = Number.MAX_SAFE_INTEGER;

function columns(row: Held): KeyColumns {
  return { key1: row[4], key2: row[5], key3: row[6] };
}

function candidateOf(row: Held, door: number): HeldCandidate {
  const keys = keysIn(columns(row));
  const gate = row[9];
  return { job: row[1], door, keys: gate === null ? keys : [...keys, gate], keepsPlace: row[3] === PLACE.first };
}

function byRank(a: Held, b: Held): number {
  return b[2] - a[2] || a[1] - b[1];
}

function group<K, V>(into: Map<K, V[]>, key: K, value: V): void {
  const known = into.get(key);
  if (known) known.push(value);
  else into.set(key, [value]);
}

/** What `takePlain` found and this worker does not claim is admitted for all workers. */
export function admitFound(db: Database, jobs: readonly number[]): void {
  updateRows(db, ADMIT, [], "job", jobs);
  makeReady(db, jobs);
}

/** Makes these admitted jobs ready for all workers. */
export function makeReady(db: Database, jobs: readonly number[]): void {
  if (jobs.length > 0) db.sql(MAKE_READY).run(JSON.stringify(jobs));
}

const MAKE_READY = `UPDATE outlive_jobs SET lane = CASE WHEN crashes + losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END WHERE seq IN (SELECT value FROM json_each(?))`;
