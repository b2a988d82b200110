// Jobs that must run alone: which worker takes one, and which empties itself for one. Looked at only while such a job waits. What is
// decided is done in one statement that finds the row as it was seen, or changes nothing: a transaction across several of them could
// be frozen with its process, and everybody would wait for its lock.
import type { Room } from "../../core/store.ts";
import type { OpenKind, Taken } from "./claim.ts";
import { type Connection, list, type Session } from "./connection.ts";
import { INTACT_INPUT } from "./turn-text.ts";

/** How many jobs that must run alone are looked at together. */
const ALONE_PAGE = 100;
/** A worker that was too late so often leaves them to the others for now. */
const MOST_TRIES = 8;

interface AloneColumns {
  readonly seq: number;
  readonly kind: number;
  readonly crashes: number;
  readonly reserved_by: number | null;
  readonly holder: string | null;
}

/** What this worker should do about one of them. */
type Decision = { readonly take: AloneColumns } | { readonly reserve: AloneColumns } | "reserved" | null;

/**
 * A job that must run alone goes to a worker with nothing in flight. If none is idle, one worker reserves it and claims nothing
 * else until it is; the others go on. Answers what was taken. Null: none waits that this worker may take or reserve, claim as usual.
 *
 * About a quarter of the fleet (at least one worker) is taken up by such jobs: after a correlated death there may be hundreds,
 * and the others must go on. Two that decide in the same moment may be one more. `beyondShare`: this worker would have nothing else to do.
 */
export async function claimAlone(
  connection: Connection,
  worker: number,
  open: readonly OpenKind[],
  room: Room,
  beyondShare: boolean,
): Promise<readonly Taken[] | null> {
  // Whoever comes too late for one looks at the next: all idle workers are woken at once, and see the same one first.
  for (let tries = 1; tries <= MOST_TRIES; tries++) {
    const decision = await decide(connection, worker, open, room, beyondShare);
    if (decision === null) return null;
    if (decision === "reserved") return NOTHING;
    if ("reserve" in decision) {
      const { seq, reserved_by: seen } = decision.reserve;
      if ((await connection.run(RESERVE, [worker, seq, seen])) > 0) return NOTHING;
    } else {
      const taken = await connection.arrays<Taken>(TAKE, [worker, decision.take.seq]);
      if (taken.length > 0) return taken;
    }
  }
  return null;
}

/** It empties itself for one. */
const NOTHING: readonly Taken[] = [];

const RESERVE =
  "UPDATE outlive.jobs SET reserved_by = $1 WHERE seq = $2 AND state = 0 AND lane = 2 AND reserved_by IS NOT DISTINCT FROM $3::bigint";

// Under the worker's own row, as every claim.
const TAKE = `WITH me AS MATERIALIZED (SELECT seq FROM outlive.fleet WHERE seq = $1 AND state = 'live' FOR KEY SHARE),
  clock AS MATERIALIZED (SELECT outlive.now_ms() AS now)
  UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, (SELECT value FROM outlive.meta WHERE key = 'epoch')),
    fence = j.fence + 1, started_at = clock.now, deadline_at = clock.now + k.timeout_ms, reserved_by = NULL
  FROM me, clock, outlive.kinds k WHERE j.seq = $2 AND j.state = 0 AND j.lane = 2 AND k.id = j.kind AND NOT k.paused
  RETURNING j.seq, j.id, j.fence, j.priority, j.kind, j.epoch, k.timeout_ms, ${INTACT_INPUT}`;

async function decide(
  session: Session,
  worker: number,
  open: readonly OpenKind[],
  room: Room,
  beyondShare: boolean,
): Promise<Decision> {
  let mayStart: boolean | undefined;
  for await (const job of waitingAlone(session, open)) {
    mayStart ??= beyondShare || (await aloneMayStart(session, worker));
    const takesOver = job.holder === "live" && job.reserved_by !== worker;
    if (room.idle) {
      // Who takes a reserved one sets the worker free that emptied itself for it.
      if (!mayStart && !takesOver) continue;
      return { take: job };
    }
    if (job.reserved_by === worker) return "reserved";
    if (takesOver || !mayStart) continue;
    return { reserve: job };
  }
  return null;
}

const ALONE_AT_WORK = `SELECT
  (SELECT count(*) FROM outlive.jobs WHERE state = 1 AND lane = 2 AND worker <> $1)
    + (SELECT count(DISTINCT j.reserved_by) FROM outlive.jobs j JOIN outlive.fleet w ON w.seq = j.reserved_by
       WHERE j.state = 0 AND j.lane = 2 AND w.state = 'live' AND w.seq <> $1) AS taken,
  (SELECT count(*) FROM outlive.fleet WHERE state = 'live') AS live`;

/** Whether one more worker of the fleet may be taken up by jobs that run alone. Asked only when such a job waits. */
async function aloneMayStart(session: Session, worker: number): Promise<boolean> {
  const [row] = await session.rows<{ taken: number; live: number }>(ALONE_AT_WORK, [worker]);
  return row!.taken < Math.max(1, Math.round(row!.live / 4));
}

const WAITING = `SELECT j.seq, j.kind, j.crashes, j.reserved_by, w.state AS holder FROM outlive.jobs j
  JOIN outlive.kinds k ON k.id = j.kind AND NOT k.paused LEFT JOIN outlive.fleet w ON w.seq = j.reserved_by
  WHERE j.state = 0 AND j.lane = 2 AND (j.crashes, j.seq) > ($1, $2) AND j.kind = ANY ($3::int[]) ORDER BY j.crashes, j.seq LIMIT ${ALONE_PAGE}`;

/** Those with the fewest crashes first, for the one that kills its workers must not hold up those that were beside it; then by age. */
async function* waitingAlone(session: Session, open: readonly OpenKind[]): AsyncGenerator<AloneColumns> {
  const kinds = list(open.filter(({ most }) => most > 0).map(({ id }) => id));
  let after = { crashes: 0, seq: 0 };
  for (;;) {
    const page = await session.rows<AloneColumns>(WAITING, [after.crashes, after.seq, kinds]);
    yield* page;
    if (page.length < ALONE_PAGE) return;
    after = page.at(-1)!;
  }
}
