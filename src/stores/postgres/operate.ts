// What people do to jobs and kinds: cancel, retry, signal, pause. Each is one transaction that holds the job's row.
import { JOB_STATES } from "../../job/job.ts";
import * as transitions from "../../job/transitions.ts";
import type { Operating, OperatorAnswer } from "../port.ts";
import { type CounterColumns, counters } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { sqlState } from "./errors.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { applyChanges, insertHistory } from "./settle.ts";
import type { Session } from "./statements.ts";
import { sendSignal } from "./waits.ts";
import type { Workers } from "./workers.ts";

const UNIQUE_VIOLATION = "23505";

export function operating(connection: Connection, workers: Workers): Operating {
  return {
    cancel: (id, actor) => connection.transaction((tx) => cancelJob(tx, id, actor)),
    retry(id, actor) {
      const retried = (): Promise<OperatorAnswer> => connection.transaction((tx) => retryJob(tx, id, actor));
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

interface JobRow extends CounterColumns {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly worker: number;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

async function lock(session: Session, id: string): Promise<JobRow | undefined> {
  const [row] = await session.rows<JobRow>(
    `SELECT seq, state, kind, worker, epoch, fence, dedupe_key, errors, crashes, blamed, timeouts, interruptions, losses FROM outlive.jobs
     WHERE seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1) FOR UPDATE`,
    [id],
  );
  return row;
}

async function cancelJob(session: Session, id: string, actor: string): Promise<OperatorAnswer> {
  const row = await lock(session, id);
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "running") {
    const { seq: job, worker, epoch, fence, state: code } = row;
    await session.run("UPDATE outlive.jobs SET cancel_requested = true WHERE seq = $1", [job]);
    await session.run("INSERT INTO outlive.cancels (worker, job) VALUES ($1, $2) ON CONFLICT DO NOTHING", [
      worker,
      job,
    ]);
    const reason = "its end was asked for while it ran";
    const entry = { job, event: "cancel.requested", from: code, to: code, actor, epoch, fence, reason };
    await insertHistory(session, [{ ...entry, incident: null }]);
    return { is: "requested" };
  }
  if (state !== "queued") return { is: "wrong-state", state };
  await apply(session, row, transitions.cancel({ id, state, counters: counters(row) }), actor);
  return { is: "applied", state: "cancelled" };
}

async function retryJob(session: Session, id: string, actor: string): Promise<OperatorAnswer> {
  const row = await lock(session, id);
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "queued" || state === "running") return { is: "wrong-state", state };
  if (row.dedupe_key !== null) {
    const [holder] = await session.rows<{ id: string }>(
      "SELECT id FROM outlive.jobs WHERE kind = $1 AND dedupe_key = $2 AND dedupe_key IS NOT NULL AND state < 2",
      [row.kind, row.dedupe_key],
    );
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  await apply(session, row, transitions.retry({ id, state, counters: counters(row) }, 0), actor);
  return { is: "applied", state: "queued" };
}

async function apply(session: Session, row: JobRow, change: transitions.Change, actor: string): Promise<void> {
  const { seq, epoch, fence } = row;
  await applyChanges(session, [{ seq, change, incident: null, epoch, fence, actor }], JOB_STATES[row.state]!);
}

async function setPaused(session: Session, kind: string, paused: boolean): Promise<boolean> {
  return (await session.run("UPDATE outlive.kinds SET paused = $1 WHERE name = $2", [paused, kind])) === 1;
}
