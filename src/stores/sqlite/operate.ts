// What people do to jobs and kinds: cancel, retry, signal, limits, pause. Each is one transaction.
import { JOB_STATES } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import type { Operating, OperatorAnswer } from "../port.ts";
import { batchOf } from "./blocks.ts";
import type { Database } from "./database.ts";
import { cancelFamily, withdrawFamilyCancel } from "./families.ts";
import { applyChange, insertHistory } from "./settle.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { sendSignal } from "./waits.ts";
import type { Workers } from "./workers.ts";
import type { FileAccess } from "./writer.ts";

export function operating({ db, now, write }: FileAccess, workers: Workers): Operating {
  return {
    cancel: (id, actor, options) =>
      write(() => applyByHand(db, id, BY_HAND.cancel, actor, now(), options?.children ?? false)),
    retry: (id, actor) => write(() => applyByHand(db, id, BY_HAND.retry, actor, now())),
    signal: (signal) => write(() => sendSignal(db, signal, now())),
    setLimit: (key, own) => write(() => setKeyLimit(db, key, own, now())),
    pauseKey: (key, pause) => write(() => pauseKey(db, key, pause, now())),
    setPaused: (kind, paused) => write(() => setPaused(db, kind, paused)),
    noteDeath: (worker, words) => write(() => workers.note(worker, words)),
  };
}

interface JobRow {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly worker: number | null;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

const FIND = "SELECT seq, state, kind, worker, epoch, fence, dedupe_key FROM outlive_jobs WHERE id = ?";
const HOLDER = "SELECT id FROM outlive_jobs WHERE kind = ? AND dedupe_key = ? AND dedupe_key IS NOT NULL AND state < 2";

/** Applies the change that core made for the state in which the job is found. */
export function applyByHand(
  db: Database,
  id: string,
  by: ByHand,
  actor: string,
  now: number,
  children = false,
): OperatorAnswer {
  const row = db.sql(FIND).get(id) as unknown as JobRow | undefined;
  if (!row) return { is: "missing" };
  const { seq: job, epoch, fence } = row;
  const from = JOB_STATES[row.state]!;
  if (children && (from === "running" || from === "queued" || from === "cancelled")) cancelFamily(db, job, actor, now);
  if (children && from === "cancelled") return { is: "applied", state: from };
  const change = by.changes[from];
  if (change === undefined)
    return from === "running" && by.request !== null
      ? requestEnd(db, row, by.request, actor, now)
      : { is: "wrong-state", state: from };
  const batch = change.to === "queued" ? batchOf(db, job) : null;
  if (batch !== null) return { is: "of-batch", batch };
  if (change.to === "queued" && row.dedupe_key !== null) {
    const holder = db.sql(HOLDER).get(row.kind, row.dedupe_key) as { id: string } | undefined;
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  const where = { sql: "seq = ? AND state = ?", values: [job, row.state] };
  applyChange(db, change, now, where, { job, from, actor, epoch, fence, incident: null });
  if (change.to === "queued") withdrawFamilyCancel(db, job);
  return { is: "applied", state: change.to };
}

function requestEnd(db: Database, row: JobRow, reason: string, actor: string, now: number): OperatorAnswer {
  const { seq, state, worker, epoch, fence } = row;
  db.sql("UPDATE outlive_jobs SET cancel_requested = 1 WHERE seq = ?").run(seq);
  db.sql("INSERT INTO outlive_cancels (worker, job) VALUES (?, ?) ON CONFLICT DO NOTHING").run(worker, seq);
  insertHistory(db, [seq, now, "cancel.requested", state, state, actor, epoch, fence, reason, null]);
  return { is: "requested" };
}

function setPaused(db: Database, kind: string, paused: boolean): boolean {
  return db.sql("UPDATE outlive_kinds SET paused = ? WHERE name = ?").run(paused ? 1 : 0, kind).changes === 1;
}
