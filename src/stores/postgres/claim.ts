// The worker's turn: successes settled and new jobs claimed in one statement, which is one transaction and one round trip. What is
// rare (an end that is no success, jobs that became due, jobs that must run alone, later attempts) takes further statements.
import { ALONE_FROM_CRASHES } from "../../core/blame.ts";
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../core/job.ts";
import type { Room, Settlement } from "../../core/store.ts";
import { list, type Session, texts } from "./connection.ts";
import type { Kinds } from "./kinds.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { OWNED } from "./settle.ts";

/** How many delayed jobs become ready in one transaction. */
const PROMOTE_BATCH = 1_000;

/** What the claim is made of; `kinds` are those of the room that somebody has declared. */
export interface Claim {
  readonly worker: number;
  readonly kinds: readonly OpenKind[];
  readonly total: number;
  /** Claims although something is due or must run alone: that was looked at before. */
  readonly regardless: boolean;
}

export interface OpenKind {
  readonly kind: string;
  readonly id: number;
  readonly most: number;
  /** `most` is for all kinds together that share. */
  readonly shares: boolean;
}

/** What the statement answers. */
export interface Turn {
  readonly live: boolean;
  /** Numbers of the rows that were settled; null: all. */
  readonly settled: readonly number[] | null;
  /** In how many ms the first delayed job is due, 0 or less if it is now; null: none waits. */
  readonly due: number | null;
  /** Whether a job waits that must run alone. */
  readonly alone: boolean;
  readonly cancels: readonly { readonly id: string; readonly seq: number; readonly runs: boolean }[] | null;
  /** Under which all was claimed that does not say otherwise. */
  readonly epoch: number;
  /** Of all that was claimed, if only one kind was asked for. */
  readonly timeoutMs: number | null;
  readonly taken: readonly Taken[];
}

/**
 * Claimed, as the row came. What most rows would say is null: a number that is not sent is neither written, nor read, nor parsed
 * (3 % of the time of a turn, on both sides).
 */
export type Taken = readonly [
  seq: number,
  id: string,
  /** Null: 1, the first attempt. */
  fence: number | null,
  /** Null: 0. */
  priority: number | null,
  /** Null: the only kind that was asked for. */
  kind: number | null,
  /** Null: that of the turn. */
  epoch: number | null,
  /** If `kind` is null, so is this: see the turn. */
  timeoutMs: number | null,
  input: string,
];

/** The one row that is no job, in the same columns: as JSON it took 26 of the 190 µs that an empty turn costs. */
type Head = readonly [
  seq: null,
  settled: string | null,
  liveAndAlone: number,
  timeoutMs: number | null,
  kind: null,
  epoch: number,
  due: number | null,
  cancels: string | null,
];

// The worker's row is locked against recovery until the claim is committed: FOR KEY SHARE waits for a recovery in progress and then
// sees its mark, but not for a heartbeat. greatest(): an open elsewhere may have raised the epoch after this snapshot was taken.
const turn = (
  columns: { kind: string; timeout: string; head: string },
  ready: string,
): string => `WITH clock AS MATERIALIZED (SELECT outlive.now_ms() AS now),
  settled AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = clock.now, result = a.result
    FROM clock, (SELECT *, $1::bigint AS worker FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::text[]) AS u (seq, fence, epoch, result)) a
    WHERE ${OWNED} RETURNING j.seq),
  me AS MATERIALIZED (SELECT seq FROM outlive.fleet WHERE seq = $1 AND state = 'live' FOR KEY SHARE),
  due AS MATERIALIZED (SELECT run_at - clock.now AS ms FROM clock, outlive.jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1),
  alone AS MATERIALIZED (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = 2 LIMIT 1),
  may AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM me)
    AND ($6 OR NOT (EXISTS (SELECT 1 FROM due WHERE ms <= 0) OR EXISTS (SELECT 1 FROM alone))) AS claim),
  ready AS MATERIALIZED (${ready}),
  epoch AS MATERIALIZED (SELECT coalesce((SELECT value FROM outlive.meta WHERE key = 'epoch'), 0) AS value),
  taken AS (
    UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, epoch.value), fence = j.fence + 1, started_at = clock.now,
      deadline_at = clock.now + ready.timeout_ms
    FROM ready, clock, epoch WHERE j.ctid = ready.tid
    RETURNING j.seq, j.id, nullif(j.fence, 1), nullif(j.priority, 0)::bigint, ${columns.kind}, nullif(j.epoch, epoch.value), ${columns.timeout}, j.input)
  SELECT NULL::bigint, (SELECT CASE WHEN count(*) < cardinality($2::bigint[]) THEN coalesce(string_agg(seq::text, ' '), '') END FROM settled),
    EXISTS (SELECT 1 FROM me)::int + 2 * EXISTS (SELECT 1 FROM alone)::int, ${columns.head}, NULL::int, (SELECT value FROM epoch), (SELECT ms FROM due),
    (SELECT json_agg(json_build_object('id', j.id, 'seq', c.job, 'runs', coalesce(j.state = 1 AND j.worker = c.worker AND j.cancel_requested, false)))
      FROM outlive.cancels c LEFT JOIN outlive.jobs j ON j.seq = c.job WHERE c.worker = $1)::text
  UNION ALL SELECT * FROM taken`;

const TURN_OF_ONE = turn(
  { kind: "NULL::int", timeout: "NULL::bigint", head: "(SELECT timeout_ms FROM ready LIMIT 1)" },
  `
    SELECT j.ctid AS tid, (SELECT timeout_ms FROM outlive.kinds WHERE id = $7) AS timeout_ms FROM outlive.jobs j
    WHERE j.kind = $7 AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
      AND NOT (SELECT paused FROM outlive.kinds WHERE id = $7)
    ORDER BY j.priority DESC, j.seq LIMIT $8 FOR UPDATE SKIP LOCKED`,
);

// The best of all kinds by (priority, age), each within its own room. What was locked and not taken is free again at the commit.
const TURN_OF_MANY = turn(
  { kind: "j.kind", timeout: "ready.timeout_ms", head: "NULL::bigint" },
  `
    SELECT tid, timeout_ms FROM (
      SELECT r.tid, r.priority, r.seq, k.timeout_ms, k.shares, k.room, row_number() OVER (PARTITION BY k.shares ORDER BY r.priority DESC, r.seq) AS nth
      FROM (
        SELECT o.kind, o.room, o.shares, k.timeout_ms FROM unnest($7::int[], $9::int[], $10::boolean[]) AS o (kind, room, shares)
        JOIN outlive.kinds k ON k.id = o.kind WHERE NOT k.paused
      ) k CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.priority, j.seq FROM outlive.jobs j
        WHERE j.kind = k.kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
        ORDER BY j.priority DESC, j.seq LIMIT least(k.room, $8::int) FOR UPDATE SKIP LOCKED
      ) r
    ) c WHERE NOT shares OR nth <= room ORDER BY priority DESC, seq LIMIT $8`,
);

/** One statement. `successes` are all by this worker, each job once. */
export async function takeTurn(session: Session, successes: readonly Settlement[], claim: Claim): Promise<Turn> {
  const { worker, kinds, total, regardless } = claim;
  const values = [
    worker,
    list(successes.map(({ lease }) => lease.row)),
    list(successes.map(({ lease }) => lease.fence)),
    list(successes.map(({ lease }) => lease.epoch)),
    texts(successes.map(({ change }) => change.result)),
    regardless,
  ];
  const rows =
    kinds.length > 1
      ? await session.arrays<Taken | Head>(TURN_OF_MANY, [
          ...values,
          list(kinds.map(({ id }) => id)),
          total,
          list(kinds.map(({ most }) => most)),
          list(kinds.map(({ shares }) => shares)),
        ])
      : await session.arrays<Taken | Head>(TURN_OF_ONE, [
          ...values,
          kinds[0]?.id ?? null,
          Math.min(kinds[0]?.most ?? 0, total),
        ]);
  const at = rows.findIndex(([seq]) => seq === null);
  const [, settled, liveAndAlone, timeoutMs, , epoch, due, cancels] = rows.splice(at, 1)[0] as Head;
  const taken = rows as Taken[];
  // RETURNING promises no order.
  taken.sort((a, b) => (b[3] ?? 0) - (a[3] ?? 0) || a[0] - b[0]);
  return {
    live: (liveAndAlone & 1) === 1,
    alone: (liveAndAlone & 2) === 2,
    settled: settled === null ? null : settled.split(" ").filter(Boolean).map(Number),
    due,
    cancels: cancels === null ? null : (JSON.parse(cancels) as Turn["cancels"]),
    epoch,
    timeoutMs,
    taken,
  };
}

/** Kinds with room, as far as somebody has declared them. */
export function openKinds(kinds: Kinds, room: Room): OpenKind[] {
  return room.kinds.flatMap(({ kind, room: most, shares = false }) => {
    const id = kinds.idOf(kind);
    return id === undefined ? [] : [{ kind, id, most, shares }];
  });
}

const PROMOTE = `UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes >= ${ALONE_FROM_CRASHES} THEN 2 ELSE 1 END FROM (
    SELECT d.ctid AS tid FROM outlive.jobs d WHERE d.state = 0 AND d.lane = 0 AND d.run_at <= (SELECT outlive.now_ms())
    ORDER BY d.run_at LIMIT ${PROMOTE_BATCH} FOR UPDATE SKIP LOCKED
  ) due WHERE j.ctid = due.tid`;

/** Makes ready what is due; what another worker is about to make ready is left to it. */
export async function promoteDue(session: Session): Promise<void> {
  await session.run(PROMOTE);
}

interface LaterColumns extends CounterColumns {
  readonly seq: number;
  readonly outcome: number | null;
  readonly incident: string | null;
  readonly steps: readonly StoredStep[] | null;
}

const LATER = `SELECT j.seq, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.outcome, j.incident,
    (SELECT json_agg(json_build_object('name', s.name, 'result', s.result) ORDER BY s.ord) FROM outlive.steps s WHERE s.job = j.seq) AS steps
  FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[])`;

// The job runs again after a death: the incident's clock stops.
const RESUMED = `WITH resumed AS (
    UPDATE outlive.incident_jobs i SET resumed_at = outlive.now_ms() FROM outlive.jobs j
    WHERE j.seq = ANY ($1::bigint[]) AND i.incident = j.incident AND i.job = j.seq AND i.resumed_at IS NULL)
  UPDATE outlive.jobs SET incident = NULL WHERE seq = ANY ($1::bigint[]) AND incident IS NOT NULL`;

/** For whom the rows are, and what the statement that took them said besides. */
export interface Claimant {
  readonly worker: string;
  readonly open: readonly OpenKind[];
  readonly epoch: number;
  readonly timeoutMs: number | null;
  readonly alone: boolean;
}

/** The rows as core wants them. What earlier attempts have left is read here: nobody but the new owner writes it any more. */
export async function claimedJobs(
  session: Session,
  taken: readonly Taken[],
  { worker, open, epoch: ofTurn, timeoutMs: ofKind, alone }: Claimant,
): Promise<ClaimedJob[]> {
  const again = taken.filter(([, , fence]) => fence !== null).map(([seq]) => seq);
  const later = again.length === 0 ? NONE : await laterAttempts(session, again);
  return taken.map(([row, jobId, fence, , kindId, epoch, timeoutMs, input]) => {
    const { kind } = kindId === null ? open[0]! : open.find(({ id }) => id === kindId)!;
    const lease = { jobId, kind, row, worker, epoch: epoch ?? ofTurn, fence: fence ?? 1 };
    // Before its first attempt a job has no counters, no outcome, no steps and no incident.
    const before = later.get(row);
    return {
      lease,
      kind,
      input,
      deadlineInMs: kindId === null ? ofKind : timeoutMs,
      alone,
      counters: before ? counters(before) : NO_COUNTERS,
      lastOutcome: before && before.outcome !== null ? OUTCOMES[before.outcome]! : null,
      steps: before?.steps ?? NO_STEPS,
    };
  });
}

async function laterAttempts(session: Session, seqs: readonly number[]): Promise<ReadonlyMap<number, LaterColumns>> {
  const rows = await session.rows<LaterColumns>(LATER, [list(seqs)]);
  const resumed = rows.filter(({ incident }) => incident !== null).map(({ seq }) => seq);
  if (resumed.length > 0) await session.run(RESUMED, [list(resumed)]);
  return new Map(rows.map((row) => [row.seq, row]));
}

const NONE: ReadonlyMap<number, LaterColumns> = new Map();
const NO_STEPS: readonly StoredStep[] = [];
