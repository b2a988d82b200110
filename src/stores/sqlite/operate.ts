// What people do to jobs and kinds: cancel, retry, promote, remove, signal, limits, pause. Each is one transaction, with its audit entry.
import { JOB_STATES } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import { changedCount, type HandChange, type KindPause, type Operating, type OperatorAnswer } from "../port.ts";
import { type DelayColumns, isDelayed, OUTCOME } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import { batchOf } from "./blocks.ts";
import { checksumOf } from "./checksums.ts";
import type { Database } from "./database.ts";
import { NOT_PAUSED } from "./enqueue.ts";
import { cancelFamily, withdrawFamilyCancel } from "./families.ts";
import { applyChange, insertHistory } from "./settle.ts";
import { pauseKey, setKeyLimit } from "./keys.ts";
import type { Purging } from "./purge.ts";
import { sendSignal } from "./waits.ts";
import type { Workers } from "./workers.ts";
import type { FileAccess } from "./writer.ts";

export function operating({ db, now, write }: FileAccess, workers: Workers, purging: Purging): Operating {
  return {
    cancel: (id, actor, options) =>
      write(() => applyByHand(db, id, BY_HAND.cancel, actor, now(), options?.children ?? false)),
    retry: (id, actor) => write(() => applyByHand(db, id, BY_HAND.retry, actor, now())),
    change: (ids, change, entry) =>
      write(() => {
        const at = now();
        const answers = ids.map((id) => changeJob(db, purging, id, change, entry.actor, at));
        writeAudit(db, entry, changedCount(answers), at);
        return answers;
      }),
    signal: (signal, entry) =>
      write(() => {
        const answer = sendSignal(db, signal, now());
        writeAudit(db, entry, answer.is === "kept" ? 1 : 0, now());
        return answer;
      }),
    setLimit: (key, own, entry) =>
      write(() => {
        setKeyLimit(db, key, own, now());
        writeAudit(db, entry, 1, now());
      }),
    pauseKey: (key, pause, entry) =>
      write(() => {
        pauseKey(db, key, pause, now());
        writeAudit(db, entry, 1, now());
      }),
    setPaused: (kind, paused, how, entry) =>
      write(() => {
        const found = setPaused(db, kind, paused, how, now());
        writeAudit(db, entry, found ? 1 : 0, now());
        return found;
      }),
    noteDeath: (worker, words) => write(() => workers.note(worker, words)),
  };
}

interface JobRow extends DelayColumns {
  readonly seq: number;
  readonly incident: string | null;
  readonly state: number;
  readonly kind: number;
  readonly worker: number | null;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
}

const FIND =
  "SELECT seq, state, kind, worker, epoch, fence, dedupe_key, lane, run_at, outcome, incident FROM outlive_jobs WHERE id = ?";
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
  if (change.name === "promote" && !isDelayed(row)) return { is: "not-delayed" };
  // Nothing is left of it that could run.
  if (change.name === "retry" && row.outcome === OUTCOME.removed) return { is: "missing" };
  if (change.name === "retry" && row.dedupe_key !== null) {
    const holder = db.sql(HOLDER).get(row.kind, row.dedupe_key) as { id: string } | undefined;
    if (holder) return { is: "key-held", holder: holder.id, dedupeKey: row.dedupe_key };
  }
  const where = { sql: "seq = ? AND state = ?", values: [job, row.state] };
  const incident = change.name === "promote" ? row.incident : null;
  applyChange(db, change, now, where, { job, from, actor, epoch, fence, incident });
  if (change.name === "retry") {
    withdrawFamilyCancel(db, job);
    // Asked for again by a person: it has all the time that it needs.
    db.sql("UPDATE outlive_extras SET expires_at = NULL WHERE job = ? AND expires_at IS NOT NULL").run(job);
  }
  return { is: "applied", state: change.to };
}

function changeJob(
  db: Database,
  purging: Purging,
  id: string,
  change: HandChange,
  actor: string,
  now: number,
): OperatorAnswer {
  switch (change.do) {
    case "cancel":
      return applyByHand(db, id, BY_HAND.cancel, actor, now, change.children);
    case "promote":
      return applyByHand(db, id, BY_HAND.promote, actor, now);
    case "retry": {
      const answer = applyByHand(db, id, BY_HAND.retry, actor, now);
      if (answer.is === "applied" && change.input !== undefined) editInput(db, id, change.input);
      return answer;
    }
    case "remove":
      return removeJob(db, purging, id, actor, now);
  }
}

/** What was kept of the former input is not of this one. */
function editInput(db: Database, id: string, input: string): void {
  const { seq } = db
    .sql("UPDATE outlive_jobs SET input = ?, input_sum = ? WHERE id = ? RETURNING seq")
    .get(input, checksumOf(input, id), id) as { seq: number };
  for (const table of ["outlive_steps", "outlive_waits"]) db.sql(`DELETE FROM ${table} WHERE job = ?`).run(seq);
}

/** What comes after it by its dedupe key has its contents, and goes with it. */
function removeJob(db: Database, purging: Purging, id: string, actor: string, now: number): OperatorAnswer {
  const row = db.sql(FIND).get(id) as unknown as JobRow | undefined;
  if (!row) return { is: "missing" };
  const state = JOB_STATES[row.state]!;
  if (state === "running") return { is: "wrong-state", state };
  const batch = batchOf(db, row.seq);
  if (batch !== null) return { is: "of-batch", batch };
  db.sql("DELETE FROM outlive_reruns WHERE job = ?").run(row.seq);
  applyByHand(db, id, BY_HAND.remove, actor, now);
  purging.removeJob(row.seq, id, row.kind, row.fence);
  return { is: "removed" };
}

function requestEnd(db: Database, row: JobRow, reason: string, actor: string, now: number): OperatorAnswer {
  const { seq, state, worker, epoch, fence } = row;
  db.sql("UPDATE outlive_jobs SET cancel_requested = 1 WHERE seq = ?").run(seq);
  db.sql("INSERT INTO outlive_cancels (worker, job) VALUES (?, ?) ON CONFLICT DO NOTHING").run(worker, seq);
  insertHistory(db, [seq, now, "cancel.requested", state, state, actor, epoch, fence, reason, null]);
  return { is: "requested" };
}

function setPaused(db: Database, kind: string, paused: boolean, how: KindPause | undefined, now: number): boolean {
  if (!paused) return db.sql(`UPDATE outlive_kinds SET ${NOT_PAUSED} WHERE name = ?`).run(kind).changes === 1;
  const { actor = "operator", reason = null, untilAt = null, forMs = null } = how ?? {};
  const { changes } = db
    .sql(
      "UPDATE outlive_kinds SET paused = 1, paused_at = ?, paused_until = ?, paused_by = ?, paused_reason = ? WHERE name = ?",
    )
    .run(now, untilAt ?? (forMs === null ? null : now + forMs), actor, reason, kind);
  return changes === 1;
}
