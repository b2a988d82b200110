// Retention. Candidates are found by reads; only what goes is written, for a moment at a time: this is synchronous, and others wait
// for the write lock. The job with the highest number stays, so that a number is never given twice and an old lease can't name a
// new job. Or it is removed by hand.
import { toStoredError } from "../../job/errors.ts";
import type { PurgeAnswer, PurgeRequest } from "../port.ts";
import { retentionMs, shortestRetention, STATE } from "../rows.ts";
import { hasOldAudit, purgeAudit } from "./audit.ts";
import { checksumOf } from "./checksums.ts";
import { type Database, wholly } from "./database.ts";
import type { Kinds } from "./enqueue.ts";
import { primaryCode, SQLITE_CONSTRAINT } from "./errors.ts";
import { IDLE_KEY } from "./keys.ts";
import { forgetWaits } from "./waits.ts";

interface Candidate {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly finished_at: number;
  readonly extras: number;
}

export interface PurgeCandidates {
  /** Of what was read, in its order, the jobs to be deleted. */
  readonly jobs: readonly Candidate[];
  readonly incidents: readonly string[];
  /** Keys that are as if they had no row. */
  readonly keys: readonly number[];
  /** Whether anything is to be deleted, old rows of workers included. */
  readonly any: boolean;
  readonly more: boolean;
}

const OLD_WORKERS = `outlive_workers WHERE state IN ('gone', 'stopped') AND heartbeat_at < ?
  AND NOT EXISTS (SELECT 1 FROM outlive_jobs WHERE worker = outlive_workers.seq AND state = 1)`;

const UNFINISHED_PARENT = `SELECT 1 FROM outlive_extras e JOIN outlive_jobs p ON p.seq = e.parent WHERE e.job = ? AND p.state < ${STATE.succeeded}`;

const FIRST_RUN = 8;
const LONGEST_RUN = 256;
// One that was retried since it was read is unfinished, or has just finished.
const DELETE_RUN = `DELETE FROM outlive_jobs NOT INDEXED WHERE seq BETWEEN ? AND ? AND state >= ${STATE.succeeded} AND finished_at <= ?`;

const BLOCK = "SELECT 1 FROM outlive_blocks WHERE job = ?";
const RERUN = "SELECT 1 FROM outlive_reruns WHERE job = ?";

export class Purging {
  readonly #db: Database;
  readonly #kinds: Kinds;
  /** Where the walk over old jobs goes on. */
  #cursor = 0;
  #keyCursor = 0;

  constructor(db: Database, kinds: Kinds) {
    this.#db = db;
    this.#kinds = kinds;
  }

  /** Jobs are numbered in the order in which they came, so the walk ends at the first that is too young to have finished long ago. */
  candidates(request: PurgeRequest, now: number): PurgeCandidates {
    const retention = this.#retention();
    const keptMs = ({ kind, state }: Candidate): number =>
      retentionMs(retention.get(kind) ?? null, state, request.finishedOlderThanMs);
    const youngest = now - shortestRetention([...retention.values()], request.finishedOlderThanMs);
    const rows = this.#db
      .sql(
        "SELECT seq, state, kind, created_at, finished_at, extras FROM outlive_jobs WHERE seq > ? AND seq < (SELECT max(seq) FROM outlive_jobs) ORDER BY seq LIMIT ?",
      )
      .all(this.#cursor, request.limit) as unknown as (Candidate & {
      created_at: number;
    })[];
    const jobs = rows.filter(
      (row) => row.state >= STATE.succeeded && row.finished_at < now - keptMs(row) && !this.#isAwaited(row),
    );
    const last = rows.at(-1);
    const atEnd = rows.length < request.limit || last!.created_at >= youngest;
    this.#cursor = atEnd ? 0 : last!.seq;
    const incidents = this.#db
      .sql("SELECT id FROM outlive_incidents WHERE completed_at < ? ORDER BY id LIMIT ?")
      .all(now - request.incidentsOlderThanMs, request.limit) as { id: string }[];
    const workers = this.#db.sql(`SELECT 1 FROM ${OLD_WORKERS} LIMIT 1`).get(now - request.incidentsOlderThanMs);
    const audit = hasOldAudit(this.#db, now - request.incidentsOlderThanMs);
    const keys = this.#idleKeys(request.limit, now);
    return {
      jobs,
      incidents: incidents.map(({ id }) => id),
      keys,
      any: jobs.length > 0 || incidents.length > 0 || keys.length > 0 || audit || workers !== undefined,
      more: !atEnd || incidents.length === request.limit,
    };
  }

  /** Of the kinds that have one of their own. */
  #retention(): ReadonlyMap<number, string> {
    const rows = this.#db.sql("SELECT id, retention FROM outlive_kinds WHERE retention IS NOT NULL").all() as {
      id: number;
      retention: string;
    }[];
    return new Map(rows.map(({ id, retention }) => [id, retention]));
  }

  /** A piece of all keys at a time. */
  #idleKeys(limit: number, now: number): readonly number[] {
    const rows = this.#db
      .sql(`SELECT id, ${IDLE_KEY} AS idle FROM outlive_keys WHERE id > ?2 ORDER BY id LIMIT ?3 + 0`)
      .all(now, this.#keyCursor, limit) as { id: number; idle: number }[];
    this.#keyCursor = rows.length < limit ? 0 : rows.at(-1)!.id;
    return rows.filter(({ idle }) => idle === 1).map(({ id }) => id);
  }

  /**
   * Its parent has not ended, and may still ask for its result; or no turn has made a job of the event that waits for its end; or it is a block,
   * which goes with its batch.
   */
  #isAwaited({ seq, extras }: Candidate): boolean {
    if (extras !== 1) return false;
    return [UNFINISHED_PARENT, RERUN, BLOCK].some((reason) => this.#db.sql(reason).get(seq) !== undefined);
  }

  /** Inside a transaction. `late`: it has taken long enough, the rest comes with the next call. */
  delete(
    { jobs, incidents, keys, more }: PurgeCandidates,
    request: PurgeRequest,
    now: number,
    late: () => boolean,
  ): PurgeAnswer {
    let gone = 0;
    let refused: PurgeAnswer["refused"];
    // Up to here one by one: a run could not be deleted as a whole.
    let apart = 0;
    // Runs grow while there is time: jobs may be large, or deleted slowly.
    let most = FIRST_RUN;
    for (let at = 0; at < jobs.length;) {
      if (late()) {
        // Before this one: the walk goes on here.
        this.#cursor = jobs[at]!.seq - 1;
        return { jobs: gone, incidents: 0, more: true, ...(refused && { refused }) };
      }
      const run = at < apart ? jobs.slice(at, at + 1) : runAt(jobs, at, most);
      const together = run.length > 1 && this.#deleteRun(run);
      if (together) {
        gone += run.length;
        at += run.length;
        most = Math.min(most * 2, LONGEST_RUN);
        continue;
      }
      apart = Math.max(apart, at + run.length);
      const deleted = this.deleteJob(jobs[at++]!);
      if (deleted === true) gone++;
      else if (deleted) refused = { ...(refused ?? deleted), jobs: (refused?.jobs ?? 0) + 1 };
    }
    let incidentCount = 0;
    for (const id of incidents) {
      if (late()) break;
      this.#db.sql("DELETE FROM outlive_incident_jobs WHERE incident = ?").run(id);
      this.#db.sql("DELETE FROM outlive_incidents WHERE id = ?").run(id);
      incidentCount++;
    }
    if (keys.length > 0)
      this.#db
        .sql(`DELETE FROM outlive_keys WHERE id IN (SELECT value FROM json_each(?2)) AND ${IDLE_KEY}`)
        .run(now, JSON.stringify(keys));
    this.#db.sql(`DELETE FROM ${OLD_WORKERS}`).run(now - request.incidentsOlderThanMs);
    purgeAudit(this.#db, now - request.incidentsOlderThanMs, request.limit);
    const left = incidentCount < incidents.length;
    return { jobs: gone, incidents: incidentCount, more: more || left, ...(refused && { refused }) };
  }

  /** False: it was retried since it was read, and is not finished any more, or has just finished again. */
  deleteJob(job: Omit<Candidate, "extras">): boolean | NonNullable<PurgeAnswer["refused"]> {
    const { seq, state, kind, finished_at } = job;
    try {
      const { changes } = this.#db
        .sql("DELETE FROM outlive_jobs WHERE seq = ? AND state = ? AND finished_at = ?")
        .run(seq, state, finished_at);
      if (changes === 0) return false;
    } catch (thrown) {
      if (primaryCode(thrown) !== SQLITE_CONSTRAINT) throw thrown;
      return this.#refusal(job, thrown);
    }
    this.#kinds.countJobs(kind, -1);
    this.#forget(seq);
    return true;
  }

  /** Neighbours, all or none. False: one was retried since they were read, or a row of the user's refers to one, and nothing is deleted. */
  #deleteRun(run: readonly Candidate[]): boolean {
    const first = run[0]!.seq;
    const last = run.at(-1)!.seq;
    const latest = Math.max(...run.map(({ finished_at }) => finished_at));
    try {
      if (!wholly(this.#db, () => this.#db.sql(DELETE_RUN).run(first, last, latest).changes === run.length))
        return false;
    } catch (thrown) {
      if (primaryCode(thrown) !== SQLITE_CONSTRAINT || !this.#db.inTransaction) throw thrown;
      return false;
    }
    const counts = new Map<number, number>();
    for (const { kind } of run) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    for (const [kind, count] of counts) this.#kinds.countJobs(kind, -count);
    this.#forget(first, last);
    return true;
  }

  #forget(first: number, last = first): void {
    forgetWaits(this.#db, first, last);
    this.#forgetContents(first, last);
  }

  #forgetContents(first: number, last = first): void {
    for (const table of ["outlive_steps", "outlive_history", "outlive_logs", "outlive_signals", "outlive_traces"])
      this.#db.sql(`DELETE FROM ${table} WHERE job BETWEEN ? AND ?`).run(first, last);
  }

  /**
   * Of a job that has ended. As long as its parent is unfinished, its row stays, without contents. If it has the highest number and was ever claimed, an empty row
   * of no kind keeps the number, so no read shows it: a lease of one of its attempts must not fit a new job. Retention deletes both like any other.
   */
  removeJob(seq: number, id: string, kind: number, fence: number): void {
    const isChild = this.#db.sql(UNFINISHED_PARENT).get(seq) !== undefined;
    const isLast = (): boolean =>
      fence > 0 && this.#db.sql("SELECT 1 FROM outlive_jobs WHERE seq > ? LIMIT 1").get(seq) === undefined;
    if (isChild) this.#empty(seq, id, kind);
    else if (isLast()) {
      this.#empty(seq, `removed ${seq}`, 0);
      this.#db.sql("UPDATE outlive_jobs SET extras = 0 WHERE seq = ?").run(seq);
    } else this.#db.sql("DELETE FROM outlive_jobs WHERE seq = ?").run(seq);
    if (!isChild) this.#kinds.countJobs(kind, -1);
    if (isChild) this.#forgetContents(seq);
    else this.#forget(seq);
    this.#db.sql("DELETE FROM outlive_awaits WHERE waiter = ?").run(seq);
    this.#db.sql("DELETE FROM outlive_occurrences WHERE job = ?").run(id);
    // An incident says that a job was in flight, and no more about this one.
    this.#db.sql("UPDATE outlive_incident_jobs SET last_step = NULL, error = NULL WHERE job = ?").run(seq);
  }

  #empty(seq: number, id: string, kind: number): void {
    this.#db
      .sql(
        "UPDATE outlive_jobs SET id = ?, kind = ?, input = 'null', input_sum = ?, result = NULL, result_sum = NULL, progress = NULL, dedupe_key = NULL WHERE seq = ?",
      )
      .run(id, kind, checksumOf("null", id), seq);
  }

  /** A row of the user's refers to it. The statement that failed has changed nothing, and the transaction goes on. */
  #refusal({ seq }: Pick<Candidate, "seq">, thrown: unknown): NonNullable<PurgeAnswer["refused"]> {
    const row = this.#db.sql("SELECT id FROM outlive_jobs WHERE seq = ?").get(seq) as { id: string };
    return { jobs: 1, jobId: row.id, error: toStoredError(thrown) };
  }
}

/** The neighbours that begin with this job, `max` at most. */
function runAt(jobs: readonly Candidate[], from: number, max: number): readonly Candidate[] {
  let end = from + 1;
  while (end < jobs.length && end - from < max && jobs[end]!.seq === jobs[end - 1]!.seq + 1) end++;
  return jobs.slice(from, end);
}
