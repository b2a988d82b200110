// The worker's turn: successes settled and new jobs claimed in one statement, which is one transaction and one round trip, or in two at
// the same time if there is much to settle. What is rare (an end that is no success, jobs that became due, suspects,
// later attempts) takes further statements.
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../job/job.ts";
import { quarantine } from "../../job/transitions.ts";
import type { Room, Settlement } from "../port.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { isIntactSql, stepOwnerSql } from "./attempt-writes.ts";
import type { Connection } from "./connection.ts";
import type { Kinds } from "./enqueue.ts";
import { isRowOf, MARK_HOLDS, registered } from "./restore-mark.ts";
import { OWNED, RESULT_SUM } from "./settle.ts";
import { list, type Session, texts, type Value } from "./statements.ts";
import type { WorkerKey } from "./workers.ts";

/** How many delayed jobs become ready in one transaction. */
const PROMOTE_BATCH = 1_000;

/** What the claim is made of; `kinds` are those of the room that somebody has declared. */
export interface Claim {
  readonly worker: WorkerKey;
  readonly kinds: readonly OpenKind[];
  readonly total: number;
  /** What keeps the statement from claiming, because it is dealt with first: jobs that are due, and suspects that the worker could take. */
  readonly heeds: "due and suspects" | "due" | "nothing";
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
  /** Whether a suspect waits. */
  readonly suspects: boolean;
  readonly cancels: readonly { readonly id: string; readonly seq: number; readonly runs: boolean }[] | null;
  /** The server may have forgotten claims since somebody claimed here: nothing was claimed, the epoch must be raised first. */
  readonly restarted: boolean;
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
  /** Null: it is not what was stored. */
  input: string | null,
];

/** The one row that is no job, in the same columns: as JSON it took 26 of the 190 µs that an empty turn costs. */
type Head = readonly [
  seq: null,
  settled: string | null,
  /** 1: the worker is live; 2: a suspect waits; 4: the server was restarted. */
  facts: number,
  timeoutMs: number | null,
  kind: null,
  epoch: number,
  due: number | null,
  cancels: string | null,
];

/** One statement: settles and claims. `successes` are all by this worker, each job once. */
export async function takeTurn(session: Session, successes: readonly Settlement[], claim: Claim): Promise<Turn> {
  return turnOf(await session.arrays<Taken | Head>(textOf(TURN, claim), [...room(claim), ...settling(successes)]));
}

/**
 * The same as two statements at the same time on two sessions, for a busy worker: what is claimed is picked while what is settled is on
 * its way to the disk, and only for the latter is waited. A claim that a dying server forgets has left nothing behind, for whatever is
 * written under it is on disk only together with it; and its fence is not given again, for the first claim after a crash raises the epoch.
 */
export async function takeTurnInTwo(
  connection: Connection,
  successes: readonly Settlement[],
  claim: Claim,
): Promise<Turn> {
  const [claimed, settled] = await both(
    connection.arrays<Taken | Head>(textOf(CLAIM, claim), room(claim)),
    connection.arrays<[string | null]>(SETTLE, [claim.worker.seq, claim.worker.id, ...settling(successes)]),
  );
  return { ...turnOf(claimed), settled: numbers(settled[0]![0]) };
}

/** Both are over, whatever became of them, when this throws: nobody repeats what is still under way. */
async function both<A, B>(one: Promise<A>, other: Promise<B>): Promise<[A, B]> {
  await Promise.allSettled([one, other]);
  return [await one, await other];
}

function textOf(texts: { readonly ofOne: string; readonly ofMany: string }, { kinds }: Claim): string {
  return kinds.length > 1 ? texts.ofMany : texts.ofOne;
}

const HEEDS = { "due and suspects": 0, due: 1, nothing: 2 } as const;

function room({ worker: { seq, id: worker }, kinds, total, heeds }: Claim): Value[] {
  const who = [seq, worker, HEEDS[heeds]];
  if (kinds.length <= 1) return [...who, kinds[0]?.id ?? null, Math.min(kinds[0]?.most ?? 0, total)];
  const ids = list(kinds.map(({ id }) => id));
  return [...who, ids, total, list(kinds.map(({ most }) => most)), list(kinds.map(({ shares }) => shares))];
}

function settling(successes: readonly Settlement[]): Value[] {
  return [
    list(successes.map(({ lease }) => lease.row)),
    list(successes.map(({ lease }) => lease.fence)),
    list(successes.map(({ lease }) => lease.epoch)),
    texts(successes.map(({ change }) => change.result)),
  ];
}

function turnOf(rows: (Taken | Head)[]): Turn {
  const at = rows.findIndex(([seq]) => seq === null);
  const [, settled, facts, timeoutMs, , epoch, due, cancels] = rows.splice(at, 1)[0] as Head;
  const taken = rows as Taken[];
  // RETURNING promises no order.
  taken.sort((a, b) => (b[3] ?? 0) - (a[3] ?? 0) || a[0] - b[0]);
  return {
    live: (facts & 1) === 1,
    suspects: (facts & 2) === 2,
    restarted: (facts & 4) === 4,
    settled: numbers(settled),
    due,
    cancels: cancels === null ? null : (JSON.parse(cancels) as Turn["cancels"]),
    epoch,
    timeoutMs,
    taken,
  };
}

function numbers(text: string | null): number[] | null {
  return text === null ? null : text.split(" ").filter(Boolean).map(Number);
}

/** Kinds with room, as far as somebody has declared them. */
export function openKinds(kinds: Kinds, room: Room): OpenKind[] {
  return room.kinds.flatMap(({ kind, room: most, shares = false }) => {
    const id = kinds.idOf(kind);
    return id === undefined ? [] : [{ kind, id, most, shares }];
  });
}

const PROMOTE = `UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN 2 ELSE 1 END FROM (
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
  readonly steps: readonly (StoredStep & { readonly intact: boolean })[] | null;
}

const STEP_IS_INTACT = isIntactSql("s.result", stepOwnerSql("j.id", "s.name"), "s.result_sum");

// One statement, before the handlers: also stops the clock of the incident that had put the job back, for it runs again. Only while it is
// ours: who was frozen since the claim must not touch what the job has become.
const LATER = `WITH me AS MATERIALIZED (SELECT ${registered("$2", "$3")} AS here),
  resumed AS (
    UPDATE outlive.incident_jobs i SET resumed_at = outlive.now_ms() FROM outlive.jobs j
    WHERE j.seq = ANY ($1::bigint[]) AND j.state + 0 = 1 AND j.worker + 0 = $2 AND i.incident = j.incident AND i.job = j.seq AND i.resumed_at IS NULL
      AND (SELECT here FROM me)),
  cleared AS (UPDATE outlive.jobs SET incident = NULL WHERE seq = ANY ($1::bigint[]) AND state + 0 = 1 AND worker + 0 = $2 AND incident IS NOT NULL
    AND (SELECT here FROM me))
  SELECT j.seq, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.outcome,
    (SELECT json_agg(json_build_object('name', s.name, 'result', s.result, 'intact', ${STEP_IS_INTACT}) ORDER BY s.ord)
      FROM outlive.steps s WHERE s.job = j.seq) AS steps
  FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[])`;

/** For whom the rows are, and what the statement that took them said besides. */
export interface Claimant {
  readonly worker: WorkerKey;
  readonly open: readonly OpenKind[];
  readonly epoch: number;
  readonly timeoutMs: number | null;
  /** Of suspects: with how many they may run. */
  readonly together: ReadonlyMap<number, number>;
}

/** What was claimed, and what of it must not run: the settlement that quarantines it. */
export interface ClaimedRows {
  readonly claimed: readonly ClaimedJob[];
  readonly corrupt: readonly Settlement[];
}

/** The rows as core wants them. What earlier attempts have left is read here: nobody but the new owner writes it any more. */
export async function claimedJobs(
  session: Session,
  taken: readonly Taken[],
  { worker, open, epoch: ofTurn, timeoutMs: ofKind, together }: Claimant,
): Promise<ClaimedRows> {
  const again = taken.filter(([, , fence]) => fence !== null).map(([row]) => row);
  const later = again.length === 0 ? NONE : await laterAttempts(session, again, worker);
  const claimed: ClaimedJob[] = [];
  const corrupt: Settlement[] = [];
  for (const [row, jobId, fence, , kindId, epoch, timeoutMs, input] of taken) {
    const { kind } = kindId === null ? open[0]! : open.find(({ id }) => id === kindId)!;
    const lease = { jobId, kind, row, worker: worker.id, epoch: epoch ?? ofTurn, fence: fence ?? 1 };
    // Before its first attempt a job has no counters, no outcome, no steps and no incident.
    const before = later.get(row);
    const counted = before ? counters(before) : NO_COUNTERS;
    const broken = (before?.steps ?? []).filter(({ intact }) => !intact).map(({ name }) => `step ${name}`);
    if (input === null || broken.length > 0) {
      const what = input === null ? ["input", ...broken] : broken;
      corrupt.push({ lease, change: quarantine({ id: jobId, state: "running", counters: counted }, what) });
      continue;
    }
    claimed.push({
      lease,
      kind,
      input,
      deadlineInMs: kindId === null ? ofKind : timeoutMs,
      together: together.get(row) ?? null,
      counters: counted,
      lastOutcome: before && before.outcome !== null ? OUTCOMES[before.outcome]! : null,
      steps: before?.steps?.map(({ name, result }) => ({ name, result })) ?? NO_STEPS,
    });
  }
  return { claimed, corrupt };
}

async function laterAttempts(
  session: Session,
  seqs: readonly number[],
  { seq, id }: WorkerKey,
): Promise<ReadonlyMap<number, LaterColumns>> {
  const rows = await session.rows<LaterColumns>(LATER, [list(seqs), seq, id]);
  return new Map(rows.map((row) => [row.seq, row]));
}

const NONE: ReadonlyMap<number, LaterColumns> = new Map();
const NO_STEPS: readonly StoredStep[] = [];

// The texts of a worker's turn. $1 is the worker's number, $2 its id, $3 what keeps it from claiming (0: jobs that are due, and suspects; 1: jobs that are due; 2: nothing),
// $4 its kind or kinds, $5 its room for all of them; then come the rooms of several kinds, and then what is settled.

const SETTLE_ARRAYS = ["bigint", "int", "bigint", "text"];

/** The successes, whose four arrays begin with parameter `first`. `me` has a row if the worker is registered in this very store. */
const settled = (first: number): string => `settled AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = clock.now, result = a.result, ${RESULT_SUM("a.result")}
    FROM clock, me, (SELECT *, $1::bigint AS worker
      FROM unnest(${SETTLE_ARRAYS.map((type, i) => `$${first + i}::${type}[]`).join(", ")}) AS u (seq, fence, epoch, result)) a
    WHERE ${OWNED} RETURNING j.seq)`;

/** Null: all of them. */
const whichSettled = (first: number): string =>
  `(SELECT CASE WHEN count(*) < cardinality($${first}::bigint[]) THEN coalesce(string_agg(seq::text, ' '), '') END FROM settled)`;

const CLOCK = "clock AS MATERIALIZED (SELECT outlive.now_ms() AS now";

/** Null: it is not what was stored. A worker gets nothing more to carry and to compare than before. */
export const INTACT_INPUT = `CASE WHEN ${isIntactSql("j.input", "j.id", "j.input_sum")} THEN j.input END`;

interface Parts {
  /** The first parameter of what is settled; null: nothing is, and nobody waits until the claim is on disk. */
  readonly settle: number | null;
  readonly ready: string;
  readonly kind: string;
  readonly timeout: string;
  readonly headTimeout: string;
}

// One row if the worker is registered in this very store, with the epoch under which it may claim: both are found with one step each.
const ME = `SELECT f.state, m.value AS epoch, coalesce((SELECT started FROM outlive.server_run WHERE one) = outlive.server_start(), false) AS lasts
    FROM outlive.fleet f, outlive.meta m WHERE ${isRowOf("$1", "$2")} AND m.key = 'epoch' AND ${MARK_HOLDS}`;

// The worker's row is locked against recovery until the claim is committed: FOR KEY SHARE waits for a recovery in progress and then
// sees its mark, but not for a heartbeat. greatest(): an open elsewhere may have raised the epoch after this snapshot was taken.
const turn = ({ settle, ready, kind, timeout, headTimeout }: Parts): string => `WITH
  ${CLOCK}${settle === null ? ", set_config('synchronous_commit', 'off', true)" : ""}),
  me AS MATERIALIZED (${ME} FOR KEY SHARE OF f),
  ${settle === null ? "" : `${settled(settle)},`}
  due AS MATERIALIZED (SELECT run_at - clock.now AS ms FROM clock, outlive.jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1),
  suspect AS MATERIALIZED (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = 2 LIMIT 1),
  may AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM me WHERE state = 'live' AND lasts)
    AND ($3::int = 2 OR NOT (EXISTS (SELECT 1 FROM due WHERE ms <= 0) OR $3 = 0 AND EXISTS (SELECT 1 FROM suspect))) AS claim),
  ready AS MATERIALIZED (${ready}),
  taken AS (
    UPDATE outlive.jobs j SET state = 1, worker = $1, epoch = greatest(j.epoch, me.epoch), fence = j.fence + 1, started_at = clock.now,
      deadline_at = clock.now + ready.timeout_ms
    FROM ready, clock, me WHERE j.ctid = ready.tid
    RETURNING j.seq, j.id, nullif(j.fence, 1), nullif(j.priority, 0)::bigint, ${kind}, nullif(j.epoch, me.epoch), ${timeout}, ${INTACT_INPUT})
  SELECT NULL::bigint, ${settle === null ? "NULL::text" : whichSettled(settle)},
    coalesce((SELECT (state = 'live')::int + 4 * (NOT lasts)::int FROM me), 0) + 2 * EXISTS (SELECT 1 FROM suspect)::int,
    ${headTimeout}, NULL::int, (SELECT epoch FROM me), (SELECT ms FROM due),
    (SELECT json_agg(json_build_object('id', j.id, 'seq', c.job, 'runs', coalesce(j.state = 1 AND j.worker = c.worker AND j.cancel_requested, false)))
      FROM outlive.cancels c LEFT JOIN outlive.jobs j ON j.seq = c.job WHERE c.worker = $1)::text
  UNION ALL SELECT * FROM taken`;

const ofOne = (settle: number | null): string =>
  turn({
    settle,
    kind: "NULL::int",
    timeout: "NULL::bigint",
    headTimeout: "(SELECT timeout_ms FROM ready LIMIT 1)",
    ready: `
    SELECT j.ctid AS tid, (SELECT timeout_ms FROM outlive.kinds WHERE id = $4) AS timeout_ms FROM outlive.jobs j
    WHERE j.kind = $4 AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
      AND NOT (SELECT paused FROM outlive.kinds WHERE id = $4)
    ORDER BY j.priority DESC, j.seq LIMIT $5 FOR UPDATE SKIP LOCKED`,
  });

// The best of all kinds by (priority, age), each within its own room. What was locked and not taken is free again at the commit.
const ofMany = (settle: number | null): string =>
  turn({
    settle,
    kind: "j.kind",
    timeout: "ready.timeout_ms",
    headTimeout: "NULL::bigint",
    ready: `
    SELECT tid, timeout_ms FROM (
      SELECT r.tid, r.priority, r.seq, k.timeout_ms, k.shares, k.room, row_number() OVER (PARTITION BY k.shares ORDER BY r.priority DESC, r.seq) AS nth
      FROM (
        SELECT o.kind, o.room, o.shares, k.timeout_ms FROM unnest($4::int[], $6::int[], $7::boolean[]) AS o (kind, room, shares)
        JOIN outlive.kinds k ON k.id = o.kind WHERE NOT k.paused
      ) k CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.priority, j.seq FROM outlive.jobs j
        WHERE j.kind = k.kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
        ORDER BY j.priority DESC, j.seq LIMIT least(k.room, $5::int) FOR UPDATE SKIP LOCKED
      ) r
    ) c WHERE NOT shares OR nth <= room ORDER BY priority DESC, seq LIMIT $5`,
  });

/** Settles and claims; the second half of the parameters is what is settled. */
export const TURN = { ofOne: ofOne(6), ofMany: ofMany(8) } as const;
/** Claims and does not wait until that is on disk. */
export const CLAIM = { ofOne: ofOne(null), ofMany: ofMany(null) } as const;
/** Settles: the worker's number and id, and the four arrays. */
export const SETTLE = `WITH ${CLOCK}), me AS MATERIALIZED (${ME}), ${settled(3)} SELECT ${whichSettled(3)}`;
