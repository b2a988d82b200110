// What people do to jobs and kinds: cancel, retry, promote, remove, signal, pause. Each is one transaction that holds the job's row, with its audit entry.
import type { AuditEntry } from "../../job/audit.ts";
import { isTerminal, JOB_STATES } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import { changedCount, type HandChange, type KindPause, type Operating, type OperatorAnswer } from "../port.ts";
import { type DelayColumns, isDelayed, STATE } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import type { Connection } from "./connection.ts";
import { NOT_PAUSED } from "./enqueue.ts";
import { sqlState } from "./errors.ts";
import { cancelFamily, withdrawFamilyCancel } from "./families.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { removeJob } from "./purge.ts";
import { applyChanges, insertHistory } from "./settle.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";
import { sendSignal } from "./waits.ts";
import type { Workers } from "./workers.ts";

const UNIQUE_VIOLATION = "23505";

export function operating(connection: Connection, workers: Workers): Operating {
  return {
    cancel: (id, actor, options) =>
      connection.transaction((tx) => applyByHand(tx, id, BY_HAND.cancel, actor, options?.children ?? false)),
    retry(id, actor) {
      const retried = (): Promise<OperatorAnswer> =>
        connection.transaction((tx) => applyByHand(tx, id, BY_HAND.retry, actor));
      return retried().catch((thrown: unknown) => {
        if (sqlState(thrown) !== UNIQUE_VIOLATION) throw thrown;
        // Another session took its dedupe key between our read and our write: the second try finds the holder.
        return retried();
      });
    },
    change(ids, change, entry) {
      const changed = (): Promise<readonly OperatorAnswer[]> =>
        connection.transaction((tx) => changeJobs(tx, ids, change, entry));
      return changed().catch((thrown: unknown) => {
        if (sqlState(thrown) !== UNIQUE_VIOLATION) throw thrown;
        return changed();
      });
    },
    signal: (signal) => sendSignal(connection, signal),
    setLimit: (key, own, entry) =>
      connection.transaction(async (tx) => {
        await setKeyLimit(tx, key, own);
        await writeAudit(tx, entry, 1);
      }),
    pauseKey: (key, pause, entry) => pauseKey(connection, key, pause, (tx) => writeAudit(tx, entry, 1)),
    setPaused: (kind, paused, how, entry) =>
      connection.transaction(async (tx) => {
        const found = await setPaused(tx, kind, paused, how);
        await writeAudit(tx, entry, found ? 1 : 0);
        return found;
      }),
    noteDeath: (worker, words) => connection.transaction((tx) => workers.note(tx, worker, words)),
  };
}

interface JobRow extends DelayColumns {
  readonly incident: string | null;
  readonly finished_at: number;
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

const LOCK = `SELECT seq, state, kind, epoch, fence, dedupe_key, lane, run_at, outcome, incident, finished_at FROM outlive.jobs
  WHERE seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1) FOR UPDATE`;
const BATCH_OF =
  "SELECT p.id FROM outlive.blocks b JOIN outlive.batch_state p ON p.seq = b.batch WHERE b.job = $1 AND b.job > 0";
const HOLDER =
  "SELECT id FROM outlive.jobs WHERE kind = $1 AND dedupe_key = $2 AND dedupe_key IS NOT NULL AND state < 2";

/** Applies the change that core made for the state in which the job is found. */
async function applyByHand(
  session: Session,
  id: string,
  by: ByHand,
  actor: string,
  children = false,
): Promise<OperatorAnswer> {
  const [row] = await session.rows<JobRow>(LOCK, [id]);
  if (!row) return { is: "missing" };
  const { seq, epoch, fence } = row;
  const from = JOB_STATES[row.state]!;
  if (children && (from === "running" || from === "queued" || from === "cancelled"))
    await cancelFamily(session, seq, actor);
  if (children && from === "cancelled") return { is: "applied", state: from };
  const change = by.changes[from];
  if (change === undefined) {
    if (from !== "running" || by.request === null) return { is: "wrong-state", state: from };
    await requestEnds(session, [row], by.request, actor);
    return { is: "requested" };
  }
  const [batch] = change.to === "queued" ? await session.rows<{ id: string }>(BATCH_OF, [seq]) : [];
  if (batch) return { is: "of-batch", batch: batch.id };
  if (change.name === "promote" && !isDelayed(row)) return { is: "not-delayed" };
  if (change.name === "retry" && row.dedupe_key !== null) {
    const [holder] = await session.rows<{ id: string }>(HOLDER, [row.kind, row.dedupe_key]);
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  const incident = change.name === "promote" ? row.incident : null;
  await applyChanges(session, [{ seq, change, incident, epoch, fence, actor }], from);
  if (change.name === "retry") {
    await withdrawFamilyCancel(session, seq);
    // Asked for again by a person: it has all the time that it needs.
    await session.run("UPDATE outlive.extras SET expires_at = NULL WHERE job = $1 AND expires_at IS NOT NULL", [seq]);
  }
  return { is: "applied", state: change.to };
}

// In the order of their numbers, as whatever else locks many jobs.
const LOCK_ALL = `SELECT seq FROM outlive.jobs WHERE seq = ANY (ARRAY(SELECT i.seq FROM outlive.job_ids i WHERE i.id = ANY ($1::text[]))) ORDER BY seq FOR UPDATE`;

async function changeJobs(
  tx: Session,
  ids: readonly string[],
  change: HandChange,
  entry: AuditEntry,
): Promise<readonly OperatorAnswer[]> {
  if (ids.length > 1) await tx.run(LOCK_ALL, [texts(ids)]);
  const answers: OperatorAnswer[] = [];
  for (const id of ids) answers.push(await changeJob(tx, id, change, entry.actor));
  await writeAudit(tx, entry, changedCount(answers));
  return answers;
}

async function changeJob(tx: Session, id: string, change: HandChange, actor: string): Promise<OperatorAnswer> {
  switch (change.do) {
    case "cancel":
      return applyByHand(tx, id, BY_HAND.cancel, actor, change.children);
    case "promote":
      return applyByHand(tx, id, BY_HAND.promote, actor);
    case "retry": {
      const answer = await applyByHand(tx, id, BY_HAND.retry, actor);
      if (answer.is === "applied" && change.input !== undefined) await tx.run(EDIT, [id, change.input]);
      return answer;
    }
    case "remove":
      return remove(tx, id, actor);
  }
}

// What was kept of the former input is not of this one.
const EDIT = `WITH job AS (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1),
  steps AS (DELETE FROM outlive.steps s USING job WHERE s.job = job.seq),
  waits AS (DELETE FROM outlive.waits w USING job WHERE w.job = job.seq)
  UPDATE outlive.jobs j SET input = $2, input_sum = ${checksumSql("$2", "j.id")} FROM job WHERE j.seq = job.seq`;

/** What comes after it by its dedupe key has its contents, and goes with it. */
async function remove(tx: Session, id: string, actor: string): Promise<OperatorAnswer> {
  const [row] = await tx.rows<JobRow>(LOCK, [id]);
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "running") return { is: "wrong-state", state };
  const [batch] = await tx.rows<{ id: string }>(BATCH_OF, [row.seq]);
  if (batch) return { is: "of-batch", batch: batch.id };
  if (!isTerminal(state)) await applyByHand(tx, id, BY_HAND.cancel, actor);
  const [ended] = isTerminal(state) ? [row] : await tx.rows<JobRow>(LOCK, [id]);
  await removeJob(tx, ended!, id);
  return { is: "removed" };
}

const REQUEST_END = `WITH asked AS (UPDATE outlive.jobs SET cancel_requested = true WHERE seq = ANY ($1::bigint[]) RETURNING seq, worker)
  INSERT INTO outlive.cancels (worker, job) SELECT worker, seq FROM asked ON CONFLICT DO NOTHING`;

/** Asks the attempts of running jobs to end. The caller holds the rows. */
async function requestEnds(
  session: Session,
  rows: readonly Pick<JobRow, "seq" | "state" | "epoch" | "fence">[],
  reason: string,
  actor: string,
): Promise<void> {
  if (rows.length === 0) return;
  await session.run(REQUEST_END, [list(rows.map(({ seq }) => seq))]);
  const entry = { event: "cancel.requested", actor, reason, incident: null };
  await insertHistory(
    session,
    rows.map(({ seq: job, state, epoch, fence }) => ({ ...entry, job, from: state, to: state, epoch, fence })),
  );
}

/** Cancels these jobs, of which the caller holds the rows: queued ones end, running ones are asked to. */
export async function cancelAll(
  session: Session,
  rows: readonly Pick<JobRow, "seq" | "state" | "epoch" | "fence">[],
  actor: string,
): Promise<void> {
  const { changes, request } = BY_HAND.cancel;
  const queued = rows.filter(({ state }) => state === STATE.queued);
  const applied = queued.map(({ seq, epoch, fence }) => ({
    seq,
    change: changes.queued!,
    incident: null,
    epoch,
    fence,
    actor,
  }));
  if (applied.length > 0) await applyChanges(session, applied, "queued");
  const running = rows.filter(({ state }) => state === STATE.running);
  await requestEnds(session, running, request, actor);
}

const PAUSE = `UPDATE outlive.kinds SET paused = true, paused_at = clock.now, paused_until = coalesce($2::bigint, clock.now + $3::bigint), paused_by = $4, paused_reason = $5
  FROM (SELECT outlive.now_ms() AS now) AS clock WHERE name = $1`;

async function setPaused(
  session: Session,
  kind: string,
  paused: boolean,
  { actor = "operator", reason = null, untilAt = null, forMs = null }: Partial<KindPause> = {},
): Promise<boolean> {
  const changed = paused
    ? await session.run(PAUSE, [kind, untilAt, forMs, actor, reason])
    : await session.run(`UPDATE outlive.kinds SET ${NOT_PAUSED} WHERE name = $1`, [kind]);
  return changed === 1;
}
