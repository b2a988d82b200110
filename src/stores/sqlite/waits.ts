// Waiting jobs: what they wait for, signals, and the wakes by which anything that ends or is sent says that a wait may have ended. A wake is
// one small row, written in the transaction of what caused it; any worker's turn takes wakes and checks the conditions. Killed before the
// commit, the wake is still there. Inside a transaction, except for `outcomes`.
import { isTerminal, JOB_STATES, type JobState } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import { type JobOutcome, type KeptWait, MAX_SIGNALS, type Wait } from "../../job/waits.ts";
import type { ReadSignal, Signal, SignalAnswer } from "../port.ts";
import { LANE, NO_TIMEOUT, OUTCOME, STATE, jobOutcomes, type OutcomeColumns } from "../rows.ts";
import { endBlock, endBlocks } from "./blocks.ts";
import { checksumOf, checksumOrNull, stepOwner } from "./checksums.ts";
import { type Database, readRows, updateRows } from "./database.ts";
import { type Kinds, rerun } from "./enqueue.ts";
import { keysIn, PLACE, relocate } from "./keys.ts";

/** How many wakes one turn takes. */
const WAKES_PER_TURN = 500;

/** When a job that begins to wait is due: the wait's end by time, or never. */
export function dueAt({ forMs }: Wait, now: number): number {
  return forMs === null ? NO_TIMEOUT : now + forMs;
}

// Of the jobs that are waited for, those that have not ended, those whose parent the waiting job is, and the others. The list has to be the outer loop: by the
// index of parents, each child of 100,000 read the whole list again, which held the process for more than five minutes.
const AWAITED =
  "FROM json_each(?1) AS i CROSS JOIN outlive_jobs j ON j.id = i.value LEFT JOIN outlive_extras e ON e.job = j.seq";
const UNFINISHED = `${AWAITED} WHERE j.state < ${STATE.succeeded}`;
const OWN = `${AWAITED} WHERE +e.parent = ?2`;
const FOREIGN = `${AWAITED} WHERE e.parent IS NOT ?2`;
const CHILDREN = "FROM outlive_extras WHERE parent = ?";
const UNFINISHED_CHILDREN = `${CHILDREN} AND ended = 0`;

/** The job has just been queued as waiting. The wake for itself has its condition checked: what it waits for may have come before. */
export function beginWait(db: Database, job: number, wait: Wait, now: number): void {
  const { step, forMs, until } = wait;
  const signal = until !== null && "signal" in until ? until.signal : null;
  const jobs = until !== null && "jobs" in until ? until.jobs : null;
  const awaited = jobs === null ? null : watch(db, job, jobs);
  db.sql(
    `INSERT INTO outlive_waits (job, step, due_at, signal, jobs, children) VALUES (?, ?, ?, ?, ?, ?)
     ON CONFLICT DO UPDATE SET step = excluded.step, due_at = excluded.due_at, signal = excluded.signal, jobs = excluded.jobs, children = excluded.children`,
  ).run(job, step, forMs === null ? null : now + forMs, signal, awaited, jobs !== null && awaited === null ? 1 : 0);
  if (until !== null) wake(db, job, now);
}

/**
 * Has the end of these jobs wake the job. Children do that anyway; others are marked, also those that have ended: a person may retry them.
 * Returns the list that is compared when it is woken; null if that is the same as all its children, which is found with one step however many
 * there are.
 */
function watch(db: Database, waiter: number, jobs: readonly string[]): string | null {
  const ids = JSON.stringify(jobs);
  const foreign = db.sql(`SELECT DISTINCT j.seq, j.state ${FOREIGN}`).all(ids, waiter) as {
    seq: number;
    state: number;
  }[];
  const { own } = db.sql(`SELECT count(DISTINCT j.seq) AS own ${OWN}`).get(ids, waiter) as { own: number };
  const { children } = db.sql(`SELECT count(*) AS children ${CHILDREN}`).get(waiter) as { children: number };
  if (foreign.length === 0 && own === children) return null;
  for (const { seq, state } of foreign) {
    db.sql(
      "INSERT INTO outlive_extras (job, ended, watched) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET watched = excluded.watched",
    ).run(seq, state < STATE.succeeded ? 0 : 1);
    db.sql("UPDATE outlive_jobs SET extras = 1 WHERE seq = ?").run(seq);
    db.sql("INSERT INTO outlive_awaits (job, waiter) VALUES (?, ?) ON CONFLICT DO NOTHING").run(seq, waiter);
  }
  return ids;
}

function wake(db: Database, job: number, now: number): void {
  db.sql("INSERT INTO outlive_wakes (job, at) VALUES (?, ?)").run(job, now);
}

// Of a cancelled parent each child that is cancelled with it would write a wake, for nothing.
const WAITING_PARENT = `SELECT 1 FROM outlive_waits w JOIN outlive_jobs p ON p.seq = w.job WHERE w.job = ? AND p.state < ${STATE.succeeded}`;

/**
 * A job with extras has ended, or was taken out of its end again: wakes those that wait for it, and ends the rows of a block. Every change of a
 * job's state comes through here, whatever made it: a settlement, a recovery, an expiry, a cancel, an operator.
 */
export function consequences(db: Database, job: number, state: JobState, now: number): void {
  const ended = isTerminal(state);
  if (ended) endBlock(db, job, state);
  const extras = db
    .sql("UPDATE outlive_extras SET ended = ? WHERE job = ? RETURNING parent, watched")
    .get(ended ? 1 : 0, job) as unknown as Awaited | undefined;
  if (extras === undefined || !ended) return;
  if (db.sql("SELECT 1 FROM outlive_reruns WHERE job = ?").get(job) !== undefined) wake(db, job, now);
  wakeWaiters(db, job, extras, now);
}

/** Who waits for a job. */
interface Awaited {
  readonly parent: number | null;
  readonly watched: number;
}

function wakeWaiters(db: Database, job: number, { parent, watched }: Awaited, now: number): void {
  if (parent !== null) wakeParent(db, parent, now);
  if (watched === 1) wakeWatchers(db, job, now);
}

function wakeParent(db: Database, parent: number, now: number): void {
  if (db.sql(WAITING_PARENT).get(parent) !== undefined) wake(db, parent, now);
}

/** What waits for it stays marked: a person may retry the job, and then its next end counts. */
function wakeWatchers(db: Database, job: number, now: number): void {
  db.sql("INSERT INTO outlive_wakes (job, at) SELECT waiter, ? FROM outlive_awaits WHERE job = ? ORDER BY waiter").run(
    now,
    job,
  );
}

/** A job that was claimed at its door and that nothing waits for: its slot was its row, and of its extras nothing has to be written. */
const AT_DOOR_ALONE = `place = ${PLACE.held} AND key2 IS NULL AND parent IS NULL AND watched = 0`;
const TO_END = `SELECT job, parent, watched, key1, key2, key3 FROM outlive_extras WHERE NOT (${AT_DOOR_ALONE}) AND`;
/** As one text: the rows as such cost twice as much. */
const KEYS_ALONE = `SELECT json_group_array(key1) FROM outlive_extras WHERE ${AT_DOOR_ALONE} AND`;
const END_ALL = `UPDATE outlive_extras SET ended = 1, place = ${PLACE.away}, door = NULL WHERE`;

const ANY_TO_END =
  "SELECT EXISTS (SELECT 1 FROM outlive_blocks) AS blocks, EXISTS (SELECT 1 FROM outlive_reruns) AS reruns";

/** These jobs with extras have succeeded: `consequences` of each, in a few statements. Returns the keys that they gave room, which have to be checked. */
export function endAll(db: Database, jobs: readonly number[], now: number): readonly number[] {
  const list = JSON.stringify(jobs);
  const { blocks, reruns } = db.sql(ANY_TO_END).get() as { blocks: number; reruns: number };
  if (blocks === 1) endBlocks(db, list);
  const rows = readRows<Ended>(db, TO_END, "job", jobs);
  const ended = rows.map(([job]) => job);
  updateRows(db, END_ALL, [], "job", ended);
  // One wake for all children of a parent: nothing acts on it before all of them have ended. With one for each a child took 12.2 us of CPU instead of 8.7.
  const parents = new Set<number>();
  for (const [job, parent, watched] of rows) {
    if (parent !== null) parents.add(parent);
    if (watched === 1) wakeWatchers(db, job, now);
  }
  for (const parent of parents) wakeParent(db, parent, now);
  if (reruns === 1)
    db.sql(
      "INSERT INTO outlive_wakes (job, at) SELECT r.job, ? FROM json_each(?) AS i CROSS JOIN outlive_reruns r ON r.job = i.value",
    ).run(now, list);
  const keys = readRows<[string]>(db, KEYS_ALONE, "job", jobs).flatMap(([text]) => JSON.parse(text) as number[]);
  for (const [, , , key1, key2, key3] of rows) if (key1 !== null) keys.push(...keysIn({ key1, key2, key3 }));
  return keys;
}

type Ended = readonly [
  job: number,
  parent: number | null,
  watched: number,
  key1: number | null,
  key2: number | null,
  key3: number | null,
];

/** Whether the cancel of a job includes children that are not cancelled yet (families.ts). */
export function isFamilyDue(db: Database): boolean {
  return db.sql("SELECT 1 FROM outlive_family_cancels WHERE due = 1 LIMIT 1").get() !== undefined;
}

/** Takes wakes, and makes ready what does not wait any more. Returns how many, and whether wakes are left. */
export function actOnWakes(
  db: Database,
  kinds: Kinds,
  now: number,
): { readonly woken: number; readonly more: boolean } {
  const wakes = db.sql(`SELECT id, job FROM outlive_wakes ORDER BY id LIMIT ${WAKES_PER_TURN}`).all() as {
    id: number;
    job: number;
  }[];
  if (wakes.length === 0) return NO_WAKES;
  let woken = 0;
  for (const job of new Set(wakes.map((one) => one.job))) {
    if (hasEnded(db, job)) woken += makeReady(db, job, now);
    woken += rerun(db, kinds, job, now);
  }
  db.sql("DELETE FROM outlive_wakes WHERE id <= ?").run(wakes.at(-1)!.id);
  return { woken, more: wakes.length === WAKES_PER_TURN };
}

const NO_WAKES = { woken: 0, more: false } as const;

const WAITING = `j.state = ${STATE.queued} AND j.lane = ${LANE.delayed} AND j.outcome = ${OUTCOME.waiting}`;

/** Whether the condition that the job waits for holds. False also if it does not wait. */
function hasEnded(db: Database, job: number): boolean {
  const wait = db
    .sql(
      `SELECT w.signal, w.jobs, w.children FROM outlive_waits w JOIN outlive_jobs j ON j.seq = w.job WHERE w.job = ? AND ${WAITING}`,
    )
    .get(job) as { signal: string | null; jobs: string | null; children: number } | undefined;
  if (wait === undefined) return false;
  if (wait.signal !== null) return db.sql(UNREAD).get(job, wait.signal) !== undefined;
  if (wait.children === 1) return db.sql(`SELECT 1 ${UNFINISHED_CHILDREN} LIMIT 1`).get(job) === undefined;
  return wait.jobs !== null && db.sql(`SELECT 1 ${UNFINISHED} LIMIT 1`).get(wait.jobs) === undefined;
}

function makeReady(db: Database, job: number, now: number): number {
  const { changes } = db
    .sql(
      `UPDATE outlive_jobs AS j SET lane = CASE WHEN crashes + losses > 0 THEN ${LANE.suspect} ELSE ${LANE.open} END, run_at = NULL WHERE seq = ? AND ${WAITING}`,
    )
    .run(job);
  if (changes > 0) relocate(db, [job], now);
  return Number(changes);
}

// ---- signals

const UNREAD =
  "SELECT ord, payload FROM outlive_signals WHERE job = ? AND name = ? AND read_at IS NULL ORDER BY ord LIMIT 1";

/** A new step is progress: the job is not a suspect any more. */
export const PROGRESS =
  "UPDATE outlive_jobs SET crashes = 0, blamed = 0, losses = 0 WHERE seq = ? AND crashes + losses > 0";

export function sendSignal(db: Database, { job, name, payload, id }: Signal, now: number): SignalAnswer {
  const row = db.sql("SELECT seq, state FROM outlive_jobs WHERE id = ?").get(job) as
    | { seq: number; state: number }
    | undefined;
  if (!row) return { is: "missing" };
  if (db.sql("SELECT 1 FROM outlive_signals WHERE job = ? AND id = ?").get(row.seq, id)) return { is: "repeated" };
  if (row.state >= STATE.succeeded) return { is: "ended", state: JOB_STATES[row.state]! };
  const { n } = db.sql("SELECT count(*) AS n FROM outlive_signals WHERE job = ? AND read_at IS NULL").get(row.seq) as {
    n: number;
  };
  if (n >= MAX_SIGNALS) return { is: "full" };
  db.sql("INSERT INTO outlive_signals (job, name, id, payload, payload_sum, at) VALUES (?, ?, ?, ?, ?, ?)").run(
    row.seq,
    name,
    id,
    payload,
    checksumOf(payload, `${job}\n${id}`),
    now,
  );
  wake(db, row.seq, now);
  return { is: "kept" };
}

/** By the attempt that owns the job. The signal is read and its step is kept in one transaction, so it is read once. */
export function readSignal(
  db: Database,
  lease: Lease,
  { step, name, hasEnded: byTime }: { readonly step: string; readonly name: string; readonly hasEnded: boolean },
  now: number,
): ReadSignal {
  // Its reply was lost, and it is asked again.
  const kept = db.sql("SELECT result FROM outlive_steps WHERE job = ? AND name = ?").get(lease.row, step) as
    | { result: string | null }
    | undefined;
  if (kept) return { kept: true, payload: kept.result };
  const signal = db.sql(UNREAD).get(lease.row, name) as { ord: number; payload: string } | undefined;
  if (!signal && !byTime) return { kept: false };
  const payload = signal?.payload ?? null;
  if (signal) db.sql("UPDATE outlive_signals SET read_at = ? WHERE ord = ?").run(now, signal.ord);
  db.sql("INSERT INTO outlive_steps (job, name, result, result_sum, at, fence) VALUES (?, ?, ?, ?, ?, ?)").run(
    lease.row,
    step,
    payload,
    checksumOrNull(payload, stepOwner(lease.jobId, step)),
    now,
    lease.fence,
  );
  db.sql(PROGRESS).run(lease.row);
  return { kept: true, payload };
}

// ---- what a claim, a purge and those who wait for a result read

/** The wait that the job's latest attempt began, if its outcome is not kept yet. */
export function keptWait(
  db: Database,
  job: number,
  steps: readonly { readonly name: string }[],
  now: number,
): KeptWait | null {
  const row = db.sql("SELECT step, due_at FROM outlive_waits WHERE job = ?").get(job) as
    | { step: string; due_at: number | null }
    | undefined;
  if (row === undefined || steps.some(({ name }) => name === row.step)) return null;
  return { step: row.step, remainingMs: row.due_at === null ? null : row.due_at - now };
}

/** Removes what belongs to these neighbours, which are deleted. */
export function forgetWaits(db: Database, first: number, last: number): void {
  for (const table of ["outlive_extras", "outlive_waits", "outlive_signals", "outlive_awaits", "outlive_reruns"])
    db.sql(`DELETE FROM ${table} WHERE job BETWEEN ? AND ?`).run(first, last);
  // One that is due stays until the children are cancelled, also without the row of their parent.
  db.sql("DELETE FROM outlive_family_cancels WHERE job BETWEEN ? AND ? AND due = 0").run(first, last);
}

export function outcomes(db: Database, ids: readonly string[]): JobOutcome[] {
  const rows = db
    .sql("SELECT j.id, j.state, j.result, j.error FROM json_each(?) AS i CROSS JOIN outlive_jobs j ON j.id = i.value")
    .all(JSON.stringify(ids)) as unknown as OutcomeColumns[];
  return jobOutcomes(ids, rows);
}
