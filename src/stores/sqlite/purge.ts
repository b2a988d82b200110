// Retention. Candidates are found by reads; only what goes is written. The job with the highest number stays, so that a number
// is never given twice and an old lease can't name a new job.
import type { PurgeRequest } from "../../core/store.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./kinds.ts";
import { STATE } from "../codes.ts";

interface Candidate {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly finished_at: number;
}

export interface PurgeCandidates {
  readonly jobs: readonly Candidate[];
  readonly incidents: readonly string[];
  /** Whether anything is to be deleted, old rows of workers included. */
  readonly any: boolean;
  readonly more: boolean;
}

const OLD_WORKERS = `outlive_workers WHERE state IN ('gone', 'stopped') AND heartbeat_at < ?
  AND NOT EXISTS (SELECT 1 FROM outlive_jobs WHERE worker = outlive_workers.seq AND state = 1)`;

export class Purging {
  readonly #db: Database;
  readonly #kinds: Kinds;
  /** Where the walk over old jobs goes on. */
  #cursor = 0;

  constructor(db: Database, kinds: Kinds) {
    this.#db = db;
    this.#kinds = kinds;
  }

  /** Jobs are numbered in the order in which they came, so the walk ends at the first that is too young to have finished long ago. */
  candidates(request: PurgeRequest, now: number): PurgeCandidates {
    const before = now - request.finishedOlderThanMs;
    const rows = this.#db
      .sql(
        "SELECT seq, state, kind, created_at, finished_at FROM outlive_jobs WHERE seq > ? AND seq < (SELECT max(seq) FROM outlive_jobs) ORDER BY seq LIMIT ?",
      )
      .all(this.#cursor, request.limit) as unknown as (Candidate & {
      created_at: number;
    })[];
    const jobs = rows.filter((row) => row.state >= STATE.succeeded && row.finished_at < before);
    const last = rows.at(-1);
    const atEnd = rows.length < request.limit || last!.created_at >= before;
    this.#cursor = atEnd ? 0 : last!.seq;
    const incidents = this.#db
      .sql("SELECT id FROM outlive_incidents WHERE completed_at < ? ORDER BY id LIMIT ?")
      .all(now - request.incidentsOlderThanMs, request.limit) as { id: string }[];
    const workers = this.#db.sql(`SELECT 1 FROM ${OLD_WORKERS} LIMIT 1`).get(now - request.incidentsOlderThanMs);
    return {
      jobs,
      incidents: incidents.map(({ id }) => id),
      any: jobs.length > 0 || incidents.length > 0 || workers !== undefined,
      more: !atEnd || incidents.length === request.limit,
    };
  }

  /** Inside a transaction. */
  delete(
    jobs: readonly Candidate[],
    incidents: readonly string[],
    request: PurgeRequest,
    now: number,
  ): { jobs: number; incidents: number } {
    let gone = 0;
    for (const job of jobs) {
      // Retried since it was read: then it is not finished any more, or finished again just now.
      const { changes } = this.#db
        .sql("DELETE FROM outlive_jobs WHERE seq = ? AND state = ? AND finished_at = ?")
        .run(job.seq, job.state, job.finished_at);
      if (changes === 0) continue;
      gone++;
      this.#kinds.countJobs(job.kind, -1);
      for (const table of ["outlive_steps", "outlive_history", "outlive_logs"])
        this.#db.sql(`DELETE FROM ${table} WHERE job = ?`).run(job.seq);
    }
    for (const id of incidents) {
      this.#db.sql("DELETE FROM outlive_incident_jobs WHERE incident = ?").run(id);
      this.#db.sql("DELETE FROM outlive_incidents WHERE id = ?").run(id);
    }
    this.#db.sql(`DELETE FROM ${OLD_WORKERS}`).run(now - request.incidentsOlderThanMs);
    return { jobs: gone, incidents: incidents.length };
  }
}
