// Retention, and the fold of the counts. Candidates are found by reads; only what goes is written.
import type { PurgeRequest } from "../../core/store.ts";
import { list, type Session, texts } from "./connection.ts";
import { STATE } from "../codes.ts";

interface Candidate {
  readonly seq: number;
  readonly state: number;
  readonly finished_at: number;
}

export interface PurgeCandidates {
  readonly jobs: readonly Candidate[];
  readonly incidents: readonly string[];
  readonly more: boolean;
}

const WALK = `SELECT seq, state, finished_at, created_at >= now - $3 AS young, finished_at < now - $3 AS old FROM (SELECT outlive.now_ms() AS now) AS clock, outlive.jobs
  WHERE seq > $1 ORDER BY seq LIMIT $2`;

// Retried since it was read: then it is not finished any more, or finished again just now.
const DELETE_JOBS = `WITH gone AS (
    DELETE FROM outlive.jobs j USING unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS c (seq, state, finished_at)
    WHERE j.seq = c.seq AND j.state = c.state AND j.finished_at = c.finished_at RETURNING j.seq, j.id, j.kind),
  counted AS (INSERT INTO outlive.kind_deltas (kind, jobs) SELECT kind, -count(*) FROM gone GROUP BY kind),
  ids AS (DELETE FROM outlive.job_ids i USING gone WHERE i.id = gone.id),
  steps AS (DELETE FROM outlive.steps s USING gone WHERE s.job = gone.seq),
  history AS (DELETE FROM outlive.history h USING gone WHERE h.job = gone.seq),
  logs AS (DELETE FROM outlive.logs l USING gone WHERE l.job = gone.seq)
  SELECT count(*) AS jobs FROM gone`;

const DELETE_INCIDENTS = `WITH gone AS (DELETE FROM outlive.incidents WHERE id = ANY ($1::text[]) RETURNING id)
  DELETE FROM outlive.incident_jobs j USING gone WHERE j.incident = gone.id`;

const DELETE_WORKERS = `DELETE FROM outlive.fleet w WHERE state IN ('gone', 'stopped') AND heartbeat_at < (SELECT outlive.now_ms()) - $1
  AND NOT EXISTS (SELECT 1 FROM outlive.jobs WHERE worker = w.seq AND state = 1)`;

// Only one folds at a time, and what others add meanwhile stays for the next fold.
const FOLD = `WITH folded AS (DELETE FROM outlive.kind_deltas RETURNING kind, jobs)
  UPDATE outlive.kinds k SET jobs = k.jobs + d.jobs FROM (SELECT kind, sum(jobs)::bigint AS jobs FROM folded GROUP BY kind) d WHERE k.id = d.kind`;

export class Purging {
  /** Where the walk over old jobs goes on. */
  #cursor = 0;

  /** Jobs are numbered in the order in which they came, so the walk ends at the first that is too young to have finished long ago. */
  async candidates(session: Session, request: PurgeRequest): Promise<PurgeCandidates> {
    const { finishedOlderThanMs, incidentsOlderThanMs, limit } = request;
    const rows = await session.rows<Candidate & { young: boolean; old: boolean }>(WALK, [
      this.#cursor,
      limit,
      finishedOlderThanMs,
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

  /** Inside a transaction. */
  async delete(
    session: Session,
    { jobs, incidents }: PurgeCandidates,
    request: PurgeRequest,
  ): Promise<{ jobs: number; incidents: number }> {
    let gone = 0;
    if (jobs.length > 0) {
      const [row] = await session.rows<{ jobs: number }>(DELETE_JOBS, [
        list(jobs.map(({ seq }) => seq)),
        list(jobs.map(({ state }) => state)),
        list(jobs.map(({ finished_at }) => finished_at)),
      ]);
      gone = row!.jobs;
    }
    if (incidents.length > 0) await session.run(DELETE_INCIDENTS, [texts(incidents)]);
    await session.run(DELETE_WORKERS, [request.incidentsOlderThanMs]);
    return { jobs: gone, incidents: incidents.length };
  }

  /** Brings the counts of kinds together. By itself, so that it holds the rows of kinds for a moment only. */
  async fold(session: Session): Promise<void> {
    await session.run(FOLD);
  }
}
