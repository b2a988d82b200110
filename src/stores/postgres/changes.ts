// One change by hand of many jobs, in a few statements however many there are: one after the other, 2,000 removals took more than 40 s on a busy machine. What is done to a job is what
// `operate.ts` does to one: core has made the change for each state.
import type { AuditEntry } from "../../job/audit.ts";
import { JOB_STATES, type JobState } from "../../job/job.ts";
import { BY_HAND, type ByHand } from "../../job/transitions.ts";
import { changedCount, type HandChange, type OperatorAnswer } from "../port.ts";
import { type DelayColumns, isDelayed, OUTCOME } from "../rows.ts";
import { writeAudit } from "./audit.ts";
import { cancelFamily } from "./families.ts";
import { removeJobs } from "./purge.ts";
import { applyChanges, insertHistory } from "./settle.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";

interface LockedJob extends DelayColumns {
  readonly seq: number;
  readonly id: string;
  readonly state: number;
  readonly kind: number;
  readonly epoch: number;
  readonly fence: number;
  readonly dedupe_key: string | null;
  readonly incident: string | null;
  /** The batch of which it is a block; null: it is not. */
  readonly batch: string | null;
}

// In the order of their numbers, as whatever else locks many jobs.
const LOCK = `SELECT j.seq, j.id, j.state, j.kind, j.epoch, j.fence, j.dedupe_key, j.lane, j.run_at, j.outcome, j.incident,
    CASE WHEN j.extras THEN (SELECT p.id FROM outlive.blocks b JOIN outlive.batch_state p ON p.seq = b.batch WHERE b.job = j.seq) END AS batch
  FROM outlive.jobs j WHERE j.seq = ANY (ARRAY(SELECT i.seq FROM outlive.job_ids i WHERE i.id = ANY ($1::text[]))) ORDER BY j.seq FOR UPDATE OF j`;

/** In one transaction. */
export async function changeJobs(
  tx: Session,
  ids: readonly string[],
  change: HandChange,
  entry: AuditEntry,
): Promise<readonly OperatorAnswer[]> {
  const { actor } = entry;
  const by = BY_HAND[change.do];
  const rows = new Map((await tx.rows<LockedJob>(LOCK, [texts(ids)])).map((row) => [row.id, row]));
  const holders = change.do === "retry" ? await keyHolders(tx, [...rows.values()]) : NO_HOLDERS;
  const changed: LockedJob[] = [];
  const answers = ids.map((id): OperatorAnswer => {
    const row = rows.get(id);
    if (row === undefined) return { is: "missing" };
    const answer = decided(row, change, by, holders);
    if (changedCount([answer]) === 1) changed.push(row);
    return answer;
  });
  if (change.do === "cancel" && change.children) for (const { seq } of changed) await cancelFamily(tx, seq, actor);
  await applyAll(tx, changed, by, actor);
  if (change.do === "retry") await afterRetry(tx, changed, change.input);
  if (change.do === "remove") await removeJobs(tx, changed);
  await writeAudit(tx, entry, changedCount(answers));
  return answers;
}

function decided(row: LockedJob, change: HandChange, by: ByHand, holders: KeyHolders): OperatorAnswer {
  const from = JOB_STATES[row.state]!;
  // Its children alone are cancelled.
  if (change.do === "cancel" && change.children && from === "cancelled") return { is: "applied", state: from };
  const to = by.changes[from]?.to;
  if (to === undefined)
    return from === "running" && by.request !== null ? { is: "requested" } : { is: "wrong-state", state: from };
  if (change.do === "cancel") return { is: "applied", state: to };
  if (row.batch !== null) return { is: "of-batch", batch: row.batch };
  if (change.do === "remove") return { is: "removed" };
  if (change.do === "promote") return isDelayed(row) ? { is: "applied", state: to } : { is: "not-delayed" };
  // Nothing is left of it that could run.
  if (row.outcome === OUTCOME.removed) return { is: "missing" };
  const holder = holders.take(row);
  if (holder !== null) return { is: "key-held", holder, dedupeKey: row.dedupe_key! };
  return { is: "applied", state: to };
}

/** Which jobs hold the dedupe keys of these. */
interface KeyHolders {
  /** The holder of the job's key; null: it is free, and this job's from now on. */
  take(row: LockedJob): string | null;
}

const NO_HOLDERS: KeyHolders = { take: () => null };

const HOLDERS = `SELECT j.kind, j.dedupe_key, j.id FROM unnest($1::int[], $2::text[]) AS u (kind, key)
  JOIN outlive.jobs j ON j.kind = u.kind AND j.dedupe_key = u.key AND j.dedupe_key IS NOT NULL AND j.state < 2`;

async function keyHolders(tx: Session, rows: readonly LockedJob[]): Promise<KeyHolders> {
  const keyed = rows.filter(({ dedupe_key: key }) => key !== null);
  if (keyed.length === 0) return NO_HOLDERS;
  const found = await tx.rows<{ kind: number; dedupe_key: string; id: string }>(HOLDERS, [
    list(keyed.map(({ kind }) => kind)),
    texts(keyed.map(({ dedupe_key: key }) => key)),
  ]);
  const taken = new Map(found.map(({ kind, dedupe_key: key, id }) => [`${kind} ${key}`, id]));
  return {
    take({ kind, dedupe_key: key, id }) {
      if (key === null) return null;
      const holder = taken.get(`${kind} ${key}`) ?? null;
      if (holder === null) taken.set(`${kind} ${key}`, id);
      return holder;
    },
  };
}

async function applyAll(tx: Session, rows: readonly LockedJob[], by: ByHand, actor: string): Promise<void> {
  for (const [state, change] of Object.entries(by.changes) as [JobState, NonNullable<ByHand["changes"][JobState]>][]) {
    const group = rows.filter((row) => JOB_STATES[row.state] === state);
    const changes = group.map(({ seq, epoch, fence, incident }) => ({
      seq,
      change,
      incident: change.name === "promote" ? incident : null,
      epoch,
      fence,
      actor,
    }));
    if (changes.length > 0) await applyChanges(tx, changes, state);
  }
  if (by.request !== null)
    await requestEnds(
      tx,
      rows.filter((row) => JOB_STATES[row.state] === "running"),
      by.request,
      actor,
    );
}

const REQUEST_END = `WITH asked AS (UPDATE outlive.jobs SET cancel_requested = true WHERE seq = ANY ($1::bigint[]) RETURNING seq, worker)
  INSERT INTO outlive.cancels (worker, job) SELECT worker, seq FROM asked ON CONFLICT DO NOTHING`;

/** Asks the attempts of running jobs to end. The caller holds the rows. */
export async function requestEnds(
  session: Session,
  rows: readonly Pick<LockedJob, "seq" | "state" | "epoch" | "fence">[],
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

// Asked for again by a person: it has all the time that it needs, and may have children again.
const AFTER_RETRY = `WITH families AS (DELETE FROM outlive.family_cancels WHERE job = ANY ($1::bigint[]))
  UPDATE outlive.extras SET expires_at = NULL WHERE job = ANY ($1::bigint[]) AND expires_at IS NOT NULL`;
// What was kept of the former input is not of this one.
const EDIT = `WITH steps AS (DELETE FROM outlive.steps WHERE job = ANY ($1::bigint[])),
  waits AS (DELETE FROM outlive.waits WHERE job = ANY ($1::bigint[]))
  UPDATE outlive.jobs j SET input = $2, input_sum = ${checksumSql("$2", "j.id")} WHERE j.seq = ANY ($1::bigint[])`;

async function afterRetry(tx: Session, rows: readonly LockedJob[], input: string | undefined): Promise<void> {
  if (rows.length === 0) return;
  const seqs = list(rows.map(({ seq }) => seq));
  await tx.run(AFTER_RETRY, [seqs]);
  if (input !== undefined) await tx.run(EDIT, [seqs, input]);
}
