// What people do to jobs and kinds: cancel, retry, promote, remove, signal, pause. Each is one transaction that holds the job's row, with its audit entry.
import { JOB_STATES } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import type { KindPause, Operating, OperatorAnswer } from "../port.ts";
import { type DelayColumns, isDelayed, OUTCOME, STATE } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import { changeJobs, requestEnds } from "./changes.ts";
import type { Connection } from "./connection.ts";
import { NOT_PAUSED } from "./enqueue.ts";
import { sqlState } from "./errors.ts";
import { cancelFamily, withdrawFamilyCancel } from "./families.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { applyChanges } from "./settle.ts";
import type { Session } from "./statements.ts";
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
    signal: (signal, entry) => sendSignal(connection, signal, entry),
    setLimit: (key, own, entry) =>
      connection.transaction(async (tx) => {
        await setKeyLimit(tx, connection.schema, key, own);
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
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

const LOCK = `SELECT seq, state, kind, epoch, fence, dedupe_key, lane, run_at, outcome, incident FROM outlive.jobs
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
  // Nothing is left of it that could run.
  if (change.name === "retry" && row.outcome === OUTCOME.removed) return { is: "missing" };
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
