// What becomes of an enqueue whose dedupe key an unfinished job holds: the job is kept, gets the input of the event, or runs again after its end.
//
// An event is applied under the lock of the job's row, which is never waited for: the handler may hold it in a commit for minutes. If it is locked,
// and inside a user's open transaction, which must not lock it, the event is only appended to `reruns`. The next turn of a worker that
// gets the lock applies it. The rows of a job in `reruns` are only changed under the lock of its row.
import type { Enqueued, JobDraft } from "../../job/job.ts";
import { LANE, STATE } from "../rows.ts";
import { checksumSql, list, type Session, texts } from "./statements.ts";

/** The unfinished job that holds the key, as it was read. */
export interface Holder {
  readonly id: string;
  readonly seq: number;
  readonly state: number;
  readonly fence: number;
}

export interface LockedHolder extends Holder {
  readonly lane: number;
  readonly now: number;
}

export const LOCK = `SELECT j.id, j.seq, j.state, j.fence, j.lane, outlive.now_ms() AS now FROM outlive.jobs j WHERE j.seq = $1 FOR NO KEY UPDATE SKIP LOCKED`;

/** In a short transaction. Null: the holder has ended meanwhile, and the key may be free. */
export async function apply(tx: Session, holder: Holder, draft: JobDraft): Promise<Enqueued | null> {
  const [row] = await tx.rows<LockedHolder>(LOCK, [holder.seq]);
  if (!row) return defer(tx, holder, draft);
  if (row.state >= STATE.succeeded) return null;
  const { id, seq, now } = row;
  if (!hasBegun(row)) {
    // Events that are kept for it are older.
    await tx.run("DELETE FROM outlive.reruns WHERE job = $1", [seq]);
    await replace(tx, row, draft, now);
    return { id, created: false, became: "replaced" };
  }
  if (draft.dedupe?.then !== "rerun") return { id, created: false };
  await keep(tx, seq, { draft, at: now, latestAt: latestOf(draft, now) });
  return { id, created: false, became: "rerun" };
}

/** Locks nothing. What is returned is what would have been done to the job as it was read. */
export async function defer(session: Session, holder: Holder, draft: JobDraft): Promise<Enqueued> {
  const { id, seq } = holder;
  const isRerun = draft.dedupe?.then === "rerun";
  if (hasBegun(holder) && !isRerun) return { id, created: false };
  await session.run(
    `INSERT INTO outlive.reruns (job, at, latest_at, due, seen, draft) SELECT $1, clock.now, clock.now + $2::bigint, true, false, $3
     FROM (SELECT outlive.now_ms() AS now) AS clock`,
    [seq, draft.dedupe?.debounce?.maxMs ?? null, JSON.stringify(draft)],
  );
  return { id, created: false, became: hasBegun(holder) ? "rerun" : "replaced" };
}

export function hasBegun({ state, fence }: Holder): boolean {
  return state !== STATE.queued || fence > 0;
}

function latestOf({ dedupe }: JobDraft, at: number): number | null {
  const maxMs = dedupe?.debounce?.maxMs ?? null;
  return maxMs === null ? null : at + maxMs;
}

/** When a draft of that instant is due; null: at once. A debounced one waits again, but not beyond `latestAt`. */
export function runAtOf({ dedupe, runAt, delayMs }: JobDraft, at: number, latestAt: number | null): number | null {
  if (dedupe?.debounce) return Math.min(at + dedupe.debounce.waitMs, latestAt ?? Number.MAX_SAFE_INTEGER);
  return runAt ?? (delayMs > 0 ? at + delayMs : null);
}

export interface Event {
  readonly draft: JobDraft;
  readonly at: number;
  readonly latestAt: number | null;
}

// The end of the job makes it due (note_move), for which the job needs its mark. One event is kept: the latest, with the earliest bound.
const KEEP = `WITH former AS (DELETE FROM outlive.reruns WHERE job = $1 RETURNING latest_at),
  extras AS (INSERT INTO outlive.extras (job) VALUES ($1) ON CONFLICT (job) DO NOTHING),
  marked AS (UPDATE outlive.jobs SET extras = true WHERE seq = $1 AND NOT extras)
  INSERT INTO outlive.reruns (job, at, latest_at, due, seen, draft) VALUES ($1, $2, coalesce((SELECT min(latest_at) FROM former), $3), false, true, $4)`;

export async function keep(tx: Session, job: number, { draft, at, latestAt }: Event): Promise<void> {
  await tx.run(KEEP, [job, at, latestAt, JSON.stringify(draft)]);
}

// ---- a job that has not begun

const KEEP_LATEST = `WITH job AS (SELECT seq FROM outlive.job_ids WHERE id = $1),
  kept AS (INSERT INTO outlive.extras AS e (job, latest_at) SELECT seq, $2 FROM job ON CONFLICT (job) DO UPDATE SET latest_at = excluded.latest_at)
  UPDATE outlive.jobs j SET extras = true FROM job WHERE j.seq = job.seq AND NOT j.extras`;

/** A debounced job is not put off beyond this instant. */
export async function keepLatest(tx: Session, id: string, latestAt: number): Promise<void> {
  await tx.run(KEEP_LATEST, [id, latestAt]);
}

interface ExtrasColumns {
  readonly latest_at: number | null;
  readonly key1: number | null;
  readonly key2: number | null;
  readonly key3: number | null;
  readonly place: number;
}

// A job that keeps its keys is moved by the trigger; its order at the door follows the priority.
const REPLACE = `WITH ranked AS (UPDATE outlive.extras SET rank = $4 WHERE job = $1 AND key1 IS NOT NULL AND NOT strict)
  UPDATE outlive.jobs j SET input = $2, input_sum = ${checksumSql("$2", "j.id")}, priority = $4, lane = $5, run_at = coalesce($3::bigint, j.run_at),
    extras = j.extras OR $6::boolean WHERE j.seq = $1`;

// A job of a strict limit waits at that door first.
const SET_KEYS = `WITH gate AS (SELECT CASE WHEN $10::bigint IS NOT NULL THEN -j.kind::bigint END AS id FROM outlive.jobs j WHERE j.seq = $1),
  ordered AS (SELECT min(array_position($6::text[], l.name)) AS at FROM outlive.limits l WHERE l.strict AND l.name = ANY ($6::text[])),
  limit_of AS (SELECT o.at IS NOT NULL AS strict, CASE WHEN o.at IS NULL THEN coalesce(g.id, $2) ELSE (ARRAY[$2, $3, $4]::bigint[])[o.at] END AS door, g.id AS gate FROM ordered o, gate g),
  wakes AS (INSERT INTO outlive.key_wakes (key, at)
    SELECT w.key, outlive.now_ms() FROM (SELECT unnest($7::bigint[]) AS key UNION SELECT door FROM limit_of WHERE $8::boolean) w WHERE w.key > 0)
  INSERT INTO outlive.extras (job, key1, key2, key3, keys, strict, place, door, rank, fair, gate, ring)
  SELECT $1, $2, $3, $4, $5, s.strict, CASE WHEN $8::boolean THEN 1 ELSE 0 END, CASE WHEN $8::boolean THEN s.door END, CASE WHEN s.strict THEN 0 ELSE $9::int END, $10::bigint, s.gate, CASE WHEN s.strict THEN 0 ELSE coalesce($10::bigint, 0) END
  FROM limit_of s
  ON CONFLICT (job) DO UPDATE SET key1 = excluded.key1, key2 = excluded.key2, key3 = excluded.key3, keys = excluded.keys, strict = excluded.strict,
    place = excluded.place, door = excluded.door, rank = excluded.rank, fair = excluded.fair, gate = excluded.gate, ring = excluded.ring`;

const KEEP_EXPIRY = `WITH kept AS (INSERT INTO outlive.extras AS e (job, expires_at) VALUES ($1, $2) ON CONFLICT (job) DO UPDATE SET expires_at = excluded.expires_at)
  UPDATE outlive.jobs j SET extras = true WHERE j.seq = $1 AND NOT j.extras`;

/** Null: it does not expire. */
async function keepExpiry(tx: Session, seq: number, expiresAt: number | null): Promise<void> {
  if (expiresAt === null)
    await tx.run("UPDATE outlive.extras SET expires_at = NULL WHERE job = $1 AND expires_at IS NOT NULL", [seq]);
  else await tx.run(KEEP_EXPIRY, [seq, expiresAt]);
}

/** Whatever runs the job sees this input. */
export async function replace(
  tx: Session,
  { id, seq, lane, now }: LockedHolder,
  draft: JobDraft,
  at: number,
): Promise<void> {
  const { input, priority, keys } = draft;
  const [before] = await tx.rows<ExtrasColumns>(
    "SELECT latest_at, key1, key2, key3, place FROM outlive.extras WHERE job = $1",
    [seq],
  );
  const latestAt = before?.latest_at ?? latestOf(draft, at);
  if (latestAt !== null && before?.latest_at !== latestAt) await keepLatest(tx, id, latestAt);
  const runAt = runAtOf(draft, at, latestAt);
  const isReady = runAt === null ? lane !== LANE.delayed : runAt <= now;
  if (keys !== undefined) {
    const [first, second, third] = keys.map(({ id }) => id);
    // What it counted against is checked again.
    const left =
      before && before.place > 1 ? [before.key1, before.key2, before.key3].filter((key) => key !== null) : [];
    await tx.run(SET_KEYS, [
      seq,
      first!,
      second ?? null,
      third ?? null,
      JSON.stringify(keys.map(({ limit, key }) => [limit, key])),
      texts(keys.map(({ limit }) => limit)),
      list(left),
      isReady,
      priority,
      draft.fair ?? null,
    ]);
  }
  await keepExpiry(tx, seq, draft.expiresMs === undefined ? null : Math.max(at, runAt ?? at) + draft.expiresMs);
  const ready = keys === undefined ? (lane === LANE.delayed ? LANE.open : lane) : LANE.held;
  await tx.run(REPLACE, [seq, input, runAt, priority, isReady ? ready : LANE.delayed, keys !== undefined]);
}
