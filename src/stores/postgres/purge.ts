// Retention, removal by hand, and the fold of the counts. Candidates are found by reads; only what goes is written.
import { toStoredError } from "../../job/errors.ts";
import type { PurgeAnswer, PurgeRequest } from "../port.ts";
import { TERMINAL_STATES } from "../../job/job.ts";
import { retentionMs, shortestRetention, STATE } from "../rows.ts";
import { purgeAudit } from "./audit.ts";
import { type Connection } from "./connection.ts";
import { NOT_PAUSED } from "./enqueue.ts";
import { IDLE_KEY } from "./keys.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";
import { sqlState } from "./errors.ts";

export interface EndedJob {
  readonly seq: number;
  readonly state: number;
  readonly finished_at: number;
}

interface Candidate extends EndedJob {
  readonly id: string;
}

export interface PurgeCandidates {
  readonly jobs: readonly Candidate[];
  readonly incidents: readonly string[];
  readonly more: boolean;
}

// A child stays while its parent is unfinished, which may still ask for its result; a job with events, until they have become a job; a block, until its batch goes.
const WALK = `SELECT seq, id, j.state, finished_at, created_at >= now - $4 AS young,
    finished_at < now - coalesce(own.ms, $3) AND NOT (extras AND EXISTS (SELECT 1 FROM outlive.extras e JOIN outlive.jobs p ON p.seq = e.parent
      WHERE e.job = j.seq AND p.state < ${STATE.succeeded})) AND NOT (extras AND EXISTS (SELECT 1 FROM outlive.reruns r WHERE r.job = j.seq))
      AND NOT (extras AND EXISTS (SELECT 1 FROM outlive.blocks b WHERE b.job = j.seq)) AS old
  FROM (SELECT outlive.now_ms() AS now) AS clock, outlive.jobs j
  LEFT JOIN unnest($5::int[], $6::smallint[], $7::bigint[]) AS own (kind, state, ms) ON own.kind = j.kind AND own.state = j.state
  WHERE seq > $1 ORDER BY seq LIMIT $2`;

// Retried since it was read: then it is not finished any more, or has just finished again.
const DELETE_JOBS = `WITH gone AS (
    DELETE FROM outlive.jobs j USING unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS c (seq, state, finished_at)
    WHERE j.seq = c.seq AND j.state = c.state AND j.finished_at = c.finished_at RETURNING j.seq, j.id, j.kind),
  counted AS (INSERT INTO outlive.kind_deltas (kind, jobs) SELECT kind, -count(*) FROM gone GROUP BY kind),
  ids AS (DELETE FROM outlive.job_ids i USING gone WHERE i.id = gone.id),
  steps AS (DELETE FROM outlive.steps s USING gone WHERE s.job = gone.seq),
  history AS (DELETE FROM outlive.history h USING gone WHERE h.job = gone.seq),
  logs AS (DELETE FROM outlive.logs l USING gone WHERE l.job = gone.seq),
  extras AS (DELETE FROM outlive.extras e USING gone WHERE e.job = gone.seq),
  traces AS (DELETE FROM outlive.traces t USING gone WHERE t.job = gone.id),
  waits AS (DELETE FROM outlive.waits w USING gone WHERE w.job = gone.seq),
  signals AS (DELETE FROM outlive.signals s USING gone WHERE s.job = gone.seq),
  awaited AS (DELETE FROM outlive.awaits a USING gone WHERE a.job = gone.seq),
  awaits AS (DELETE FROM outlive.awaits a USING gone WHERE a.waiter = gone.seq),
  -- One that is due stays until the children are cancelled, also without the row of their parent.
  families AS (DELETE FROM outlive.family_cancels f USING gone WHERE f.job = gone.seq AND NOT f.due)
  SELECT count(*) AS jobs FROM gone`;

const DELETE_INCIDENTS = `WITH gone AS (DELETE FROM outlive.incidents WHERE id = ANY ($1::text[]) RETURNING id)
  DELETE FROM outlive.incident_jobs j USING gone WHERE j.incident = gone.id`;

const DELETE_WORKERS = `DELETE FROM outlive.fleet w WHERE state IN ('gone', 'stopped') AND heartbeat_at < (SELECT outlive.now_ms()) - $1
  AND NOT EXISTS (SELECT 1 FROM outlive.jobs WHERE worker = w.seq AND state = 1)`;

// Of enqueues that added no job, because another one had the dedupe key.
const DELETE_TRACES = `DELETE FROM outlive.traces t WHERE t.job IN (SELECT o.job FROM outlive.traces o WHERE o.at < (SELECT outlive.now_ms()) - $1
    AND NOT EXISTS (SELECT 1 FROM outlive.job_ids i WHERE i.id = o.job) ORDER BY o.at LIMIT $2)`;

// A piece of all keys at a time: the ids that were looked at, and of these the idle ones.
const WALK_KEYS = `SELECT k.id, ${IDLE_KEY} AS idle FROM outlive.keys k WHERE k.id > $1 ORDER BY k.id LIMIT $2`;
const DELETE_KEYS = `DELETE FROM outlive.keys k WHERE k.id = ANY ($1::bigint[]) AND ${IDLE_KEY}`;

// Only one folds at a time, and what others add meanwhile stays for the next fold.
const FOLD = `WITH folded AS (DELETE FROM outlive.kind_deltas RETURNING kind, jobs)
  UPDATE outlive.kinds k SET jobs = k.jobs + d.jobs FROM (SELECT kind, sum(jobs)::bigint AS jobs FROM folded GROUP BY kind) d WHERE k.id = d.kind`;

/** Deltas are folded at the end of a purge, and after this many batches: a long one adds them all the while. */
const FOLD_EVERY = 20;

/** At most this many jobs that can't be deleted are searched for in one batch; the rest of it is left for the next sweep. */
const MAX_REFUSED = 10;

export class Purging {
  /** Where the walk over old jobs goes on. */
  #cursor = 0;
  #keyCursor = 0;
  #batches = 0;

  /** One batch: what can go goes. */
  async purge(connection: Connection, request: PurgeRequest): Promise<PurgeAnswer> {
    const { jobs, incidents, more } = await this.#candidates(connection, request);
    const answer = await deleteJobs(connection, jobs);
    await connection.maintain(async (tx) => {
      if (incidents.length > 0) await tx.run(DELETE_INCIDENTS, [texts(incidents)]);
      await tx.run(DELETE_WORKERS, [request.incidentsOlderThanMs]);
      await tx.run(`UPDATE outlive.kinds SET ${NOT_PAUSED} WHERE paused AND paused_until <= outlive.now_ms()`);
      await purgeAudit(tx, request.incidentsOlderThanMs, request.limit);
      await tx.run(DELETE_TRACES, [request.finishedOlderThanMs, request.limit]);
      await this.#purgeKeys(tx, request.limit);
    });
    // Brings the counts of kinds together, in its own transaction, so that it holds the rows of kinds for a moment only.
    if (!more || ++this.#batches % FOLD_EVERY === 0) await connection.maintain((tx) => tx.run(FOLD));
    return { ...answer, incidents: incidents.length, more };
  }

  async #purgeKeys(tx: Session, limit: number): Promise<void> {
    const keys = await tx.rows<{ id: number; idle: boolean }>(WALK_KEYS, [this.#keyCursor, limit]);
    this.#keyCursor = keys.length < limit ? 0 : keys.at(-1)!.id;
    const idle = keys.filter((key) => key.idle).map(({ id }) => id);
    if (idle.length > 0) await tx.run(DELETE_KEYS, [list(idle)]);
  }

  /** Jobs are numbered in the order in which they came, so the walk ends at the first that is too young to have finished long ago. */
  async #candidates(session: Session, request: PurgeRequest): Promise<PurgeCandidates> {
    const { finishedOlderThanMs, incidentsOlderThanMs, limit } = request;
    const kinds = await session.rows<{ id: number; retention: string }>(
      "SELECT id, retention FROM outlive.kinds WHERE retention IS NOT NULL",
    );
    const own = kinds.flatMap(({ id, retention }) =>
      TERMINAL_STATES.map((state) => ({ id, state: STATE[state], retention })),
    );
    const rows = await session.rows<Candidate & { young: boolean; old: boolean }>(WALK, [
      this.#cursor,
      limit,
      finishedOlderThanMs,
      shortestRetention(
        kinds.map(({ retention }) => retention),
        finishedOlderThanMs,
      ),
      list(own.map(({ id }) => id)),
      list(own.map(({ state }) => state)),
      list(own.map(({ retention, state }) => retentionMs(retention, state, finishedOlderThanMs))),
    ]);
    const last = rows.at(-1);
    const atEnd = rows.length < limit || last!.young;
    this.#cursor = atEnd ? 0 : last!.seq;
    const incidents = await session.rows<{ id: string }>(
      "SELECT id FROM outlive.incidents WHERE completed_at < (SELECT outlive.now_ms()) - $1 ORDER BY id LIMIT $2",
      [incidentsOlderThanMs, limit],
    );
    return {
      jobs: rows.filter(({ state, old }) => state >= STATE.succeeded && old),
      incidents: incidents.map(({ id }) => id),
      more: !atEnd || incidents.length === limit,
    };
  }
}

/**
 * All of them in one transaction. If the database refuses, because a row of the user's refers to one of them for instance, each
 * half in its own, down to the jobs that can't be deleted.
 */
async function deleteJobs(
  connection: Connection,
  jobs: readonly Candidate[],
): Promise<Pick<PurgeAnswer, "jobs" | "refused">> {
  let gone = 0;
  const refused: { readonly jobId: string; readonly thrown: unknown }[] = [];
  const waiting = jobs.length > 0 ? [jobs] : [];
  while (waiting.length > 0 && refused.length < MAX_REFUSED) {
    const part = waiting.pop()!;
    try {
      gone += await connection.maintain((tx) => deleteTogether(tx, part));
    } catch (thrown) {
      if (!isRefusal(thrown)) throw thrown;
      if (part.length === 1) refused.push({ jobId: part[0]!.id, thrown });
      else {
        const half = Math.ceil(part.length / 2);
        waiting.push(part.slice(half), part.slice(0, half));
      }
    }
  }
  const [first] = refused;
  if (!first) return { jobs: gone };
  return { jobs: gone, refused: { jobs: refused.length, jobId: first.jobId, error: toStoredError(first.thrown) } };
}

// An incident says that a job was in flight, and no more about this one. What comes after it by its dedupe key has its contents, and goes with it.
const REMOVE = `WITH occurrences AS (DELETE FROM outlive.occurrences WHERE job = ANY ($2::text[])),
  reruns AS (DELETE FROM outlive.reruns WHERE job = ANY ($1::bigint[])),
  traces AS (DELETE FROM outlive.traces WHERE job = ANY ($2::text[])),
  reports AS (UPDATE outlive.incident_jobs SET last_step = NULL, error = NULL WHERE job = ANY ($1::bigint[]))
  SELECT j.seq, j.state, j.finished_at, EXISTS (SELECT 1 FROM outlive.extras e JOIN outlive.jobs p ON p.seq = e.parent
    WHERE e.job = j.seq AND p.state < ${STATE.succeeded}) AS is_child FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[])`;
const EMPTY = `WITH steps AS (DELETE FROM outlive.steps WHERE job = ANY ($1::bigint[])),
  history AS (DELETE FROM outlive.history WHERE job = ANY ($1::bigint[])),
  logs AS (DELETE FROM outlive.logs WHERE job = ANY ($1::bigint[])),
  signals AS (DELETE FROM outlive.signals WHERE job = ANY ($1::bigint[]))
  UPDATE outlive.jobs j SET input = 'null', input_sum = ${checksumSql("'null'", "j.id")}, result = NULL, result_sum = NULL, progress = NULL, dedupe_key = NULL
  WHERE j.seq = ANY ($1::bigint[])`;

/** Jobs that have ended in this transaction, or before. As long as the parent of one is unfinished, its row stays, without contents. */
export async function removeJobs(
  session: Session,
  jobs: readonly { readonly seq: number; readonly id: string }[],
): Promise<void> {
  if (jobs.length === 0) return;
  const ended = await session.rows<EndedJob & { is_child: boolean }>(REMOVE, [
    list(jobs.map(({ seq }) => seq)),
    texts(jobs.map(({ id }) => id)),
  ]);
  const children = ended.filter((job) => job.is_child);
  if (children.length > 0) await session.run(EMPTY, [list(children.map(({ seq }) => seq))]);
  await deleteTogether(
    session,
    ended.filter((job) => !job.is_child),
  );
}

/** Inside a transaction. Jobs that have changed since they were read stay. */
export async function deleteTogether(session: Session, jobs: readonly EndedJob[]): Promise<number> {
  const [row] = await session.rows<{ jobs: number }>(DELETE_JOBS, [
    list(jobs.map(({ seq }) => seq)),
    list(jobs.map(({ state }) => state)),
    list(jobs.map(({ finished_at }) => finished_at)),
  ]);
  return row!.jobs;
}

/** A constraint or a trigger of the user's refused it; the session is still usable. */
export function isRefusal(thrown: unknown): boolean {
  return /^(23|P0)/.test(sqlState(thrown) ?? "");
}
