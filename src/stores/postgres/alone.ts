// Jobs that must run alone: which worker takes one, and which empties itself for one. Looked at only while such a job waits. What is
// decided is done in one statement that finds the row as it was seen, or changes nothing: a transaction across several of them could
// be frozen with its process, and everybody would wait for its lock.
import {
  claimedFirstAbove,
  mayTurnTo,
  roomForFirst,
  shareOfFleet,
  type WaitingAlone,
  whatToDo,
} from "../../core/alone.ts";
import type { Room } from "../../core/store.ts";
import type { OpenKind, Taken } from "./claim.ts";
import { type Connection, list, type Session } from "./connection.ts";
import { IS_ORIGINAL, isRowOf, registered } from "./restore-mark.ts";
import { INTACT_INPUT } from "./turn-text.ts";
import type { WorkerKey } from "./workers.ts";

/** How many jobs that must run alone are looked at together. */
const ALONE_PAGE = 100;
/** A worker that was too late so often leaves them to the others for now. */
const MOST_TRIES = 8;

/** What the worker gets because a job waits that must run alone: that job, or only so many ordinary jobs, which go before it. */
export type AloneClaim = { readonly taken: readonly Taken[] } | { readonly first: number };

/** Null: none waits that concerns this worker, claim as usual. `beyondShare`: this worker would have nothing else to do. */
export async function claimAlone(
  connection: Connection,
  { seq: worker, id }: WorkerKey,
  open: readonly OpenKind[],
  room: Room,
  beyondShare: boolean,
): Promise<AloneClaim | null> {
  const leave = async (): Promise<null> => {
    if (room.ordinaryFirst) await connection.run(GIVE_UP_RESERVATION, [worker]);
    return null;
  };
  if (room.ordinaryFirst && !room.idle) return leave();
  // Whoever comes too late for one looks at the next: all idle workers are woken at once, and see the same one first.
  for (let tries = 1; tries <= MOST_TRIES; tries++) {
    const job = await nextAlone(connection, worker, open, room, beyondShare);
    if (!job) return null;
    // The ordinary jobs are claimed by a later statement. If others take some of them first, it takes as many of a lower priority.
    const first = await countFirst(connection, open, room.total, claimedFirstAbove(job, room));
    switch (whatToDo(job, worker, room, first)) {
      case "leave":
        return leave();
      case "empty":
        if (job.reserved_by === worker || (await connection.run(RESERVE, [worker, id, job.seq, job.reserved_by])) > 0)
          return { first };
        break;
      case "take": {
        const taken = await connection.arrays<Taken>(TAKE, [worker, id, job.seq]);
        if (taken.length > 0) return { taken };
      }
    }
  }
  return null;
}

const GIVE_UP_RESERVATION =
  "UPDATE outlive.jobs SET reserved_by = NULL WHERE state = 0 AND lane = 2 AND reserved_by = $1";

const RESERVE = `UPDATE outlive.jobs SET reserved_by = $1 WHERE seq = $3 AND state = 0 AND lane = 2 AND reserved_by IS NOT DISTINCT FROM $4::bigint
  AND ${registered("$1", "$2")}`;

// Under the worker's own row, as every claim, and in the run of the server in which the turn before it found the epoch high enough.
const TAKE = `WITH me AS MATERIALIZED (SELECT f.seq FROM outlive.fleet f WHERE ${isRowOf("$1", "$2")} AND f.state = 'live' AND ${IS_ORIGINAL}
    AND (SELECT started FROM outlive.server_run WHERE one) = outlive.server_start() FOR KEY SHARE),
  clock AS MATERIALIZED (SELECT outlive.now_ms() AS now)
  UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, (SELECT value FROM outlive.meta WHERE key = 'epoch')),
    fence = j.fence + 1, started_at = clock.now, deadline_at = clock.now + k.timeout_ms, reserved_by = NULL
  FROM me, clock, outlive.kinds k WHERE j.seq = $3 AND j.state = 0 AND j.lane = 2 AND k.id = j.kind AND NOT k.paused
  RETURNING j.seq, j.id, j.fence, j.priority, j.kind, j.epoch, k.timeout_ms, ${INTACT_INPUT}`;

async function nextAlone(
  session: Session,
  worker: number,
  open: readonly OpenKind[],
  room: Room,
  beyondShare: boolean,
): Promise<AloneColumns | null> {
  let withinShare: boolean | undefined;
  for await (const job of waitingAlone(session, open)) {
    withinShare ??= beyondShare || (await isWithinShare(session, worker));
    if (mayTurnTo(job, worker, room.idle, withinShare)) return job;
  }
  return null;
}

const ALONE_AT_WORK = `SELECT
  (SELECT count(*) FROM outlive.jobs WHERE state = 1 AND lane = 2 AND worker <> $1)
    + (SELECT count(DISTINCT j.reserved_by) FROM outlive.jobs j JOIN outlive.fleet w ON w.seq = j.reserved_by
       WHERE j.state = 0 AND j.lane = 2 AND w.state = 'live' AND w.seq <> $1) AS taken,
  (SELECT count(*) FROM outlive.fleet WHERE state = 'live') AS live`;

/** Whether one more worker of the fleet may be taken up by jobs that run alone; two that decide in the same moment may be one more. */
async function isWithinShare(session: Session, worker: number): Promise<boolean> {
  const [row] = await session.rows<{ taken: number; live: number }>(ALONE_AT_WORK, [worker]);
  return row!.taken < shareOfFleet(row!.live);
}

const COUNT_FIRST = `SELECT CASE WHEN k.paused THEN 0 ELSE
    (SELECT count(*) FROM (SELECT 1 FROM outlive.jobs j WHERE j.kind = o.kind AND j.state = 0 AND j.lane = 1 AND j.priority > $2 LIMIT $3) f) END AS n
  FROM unnest($1::int[]) WITH ORDINALITY AS o (kind, ord) JOIN outlive.kinds k ON k.id = o.kind ORDER BY o.ord`;

/** How many ordinary jobs with a priority above this one the worker has room for. */
async function countFirst(session: Session, open: readonly OpenKind[], total: number, above: number): Promise<number> {
  const rows = await session.rows<{ n: number }>(COUNT_FIRST, [list(open.map(({ id }) => id)), above, total]);
  const counts = rows.map(({ n }) => n);
  return roomForFirst(open, counts, total);
}

interface AloneColumns extends WaitingAlone {
  readonly crashes: number;
}

const WAITING = `SELECT j.seq, j.kind, j.priority, j.crashes, j.reserved_by, w.state AS holder FROM outlive.jobs j
  JOIN outlive.kinds k ON k.id = j.kind AND NOT k.paused LEFT JOIN outlive.fleet w ON w.seq = j.reserved_by
  WHERE j.state = 0 AND j.lane = 2 AND (-j.priority::bigint, j.crashes, j.seq) > ($1::bigint, $2, $3) AND j.kind = ANY ($4::int[])
  ORDER BY -j.priority::bigint, j.crashes, j.seq LIMIT ${ALONE_PAGE}`;

/**
 * The highest priority first; then those with the fewest crashes, for the one that kills its workers must not hold up those that ran
 * alongside it; then by age.
 */
async function* waitingAlone(session: Session, open: readonly OpenKind[]): AsyncGenerator<AloneColumns> {
  const kinds = list(open.filter(({ most }) => most > 0).map(({ id }) => id));
  let after: Pick<AloneColumns, "priority" | "crashes" | "seq"> = { priority: 2 ** 32, crashes: 0, seq: 0 };
  for (;;) {
    const page = await session.rows<AloneColumns>(WAITING, [-after.priority, after.crashes, after.seq, kinds]);
    yield* page;
    if (page.length < ALONE_PAGE) return;
    after = page.at(-1)!;
  }
}
