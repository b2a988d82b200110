// Claims: owner, epoch, fence, start and deadline in one statement, only of what can be claimed now. What is claimed and not what was
// stored is quarantined before a worker gets it. Inside a transaction.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { hasRoomForSuspects, type HeldSuspects, suspectsToTake } from "../../job/isolation.ts";
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import * as transitions from "../../job/transitions.ts";
import { AHEAD_BOUND_MS, type CorruptJob, type Room } from "../port.ts";
import { boundSql, type CounterColumns, counters, LANE } from "../rows.ts";
import { claimedBlock } from "./blocks.ts";
import { isIntact, stepIsIntact } from "./checksums.ts";
import { type Database, runsOf, updateRows } from "./database.ts";
import type { Kinds, Marks } from "./enqueue.ts";
import { applyChange, OWNED } from "./settle.ts";
import { relocate } from "./keys.ts";
import { admitFound, type AtDoor, makeReady } from "./door-visit.ts";
import { keptWait } from "./waits.ts";

/** How many delayed jobs become ready in one transaction. */
const PROMOTE_BATCH = 1_000;

// Candidates are read, and then taken: neighbours in one statement, along the table. To take and return them in one statement, row by row from a list, cost
// a third more.
const TAKE = "UPDATE outlive_jobs NOT INDEXED SET state = 1, worker = ?, epoch = ?, fence = fence + 1, started_at = ?";
const TAKE_RUN = `${TAKE}, deadline_at = ? WHERE seq BETWEEN ? AND ? AND state = 0`;
// Of several kinds: the deadline is made from each job's own.
const TIMEOUT_OF = "(SELECT k.timeout_ms FROM outlive_kinds k WHERE k.id = outlive_jobs.kind)";
const TAKE_RUN_OF_MANY = `${TAKE}, deadline_at = ? + ${TIMEOUT_OF} WHERE seq BETWEEN ? AND ? AND state = 0`;
// `LIMIT ? + 0`, here and wherever a statement is asked often: a bare `LIMIT ?` SQLite plans again each time a value is bound to it,
// because the plan may depend on the value. That was 14 of the 15 us of this read.
const READY = "FROM outlive_jobs WHERE kind = ? AND state = 0 AND lane = 1 ORDER BY priority DESC, seq LIMIT ? + 0";
// Few columns, as arrays: with all of them, as objects, a claim cost a quarter more. The rest is read for later attempts only.
const OPENED = "SELECT seq, id, fence + 1, input, input_sum";
const OPENED_READY = `${OPENED} ${READY}`;
const OPENED_RUN = `${OPENED}, ${TIMEOUT_OF} FROM outlive_jobs WHERE seq BETWEEN ? AND ?`;
const CANDIDATES = `SELECT seq, priority ${READY}`;
const FRONT =
  "SELECT seq, priority, kind FROM outlive_jobs INDEXED BY outlive_jobs_front WHERE state = 0 AND lane = 1 ORDER BY priority DESC, seq LIMIT ? + 0";
// For each of these kinds the place of its first job in the order of all: less is earlier. Priorities are between -1,000 and 1,000.
const HEADS = `SELECT o.key AS at, (SELECT (1000 - j.priority) * 2199023255552 + j.seq FROM outlive_jobs j INDEXED BY outlive_jobs_ready
    WHERE j.kind = o.value AND j.state = 0 AND j.lane = 1 ORDER BY j.priority DESC, j.seq LIMIT 1) AS place
  FROM json_each(?) o WHERE place IS NOT NULL ORDER BY place LIMIT ? + 0`;
// Asked in every turn, and there is nearly always nothing.
const ANY_SUSPECT = "SELECT 1 FROM outlive_jobs WHERE state = 0 AND lane = 2 LIMIT 1";
const SUSPECTS = `SELECT seq, priority, ${boundSql("")} AS bound FROM outlive_jobs WHERE kind = ? AND state = 0 AND lane = 2 ORDER BY priority DESC`;
const LARGEST_FIRST = `${SUSPECTS}, bound DESC, seq LIMIT ? + 0`;
const OLDEST_FIRST = `${SUSPECTS}, seq LIMIT ? + 0`;
const TIMEOUT = "SELECT timeout_ms FROM outlive_kinds WHERE id = ?";
const LATER =
  "SELECT errors, crashes, blamed, timeouts, interruptions, losses, outcome, incident, extras FROM outlive_jobs WHERE seq = ?";
const NEXT_DUE = "SELECT run_at FROM outlive_jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1";

const STEPS = "SELECT name, result, result_sum FROM outlive_steps WHERE job = ? ORDER BY ord";

type Opened = readonly [seq: number, id: string, fence: number, input: string, inputSum: number];
type OpenedOfMany = readonly [...Opened, timeoutMs: number | null];

interface LaterColumns extends CounterColumns {
  readonly outcome: number | null;
  readonly incident: string | null;
  readonly extras: number;
}

export interface Claimant {
  readonly seq: number;
  readonly id: string;
  readonly epoch: number;
}

export interface Claims {
  readonly claimed: readonly ClaimedJob[];
  readonly corrupt: readonly CorruptJob[];
}

/** One claim on its way: by whom, when, and what was found corrupt. */
interface Turn {
  readonly db: Database;
  readonly worker: Claimant;
  readonly now: number;
  /** Added to deadlines. */
  readonly boundMs: number;
  readonly corrupt: CorruptJob[];
}

interface ClaimDeps {
  readonly db: Database;
  readonly kinds: Kinds;
  readonly marks: Marks;
  readonly front: Front;
  readonly now: number;
}

export function claimReady(
  { db, kinds, marks: { paused }, front, now }: ClaimDeps,
  worker: Claimant,
  room: Room,
): Claims {
  const { total, suspects: held = NO_SUSPECTS, ahead: asked = 0 } = room;
  if (total + asked === 0) return { claimed: [], corrupt: [] };
  const turn: Turn = { db, worker, now, boundMs: asked > 0 ? AHEAD_BOUND_MS : 0, corrupt: [] };
  const open = room.kinds.flatMap(({ kind, room: most, shares = false, ahead = false }) => {
    const id = kinds.idOf(kind);
    return id === undefined || paused.has(id) ? [] : [{ kind, id, most, shares, ahead }];
  });
  const mayTake = held === NO_SUSPECTS || hasRoomForSuspects(held);
  const suspects = mayTake && db.sql(ANY_SUSPECT).get() ? waitingSuspects(db, open, Math.max(1, total), held) : [];
  const ahead = suspects.length > 0 ? 0 : asked;
  if (total + ahead === 0 || open.length === 0) return { claimed: [], corrupt: [] };
  const claimed =
    suspects.length === 0 && open.length === 1
      ? takeOfOne(turn, open[0]!, total, ahead)
      : takeOfMany(turn, front, open, { total, ahead }, suspects, held);
  return { claimed, corrupt: turn.corrupt };
}

// ---- jobs that are claimed straight from their doors (admission.ts)

/** What a worker takes from the doors of keys in one turn. */
export interface AtDoors {
  /** For how many jobs it has room, and for how many of them none is ready. */
  readonly takes: number;
  readonly most: number;
  /** How many are ready and come before what is admitted, if not others of a lower priority, too. */
  readonly before: number;
  /** No job is ready that comes after those that are admitted. */
  readonly isClear: boolean;
  readonly kinds: ReadonlyMap<number, string>;
}

/** With more kinds their ready jobs are not counted. */
const MOST_COUNTED = 8;
const COUNT_READY = `SELECT count(*), count(*) FILTER (WHERE priority >= 0) FROM (SELECT priority ${READY})`;
const NOT_CLEAR = { takes: 0, most: 0, before: 0, isClear: false, kinds: new Map<number, string>() } as const;

/** Null: what this worker takes depends on more than the order of doors, so admitted jobs are made ready for all. */
export function roomAtDoors(
  { db, kinds, marks: { paused, fair } }: Omit<ClaimDeps, "front">,
  { total, kinds: rooms, ahead = 0 }: Room,
): AtDoors | null {
  if (total + ahead === 0) return NOT_CLEAR;
  const open = rooms.flatMap((one) => {
    const id = kinds.idOf(one.kind);
    return id === undefined || paused.has(id) ? [] : [{ ...one, id }];
  });
  if (open.length === 0) return NOT_CLEAR;
  if (open.length > MOST_COUNTED || open.some(({ id }) => fair.has(id)) || db.sql(ANY_SUSPECT).get()) return null;
  const [first] = open;
  if (open.length > 1 && open.some(({ shares = false, room }) => shares || room < total)) return null;
  const mayWait = open.every((one) => one.ahead);
  const takes = mayWait ? total + ahead : Math.min(first!.room, total);
  let [ready, before] = [0, 0];
  for (const { id } of open) {
    const [count, notLater] = db.sqlArrays(COUNT_READY).get(id, takes) as unknown as [number, number];
    ready += count;
    before += notLater;
  }
  return {
    takes,
    most: Math.max(0, takes - before),
    before,
    isClear: ready === before,
    kinds: new Map(open.map(({ id, kind }) => [id, kind])),
  };
}

// A suspect is claimed by other rules, and a job of a kind that this worker does not run by another worker. Read, and then taken: with RETURNING both cost a
// third more.
const OPENED_HELD = `${OPENED}, priority FROM outlive_jobs
  WHERE seq IN (SELECT value FROM json_each(?)) AND kind = ? AND state = 0 AND crashes + losses = 0`;
const TAKE_HELD = `${TAKE}, deadline_at = ?, lane = ${LANE.open} WHERE state = 0 AND`;
const TAKE_AT_DOOR = `${TAKE}, deadline_at = ? WHERE state = 0 AND lane = ${LANE.held} AND`;
type Taken = readonly [...Opened, priority: number];

/**
 * Claims of these jobs, which are not ready for others, as many as there is room for next to those that are claimed already, and makes the others ready. `jobs` are
 * admitted; those that were `found` at their doors are not, and keep their lane, by which their rows are their slots.
 */
export function claimAtDoors(
  deps: ClaimDeps,
  worker: Claimant,
  room: Room,
  { takes, kinds }: AtDoors,
  { toClaim: jobs, atDoors: found }: { readonly toClaim: readonly number[]; readonly atDoors: readonly AtDoor[] },
  already: Claims,
): Claims {
  const { db, now } = deps;
  const { ahead = 0 } = room;
  const most = takes - already.claimed.length;
  const turn: Turn = { db, worker, now, boundMs: ahead > 0 ? AHEAD_BOUND_MS : 0, corrupt: [] };
  const list = JSON.stringify(most < jobs.length ? jobs.slice(0, Math.max(0, most)) : jobs);
  const atDoors = most < jobs.length + found.length ? found.slice(0, Math.max(0, most - jobs.length)) : found;
  const chosen: (readonly [row: Taken | AtDoor, priority: number, kind: string, timeoutMs: number | null])[] = [];
  for (const [id, kind] of kinds) {
    const timeoutMs = timeoutOf(db, id);
    const deadlineAt = timeoutMs === null ? null : now + timeoutMs + turn.boundMs;
    const values = [worker.seq, worker.epoch, now, deadlineAt];
    const rows = jobs.length === 0 ? [] : (db.sqlArrays(OPENED_HELD).all(list, id) as unknown as Taken[]);
    take(db, TAKE_HELD, values, rows);
    for (const row of rows) chosen.push([row, row[5], kind, timeoutMs]);
    const own =
      kinds.size === 1 && atDoors.every((row) => row[5] === id) ? atDoors : atDoors.filter((row) => row[5] === id);
    take(db, TAKE_AT_DOOR, values, own);
    for (const row of own) chosen.push([row, 0, kind, timeoutMs]);
  }
  const count = jobs.length + found.length;
  if (chosen.length < count) {
    const ours = new Set(chosen.map(([[seq]]) => seq));
    makeReady(
      db,
      jobs.filter((job) => !ours.has(job)),
    );
    admitFound(
      db,
      found.flatMap(([seq]) => (ours.has(seq) ? [] : [seq])),
    );
  }
  chosen.sort(([a, one], [b, other]) => other - one || a[0] - b[0]);
  const claimed: ClaimedJob[] = [];
  for (const [row, , kind, timeoutMs] of chosen) {
    const job = claimedJob(turn, row, kind, timeoutMs, null);
    if (job) claimed.push(job);
  }
  const claims = { claimed: [...already.claimed, ...claimed], corrupt: [...already.corrupt, ...turn.corrupt] };
  // Suspects are among them, or corrupt ones, and there is room.
  const left = room.total - claims.claimed.length;
  if (left <= 0 || chosen.length - turn.corrupt.length >= Math.min(count, most)) return claims;
  const others = room.kinds.map((kind) => ({ ...kind, room: Math.min(kind.room, left) }));
  const more = claimReady(deps, worker, { ...room, total: left, kinds: others, ahead: 0 });
  return { claimed: [...claims.claimed, ...more.claimed], corrupt: [...claims.corrupt, ...more.corrupt] };
}

function take(db: Database, text: string, values: readonly (number | null)[], rows: readonly (Taken | AtDoor)[]): void {
  const jobs = rows.map(([seq]) => seq);
  taken({ changes: updateRows(db, text, values, "seq", jobs) }, jobs.length);
}

const NO_SUSPECTS: HeldSuspects = { count: 0, together: null, oldestFirst: false };

interface OpenKind {
  readonly kind: string;
  readonly id: number;
  readonly most: number;
  /** `most` is for all kinds together that share. */
  readonly shares: boolean;
  /** Its jobs may be claimed ahead. */
  readonly ahead: boolean;
}

function takeOfOne(turn: Turn, { kind, id, most, ahead: waits }: OpenKind, total: number, ahead: number): ClaimedJob[] {
  const { db, worker, now, boundMs } = turn;
  const timeoutMs = timeoutOf(db, id);
  const deadlineAt = timeoutMs === null ? null : now + timeoutMs + boundMs;
  const limit = waits ? total + ahead : Math.min(most, total);
  const rows = db.sqlArrays(OPENED_READY).all(id, limit) as unknown as Opened[];
  for (const { first, last } of runsOf(rows.map(([seq]) => seq)))
    taken(db.sql(TAKE_RUN).run(worker.seq, worker.epoch, now, deadlineAt, first, last), last - first + 1);
  const claimed: ClaimedJob[] = [];
  for (const row of rows) {
    const job = claimedJob(turn, row, kind, timeoutMs, null);
    if (job) claimed.push(job);
  }
  return claimed;
}

function timeoutOf(db: Database, kind: number): number | null {
  return (db.sql(TIMEOUT).get(kind) as { timeout_ms: number | null }).timeout_ms;
}

interface Candidate {
  readonly seq: number;
  readonly priority: number;
  readonly kind: OpenKind;
  /** With how many suspects it may run; null: it is not a suspect. */
  readonly together: number | null;
}

interface SuspectCandidate extends Candidate {
  readonly together: number;
}

/** Of all kinds, in the order in which they are taken. */
function waitingSuspects(
  db: Database,
  open: readonly OpenKind[],
  total: number,
  held: HeldSuspects,
): SuspectCandidate[] {
  const text = held.oldestFirst ? OLDEST_FIRST : LARGEST_FIRST;
  const all = open.flatMap((kind) => {
    const rows = db.sql(text).all(kind.id, Math.min(kind.most, total)) as {
      seq: number;
      priority: number;
      bound: number;
    }[];
    return rows.map(({ seq, priority, bound: together }) => ({ seq, priority, together, kind }));
  });
  const second = (a: SuspectCandidate, b: SuspectCandidate): number => (held.oldestFirst ? 0 : b.together - a.together);
  return all.sort((a, b) => b.priority - a.priority || second(a, b) || a.seq - b.seq);
}

/** The best of all kinds by (priority, age), each within its own room; of the suspects as many as fit with those that the worker holds. */
function takeOfMany(
  turn: Turn,
  front: Front,
  open: readonly OpenKind[],
  { total, ahead: asked }: { readonly total: number; readonly ahead: number },
  suspects: readonly SuspectCandidate[],
  held: HeldSuspects,
): ClaimedJob[] {
  // A suspect may take the room of a fresh job of its kind, and then one that the front did not show has room.
  const inFront = suspects.length === 0 ? front.candidates(turn.db, open, total, asked) : null;
  const fresh = inFront ?? ofEach(turn.db, open, total);
  const ahead = inFront ? asked : 0;
  const candidates: Candidate[] = [...fresh, ...suspectsToTake(suspects, held)];
  candidates.sort((a, b) => b.priority - a.priority || a.seq - b.seq);
  const rooms: Rooms = new Map();
  const claimed: ClaimedJob[] = [];
  // Again only if some of them were corrupt.
  for (let at = 0; at < candidates.length && claimed.length < total + ahead;) {
    const chosen: Candidate[] = [];
    for (; at < candidates.length && claimed.length + chosen.length < total; at++)
      if (takeRoom(rooms, candidates[at]!)) chosen.push(candidates[at]!);
    for (; claimed.length + chosen.length < total + ahead && candidates[at]?.kind.ahead; at++)
      chosen.push(candidates[at]!);
    if (chosen.length === 0) break;
    claimed.push(...takeThese(turn, chosen));
  }
  return claimed;
}

/** How much of the rooms is taken, by kind; null stands for all kinds that share one. */
type Rooms = Map<OpenKind | null, number>;

/** False: its kind has no room left. */
function takeRoom(rooms: Rooms, { kind }: Candidate): boolean {
  const place = kind.shares ? null : kind;
  const count = rooms.get(place) ?? 0;
  if (count >= kind.most) return false;
  rooms.set(place, count + 1);
  return true;
}

/** With more kinds than this, their first jobs are compared before more of any of them is read. */
const HEADS_FROM = 8;

/** What may be taken of each kind alone. Kinds whose first job comes too late are left out: each of `total` others has one before it. */
function ofEach(db: Database, open: readonly OpenKind[], total: number): Candidate[] {
  const kinds = open.length <= HEADS_FROM ? open : earliest(db, open, total);
  return kinds.flatMap((kind) => {
    const rows = db.sql(CANDIDATES).all(kind.id, Math.min(kind.most, total)) as { seq: number; priority: number }[];
    return rows.map(({ seq, priority }): Candidate => ({ seq, priority, kind, together: null }));
  });
}

/** Kinds that share a room count as one: there are always enough others among the first `total` only if none shares. */
function earliest(db: Database, open: readonly OpenKind[], total: number): OpenKind[] {
  const limit = open.some(({ shares }) => shares) ? open.length : total;
  const heads = db.sql(HEADS).all(JSON.stringify(open.map(({ id }) => id)), limit) as { at: number }[];
  return heads.map(({ at }) => open[at]!);
}

/** Of all kinds the jobs that come first: where a worker of many kinds finds its own without asking for each kind. */
export class Front {
  /** How many claims go by before it is read again. */
  #skips = 0;

  /**
   * The first jobs of these kinds, at least as many as there is room for, or all. Null: too many of other kinds, which this worker does not know, or which are paused or
   * full, come before them. Read up to a bound that does not depend on their number, and not again for a while after it found nothing.
   */
  candidates(db: Database, open: readonly OpenKind[], total: number, ahead: number): Candidate[] | null {
    if (this.#skips > 0) {
      this.#skips--;
      return null;
    }
    const limit = total * FRONT_FACTOR + ahead + FRONT_LEAST;
    const rows = db.sqlArrays(FRONT).all(limit) as unknown as (readonly [
      seq: number,
      priority: number,
      kind: number,
    ])[];
    const kinds = new Map(open.map((kind) => [kind.id, kind]));
    const ours = rows.flatMap(([seq, priority, id]): Candidate[] => {
      const kind = kinds.get(id);
      return kind ? [{ seq, priority, kind, together: null }] : [];
    });
    const rooms: Rooms = new Map();
    if (rows.length < limit || ours.filter((one) => takeRoom(rooms, one)).length >= Math.max(1, total)) return ours;
    this.#skips = FRONT_SKIPS;
    return null;
  }
}

const FRONT_FACTOR = 2;
const FRONT_LEAST = 50;
const FRONT_SKIPS = 32;

/** In their order. One that is corrupt is quarantined instead. */
function takeThese(turn: Turn, chosen: readonly Candidate[]): ClaimedJob[] {
  const { db, worker, now, boundMs } = turn;
  const rows = runsOf(chosen.map(({ seq }) => seq)).flatMap(({ first, last }) => {
    const opened = db.sqlArrays(OPENED_RUN).all(first, last) as unknown as OpenedOfMany[];
    taken(db.sql(TAKE_RUN_OF_MANY).run(worker.seq, worker.epoch, now, now + boundMs, first, last), last - first + 1);
    return opened;
  });
  const claimed: ClaimedJob[] = [];
  for (const [i, { kind, together }] of chosen.entries()) {
    const row = rows[i]!;
    const job = claimedJob(turn, row, kind.kind, row[5], together);
    if (job) claimed.push(job);
  }
  return claimed;
}

/** What was read as ready is ready, unless the file is damaged: then nothing is claimed. */
function taken({ changes }: { readonly changes: number | bigint }, count: number): void {
  if (changes !== count)
    throw new OutliveError(
      ErrorCode.storeCorrupt,
      `An index lists ${count} neighbouring jobs as ready, but only ${changes} of them are.`,
      "Nothing was claimed. Stop the workers and run `outlive check --repair`.",
      { listed: count, ready: Number(changes) },
    );
}

/** Null: it is corrupt, and quarantined. */
function claimedJob(
  turn: Turn,
  row: Opened | OpenedOfMany | AtDoor,
  kind: string,
  timeoutMs: number | null,
  together: number | null,
): ClaimedJob | null {
  const { db, worker, now } = turn;
  const [seq, jobId, fence, input, inputSum] = row;
  const lease = { jobId, kind, row: seq, worker: worker.id, epoch: worker.epoch, fence };
  const intact = isIntact(input, jobId, inputSum);
  const deadlineInMs = timeoutMs;
  // Before its first attempt a job has no counters, no outcome, no steps and no incident.
  if (fence === 1 && intact)
    return { lease, kind, input, deadlineInMs, together, counters: NO_COUNTERS, lastOutcome: null, steps: NO_STEPS };
  const later = db.sql(LATER).get(seq) as unknown as LaterColumns;
  const steps = db.sql(STEPS).all(seq) as unknown as (StoredStep & { readonly result_sum: number })[];
  const broken = steps.filter((step) => !stepIsIntact({ ...step, id: jobId }));
  const what = [...(intact ? [] : ["input"]), ...broken.map(({ name }) => `step ${name}`)];
  if (what.length > 0) {
    turn.corrupt.push(quarantined(turn, lease, transitions.quarantine(view(jobId, later), what)));
    return null;
  }
  if (later.incident !== null) noteResumed(db, seq, later.incident, now);
  const lastOutcome = later.outcome === null ? null : OUTCOMES[later.outcome]!;
  const kept = steps.map(({ name, result }) => ({ name, result }));
  const wait = keptWait(db, seq, kept, now);
  const claimed = { lease, kind, input, deadlineInMs, together, counters: counters(later), lastOutcome, steps: kept };
  const block = later.extras === 1 ? claimedBlock(db, seq) : null;
  return wait === null && block === null ? claimed : { ...claimed, ...(wait && { wait }), ...(block && { block }) };
}

const NO_STEPS: readonly StoredStep[] = [];

function view(id: string, row: CounterColumns): transitions.JobView {
  return { id, state: "running", counters: counters(row) };
}

function quarantined({ db, worker, now }: Turn, lease: Lease, change: transitions.Change): CorruptJob {
  const { row: job, epoch, fence } = lease;
  const where = { sql: OWNED, values: [job, fence, epoch, worker.seq] };
  applyChange(db, change, now, where, {
    job,
    from: "running",
    actor: `worker/${worker.id}`,
    epoch,
    fence,
    incident: null,
  });
  return { lease, kind: lease.kind, change };
}

/** The job runs again after a death: the incident's clock stops. */
function noteResumed(db: Database, seq: number, incident: string, now: number): void {
  db.sql("UPDATE outlive_incident_jobs SET resumed_at = ? WHERE incident = ? AND job = ? AND resumed_at IS NULL").run(
    now,
    incident,
    seq,
  );
  db.sql("UPDATE outlive_jobs SET incident = NULL WHERE seq = ?").run(seq);
}

const NEXT_EXPIRY = "SELECT expires_at FROM outlive_extras WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1";

/** In how many ms the next job expires, unless it has begun; null: none does. */
export function untilExpiry(db: Database, now: number): number | null {
  const first = db.sql(NEXT_EXPIRY).get() as { expires_at: number } | undefined;
  return first ? Math.max(0, first.expires_at - now) : null;
}

/** Makes due jobs ready. Returns in how many ms the next one is due; null: none waits. */
export function promoteDue(db: Database, now: number): number | null {
  let first = db.sql(NEXT_DUE).get() as { run_at: number } | undefined;
  if (first && first.run_at <= now) {
    const promoted = db
      .sql(
        `UPDATE outlive_jobs SET lane = CASE WHEN crashes + losses > 0 THEN 2 ELSE 1 END
         WHERE seq IN (SELECT seq FROM outlive_jobs WHERE state = 0 AND lane = 0 AND run_at <= ? ORDER BY run_at LIMIT ${PROMOTE_BATCH})
         RETURNING seq, extras`,
      )
      .all(now) as { seq: number; extras: number }[];
    const withExtras = promoted.flatMap(({ seq, extras }) => (extras === 1 ? [seq] : []));
    if (withExtras.length > 0) relocate(db, withExtras, now);
    first = db.sql(NEXT_DUE).get() as { run_at: number } | undefined;
  }
  return first ? Math.max(0, first.run_at - now) : null;
}
