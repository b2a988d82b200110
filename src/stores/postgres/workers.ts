// The worker rows (table `fleet`): registering, heartbeats, leaving. One row per process and boot; a row that is not
// live never becomes live again. A claim shares the row's key lock, so a transaction that takes the row FOR UPDATE
// either sees every claim or prevents it. A row is identified by its number and its id together: the number is short,
// but its sequence can go back.
import type { Lease } from "../../job/lease.ts";
import { withLastWord } from "../../recovery/incident.ts";
import type { WorkerRecord, WorkerRow } from "../liveness.ts";
import type { Beat, BeatAnswer, HeldLease, Pending, WorkerQuery } from "../port.ts";
import {
  LANE,
  type CounterColumns,
  counters,
  type ExpiryColumns,
  type HeldColumns,
  LEASE_HASH,
  longestOverdue,
  type WorkerColumns,
  workerRow,
} from "../rows.ts";
import type { Connection } from "./connection.ts";
import { ANY_AT_GATE, ANY_DUE_EVENT, ANY_KEY_WAKE, ANY_WAKE, type Session } from "./statements.ts";
import { resolveLoss } from "./incidents.ts";
import { IS_ORIGINAL, isRowOf, raiseEpoch, whyReplaced } from "./restore-mark.ts";

const REGISTER = `INSERT INTO outlive.fleet (id, state, host, boot_id, namespace, pid, start_ticks, predecessor, version, epoch, lease_ms, concurrency, kinds,
    lock_name, lock_identity, started_at, heartbeat_at)
  SELECT $1, 'live', $2, $3, $4, $5, $6, $7, $8, coalesce((SELECT value FROM outlive.meta WHERE key = 'epoch'), 0), $9, $10, $11, $12, $13, now, now
  FROM (SELECT outlive.now_ms() AS now) AS clock RETURNING seq, epoch, started_at AS now`;

const RAISE_EPOCH = `${raiseEpoch("")} RETURNING value`;

// Runs once per run of the server: the second caller waits for the first and finds it done.
const RAISE_EPOCH_ONCE = `WITH first AS (
    INSERT INTO outlive.server_run AS r (started) VALUES (outlive.server_start())
    ON CONFLICT (one) DO UPDATE SET started = excluded.started WHERE r.started <> excluded.started RETURNING 1)
  ${raiseEpoch("FROM first")}`;

const HELD = `SELECT count(*) AS count, coalesce(sum(${LEASE_HASH}), 0)::bigint AS digest, min(j.deadline_at) AS deadline_at
  FROM outlive.jobs j WHERE j.state = 1 AND j.worker = $1`;
/** For each kind, the job whose deadline passed first. */
const PAST_DEADLINE = `SELECT DISTINCT ON (j.kind) j.id, j.deadline_at + k.grace_ms AS expires_at, coalesce(k.timeout_ms, 0) + k.grace_ms AS allowed_ms
  FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = $1 AND j.deadline_at < $2 ORDER BY j.kind, j.deadline_at`;
const LEASES = `SELECT j.seq, j.id AS "jobId", k.name AS kind, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
  FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind WHERE j.state = 1 AND j.worker = $1 ORDER BY j.seq`;

const HELD_IDS = `array_to_json(ARRAY(
  SELECT j.id FROM outlive.jobs j WHERE j.state = 1 AND j.worker = w.seq ORDER BY j.seq LIMIT $3))::text AS held_ids, `;

const WHICH = {
  present: "w.state IN ('live', 'recovering')",
  // An array, not a subquery: with a subquery the planner reads all finished workers.
  leftBehind:
    "w.state IN ('gone', 'stopped') AND w.seq = ANY (ARRAY(SELECT DISTINCT worker FROM outlive.jobs WHERE state = 1))",
  all: "true",
} as const;

// What waits. Claimed jobs leave dead entries in front of the live ones, and next to a session that is idle in a transaction there may be millions (floors.ts).
// So polls have a limit, and what could not be read in time may be there.

/** What a worker's turn acts on, apart from ready jobs, and when it will have something to do by time alone (claim.ts). */
export const TO_ACT_ON = `${ANY_WAKE} OR ${ANY_KEY_WAKE} OR EXISTS (SELECT 1 FROM outlive.cancels)
  OR ${ANY_DUE_EVENT} OR ${ANY_AT_GATE}`;
export const NEXT_MS = `(least((SELECT run_at FROM outlive.jobs WHERE state = 0 AND lane = ${LANE.delayed} ORDER BY run_at LIMIT 1),
  (SELECT expires_at FROM outlive.extras WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1),
  (SELECT due_at FROM outlive.keys WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1)) - outlive.now_ms())::float8`;

export interface PendingColumns {
  readonly is_now: boolean;
  readonly next_ms: number | null;
}

/** `found` undefined: it could not be read in time. */
export function pendingOf(found: Partial<PendingColumns> | undefined): Pending {
  if (!found) return { now: true, nextInMs: null };
  const { is_now: isNow = false, next_ms: nextMs = null } = found;
  const nextInMs = nextMs === null ? null : Math.max(0, nextMs);
  return { now: isNow || nextInMs === 0, nextInMs };
}

// One statement with what is held: of what an idle worker does, each message to the server costs as much as its execution.
const beating = (more: string): string => `WITH held AS MATERIALIZED (${HELD}), beaten AS (
  UPDATE outlive.fleet f SET beats = f.beats + 1, heartbeat_at = outlive.now_ms(), loop_lag_ms = $3
  WHERE ${isRowOf("$1", "$2")} AND f.state = 'live' AND ${IS_ORIGINAL}
  RETURNING f.heartbeat_at AS now, (SELECT value FROM outlive.meta WHERE key = 'schema') AS schema_version)
  SELECT held.*, beaten.now, beaten.schema_version${more} FROM held LEFT JOIN beaten ON true`;
const BEAT = beating("");
// For jobs of all kinds: most polls of idle workers find nothing at all. The statement of a turn costs the server 500 us in a session that has slept, these
// columns 20 to 40, and a message of their own about 300.
const BEAT_AND_POLL =
  beating(`, held.count = 0 AND (EXISTS (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = ${LANE.open})
    OR EXISTS (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = ${LANE.suspect}) OR ${TO_ACT_ON}) AS is_now,
  CASE WHEN held.count = 0 THEN ${NEXT_MS} END AS next_ms`);

interface BeatColumns extends HeldColumns, Partial<PendingColumns> {
  /** Null: the worker's row is not live. */
  readonly now: number | null;
  readonly schema_version: number | null;
}

/** In a transaction there is no limit of its own, and no poll. */
type BeatSession = Session & Partial<Pick<Connection, "inTime">>;

/** How a statement names a worker. */
export interface WorkerKey {
  /** Its number in the rows; -1: it has none, which no job ever has. */
  readonly seq: number;
  readonly id: string;
}

export class Workers {
  readonly #seqs = new Map<string, number>();
  /** The epoch that the latest turn of each worker saw. */
  readonly #epochs = new Map<string, number>();

  known(id: string): number | undefined {
    return this.#seqs.get(id);
  }

  /** The number that represents a worker in job rows; -1 if it has none, which no job ever has. */
  async seqOf(session: Session, id: string): Promise<number> {
    const known = this.#seqs.get(id);
    if (known !== undefined) return known;
    const [row] = await session.rows<{ seq: number }>("SELECT seq FROM outlive.fleet WHERE id = $1", [id]);
    if (row) this.#seqs.set(id, row.seq);
    return row?.seq ?? -1;
  }

  async raiseEpoch(session: Session): Promise<number> {
    const [row] = await session.rows<{ value: number }>(RAISE_EPOCH);
    return row!.value;
  }

  /** After a new run of the server, which may have forgotten the latest claims. */
  async raiseEpochOnce(session: Session): Promise<void> {
    await session.run(RAISE_EPOCH_ONCE);
  }

  /**
   * Why the store is not the one that this worker registered with, as far as its latest turn can tell; null: it is. A
   * restarted server may have lost what it did not promise to keep. The turn then raises the epoch, and nothing is
   * concluded from it.
   */
  async whyReplaced(
    session: Session,
    { seq, id }: WorkerKey,
    turn: { readonly live: boolean; readonly restarted: boolean; readonly epoch: number },
  ): Promise<string | null> {
    if (!turn.live) return whyReplaced(session, seq, id);
    const before = this.#epochs.get(id) ?? 0;
    this.#epochs.set(id, turn.epoch);
    return turn.restarted || turn.epoch >= before ? null : `its epoch fell from ${before} to ${turn.epoch}`;
  }

  /** Inside a transaction. */
  async register(session: Session, worker: WorkerRecord): Promise<{ epoch: number; now: number }> {
    const { id, host, bootId, namespace, pid, startTicks, predecessor, version, leaseMs, concurrency, kinds, lock } =
      worker;
    const [row] = await session.rows<{ seq: number; epoch: number; now: number }>(REGISTER, [
      id,
      host,
      bootId,
      namespace,
      pid,
      startTicks,
      predecessor,
      version,
      leaseMs,
      concurrency,
      JSON.stringify(kinds),
      lock.name,
      lock.identity,
    ]);
    if (predecessor !== null) await resolveLoss(session, predecessor, "returned");
    this.#seqs.set(id, row!.seq);
    return { epoch: row!.epoch, now: row!.now };
  }

  /** With a last word: inside a transaction. */
  async beat(session: BeatSession, id: string, beating: Beat): Promise<BeatAnswer> {
    const { loopLagMs, confirmed, lastWord, leases, pollMs } = beating;
    if (lastWord !== undefined) await this.note(session, id, lastWord);
    const seq = await this.seqOf(session, id);
    const values = [seq, id, Math.round(loopLagMs)];
    const polled = pollMs !== undefined ? await session.inTime?.<BeatColumns>(pollMs, BEAT_AND_POLL, values) : null;
    const [beat] = polled ?? (await session.rows<BeatColumns>(BEAT, values));
    const { count, digest, deadline_at: deadlineAt, now: beatenAt, schema_version: schemaVersion } = beat!;
    const live = beatenAt !== null;
    const replaced = live ? null : await whyReplaced(session, seq, id);
    const now = beatenAt ?? 0;
    const passed = deadlineAt !== null && deadlineAt < now;
    const late = passed ? await session.rows<ExpiryColumns>(PAST_DEADLINE, [seq, now]) : [];
    const overdue = longestOverdue(late, now, confirmed);
    return {
      live,
      ...(replaced !== null && { replaced }),
      now,
      held: { count, digest },
      ...(leases && { leases: await this.#leases(session, id, seq) }),
      overdueMs: overdue?.overdueMs ?? null,
      overdueJobId: overdue?.id ?? null,
      schemaVersion: schemaVersion ?? 0,
      ...(live && count === 0 && pollMs !== undefined && { pending: pendingOf(polled?.[0]) }),
    };
  }

  async #leases(session: Session, worker: string, seq: number): Promise<HeldLease[]> {
    const rows = await session.rows<CounterColumns & Omit<Lease, "row"> & { readonly seq: number }>(LEASES, [seq]);
    return rows.map((row) => {
      const { jobId, kind, epoch, fence } = row;
      return { lease: { jobId, kind, row: row.seq, worker, epoch, fence }, counters: counters(row) };
    });
  }

  /** If a recovery wrote the incident before this was known, the last word is added to it. Inside a transaction. */
  async note(session: Session, id: string, lastWord: string): Promise<void> {
    const seq = await this.seqOf(session, id);
    await session.run("UPDATE outlive.fleet SET last_word = $1 WHERE seq = $2 AND id = $3", [lastWord, seq, id]);
    // The worker's row is locked, so no other note comes between the two statements.
    const [incident] = await session.rows<{ id: string; evidence: string | null }>(
      "SELECT id, evidence FROM outlive.incidents WHERE id = (SELECT incident FROM outlive.fleet WHERE seq = $1 AND id = $2)",
      [seq, id],
    );
    if (!incident) return;
    const evidence = withLastWord(incident.evidence, lastWord);
    await session.run("UPDATE outlive.incidents SET evidence = $1 WHERE id = $2", [evidence, incident.id]);
  }

  /**
   * Stopped only if it holds nothing: a leftover of a shutdown stays with a worker that recovery checks. Inside a
   * transaction.
   */
  async leave(session: Session, id: string): Promise<boolean> {
    const seq = await this.seqOf(session, id);
    // Waits for a claim in flight, so that the next statement sees it.
    await session.run("SELECT 1 FROM outlive.fleet WHERE seq = $1 AND id = $2 FOR UPDATE", [seq, id]);
    const stopped = await session.run(
      `UPDATE outlive.fleet f SET state = 'stopped', heartbeat_at = outlive.now_ms(), held = '[]'
       WHERE ${isRowOf("$1", "$2")} AND f.state = 'live' AND ${IS_ORIGINAL} AND NOT EXISTS (SELECT 1 FROM outlive.jobs WHERE state = 1 AND worker = $1)`,
      [seq, id],
    );
    if (stopped === 1) await session.run("DELETE FROM outlive.cancels WHERE worker = $1", [seq]);
    return stopped === 1;
  }

  async list(session: Session, query: WorkerQuery): Promise<WorkerRow[]> {
    const { heldIds } = query;
    const rows = await session.rows<WorkerColumns>(
      `SELECT w.*, ${heldIds === undefined ? "" : HELD_IDS}(SELECT count(*) FROM outlive.jobs j WHERE j.state = 1 AND j.worker = w.seq) AS held_count,
         w.restored OR NOT ${IS_ORIGINAL} AS came_back
       FROM outlive.fleet w WHERE ${WHICH[query.which ?? "present"]} AND w.id > $1 ORDER BY w.id LIMIT $2`,
      [query.after ?? "", query.limit ?? null, ...(heldIds === undefined ? [] : [heldIds])],
    );
    return rows.map(workerRow);
  }
}

/** How many workers are not finished. */
export async function countPresent(session: Session): Promise<number> {
  const [row] = await session.rows<{ n: number }>(
    "SELECT count(*) AS n FROM outlive.fleet WHERE state IN ('live', 'recovering')",
  );
  return row!.n;
}

// What the store knows of the worker's sessions stays in front of what Redis adds (redis/pulse.ts).
const SET_EVIDENCE = `UPDATE outlive.fleet SET lock_name = $2, lock_identity = split_part(coalesce(lock_identity, ''), '|', 1) || $3
  WHERE id = $1 AND state = 'live'`;

/** Where the liveness of a worker is in another server: what its row says of it; null: nothing any more, and heartbeats decide. */
export async function setEvidence(
  session: Session,
  worker: string,
  evidence: { readonly name: string; readonly identity: string } | null,
): Promise<void> {
  await session.rows(SET_EVIDENCE, [worker, evidence?.name ?? null, evidence === null ? "" : `|${evidence.identity}`]);
}
