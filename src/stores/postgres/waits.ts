// Waiting jobs: what they wait for, signals, and wakes. A wake says that the wait of a job may have ended. It is written in the transaction of
// its cause (migrations/waiting.ts says why no transaction acts on its own wakes), and any worker's turn, or `tick()`, acts on it later.
import type { AuditEntry } from "../../job/audit.ts";
import { JOB_STATES } from "../../job/job.ts";
import { type JobOutcome, MAX_SIGNALS, type Wait } from "../../job/waits.ts";
import type { Signal, SignalAnswer } from "../port.ts";
import { jobOutcomes, NO_TIMEOUT, type OutcomeColumns, STATE } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import type { Connection } from "./connection.ts";
import { checksumSql, stepOwnerSql, list, type Session, texts } from "./statements.ts";

/** How many wakes one turn acts on, at most. */
const WAKES_PER_TURN = 500;

/** A wait that an attempt of this row begins. */
export interface BegunWait {
  readonly seq: number;
  readonly fence: number;
  readonly wait: Wait;
}

// The time is that of the job's row, which this transaction has written. The wake for the job itself has its condition checked: what it waits for
// may have come before.
const KEEP = `WITH begun AS (
    SELECT u.*, nullif(j.run_at, ${NO_TIMEOUT}) AS due_at
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::boolean[], $5::boolean[]) AS u (job, step, signal, children, jobs)
    JOIN outlive.jobs j ON j.seq = u.job),
  kept AS (INSERT INTO outlive.waits (job, due_at, children, jobs, step, signal) SELECT job, due_at, children, jobs, step, signal FROM begun
    ON CONFLICT (job) DO UPDATE SET due_at = excluded.due_at, children = excluded.children, jobs = excluded.jobs, step = excluded.step, signal = excluded.signal)
  INSERT INTO outlive.wakes (job, at) SELECT job, outlive.now_ms() FROM begun WHERE signal IS NOT NULL OR children OR jobs`;

/** In the transaction that has queued these jobs as waiting. */
export async function beginWaits(session: Session, begun: readonly BegunWait[]): Promise<void> {
  if (begun.length === 0) return;
  const onChildren: boolean[] = [];
  for (const { seq, fence, wait } of begun) {
    const jobs = awaitedBy(wait);
    onChildren.push(jobs !== null && (await awaitJobs(session, seq, fence, jobs)));
  }
  await session.run(KEEP, [
    list(begun.map(({ seq }) => seq)),
    texts(begun.map(({ wait }) => wait.step)),
    texts(begun.map(({ wait: { until } }) => (until !== null && "signal" in until ? until.signal : null))),
    list(onChildren),
    list(begun.map(({ wait }, at) => awaitedBy(wait) !== null && !onChildren[at])),
  ]);
}

function awaitedBy({ until }: Wait): readonly string[] | null {
  return until !== null && "jobs" in until ? until.jobs : null;
}

const AWAIT = `WITH awaited AS MATERIALIZED (
    SELECT DISTINCT i.seq, coalesce(e.parent = $1, false) AS is_child
    FROM unnest($3::text[]) AS u (id) JOIN outlive.job_ids i ON i.id = u.id LEFT JOIN outlive.extras e ON e.job = i.seq),
  children AS MATERIALIZED (
    SELECT coalesce(bool_and(is_child), true) AND count(*) = (SELECT count(*) FROM outlive.extras WHERE parent = $1) AS are_all FROM awaited),
  added AS (INSERT INTO outlive.awaits (job, waiter, fence) SELECT seq, $1, $2::int FROM awaited WHERE NOT (SELECT are_all FROM children) ON CONFLICT DO NOTHING)
  SELECT are_all FROM children`;

/**
 * Keeps for which jobs it waits, also for those that have ended: an operator may retry them. Locks none of them: one may be in a user's
 * transaction for minutes. `act_on_wakes` marks them, so that their ends write wakes. Returns true, and keeps nothing, if they are all the
 * children of the job: that needs no list.
 */
async function awaitJobs(session: Session, seq: number, fence: number, ids: readonly string[]): Promise<boolean> {
  const [row] = await session.rows<{ are_all: boolean }>(AWAIT, [seq, fence, texts(ids)]);
  return row!.are_all;
}

// It does not wait for the disk, as an admission does not: if a crash of the server takes it back, its wakes are there again.
const ACT = `WITH quick AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
  SELECT a.woken, a.more, EXISTS (SELECT 1 FROM outlive.family_cancels WHERE due) AS families FROM quick, outlive.act_on_wakes(${WAKES_PER_TURN}) a`;

/** Acts on wakes. In a transaction of its own, never in one that settles. */
export async function actOnWakes(session: Session): Promise<ActedOnWakes> {
  const [row] = await session.rows<ActedOnWakes>(ACT);
  return row!;
}

interface ActedOnWakes {
  readonly woken: number;
  readonly more: boolean;
  /** Whether the cancels of jobs include children that are not cancelled yet. */
  readonly families: boolean;
}

// ---- signals

/** As long as a job has fewer unread signals, its senders do not wait for each other. */
const UNLOCKED_SIGNALS = MAX_SIGNALS / 2;

const SEND = `WITH job AS MATERIALIZED (SELECT seq, id, state FROM outlive.jobs WHERE seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1)),
  known AS MATERIALIZED (SELECT 1 FROM outlive.signals s JOIN job ON s.job = job.seq WHERE s.id = $2),
  unread AS MATERIALIZED (SELECT count(*) AS n FROM (SELECT 1 FROM outlive.signals s JOIN job ON s.job = job.seq WHERE s.read_at IS NULL LIMIT ${MAX_SIGNALS}) s),
  kept AS (INSERT INTO outlive.signals (job, at, name, id, payload, payload_sum)
    SELECT seq, outlive.now_ms(), $3, $2, $4, ${checksumSql("$4", stepOwnerSql("job.id", "$2"))} FROM job
    WHERE state < ${STATE.succeeded} AND NOT EXISTS (SELECT 1 FROM known) AND (SELECT n FROM unread) < $5
    ON CONFLICT (job, id) DO NOTHING RETURNING job),
  wake AS (INSERT INTO outlive.wakes (job, at) SELECT job, outlive.now_ms() FROM kept)
  SELECT job.state, EXISTS (SELECT 1 FROM known) AS known, EXISTS (SELECT 1 FROM kept) AS kept, (SELECT n FROM unread) AS unread FROM job`;

/**
 * Senders at the same moment do not count each other's signals, so near the limit each waits for the one before, by a lock that only senders take: the
 * job's row may be locked by a commit of its handler for minutes. The limit is exact unless 500 senders are under way at once.
 */
export async function sendSignal(connection: Connection, signal: Signal, entry?: AuditEntry): Promise<SignalAnswer> {
  if (entry === undefined) {
    const { answer, unread } = await send(connection, signal, UNLOCKED_SIGNALS);
    if (answer.is !== "full" || unread < UNLOCKED_SIGNALS) return answer;
  }
  return connection.brief(async (tx) => {
    await tx.run("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", [
      `outlive signals ${connection.schema} ${signal.job}`,
    ]);
    const { answer } = await send(tx, signal, MAX_SIGNALS);
    await writeAudit(tx, entry, answer.is === "kept" ? 1 : 0);
    return answer;
  });
}

/** In a user's transaction, which may stay open for minutes: no lock, so there the limit is not exact among senders at the same moment. */
export async function sendSignalWithin(session: Session, signal: Signal): Promise<SignalAnswer> {
  return (await send(session, signal, MAX_SIGNALS)).answer;
}

async function send(
  session: Session,
  { job, name, payload, id }: Signal,
  limit: number,
): Promise<{ readonly answer: SignalAnswer; readonly unread: number }> {
  const [row] = await session.rows<{ state: number; known: boolean; kept: boolean; unread: number }>(SEND, [
    job,
    id,
    name,
    payload,
    limit,
  ]);
  if (!row) return { answer: { is: "missing" }, unread: 0 };
  const { state, known, kept, unread } = row;
  if (kept) return { answer: { is: "kept" }, unread };
  if (known) return { answer: { is: "repeated" }, unread };
  if (state >= STATE.succeeded) return { answer: { is: "ended", state: JOB_STATES[state]! }, unread };
  // If not full, another session has kept a signal with this id since the statement began.
  return { answer: { is: unread >= limit ? "full" : "repeated" }, unread };
}

// ---- what those who wait for a result read

export async function outcomes(session: Session, ids: readonly string[]): Promise<JobOutcome[]> {
  const rows = await session.rows<OutcomeColumns>(
    `SELECT j.id, j.state, j.result, j.error
     FROM (SELECT DISTINCT u.id FROM unnest($1::text[]) AS u (id)) u JOIN outlive.job_ids i ON i.id = u.id JOIN outlive.jobs j ON j.seq = i.seq`,
    [texts(ids)],
  );
  return jobOutcomes(ids, rows);
}
