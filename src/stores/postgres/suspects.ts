// Suspects as a worker claims them: asked only while one waits and the worker has room for one. Which it takes is decided in core
// (isolation.ts). They are taken in one statement that finds the rows as they were read, or leaves them: a transaction across several
// statements could be frozen with its process, and every other worker would wait for its locks.
import { type HeldSuspects, suspectsToTake } from "../../job/isolation.ts";
import { boundSql } from "../rows.ts";
import type { OpenKind, TakenRow } from "./claim.ts";
import { type Connection } from "./connection.ts";
import { INTACT_INPUT, isPausedSql, list, type Session } from "./statements.ts";
import { IS_ORIGINAL, isRowOf } from "./restore-mark.ts";
import type { WorkerKey } from "./workers.ts";

interface Waiting {
  readonly seq: number;
  readonly kind: number;
  readonly priority: number;
  readonly together: number;
}

export interface TakenSuspects {
  readonly taken: readonly TakenRow[];
  /** By the number of the row: with how many suspects it may run. */
  readonly together: ReadonlyMap<number, number>;
}

export async function claimSuspects(
  connection: Connection,
  { seq: worker, id }: WorkerKey,
  open: readonly OpenKind[],
  total: number,
  held: HeldSuspects,
): Promise<TakenSuspects> {
  const kinds = list(open.filter(({ most }) => most > 0).map((kind) => kind.id));
  // A worker that comes too late for all of them checks the next: idle workers are woken at once, and see the same ones first.
  for (let tries = 1; tries <= MAX_TRIES; tries++) {
    const waiting = await connection.rows<Waiting>(held.oldestFirst ? OLDEST_FIRST : LARGEST_FIRST, [kinds, total]);
    const chosen = suspectsToTake(await withinRoom(connection, waiting, open, total), held);
    if (chosen.length === 0) break;
    const together = new Map(chosen.map((job) => [job.seq, job.together]));
    const taken = await connection.rows<TakenRow>(TAKE, [worker, id, list([...together.keys()])]);
    if (taken.length > 0) return { taken, together };
  }
  return { taken: [], together: new Map() };
}

/** A worker that was too late so often leaves them to the others for now. */
const MAX_TRIES = 8;

const WAITING = `SELECT j.seq, j.kind, j.priority, ${boundSql("j.")} AS together FROM outlive.jobs j
  JOIN outlive.kinds k ON k.id = j.kind AND NOT ${isPausedSql("k.")} WHERE j.state = 0 AND j.lane = 2 AND j.kind = ANY ($1::int[]) ORDER BY j.priority DESC`;
export const LARGEST_FIRST = `${WAITING}, together DESC, j.seq LIMIT $2`;
export const OLDEST_FIRST = `${WAITING}, j.seq LIMIT $2`;

// It waits for another worker that is taking one of them, which is one statement: what was skipped would be read as free again.
// Under the worker's own row, as every claim, and in the run of the server in which the turn before it found the epoch high enough.
const TAKE = `WITH me AS MATERIALIZED (SELECT f.seq FROM outlive.fleet f WHERE ${isRowOf("$1", "$2")} AND f.state = 'live' AND ${IS_ORIGINAL}
    AND (SELECT started FROM outlive.server_run WHERE one) = outlive.server_start() FOR KEY SHARE),
  clock AS MATERIALIZED (SELECT outlive.now_ms() AS now),
  free AS MATERIALIZED (SELECT w.ctid AS tid FROM outlive.jobs w WHERE w.seq = ANY ($3::bigint[]) AND w.state = 0 AND w.lane = 2 ORDER BY w.seq FOR UPDATE)
  UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, (SELECT value FROM outlive.meta WHERE key = 'epoch')),
    fence = j.fence + 1, started_at = clock.now, deadline_at = clock.now + k.timeout_ms
  FROM me, clock, free, outlive.kinds k WHERE j.ctid = free.tid AND k.id = j.kind AND NOT ${isPausedSql("k.")}
  RETURNING j.seq, j.id, j.fence, j.priority, j.kind, j.epoch, k.timeout_ms, ${INTACT_INPUT} AS input`;

/** Without those for which no room is left, of their kind or at all, once the fresh jobs of a higher priority have theirs. */
async function withinRoom(
  session: Session,
  suspects: readonly Waiting[],
  open: readonly OpenKind[],
  total: number,
): Promise<Waiting[]> {
  const fresh = new Map<number, ReadonlyMap<OpenKind, number>>();
  for (const { priority } of suspects)
    if (!fresh.has(priority)) fresh.set(priority, await countAbove(session, open, total, priority));
  const taken: OpenKind[] = [];
  return suspects.filter(({ kind: id, priority }) => {
    const above = fresh.get(priority)!;
    const kind = open.find((one) => one.id === id)!;
    const place = kind.shares ? open.filter(({ shares }) => shares) : [kind];
    const ofPlace = taken.filter((one) => place.includes(one)).length + sum(place.map((one) => above.get(one)!));
    const ofAll = taken.length + freshInRoom(open, above);
    if (ofPlace >= kind.most || ofAll >= total) return false;
    taken.push(kind);
    return true;
  });
}

/** How many of the counted fresh jobs there is room for. */
function freshInRoom(open: readonly OpenKind[], counts: ReadonlyMap<OpenKind, number>): number {
  const own = open.filter(({ shares }) => !shares).map((kind) => Math.min(kind.most, counts.get(kind)!));
  const sharing = open.filter(({ shares }) => shares);
  const shared = Math.min(sharing[0]?.most ?? 0, sum(sharing.map((kind) => counts.get(kind)!)));
  return sum(own) + shared;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, one) => all + one, 0);
}

const COUNT_ABOVE = `SELECT CASE WHEN ${isPausedSql("k.")} THEN 0 ELSE
    (SELECT count(*) FROM (SELECT 1 FROM outlive.jobs j WHERE j.kind = o.kind AND j.state = 0 AND j.lane = 1 AND j.priority > $2 LIMIT $3) f) END AS n
  FROM unnest($1::int[]) WITH ORDINALITY AS o (kind, ord) JOIN outlive.kinds k ON k.id = o.kind ORDER BY o.ord`;

/** How many fresh jobs of each kind have a higher priority; at most `total`. */
async function countAbove(
  session: Session,
  open: readonly OpenKind[],
  total: number,
  priority: number,
): Promise<ReadonlyMap<OpenKind, number>> {
  const rows = await session.rows<{ n: number }>(COUNT_ABOVE, [list(open.map(({ id }) => id)), priority, total]);
  return new Map(open.map((kind, at) => [kind, rows[at]!.n]));
}
