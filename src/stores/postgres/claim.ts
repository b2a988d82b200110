// The worker's turn: successes settled and new jobs claimed in one statement, which is one transaction and one round trip, or in two at
// the same time if there is much to settle. What is rare (an end that is no success, jobs that became due, suspects,
// later attempts) takes further statements.
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../core/job.ts";
import type { Room, Settlement } from "../../core/store.ts";
import { quarantine } from "../../core/transitions.ts";
import { isIntactSql, stepOwnerSql } from "./checksums.ts";
import { type Connection, list, type Session, texts, type Value } from "./connection.ts";
import type { Kinds } from "./kinds.ts";
import { registered } from "./restore-mark.ts";
import { type CounterColumns, counters } from "../rows.ts";
import { CLAIM, SETTLE, TURN } from "./turn-text.ts";
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
