// Claims: owner, epoch, fence, start and deadline in one statement, only of what can be claimed now. What is claimed and not what was
// stored is quarantined before anybody gets it. Inside a transaction.
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../core/job.ts";
import {
  claimedFirstAbove,
  mayTurnTo,
  roomForFirst,
  shareOfFleet,
  type WaitingAlone,
  whatToDo,
} from "../../core/alone.ts";
import { ALONE_FROM_CRASHES } from "../../core/blame.ts";
import type { Lease } from "../../core/lease.ts";
import type { CorruptJob, Room } from "../../core/store.ts";
import * as transitions from "../../core/transitions.ts";
import { isIntact, stepIsIntact } from "./checksums.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./kinds.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { applyChange, OWNED } from "./settle.ts";

/** How many delayed jobs become ready in one transaction. */
const PROMOTE_BATCH = 1_000;
/** How many jobs that must run alone are looked at together. */
const ALONE_PAGE = 100;

const TAKE =
  "UPDATE outlive_jobs SET state = 1, worker = ?, epoch = ?, fence = fence + 1, started_at = ?, deadline_at = ?";
// `LIMIT ? + 0`, here and wherever a statement is asked often: a bare `LIMIT ?` SQLite plans anew each time a value is bound to it,
// because the plan may depend on the value. That was 14 of the 15 us of this read.
const READY = "FROM outlive_jobs WHERE kind = ? AND state = 0 AND lane = 1 ORDER BY priority DESC, seq LIMIT ? + 0";
// Few columns, as arrays: with all of them, as objects, a claim cost a quarter more. The rest is read for later attempts only.
const TAKEN = "RETURNING seq, id, fence, priority, input, input_sum";
const TAKE_READY = `${TAKE} WHERE seq IN (SELECT seq ${READY}) ${TAKEN}`;
const TAKE_ONE = `${TAKE}, reserved_by = NULL WHERE seq = ? AND state = 0 ${TAKEN}`;
const CANDIDATES = `SELECT seq, priority ${READY}`;
// Asked in every turn, and nearly always in vain: 0.14 us. The list below is sorted, which costs 1.2 us even if it is empty.
const ANY_ALONE = "SELECT 1 FROM outlive_jobs WHERE state = 0 AND lane = 2 LIMIT 1";
const ALONE = `SELECT j.seq, j.kind, j.priority, j.crashes, j.reserved_by, w.state AS holder
  FROM outlive_jobs j LEFT JOIN outlive_workers w ON w.seq = j.reserved_by
  WHERE j.state = 0 AND j.lane = 2 AND (-j.priority, j.crashes, j.seq) > (?, ?, ?)
  ORDER BY -j.priority, j.crashes, j.seq LIMIT ${ALONE_PAGE}`;
const GIVE_UP_RESERVATION =
  "UPDATE outlive_jobs SET reserved_by = NULL WHERE state = 0 AND lane = 2 AND reserved_by = ?";
const RESERVE = "UPDATE outlive_jobs SET reserved_by = ? WHERE seq = ?";
const COUNT_FIRST = `SELECT count(*) AS n FROM (
  SELECT 1 FROM outlive_jobs WHERE kind = ? AND state = 0 AND lane = 1 AND priority > ? LIMIT ? + 0)`;
const TIMEOUT = "SELECT timeout_ms FROM outlive_kinds WHERE id = ?";
const LATER =
  "SELECT errors, crashes, blamed, timeouts, interruptions, losses, outcome, incident FROM outlive_jobs WHERE seq = ?";
const NEXT_DUE = "SELECT run_at FROM outlive_jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1";

const STEPS = "SELECT name, result, result_sum FROM outlive_steps WHERE job = ? ORDER BY ord";

type Taken = readonly [seq: number, id: string, fence: number, priority: number, input: string, inputSum: number];

interface LaterColumns extends CounterColumns {
  readonly outcome: number | null;
  readonly incident: string | null;
}

export interface Claimant {
  readonly seq: number;
  readonly id: string;
  readonly epoch: number;
}

export interface Claims {
  readonly claimed: readonly ClaimedJob[];
  /** The worker has reserved a job that must run alone. */
  readonly emptying?: boolean;
  readonly corrupt: readonly CorruptJob[];
}

/** One claim on its way: by whom, when, and what was found corrupt. */
interface Turn {
  readonly db: Database;
  readonly worker: Claimant;
  readonly now: number;
  readonly corrupt: CorruptJob[];
}

export function claimReady(db: Database, kinds: Kinds, worker: Claimant, room: Room, now: number): Claims {
  const turn: Turn = { db, worker, now, corrupt: [] };
  if (room.total === 0 || room.kinds.length === 0) return { claimed: [], corrupt: [] };
  return { ...claimAny(turn, kinds, room), corrupt: turn.corrupt };
}

type Claimed = Omit<Claims, "corrupt">;

function claimAny(turn: Turn, kinds: Kinds, room: Room): Claimed {
  const paused = kinds.paused();
  const open = room.kinds.flatMap(({ kind, room: most, shares = false }) => {
    const id = kinds.idOf(kind);
    return id === undefined || paused.has(id) ? [] : [{ kind, id, most, shares }];
  });
  if (!turn.db.sql(ANY_ALONE).get()) return { claimed: takeOrdinary(turn, open, room.total) };
  const alone = claimAlone(turn, open, room, false);
  if (alone) return alone;
  const claimed = takeOrdinary(turn, open, room.total);
  // A worker with nothing else to do may always take a job that must run alone.
  return claimed.length === 0 && room.idle ? (claimAlone(turn, open, room, true) ?? { claimed }) : { claimed };
}

function takeOrdinary(turn: Turn, open: readonly OpenKind[], total: number): ClaimedJob[] {
  return open.length === 1 ? takeOfOne(turn, open[0]!, total) : takeOfMany(turn, open, total);
}

const ALONE_AT_WORK = `SELECT
  (SELECT count(*) FROM outlive_jobs WHERE state = 1 AND lane = 2 AND worker <> ?1)
    + (SELECT count(DISTINCT j.reserved_by) FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.reserved_by
       WHERE j.state = 0 AND j.lane = 2 AND w.state = 'live' AND w.seq <> ?1) AS taken,
  (SELECT count(*) FROM outlive_workers WHERE state = 'live') AS live`;

interface OpenKind {
  readonly kind: string;
  readonly id: number;
  readonly most: number;
  /** `most` is for all kinds together that share. */
  readonly shares: boolean;
}

function takeOfOne(turn: Turn, { kind, id, most }: OpenKind, total: number): ClaimedJob[] {
  const { db, worker, now } = turn;
  const timeoutMs = timeoutOf(db, id);
  const deadlineAt = timeoutMs === null ? null : now + timeoutMs;
  const rows = db
    .sqlArrays(TAKE_READY)
    .all(worker.seq, worker.epoch, now, deadlineAt, id, Math.min(most, total)) as unknown as Taken[];
  // RETURNING promises no order.
  rows.sort((a, b) => b[3] - a[3] || a[0] - b[0]);
  const claimed: ClaimedJob[] = [];
  for (const row of rows) {
    const job = claimedJob(turn, row, kind, timeoutMs, false);
    if (job) claimed.push(job);
  }
  return claimed;
}

function timeoutOf(db: Database, kind: number): number | null {
  return (db.sql(TIMEOUT).get(kind) as { timeout_ms: number | null }).timeout_ms;
}

/** The best of all kinds by (priority, age), each within its own room. */
function takeOfMany(turn: Turn, open: readonly OpenKind[], total: number): ClaimedJob[] {
  const candidates = open.flatMap((kind) => {
    const rows = turn.db.sql(CANDIDATES).all(kind.id, Math.min(kind.most, total)) as {
      seq: number;
      priority: number;
    }[];
    return rows.map(({ seq, priority }) => ({ seq, priority, kind }));
  });
  candidates.sort((a, b) => b.priority - a.priority || a.seq - b.seq);
  const claimed: ClaimedJob[] = [];
  let shared = 0;
  for (const { seq, kind } of candidates) {
    if (claimed.length === total) break;
    if (kind.shares && shared++ >= kind.most) continue;
    const job = takeBySeq(turn, seq, kind, false);
    if (job) claimed.push(job);
  }
  return claimed;
}

function takeBySeq(turn: Turn, seq: number, { kind, id }: OpenKind, alone: boolean): ClaimedJob | null {
  const { db, worker, now } = turn;
  const timeoutMs = timeoutOf(db, id);
  const deadlineAt = timeoutMs === null ? null : now + timeoutMs;
  const row = db.sqlArrays(TAKE_ONE).get(worker.seq, worker.epoch, now, deadlineAt, seq) as unknown as Taken;
  return claimedJob(turn, row, kind, timeoutMs, alone);
}

/**
 * What the worker gets because a job waits that must run alone: that job, or nothing but the ordinary jobs that go before it. Null: none
 * waits that concerns this worker, claim as usual. `beyondShare`: this worker would have nothing else to do.
 */
function claimAlone(turn: Turn, open: readonly OpenKind[], room: Room, beyondShare: boolean): Claimed | null {
  const { db, worker } = turn;
  const leave = (): null => {
    if (room.ordinaryFirst) db.sql(GIVE_UP_RESERVATION).run(worker.seq);
    return null;
  };
  if (room.ordinaryFirst && !room.idle) return leave();
  for (;;) {
    const found = nextAlone(db, worker, open, room, beyondShare);
    if (!found) return null;
    const { job, kind } = found;
    const first = countFirst(db, open, room.total, claimedFirstAbove(job, room));
    switch (whatToDo(job, worker.seq, room, first)) {
      case "leave":
        return leave();
      case "empty":
        if (job.reserved_by !== worker.seq) db.sql(RESERVE).run(worker.seq, job.seq);
        return { claimed: first === 0 ? [] : takeOrdinary(turn, open, first), emptying: true };
      case "take": {
        const taken = takeBySeq(turn, job.seq, kind, true);
        if (taken) return { claimed: [taken] };
        // It was corrupt and is quarantined: the next one.
      }
    }
  }
}

function nextAlone(
  db: Database,
  worker: Claimant,
  open: readonly OpenKind[],
  room: Room,
  beyondShare: boolean,
): { readonly job: AloneColumns; readonly kind: OpenKind } | null {
  let withinShare: boolean | undefined;
  for (const job of waitingAlone(db)) {
    const kind = open.find(({ id }) => id === job.kind);
    if (!kind || kind.most === 0) continue;
    withinShare ??= beyondShare || isWithinShare(db, worker);
    if (mayTurnTo(job, worker.seq, room.idle, withinShare)) return { job, kind };
  }
  return null;
}

/** Whether one more worker of the fleet may be taken up by jobs that run alone. Asked only when such a job waits. */
function isWithinShare(db: Database, worker: Claimant): boolean {
  const { taken, live } = db.sql(ALONE_AT_WORK).get(worker.seq) as { taken: number; live: number };
  return taken < shareOfFleet(live);
}

/** How many ordinary jobs with a priority above this one the worker has room for. */
function countFirst(db: Database, open: readonly OpenKind[], total: number, above: number): number {
  const counts = open.map(({ id }) => (db.sql(COUNT_FIRST).get(id, above, total) as { n: number }).n);
  return roomForFirst(open, counts, total);
}

interface AloneColumns extends WaitingAlone {
  readonly crashes: number;
}

/**
 * The highest priority first; then those with the fewest crashes, for the one that kills its workers must not hold up those that ran
 * alongside it; then by age. Page by page: a page full of what this worker can't run hides no other.
 */
function* waitingAlone(db: Database): Generator<AloneColumns> {
  let after: Pick<AloneColumns, "priority" | "crashes" | "seq"> = { priority: Infinity, crashes: 0, seq: 0 };
  for (;;) {
    const page = db.sql(ALONE).all(-after.priority, after.crashes, after.seq) as unknown as AloneColumns[];
    yield* page;
    if (page.length < ALONE_PAGE) return;
    after = page.at(-1)!;
  }
}

/** Null: it is corrupt, and quarantined. */
function claimedJob(turn: Turn, row: Taken, kind: string, timeoutMs: number | null, alone: boolean): ClaimedJob | null {
  const { db, worker, now } = turn;
  const [seq, jobId, fence, , input, inputSum] = row;
  const lease = { jobId, kind, row: seq, worker: worker.id, epoch: worker.epoch, fence };
  const intact = isIntact(input, jobId, inputSum);
  const deadlineInMs = timeoutMs;
  // Before its first attempt a job has no counters, no outcome, no steps and no incident.
  if (fence === 1 && intact)
    return { lease, kind, input, deadlineInMs, alone, counters: NO_COUNTERS, lastOutcome: null, steps: NO_STEPS };
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
  return { lease, kind, input, deadlineInMs, alone, counters: counters(later), lastOutcome, steps: kept };
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

/** Makes ready what is due. Answers in how many ms the next one is; null: none waits. */
export function promoteDue(db: Database, now: number): number | null {
  let first = db.sql(NEXT_DUE).get() as { run_at: number } | undefined;
  if (first && first.run_at <= now) {
    db.sql(
      `UPDATE outlive_jobs SET lane = CASE WHEN crashes + losses >= ${ALONE_FROM_CRASHES} THEN 2 ELSE 1 END
       WHERE seq IN (SELECT seq FROM outlive_jobs WHERE state = 0 AND lane = 0 AND run_at <= ? ORDER BY run_at LIMIT ${PROMOTE_BATCH})`,
    ).run(now);
    first = db.sql(NEXT_DUE).get() as { run_at: number } | undefined;
  }
  return first ? Math.max(0, first.run_at - now) : null;
}
