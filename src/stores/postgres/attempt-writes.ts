// The small writes of a running attempt, each one statement under its fence: steps, progress, log, heartbeat, children, signals,
// rows.
import type { Lease } from "../../job/lease.ts";
import { APPLIED, type AttemptWrite, MAX_LOG_LINES, type ReadSignal, triedBy, type WriteAnswer } from "../port.ts";
import { END_ROWS, endsValue } from "./blocks.ts";
import { checksumSql, stepOwnerSql, type Session, type Value } from "./statements.ts";
import type { Connection } from "./connection.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { noteNewChildren } from "./families.ts";
import { registered } from "./restore-mark.ts";
import type { Settling } from "./settle.ts";
import type { Workers } from "./workers.ts";

// The row stays locked until the write is committed, so that no recovery takes the job in between.
const MINE = `seq = $1 AND state + 0 = 1 AND fence = $2 AND epoch = $3 AND worker + 0 = $4 AND ${registered("$4", "$5")}`;
const OWNED = `owned AS MATERIALIZED (SELECT seq, id FROM outlive.jobs WHERE ${MINE} FOR NO KEY UPDATE)`;
const ANSWER = "SELECT EXISTS (SELECT 1 FROM owned) AS owned";

// A repeated write of the same step (its answer was lost) keeps the first result, and does not count as progress.
const STEP = `WITH ${OWNED},
  added AS (INSERT INTO outlive.steps (job, name, result, at, fence, result_sum)
    SELECT seq, $6, $7, outlive.now_ms(), $2, ${checksumSql("$7", stepOwnerSql("id", "$6"))} FROM owned ON CONFLICT DO NOTHING RETURNING job),
  progress AS (UPDATE outlive.jobs j SET crashes = 0, blamed = 0, losses = 0 FROM added WHERE j.seq = added.job AND j.crashes + j.losses > 0)
  ${ANSWER}`;
const LOG = `WITH ${OWNED},
  added AS (INSERT INTO outlive.logs (job, at, fence, message) SELECT seq, outlive.now_ms(), $2, $6 FROM owned),
  old AS (DELETE FROM outlive.logs WHERE EXISTS (SELECT 1 FROM owned)
    AND ord IN (SELECT ord FROM outlive.logs WHERE job = $1 ORDER BY ord DESC OFFSET ${MAX_LOG_LINES - 1}))
  ${ANSWER}`;
const PROGRESS = `WITH owned AS (UPDATE outlive.jobs SET progress = $6 WHERE ${MINE} RETURNING seq) ${ANSWER}`;
// deadline = the latest heartbeat + timeout, but never beyond the start + the longest run that the kind allows.
const HEARTBEAT = `WITH clock AS MATERIALIZED (SELECT outlive.now_ms() AS now), owned AS (
    UPDATE outlive.jobs j SET heartbeat_at = clock.now, deadline_at = (SELECT CASE WHEN k.timeout_ms IS NOT NULL
      THEN least(clock.now + k.timeout_ms, j.started_at + k.max_runtime_ms) END FROM outlive.kinds k WHERE k.id = j.kind)
    FROM clock WHERE ${MINE} RETURNING seq)
  ${ANSWER}`;
const HOLD_OFF = `WITH ${OWNED},
  key AS (INSERT INTO outlive.keys (id, name, key, held_off_until) SELECT $6, $7, $8, outlive.now_ms() + $9::bigint FROM owned
    ON CONFLICT (id) DO UPDATE SET held_off_until = greatest(keys.held_off_until, excluded.held_off_until))
  ${ANSWER}`;
// A cancel that came while this waited for the row is seen here, and what it wrote only by the next statement.
const LOCK = `WITH owned AS MATERIALIZED (SELECT cancel_requested FROM outlive.jobs WHERE ${MINE} FOR NO KEY UPDATE)
  ${ANSWER}, coalesce((SELECT cancel_requested FROM owned), false) AS cancelled`;
// The rows are ended after the lock is there: the function has its own, later snapshots.
const ROWS = `WITH ${OWNED}, ended AS MATERIALIZED (SELECT ${END_ROWS("$6")} FROM owned) ${ANSWER}, EXISTS (SELECT 1 FROM ended) AS ended`;
const ROW_BEGINS = `WITH ${OWNED}, noted AS (UPDATE outlive.blocks b SET begun = $6, begun_fence = $2 FROM owned WHERE b.job = owned.seq)
  ${ANSWER}`;
// The signal is marked as read only if its step is written by the same statement, so it is read once. A repeated
// read (the reply was lost) finds the step.
const READ_SIGNAL = `WITH ${OWNED},
  step AS MATERIALIZED (SELECT s.result FROM outlive.steps s JOIN owned ON s.job = owned.seq WHERE s.name = $6),
  signal AS MATERIALIZED (SELECT g.ord, g.payload FROM outlive.signals g JOIN owned ON g.job = owned.seq
    WHERE g.name = $7 AND g.read_at IS NULL AND NOT EXISTS (SELECT 1 FROM step) ORDER BY g.ord LIMIT 1),
  outcome AS MATERIALIZED (SELECT payload FROM signal
    UNION ALL SELECT NULL FROM owned WHERE $8::boolean AND NOT EXISTS (SELECT 1 FROM signal) AND NOT EXISTS (SELECT 1 FROM step)),
  added AS (INSERT INTO outlive.steps (job, name, result, at, fence, result_sum)
    SELECT owned.seq, $6, outcome.payload, outlive.now_ms(), $2, ${checksumSql("outcome.payload", stepOwnerSql("owned.id", "$6"))} FROM owned, outcome
    ON CONFLICT DO NOTHING RETURNING job),
  progress AS (UPDATE outlive.jobs j SET crashes = 0, blamed = 0, losses = 0 FROM added WHERE j.seq = added.job AND j.crashes + j.losses > 0),
  read AS (UPDATE outlive.signals g SET read_at = outlive.now_ms() FROM signal, added WHERE g.ord = signal.ord)
  SELECT EXISTS (SELECT 1 FROM owned) AS owned, EXISTS (SELECT 1 FROM step) OR EXISTS (SELECT 1 FROM added) AS kept,
    EXISTS (SELECT 1 FROM outcome) AND NOT EXISTS (SELECT 1 FROM added) AS overtaken,
    coalesce((SELECT result FROM step), (SELECT payload FROM outcome)) AS payload`;

export interface AttemptWriteDeps {
  readonly kinds: Kinds;
  readonly workers: Workers;
  readonly settling: Settling;
}

export async function recordWrites(
  connection: Connection,
  deps: AttemptWriteDeps,
  writes: readonly { readonly lease: Lease; readonly write: AttemptWrite }[],
): Promise<readonly WriteAnswer[]> {
  const drafts = writes.flatMap(({ write }) => (write.type === "enqueue" ? write.drafts : []));
  const [only] = writes;
  // One small write is one statement, and needs no transaction around it.
  if (writes.length === 1 && drafts.length === 0)
    return [await writeOfAttempt(connection, deps, only!.lease, only!.write)];
  if (drafts.length > 0)
    await deps.kinds.demand(
      connection,
      drafts.map(({ kind }) => kind),
    );
  return connection.transaction(async (tx) => {
    const answers: WriteAnswer[] = [];
    for (const { lease, write } of writes) answers.push(await writeOfAttempt(tx, deps, lease, write));
    return answers;
  });
}

/** Enqueues and refusals are more than one statement: then `session` must be a transaction. */
export async function writeOfAttempt(
  session: Session,
  { kinds, workers, settling }: AttemptWriteDeps,
  lease: Lease,
  write: AttemptWrite,
): Promise<WriteAnswer> {
  const attempt = [lease.row, lease.fence, lease.epoch, await workers.seqOf(session, lease.worker), lease.worker];
  if (write.type === "signal") {
    const signal = await readSignal(session, attempt, write);
    return signal === null ? settling.refused(session, lease, triedBy(write)) : { is: "applied", signal };
  }
  const [statement, ...values] = statementOf(lease, write);
  const [answer] = await session.rows<{ owned: boolean; cancelled?: boolean }>(statement, [...attempt, ...values]);
  if (!answer!.owned) return settling.refused(session, lease, triedBy(write));
  if (write.type !== "enqueue") return APPLIED;
  if (answer!.cancelled) await noteNewChildren(session, lease.row);
  return { is: "applied", enqueued: await insertJobs(session, kinds, write.drafts, { parent: lease.row }) };
}

/** Null: the attempt does not own the job. */
async function readSignal(
  session: Session,
  attempt: readonly Value[],
  { step, name, hasEnded }: Extract<AttemptWrite, { type: "signal" }>,
): Promise<ReadSignal | null> {
  for (;;) {
    const [row] = await session.rows<{ owned: boolean; kept: boolean; overtaken: boolean; payload: string | null }>(
      READ_SIGNAL,
      [...attempt, step, name, hasEnded],
    );
    const { owned, kept, overtaken, payload } = row!;
    if (!owned) return null;
    // The same read, repeated after a lost connection, has written the step while this one waited for the job's row.
    if (!overtaken) return kept ? { kept, payload } : { kept };
  }
}

function statementOf(
  { row: job }: Lease,
  write: Exclude<AttemptWrite, { type: "signal" }>,
): readonly [string, ...Value[]] {
  switch (write.type) {
    case "step":
      return [STEP, write.name, write.result];
    case "progress":
      return [PROGRESS, write.value];
    case "log":
      return [LOG, write.message];
    case "heartbeat":
      return [HEARTBEAT];
    case "holdOff":
      return [HOLD_OFF, write.key.id, write.key.limit, write.key.key, write.forMs];
    case "enqueue":
      return [LOCK];
    case "rows":
      return [ROWS, endsValue([{ job, ends: write.ends, withRest: false }])];
    case "rowBegins":
      return [ROW_BEGINS, write.row];
  }
}
