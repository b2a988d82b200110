// What people do to jobs and kinds: cancel, retry, pause. Each is one transaction.
import * as transitions from "../../job/transitions.ts";
import { JOB_STATES } from "../../job/job.ts";
import type { Operating, OperatorAnswer } from "../port.ts";
import { type CounterColumns, counters } from "../rows.ts";
import type { Database } from "./database.ts";
import { applyChange, insertHistory } from "./settle.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import { sendSignal } from "./waits.ts";
import type { Workers } from "./workers.ts";
import type { FileAccess } from "./writer.ts";

export function operating({ db, now, write }: FileAccess, workers: Workers): Operating {
  return {
    cancel: (id, actor) => write(() => cancelJob(db, id, actor, now())),
    retry: (id, actor) => write(() => retryJob(db, id, actor, now())),
    signal: (signal) => write(() => sendSignal(db, signal, now())),
    setLimit: (key, own) => write(() => setKeyLimit(db, key, own, now())),
    pauseKey: (key, pause) => write(() => pauseKey(db, key, pause, now())),
    setPaused: (kind, paused) => write(() => setPaused(db, kind, paused)),
    noteDeath: (worker, words) => write(() => workers.note(worker, words)),
  };
}

interface JobRow extends CounterColumns {
  readonly seq: number;
  readonly state: number;
  readonly kind: number;
  readonly worker: number | null;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

function find(db: Database, id: string): JobRow | undefined {
  return db
    .sql(
      "SELECT seq, state, kind, worker, epoch, fence, dedupe_key, errors, crashes, blamed, timeouts, interruptions, losses FROM outlive_jobs WHERE id = ?",
    )
    .get(id) as unknown as JobRow | undefined;
}

function cancelJob(db: Database, id: string, actor: string, now: number): OperatorAnswer {
  const row = find(db, id);
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "running") {
    db.sql("UPDATE outlive_jobs SET cancel_requested = 1 WHERE seq = ?").run(row.seq);
    db.sql("INSERT INTO outlive_cancels (worker, job) VALUES (?, ?) ON CONFLICT DO NOTHING").run(row.worker, row.seq);
    const reason = "its end was asked for while it ran";
    insertHistory(db, [
      row.seq,
      now,
      "cancel.requested",
      row.state,
      row.state,
      actor,
      row.epoch,
      row.fence,
      reason,
      null,
    ]);
    return { is: "requested" };
  }
  if (state !== "queued") return { is: "wrong-state", state };
  apply(db, row, transitions.cancel({ id, state, counters: counters(row) }), actor, now);
  return { is: "applied", state: "cancelled" };
}

function retryJob(db: Database, id: string, actor: string, now: number): OperatorAnswer {
  const row = find(db, id);
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "queued" || state === "running") return { is: "wrong-state", state };
  if (row.dedupe_key !== null) {
    const holder = db
      .sql("SELECT id FROM outlive_jobs WHERE kind = ? AND dedupe_key = ? AND dedupe_key IS NOT NULL AND state < 2")
      .get(row.kind, row.dedupe_key) as { id: string } | undefined;
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  apply(db, row, transitions.retry({ id, state, counters: counters(row) }, 0), actor, now);
  if (state === "succeeded")
    db.sql("UPDATE outlive_jobs SET result = NULL, result_sum = NULL WHERE seq = ?").run(row.seq);
  return { is: "applied", state: "queued" };
}

function apply(db: Database, row: JobRow, change: transitions.Change, actor: string, now: number): void {
  const { seq: job, epoch, fence } = row;
  const where = { sql: "seq = ? AND state = ?", values: [job, row.state] };
  applyChange(db, change, now, where, { job, from: JOB_STATES[row.state]!, actor, epoch, fence, incident: null });
}

function setPaused(db: Database, kind: string, paused: boolean): boolean {
  return db.sql("UPDATE outlive_kinds SET paused = ? WHERE name = ?").run(paused ? 1 : 0, kind).changes === 1;
}
