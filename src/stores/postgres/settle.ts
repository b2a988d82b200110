// Settles attempts, and finds out why a fenced write was refused. Successes are one statement (claim.ts has its own, which also claims).
// All other settlements are one guarded statement too, plus one for the jobs that were cancelled in the meantime.
import { BACKGROUND_MS } from "../../job/isolation.ts";
import { JOB_STATES } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import type { Change } from "../../job/transitions.ts";
import { APPLIED, REPEATED, type Settlement, type Stale, type WriteAnswer } from "../port.ts";
import { LANE, NEVER_DUE, NO_TIMEOUT, OUTCOME, type SettledColumns, STATE, succeededBy } from "../rows.ts";
import { returnStarts } from "./admission.ts";
import { endRows, rowsBeforeSuccess } from "./blocks.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";
import { insertFollowing, type Kinds } from "./enqueue.ts";
import { registered } from "./restore-mark.ts";
import { beginWaits } from "./waits.ts";
import type { Workers } from "./workers.ts";

/**
 * The guard of every fenced write: this attempt, and only while it runs. `a` has the columns seq, fence, epoch and worker. `+ 0` keeps the
 * planner off the index of running jobs, which it believes to be empty: with that index, each settled job reads all jobs of its worker, and
 * a turn takes 2.5 times as long.
 */
export const OWNED =
  "j.seq = a.seq AND j.state + 0 = 1 AND j.fence = a.fence AND j.epoch = a.epoch AND j.worker + 0 = a.worker";
/** The same for one attempt, the first four parameters being seq, fence, epoch and worker. */
export const THIS_ATTEMPT =
  "j.seq = $1::bigint AND j.state + 0 = 1 AND j.fence = $2::int AND j.epoch = $3::bigint AND j.worker + 0 = $4::bigint";
/** The same for attempts of several workers. A worker is identified by its number and its id. */
const OWNED_BY_EACH = `${OWNED} AND ${registered("a.worker", "a.worker_id")}`;

/** Every statement that writes a result also writes its checksum; null for null. */
export const RESULT_SUM = (result: string): string => `result_sum = ${checksumSql(result, "j.id")}`;

const SUCCEED = `UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = outlive.now_ms(), result = a.result, ${RESULT_SUM("a.result")}
  FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[]) AS a (seq, fence, epoch, worker, worker_id, result)
  WHERE ${OWNED_BY_EACH} RETURNING j.seq`;

/** Locks the jobs that these attempts still own. */
export const LOCK_OWNED = `SELECT j.seq
  FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::text[]) AS a (seq, fence, epoch, worker, worker_id)
  JOIN outlive.jobs j ON ${OWNED_BY_EACH} ORDER BY j.seq FOR UPDATE OF j`;

/** At most this many refused writes are kept in a job's history: a zombie that writes in a loop must not fill the disk. */
const MAX_REJECTIONS = 100;

export class Settling {
  readonly #kinds: Kinds;
  readonly #workers: Workers;

  constructor(kinds: Kinds, workers: Workers) {
    this.#kinds = kinds;
    this.#workers = workers;
  }

  /**
   * Inside a transaction. Each settlement is applied or refused on its own. Follow-up jobs are enqueued after the last one: by then the
   * dedupe keys of the settled jobs are free.
   */
  async settle(session: Session, settlements: readonly Settlement[]): Promise<WriteAnswer[]> {
    const answers = new Map<Settlement, WriteAnswer>();
    const followed: Change[] = [];
    for (const round of rounds(settlements)) {
      const successes = round.filter(({ change }) => change.name === "succeed");
      const others = round.filter(({ change }) => change.name !== "succeed");
      const ended = others.length > 0 ? await this.#end(session, others) : NONE;
      const succeeded = new Set(successes.length > 0 ? await this.#succeed(session, successes) : []);
      for (const settlement of round) {
        const { lease, change } = settlement;
        const applied = succeeded.has(lease.row) ? change : ended.get(lease.row);
        if (applied?.follow !== undefined) followed.push(applied);
        answers.set(settlement, applied ? APPLIED : await this.refused(session, lease, change.name, change));
      }
    }
    if (followed.length > 0) await insertFollowing(session, this.#kinds, followed);
    return settlements.map((settlement) => answers.get(settlement)!);
  }

  /** The parameters of `LOCK_OWNED`: seq, fence, epoch, worker and worker_id, each an array. */
  async attempts(session: Session, leases: readonly Lease[]): Promise<string[]> {
    const { seqs, ids } = await this.#workersOf(session, leases);
    return [
      list(leases.map(({ row }) => row)),
      list(leases.map(({ fence }) => fence)),
      list(leases.map(({ epoch }) => epoch)),
      list(seqs),
      texts(ids),
    ];
  }

  async #workersOf(session: Session, leases: readonly Lease[]): Promise<Owners> {
    const seqs: number[] = [];
    for (const { worker } of leases)
      seqs.push(this.#workers.known(worker) ?? (await this.#workers.seqOf(session, worker)));
    return { seqs, ids: leases.map(({ worker }) => worker) };
  }

  async #succeed(session: Session, settlements: readonly Settlement[]): Promise<number[]> {
    const attempts = await this.attempts(
      session,
      settlements.map(({ lease }) => lease),
    );
    await this.#endRowsBefore(session, settlements);
    const results = texts(settlements.map(({ change }) => change.result));
    const rows = await session.rows<{ seq: number }>(SUCCEED, [...attempts, results]);
    return rows.map(({ seq }) => seq);
  }

  /** What rows of blocks leave behind, if the attempts still own the blocks. */
  async #endRowsBefore(session: Session, settlements: readonly Settlement[]): Promise<void> {
    const blocks = settlements.flatMap(({ lease, change }) => {
      const ends = rowsBeforeSuccess(change);
      return ends === null ? [] : [{ lease, job: lease.row, ends, withRest: true }];
    });
    if (blocks.length === 0) return;
    const attempts = await this.attempts(
      session,
      blocks.map(({ lease }) => lease),
    );
    const owned = new Set((await session.rows<{ seq: number }>(LOCK_OWNED, attempts)).map(({ seq }) => seq));
    await endRows(
      session,
      blocks.filter(({ job }) => owned.has(job)),
    );
  }

  async #end(session: Session, settlements: readonly Settlement[]): Promise<ReadonlyMap<number, Change>> {
    const workers = await this.#workersOf(
      session,
      settlements.map(({ lease }) => lease),
    );
    const ends = settlements.map(({ lease, change }): AppliedChange => {
      const { row: seq, epoch, fence, worker } = lease;
      return { seq, change, incident: null, epoch, fence, actor: `worker/${worker}` };
    });
    return applyChanges(session, ends, "running", workers);
  }

  /**
   * Why a fenced write changed nothing. If the same settlement of the same attempt was applied before (the reply was lost), it is
   * repeated. Otherwise it is stale, and the refusal goes into the job's history.
   */
  async refused(session: Session, lease: Lease, tried: string, change: Change | null = null): Promise<WriteAnswer> {
    const [row] = await session.rows<RefusedColumns>(
      `SELECT j.state, j.epoch, j.fence, j.outcome, w.id AS worker,
         (SELECT count(*) FROM outlive.history h WHERE h.job = j.seq AND h.event = 'write.rejected') AS rejections
       FROM outlive.jobs j LEFT JOIN outlive.fleet w ON w.seq = j.worker WHERE j.seq = $1 AND j.id = $2`,
      [lease.row, lease.jobId],
    );
    if (row && change?.outcome && (await acceptedBefore(session, lease, row, change))) return REPEATED;
    const stale: Stale = row
      ? { lease, tried, state: JOB_STATES[row.state]!, worker: row.worker, epoch: row.epoch, fence: row.fence }
      : { lease, tried, state: "missing", worker: null, epoch: 0, fence: 0 };
    if (row && row.rejections < MAX_REJECTIONS) {
      const reason = `refused: "${tried}" by worker ${lease.worker} with (epoch ${lease.epoch}, fence ${lease.fence})`;
      const { epoch, fence } = lease;
      const actor = `worker/${lease.worker}`;
      const history = { job: lease.row, event: "write.rejected", from: row.state, to: row.state, actor, epoch, fence };
      await insertHistory(session, [{ ...history, reason, incident: null }]);
    }
    return { is: "stale", stale };
  }
}

const NONE: ReadonlyMap<number, Change> = new Map();

interface RefusedColumns extends SettledColumns {
  readonly rejections: number;
}

async function acceptedBefore(session: Session, lease: Lease, row: RefusedColumns, change: Change): Promise<boolean> {
  if (change.name === "succeed") return succeededBy(lease, row) || (await wasRedriven(session, lease));
  // Every settlement but a success leaves a history row by its worker, which neither a newer attempt nor an operator removes.
  const found = await session.rows(
    "SELECT 1 FROM outlive.history WHERE job = $1 AND epoch = $2 AND fence = $3 AND actor = $4 AND event = $5 LIMIT 1",
    [lease.row, lease.epoch, lease.fence, `worker/${lease.worker}`, change.name],
  );
  return found.length > 0;
}

/** A success leaves no history row, but an operator's retry of the succeeded job leaves one that names the attempt. */
export async function wasRedriven(session: Session, { row, epoch, fence }: Lease): Promise<boolean> {
  const found = await session.rows(
    `SELECT 1 FROM outlive.history WHERE job = $1 AND epoch = $2 AND fence = $3 AND event = 'retry' AND from_state = ${STATE.succeeded} LIMIT 1`,
    [row, epoch, fence],
  );
  return found.length > 0;
}

/** A round has at most one settlement of each job, so that a second settlement finds what the first has written. */
function rounds(settlements: readonly Settlement[]): Settlement[][] {
  const all: { seqs: Set<number>; settlements: Settlement[] }[] = [];
  for (const settlement of settlements) {
    let round = all.find(({ seqs }) => !seqs.has(settlement.lease.row));
    if (!round) all.push((round = { seqs: new Set(), settlements: [] }));
    round.seqs.add(settlement.lease.row);
    round.settlements.push(settlement);
  }
  return all.map((round) => round.settlements);
}

/** One change of one row, and the columns of its history entry. */
export interface AppliedChange {
  readonly seq: number;
  readonly change: Change;
  readonly incident: string | null;
  readonly epoch: number;
  readonly fence: number;
  readonly actor: string;
}

/** The number and the id of each attempt's worker. */
interface Owners {
  readonly seqs: readonly number[];
  readonly ids: readonly string[];
}

const after = (counter: string): string => `greatest(0, j.${counter} * c.keeps + c.${counter})`;

// The lane follows from the counters as this statement finds them: a step may have reset them since the change was decided.
const apply = (
  owned: string,
): string => `UPDATE outlive.jobs j SET state = c.state, errors = ${after("errors")}, crashes = ${after("crashes")},
    blamed = ${after("blamed")}, timeouts = ${after("timeouts")}, interruptions = ${after("interruptions")}, losses = ${after("losses")},
    lane = coalesce(c.lane, CASE WHEN ${after("crashes")} + ${after("losses")} > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END),
    outcome = coalesce(c.outcome, j.outcome), run_at = coalesce(c.due_at, clock.now + c.delay_ms), finished_at = clock.now, result = NULL,
    result_sum = NULL, error = coalesce(c.error, j.error), cancel_requested = false, incident = c.incident,
    together = coalesce(c.together, j.together * c.keeps)
  FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::smallint[], $5::smallint[], $6::int[], $7::int[], $8::int[], $9::int[], $10::int[], $11::int[],
      $12::int[], $13::smallint[], $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::boolean[], $20::bigint[], $21::text[], $22::int[])
      AS c (seq, epoch, fence, state, lane, keeps, errors, crashes, blamed, timeouts, interruptions, losses, outcome, delay_ms, due_at, error, incident,
        yields, worker, worker_id, together),
    (SELECT outlive.now_ms() AS now) AS clock
  WHERE j.seq = c.seq AND j.epoch = c.epoch AND j.fence = c.fence AND j.state + 0 = $19::smallint AND NOT (c.yields AND j.cancel_requested) AND ${owned}
  RETURNING j.seq`;
/** For rows that this transaction has locked. */
const LOCKED = "c.worker IS NULL";
const APPLY_LOCKED = apply(LOCKED);
/** For rows that must still belong to the attempts' own workers. `+ 0`: see `OWNED`. */
const BY_OWNER = `j.worker + 0 = c.worker AND ${registered("c.worker", "c.worker_id")}`;
const APPLY_OWNED = apply(BY_OWNER);

/** Locks the jobs that changes of theirs will be written to. */
const lockToApply = (owned: string): string => `SELECT j.seq, j.cancel_requested
  FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::text[]) AS c (seq, epoch, fence, worker, worker_id)
  JOIN outlive.jobs j ON j.seq = c.seq AND j.epoch = c.epoch AND j.fence = c.fence AND j.state + 0 = $6::smallint AND ${owned}
  ORDER BY j.seq FOR UPDATE OF j`;
const LOCK_LOCKED = lockToApply(LOCKED);
const LOCK_BY_OWNER = lockToApply(BY_OWNER);

/**
 * Writes changes into rows that are in state `from`, and their history. If a cancel was requested, writes the alternative. Either the caller
 * has locked the rows, or `owners` names the workers whose attempts they must be. Returns what was written, by the number of the row. The
 * caller enqueues the follow-up jobs.
 */
export async function applyChanges(
  session: Session,
  changes: readonly AppliedChange[],
  from: (typeof JOB_STATES)[number],
  owners?: Owners,
): Promise<ReadonlyMap<number, Change>> {
  await endRowsOf(session, changes, from, owners);
  const written = await write(session, changes, from, owners);
  // A change that was not written may belong to a job that was cancelled in the meantime.
  const left = changes.flatMap((applied, at) => {
    const { ifCancelled } = applied.change;
    if (ifCancelled === undefined || written.has(applied.seq)) return [];
    return [{ applied: { ...applied, change: ifCancelled }, at }];
  });
  const others = left.map(({ applied }) => applied);
  const theirs = owners && { seqs: left.map(({ at }) => owners.seqs[at]!), ids: left.map(({ at }) => owners.ids[at]!) };
  for (const [seq, change] of await write(session, others, from, theirs)) written.set(seq, change);
  await returnStarts(
    session,
    changes.flatMap(({ seq }) => (written.get(seq)?.unstarted ? [seq] : [])),
  );
  await beginWaits(
    session,
    changes.flatMap(({ seq, fence }) => {
      const wait = written.get(seq)?.wait;
      return wait === undefined ? [] : [{ seq, fence, wait }];
    }),
  );
  await insertHistory(
    session,
    changes.flatMap((applied) => {
      const change = written.get(applied.seq);
      return change === undefined ? [] : historyOf({ ...applied, change }, from);
    }),
  );
  return written;
}

/** The rows of blocks that end with these changes, or with what a cancel puts in their place. Before the changes: see `endRows`. */
async function endRowsOf(
  session: Session,
  changes: readonly AppliedChange[],
  from: (typeof JOB_STATES)[number],
  owners: Owners | undefined,
): Promise<void> {
  const places = changes.flatMap(({ change }, at) => ((change.rows ?? change.ifCancelled?.rows) ? [at] : []));
  if (places.length === 0) return;
  const of = places.map((at) => changes[at]!);
  const locked = await session.rows<{ seq: number; cancel_requested: boolean }>(owners ? LOCK_BY_OWNER : LOCK_LOCKED, [
    list(of.map(({ seq }) => seq)),
    list(of.map(({ epoch }) => epoch)),
    list(of.map(({ fence }) => fence)),
    list(places.map((at) => owners?.seqs[at] ?? null)),
    texts(places.map((at) => owners?.ids[at] ?? null)),
    STATE[from],
  ]);
  const isCancelled = new Map(locked.map(({ seq, cancel_requested }) => [seq, cancel_requested]));
  await endRows(
    session,
    of.flatMap(({ seq: job, change }) => {
      if (!isCancelled.has(job)) return [];
      const { rows: ends } = isCancelled.get(job) ? (change.ifCancelled ?? change) : change;
      return ends === undefined ? [] : [{ job, ends, withRest: false }];
    }),
  );
}

async function write(
  session: Session,
  changes: readonly AppliedChange[],
  from: (typeof JOB_STATES)[number],
  owners: Owners | undefined,
): Promise<Map<number, Change>> {
  if (changes.length === 0) return new Map();
  const all = changes.map(({ change }) => change);
  const added = (name: keyof Change["add"]): string => list(all.map(({ add }) => add[name] ?? 0));
  const rows = await session.rows<{ seq: number }>(owners ? APPLY_OWNED : APPLY_LOCKED, [
    list(changes.map(({ seq }) => seq)),
    list(changes.map(({ epoch }) => epoch)),
    list(changes.map(({ fence }) => fence)),
    list(all.map(({ to }) => STATE[to])),
    list(all.map(laneOf)),
    list(all.map(({ resets }) => (resets ? 0 : 1))),
    added("errors"),
    added("crashes"),
    added("blamed"),
    added("timeouts"),
    added("interruptions"),
    added("losses"),
    list(all.map(({ outcome }) => (outcome === null ? null : OUTCOME[outcome]))),
    list(all.map(delayOf)),
    list(all.map(dueAt)),
    texts(all.map(({ error }) => (error === null ? null : JSON.stringify(error)))),
    texts(changes.map(({ change, incident }) => (change.to === "queued" ? incident : null))),
    list(all.map(({ ifCancelled }) => ifCancelled !== undefined)),
    STATE[from],
    list(owners?.seqs ?? changes.map(() => null)),
    texts(owners?.ids ?? changes.map(() => null)),
    list(all.map(({ together }) => together ?? null)),
  ]);
  const bySeq = new Map(changes.map(({ seq, change }) => [seq, change]));
  return new Map(rows.map(({ seq }) => [seq, bySeq.get(seq)!]));
}

/** For how long the job is delayed; null: it is not, or not for a time that is counted from now. */
function delayOf({ to, wait, delayMs }: Change): number | null {
  if (to !== "queued") return null;
  if (wait) return wait.forMs;
  return delayMs > 0 ? delayMs : null;
}

/** The instant that stands for no time. Null: there is a time, or the job is ready. */
function dueAt({ to, wait, waitsForResolution }: Change): number | null {
  if (to !== "queued") return null;
  if (waitsForResolution) return NEVER_DUE;
  return wait && wait.forMs === null ? NO_TIMEOUT : null;
}

/** Null: the job's counters decide in which lane it waits. */
export function laneOf(change: Change): number | null {
  return delayOf(change) !== null || dueAt(change) !== null ? LANE.delayed : null;
}

/** One entry for each abnormal change. A change without a reason (a success) leaves none. */
function historyOf(applied: AppliedChange, from: (typeof JOB_STATES)[number]): HistoryRow[] {
  const { seq: job, change, incident, epoch, fence, actor } = applied;
  if (change.reason === null) return [];
  const states = { from: STATE[from], to: STATE[change.to] };
  return [{ job, event: change.name, ...states, actor, epoch, fence, reason: change.reason, incident }];
}

// The history of jobs: one row for everything abnormal. Instants are the store's own.

interface HistoryRow {
  readonly job: number;
  readonly event: string;
  /** Codes of states. */
  readonly from: number;
  readonly to: number;
  readonly actor: string;
  readonly epoch: number;
  readonly fence: number;
  readonly reason: string;
  readonly incident: string | null;
}

// The job's own row still has the start and the worker of its latest attempt.
const INSERT = `INSERT INTO outlive.history (job, at, event, from_state, to_state, actor, epoch, fence, reason, incident, started_at, owner)
  SELECT h.job, clock.now, h.event, h.from_state, h.to_state, h.actor, h.epoch, h.fence, h.reason, h.incident, j.started_at, w.id
  FROM (SELECT outlive.now_ms() AS now) AS clock,
    unnest($1::bigint[], $2::text[], $3::smallint[], $4::smallint[], $5::text[], $6::bigint[], $7::int[], $8::text[], $9::text[]) WITH ORDINALITY
      AS h (job, event, from_state, to_state, actor, epoch, fence, reason, incident, ord)
    LEFT JOIN outlive.jobs j ON j.seq = h.job AND j.fence = h.fence AND h.fence > 0 LEFT JOIN outlive.fleet w ON w.seq = j.worker
  ORDER BY h.ord`;

export async function insertHistory(session: Session, rows: readonly HistoryRow[]): Promise<void> {
  if (rows.length === 0) return;
  await session.run(INSERT, [
    list(rows.map(({ job }) => job)),
    texts(rows.map(({ event }) => event)),
    list(rows.map(({ from }) => from)),
    list(rows.map(({ to }) => to)),
    texts(rows.map(({ actor }) => actor)),
    list(rows.map(({ epoch }) => epoch)),
    list(rows.map(({ fence }) => fence)),
    texts(rows.map(({ reason }) => reason)),
    texts(rows.map(({ incident }) => incident)),
  ]);
}

// How many workers died without holding a job, since its first counted crash or within the last while: what isolation.ts weighs a death
// against. Only core asks: the reclaim in plain SQL judges no death (migrations/verdicts.ts).

/** A loss of contact counts once it has turned out to be a death, and a death from the moment that its worker is condemned. `own` is the incident in question. `job`, `crashes`, `now` and `own` are SQL. The last `crashes` crashes in the history count: a step or a retry by hand has set the counters back before them. */
export function deathsElsewhere(schema: string, job: string, crashes: string, now: string, own: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE i.id IS DISTINCT FROM ${own} AND (i.how = 'gone' OR i.resolution IN ('died', 'away'))
    AND (i.completed_at IS NULL OR i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event IN ('crash', 'countLoss') ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now})))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}
