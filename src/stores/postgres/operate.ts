// What people do to jobs and kinds: cancel, retry, signal, pause. Each is one transaction that holds the job's row.
import { JOB_STATES } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import type { Operating, OperatorAnswer } from "../port.ts";
import { STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { sqlState } from "./errors.ts";
import { cancelFamily, withdrawFamilyCancel } from "./families.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { applyChanges, insertHistory } from "./settle.ts";
import { list, type Session } from "./statements.ts";
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
    signal: (signal) => sendSignal(connection, signal),
    setLimit: (key, own) => setKeyLimit(connection, key, own),
    pauseKey: (key, pause) => pauseKey(connection, key, pause),
    setPaused: (kind, paused) => setPaused(connection, kind, paused),
    noteDeath: (worker, words) => connection.transaction((tx) => workers.note(tx, worker, words)),
  };
}

interface JobRow {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

const LOCK = `SELECT seq, state, kind, epoch, fence, dedupe_key FROM outlive.jobs
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
  if (change.to === "queued" && row.dedupe_key !== null) {
    const [holder] = await session.rows<{ id: string }>(HOLDER, [row.kind, row.dedupe_key]);
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  await applyChanges(session, [{ seq, change, incident: null, epoch, fence, actor }], from);
  if (change.to === "queued") await withdrawFamilyCancel(session, seq);
  return { is: "applied", state: change.to };
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

async function setPaused(session: Session, kind: string, paused: boolean): Promise<boolean> {
  return (await session.run("UPDATE outlive.kinds SET paused = $1 WHERE name = $2", [paused, kind])) === 1;
}
