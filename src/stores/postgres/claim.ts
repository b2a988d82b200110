// The worker's turn: one statement settles successes and claims new jobs, in one transaction and one round trip; or two statements at the
// same time if there is much to settle. Rare cases (an attempt that did not succeed, due jobs, suspects, later attempts) take further
// statements. Parameters and columns have names: `:worker` in a text is a parameter, and the rows come back as objects.
import { type ClaimedJob, NO_COUNTERS, OUTCOMES, type StoredStep } from "../../job/job.ts";
import { quarantine } from "../../job/transitions.ts";
import { AHEAD_BOUND_MS, type Room, type Settlement } from "../port.ts";
import { type CounterColumns, counters, LANE, STATE } from "../rows.ts";
import {
  INTACT_INPUT,
  isIntactSql,
  isPausedSql,
  stepOwnerSql,
  list,
  type Session,
  texts,
  type Value,
} from "./statements.ts";
import type { Connection } from "./connection.ts";
import type { Kinds } from "./enqueue.ts";
import { type Floor, rangesOf } from "./floors.ts";
import { isRowOf, MARK_HOLDS, registered } from "./restore-mark.ts";
import { OWNED, RESULT_SUM } from "./settle.ts";
import type { WorkerKey } from "./workers.ts";

/** How many delayed jobs become ready in one transaction, at most. */
const PROMOTE_BATCH = 1_000;

/** What a worker asks for. `kinds` are the kinds it has room for, as far as the store knows them. */
export interface Claim {
  readonly worker: WorkerKey;
  readonly kinds: readonly OpenKind[];
  readonly total: number;
  /** How many of `total` are claimed ahead. */
  readonly ahead: number;
  /** The statement claims nothing while one of these waits, because the worker deals with it first: due jobs, suspects it has room for. */
  readonly heeds: "due and suspects" | "due" | "nothing";
  /**
   * Where jobs are looked for: in front of all kinds, or in each kind of these. Of a fair kind "front" reads its ready jobs and not its gate, and while jobs wait
   * there nothing is claimed ahead.
   */
  readonly from?: "front" | readonly OpenKind[];
  /** Where the jobs of one kind, or those in front of all kinds, are read from, the highest priority first; omitted: from the first one on. */
  readonly floors?: readonly Floor[];
}

export interface OpenKind {
  readonly kind: string;
  readonly id: number;
  readonly most: number;
  /** All kinds that share have `most` together. */
  readonly shares: boolean;
  /** Its jobs may wait at its gate. */
  readonly fair: boolean;
  /** Its jobs may be claimed ahead. */
  readonly ahead: boolean;
}

/** What the statement returns. */
export interface Turn {
  readonly live: boolean;
  /** Row numbers of the jobs that were settled; null: all of them. */
  readonly settled: readonly number[] | null;
  /** In how many ms the first delayed job is due, or the first job expires that may not have begun; 0 or less if that is now; null: neither will. */
  readonly due: number | null;
  /** Whether a suspect waits. */
  readonly suspects: boolean;
  /** Whether there are wakes. */
  readonly wakes: boolean;
  /** Whether a key has to be looked at, as far as the statement knows; and an event of a dedupe key. */
  readonly keys: boolean;
  readonly events: boolean;
  /** Whether jobs wait at the gate of a fair kind, whichever. */
  readonly gates: boolean;
  /** Whether jobs wait at the gate of a kind that the claim was for, unless that is paused. False if the claim was for no fair kind. */
  readonly atOwnGate: boolean;
  /** Whether jobs wait at the gate of such a kind, none of it is ready, and jobs of other kinds were claimed. */
  readonly passed: boolean;
  /** Whether a batch whose blocks wait as plain jobs is not the only one of its kind. */
  readonly crowded: boolean;
  /** Jobs that got the slots of settled ones, and are ready. */
  readonly handedOver: number;
  /** In how many ms time gives a key room; null: of no key is that known. */
  readonly keyDue: number | null;
  readonly cancels: readonly { readonly id: string; readonly seq: number; readonly runs: boolean }[] | null;
  /** The server restarted and may have lost claims: nothing was claimed, and the epoch must be raised first. */
  readonly restarted: boolean;
  /** The epoch under which jobs are claimed, unless a row has its own. */
  readonly epoch: number;
  /** Above 0: there may be more than was taken, because jobs of other kinds, or jobs that other workers are taking, are in front. For how many turns it is likely to be so. */
  readonly blindFor: number;
  /** The timeout of the jobs, if the claim was for one kind. */
  readonly timeoutMs: number | null;
  readonly taken: readonly TakenRow[];
}

/**
 * A claimed job. What all jobs of a turn have in common is in the turn's own row: each value that is sent with every job costs 0.14 µs of
 * CPU per job (server and Node, of 54 in all).
 */
export interface TakenRow {
  readonly seq: number;
  readonly id: string;
  readonly fence: number;
  readonly priority: number;
  /** Omitted: the claim was for one kind, and the turn's row has its timeout. */
  readonly kind?: number;
  readonly timeout_ms?: number | null;
  /** Null: the turn's. */
  readonly epoch: number | null;
  /** Null: the stored text fails its checksum. */
  readonly input: string | null;
}

/**
 * The one row that is not a job: what else the turn found. It uses the columns of the jobs, because each column of its own would be sent as null with every
 * job. As one JSON value it took 26 of the 190 µs that an empty turn costs.
 */
interface TurnRow {
  readonly seq: null;
  /** `due`, `keyDue`, `timeoutMs` and `settled`, separated by commas. Empty: null. `settled`: row numbers, separated by spaces; `ALL_SETTLED`: all of them. */
  readonly id: string;
  /** Bits of `FOUND`, and from `NOTED_FROM` on what the ends of the settled jobs have written. */
  readonly fence: number;
  readonly epoch: number;
  /** The cancels, as JSON. */
  readonly input: string | null;
}

const FOUND = { live: 1, restarted: 2, suspects: 4, wakes: 8, keys: 16, events: 32, gates: 64 } as const;
/** Wakes of waits 1, of keys 2, due events 4. And `blindFor`, 8 for long and 64 for one turn, `crowded`, 16, `atOwnGate`, 32, `passed`, 128, and from 256 on `handedOver`. */
const NOTED_FROM = 256;
const ALL_SETTLED = "*";
/** What other kinds have in front stays there for a while. */
const BLIND_FOR = 32;

/** One statement: settles and claims. `successes` are all by this worker, each job once. */
export async function takeTurn(
  session: Session,
  successes: readonly Settlement[],
  claim: Claim,
  handOver = true,
): Promise<Turn> {
  const { text, values } = TURN[formOf(claim)];
  const given = values({ ...claiming(claim), ...settling(successes), handOver });
  return turnOf(await session.rows<TakenRow | TurnRow>(text, given));
}

/**
 * Claims, with nothing to settle. It waits for the disk: a claim that a crash of the server takes back stays in its worker's hands as long as the handler
 * runs, and nothing that the worker writes in between would bring it to the disk. A job of minutes was not run again within 60 s (test/postgres/faults.test.ts).
 */
export async function takeClaim(connection: Connection, claim: Claim): Promise<Turn> {
  const { text, values } = DURABLE_CLAIM[formOf(claim)];
  return turnOf(await connection.rows<TakenRow | TurnRow>(text, values(claiming(claim))));
}

/**
 * The same as two statements at the same time on two sessions, for a busy worker: jobs are claimed while the settled ones are written to
 * disk, and only the settlement waits for the disk. A claim that a crashing server loses leaves nothing behind, because whatever is
 * written under it reaches the disk only together with it. Its fence is not issued again: the first claim after a crash raises the epoch.
 *
 * `halves`: the settlement is two statements as well, because those that hand over slots take longer than the claim next to them. If one of the two fails,
 * all of them are settled again, and those of the other are found to be settled already.
 */
export async function takeTurnInTwo(
  connection: Connection,
  successes: readonly Settlement[],
  claim: Claim,
  halves: boolean,
): Promise<Turn> {
  const { text, values } = CLAIM[formOf(claim)];
  const middle = halves ? Math.ceil(successes.length / 2) : successes.length;
  const parts = [successes.slice(0, middle), successes.slice(middle)].filter((part) => part.length > 0);
  const [claimed, settled] = await both(
    connection.rows<TakenRow | TurnRow>(text, values(claiming(claim))),
    all(parts.map((part) => settleAlone(connection, part, claim))),
  );
  return settled.reduce<Turn>((turn, { noted }) => withNoted(turn, noted), {
    ...turnOf(claimed),
    settled: settled.every(({ rows }) => rows === null)
      ? null
      : settled.flatMap(({ rows }, at) => rows ?? parts[at]!.map(({ lease }) => lease.row)),
  });
}

async function settleAlone(
  connection: Connection,
  successes: readonly Settlement[],
  { worker }: Claim,
): Promise<{ readonly rows: readonly number[] | null; readonly noted: number }> {
  const settles = settling(successes);
  const { text, values } = isPlain(settles) ? SETTLE_PLAIN : SETTLE;
  const [row] = await connection.rows<{ settled: string; noted: number }>(
    text,
    values({ ...workerValues(worker), ...settles }),
  );
  return { rows: settledRows(row!.settled), noted: row!.noted };
}

/** Kinds that are not fair have no gate, and the statement for them costs nothing for it. */
function formOf(claim: Claim): Form {
  const { kinds, from, floors } = claim;
  if (from === "front" && kinds.length > 1) {
    if (isMixed(claim)) return floors === undefined ? "ofMixedFront" : "ofMixedFrontAbove";
    return floors === undefined ? "ofFront" : "ofFrontAbove";
  }
  if (from !== "front" && kinds.some(({ fair }) => fair)) return "ofFair";
  return kinds.length > 1 ? "ofMany" : floors === undefined ? "ofOne" : "ofOneAbove";
}

/** Some of its kinds may not wait, or have a gate: what is claimed ahead ends at the first job of those, and there is nothing ahead while jobs wait at a gate. */
export function isMixed({ kinds, ahead, from }: Claim): boolean {
  return from === "front" && kinds.some((kind) => kind.fair || (ahead > 0 && !kind.ahead));
}

/** Throws only after both have ended, so that no caller repeats a statement that is still running. */
async function both<A, B>(one: Promise<A>, other: Promise<B>): Promise<[A, B]> {
  await Promise.allSettled([one, other]);
  return [await one, await other];
}

/** As `both`. */
async function all<A>(each: readonly Promise<A>[]): Promise<A[]> {
  await Promise.allSettled(each);
  return Promise.all(each);
}

function turnOf(rows: (TakenRow | TurnRow)[]): Turn {
  const at = rows.findIndex(({ seq }) => seq === null);
  const [{ id, fence: found, epoch, input: cancels }] = rows.splice(at, 1) as [TurnRow];
  const [due, keyDue, timeoutMs, settled] = id.split(",") as [string, string, string, string];
  const taken = rows as TakenRow[];
  // RETURNING guarantees no order.
  taken.sort((a, b) => b.priority - a.priority || a.seq - b.seq);
  const has = (bit: number): boolean => (found & bit) > 0;
  const turn: Turn = {
    live: has(FOUND.live),
    restarted: has(FOUND.restarted),
    suspects: has(FOUND.suspects),
    epoch,
    timeoutMs: optional(timeoutMs),
    due: optional(due),
    settled: settledRows(settled),
    blindFor: 0,
    wakes: has(FOUND.wakes),
    keys: has(FOUND.keys),
    events: has(FOUND.events),
    gates: has(FOUND.gates),
    atOwnGate: false,
    passed: false,
    crowded: false,
    handedOver: 0,
    keyDue: optional(keyDue),
    cancels: cancels === null ? null : (JSON.parse(cancels) as Turn["cancels"]),
    taken,
  };
  return withNoted(turn, Math.floor(found / NOTED_FROM));
}

function optional(text: string): number | null {
  return text === "" ? null : Number(text);
}

function withNoted(turn: Turn, noted: number): Turn {
  if (noted === 0) return turn;
  const { wakes, keys, events } = turn;
  return {
    ...turn,
    blindFor: Math.max(turn.blindFor, (noted & 8) > 0 ? BLIND_FOR : (noted & 64) > 0 ? 1 : 0),
    crowded: turn.crowded || (noted & 16) > 0,
    handedOver: turn.handedOver + (noted >> 8),
    atOwnGate: turn.atOwnGate || (noted & 32) > 0,
    passed: turn.passed || (noted & 128) > 0,
    wakes: wakes || (noted & 1) > 0,
    keys: keys || (noted & 2) > 0,
    events: events || (noted & 4) > 0,
  };
}

function settledRows(text: string): number[] | null {
  return text === ALL_SETTLED ? null : text.split(" ").filter(Boolean).map(Number);
}

/** The kinds that have room, as far as the store knows them. A worker whose kinds have no limits asks with the same list in every turn. */
export class OpenKinds {
  readonly #kinds: Kinds;
  #last: { readonly room: Room["kinds"]; readonly version: number; readonly open: readonly OpenKind[] } | null = null;

  constructor(kinds: Kinds) {
    this.#kinds = kinds;
  }

  async of(session: Session, { kinds: room }: Room): Promise<readonly OpenKind[]> {
    if (this.#last?.room === room && this.#last.version === this.#kinds.version) return this.#last.open;
    const names = room.map(({ kind }) => kind);
    if (names.some((name) => this.#kinds.idOf(name) === undefined)) await this.#kinds.learn(session, names);
    const open = room.flatMap(({ kind, room: most, shares = false, ahead = false }) => {
      const id = this.#kinds.idOf(kind);
      return id === undefined ? [] : [{ kind, id, most, shares, fair: this.#kinds.isFair(kind), ahead }];
    });
    // Until all of them are declared, they are looked up again in every turn.
    this.#last = open.length === room.length ? { room, version: this.#kinds.version, open } : null;
    return open;
  }
}

const PROMOTE = `UPDATE outlive.jobs j SET lane = CASE WHEN j.crashes + j.losses > 0 THEN 2 ELSE 1 END FROM (
    SELECT d.ctid AS tid FROM outlive.jobs d WHERE d.state = 0 AND d.lane = 0 AND d.run_at <= (SELECT outlive.now_ms())
    ORDER BY d.run_at LIMIT ${PROMOTE_BATCH} FOR UPDATE SKIP LOCKED
  ) due WHERE j.ctid = due.tid`;

/** Makes due jobs ready, except those that another worker is making ready at this moment. */
export async function promoteDue(session: Session): Promise<void> {
  await session.run(PROMOTE);
}

interface LaterColumns extends CounterColumns {
  readonly seq: number;
  readonly outcome: number | null;
  readonly steps: readonly (StoredStep & { readonly intact: boolean })[] | null;
  /** The step of the wait that its latest waiting attempt began; null: none did. */
  readonly wait_step: string | null;
  /** Null: the wait does not end by time. */
  readonly wait_remaining_ms: number | null;
  /** Of a block of which rows have ended. */
  readonly marks: string | null;
}

const STEP_IS_INTACT = isIntactSql("s.result", stepOwnerSql("j.id", "s.name"), "s.result_sum");

/** The worker on whose behalf jobs were claimed, its room, and what the rows have in common. */
export interface Claimant {
  readonly worker: WorkerKey;
  readonly open: readonly OpenKind[];
  readonly epoch: number;
  readonly timeoutMs: number | null;
  /** Of suspects, by the number of the row: with how many suspects each may run. */
  readonly together: ReadonlyMap<number, number>;
}

/** The jobs that may run, and for those that must not, the settlements that quarantine them. */
export interface ClaimedRows {
  readonly claimed: readonly ClaimedJob[];
  readonly corrupt: readonly Settlement[];
}

/** Makes claimed jobs of rows. Reads what earlier attempts left behind: from now on only the new owner writes it. */
export async function claimedJobs(
  session: Session,
  taken: readonly TakenRow[],
  { worker, open, epoch, timeoutMs, together }: Claimant,
): Promise<ClaimedRows> {
  const again = taken.filter(({ fence }) => fence > 1).map(({ seq }) => seq);
  const later = again.length === 0 ? NONE : await laterAttempts(session, again, worker);
  const claimed: ClaimedJob[] = [];
  const corrupt: Settlement[] = [];
  for (const { seq: row, id: jobId, fence, kind: kindId, epoch: ownEpoch, timeout_ms: ownTimeoutMs, input } of taken) {
    const { kind } = kindId === undefined ? open[0]! : kindById(open, kindId);
    const lease = { jobId, kind, row, worker: worker.id, epoch: ownEpoch ?? epoch, fence };
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
      deadlineInMs: ownTimeoutMs === undefined ? timeoutMs : ownTimeoutMs,
      together: together.get(row) ?? null,
      counters: counted,
      lastOutcome: before && before.outcome !== null ? OUTCOMES[before.outcome]! : null,
      steps: before?.steps?.map(({ name, result }) => ({ name, result })) ?? NO_STEPS,
      ...(before && keptWait(before)),
      ...(before && before.marks !== null && { block: { marks: before.marks } }),
    });
  }
  return { claimed, corrupt };
}

const BY_ID = new WeakMap<readonly OpenKind[], ReadonlyMap<number, OpenKind>>();

/** A worker of a thousand kinds asks with the same list in every turn. */
function kindById(open: readonly OpenKind[], id: number): OpenKind {
  let byId = BY_ID.get(open);
  if (!byId) BY_ID.set(open, (byId = new Map(open.map((kind) => [kind.id, kind]))));
  return byId.get(id)!;
}

/** The wait from which the job was woken, unless its outcome is kept as a step. */
function keptWait({ steps, wait_step: step, wait_remaining_ms: remainingMs }: LaterColumns): Pick<ClaimedJob, "wait"> {
  if (step === null || steps?.some(({ name }) => name === step)) return {};
  return { wait: { step, remainingMs } };
}

const NONE: ReadonlyMap<number, LaterColumns> = new Map();
const NO_STEPS: readonly StoredStep[] = [];

async function laterAttempts(
  session: Session,
  seqs: readonly number[],
  worker: WorkerKey,
): Promise<ReadonlyMap<number, LaterColumns>> {
  const rows = await session.rows<LaterColumns>(
    LATER.text,
    LATER.values({ ...workerValues(worker), rows: list(seqs) }),
  );
  return new Map(rows.map((row) => [row.seq, row]));
}

/** A statement and how to send its parameters: in the order of their names. */
interface Statement<Name extends string> {
  readonly text: string;
  readonly values: (of: Readonly<Record<Name, Value>>) => Value[];
}

/** SQL with named parameters: `:worker` becomes `$1` if `worker` is the first name. The server refuses `$0`, a name that is not listed. */
function statement<Name extends string>(names: readonly Name[], sql: string): Statement<Name> {
  const text = sql.replaceAll(/(?<!:):([a-z]\w*)/gi, (_, name: Name) => `$${names.indexOf(name) + 1}`);
  return { text, values: (of) => names.map((name) => of[name]) };
}

const WORKER = ["worker", "workerId"] as const;

function workerValues({ seq, id }: WorkerKey): Record<(typeof WORKER)[number], Value> {
  return { worker: seq, workerId: id };
}

// One statement, before the handlers run. It also stops the clock of the incident that requeued the job, because the job runs again. It
// writes only while the job is this worker's: a worker that was frozen since its claim must not touch what the job has become.
const LATER = statement(
  [...WORKER, "rows"],
  `WITH me AS MATERIALIZED (SELECT ${registered(":worker", ":workerId")} AS here),
  resumed AS (
    UPDATE outlive.incident_jobs i SET resumed_at = outlive.now_ms() FROM outlive.jobs j
    WHERE j.seq = ANY (:rows::bigint[]) AND j.state + 0 = 1 AND j.worker + 0 = :worker AND i.incident = j.incident AND i.job = j.seq AND i.resumed_at IS NULL
      AND (SELECT here FROM me)),
  cleared AS (UPDATE outlive.jobs SET incident = NULL WHERE seq = ANY (:rows::bigint[]) AND state + 0 = 1 AND worker + 0 = :worker AND incident IS NOT NULL
    AND (SELECT here FROM me))
  SELECT j.seq, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses, j.outcome,
    (SELECT json_agg(json_build_object('name', s.name, 'result', s.result, 'intact', ${STEP_IS_INTACT}) ORDER BY s.ord)
      FROM outlive.steps s WHERE s.job = j.seq) AS steps,
    v.step AS wait_step, v.due_at - outlive.now_ms() AS wait_remaining_ms,
    CASE WHEN j.extras THEN (SELECT b.marks FROM outlive.blocks b WHERE b.job = j.seq) END AS marks
  FROM outlive.jobs j LEFT JOIN outlive.waits v ON v.job = j.seq WHERE j.seq = ANY (:rows::bigint[])`,
);

const SETTLED = ["settledRows", "settledFences", "settledEpoch", "settledEpochs", "settledResults"] as const;

/** What is the same for all of them is not sent with each: an array that is too short ends in nulls. */
const NO_VALUES = "{}";

function settling(successes: readonly Settlement[]): Record<(typeof SETTLED)[number], Value> {
  const epoch = successes[0]?.lease.epoch ?? 0;
  const isFirst = successes.every(({ lease }) => lease.fence === 1);
  const isSame = successes.every(({ lease }) => lease.epoch === epoch);
  const hasResult = successes.some(({ change }) => change.result !== null);
  return {
    settledRows: list(successes.map(({ lease }) => lease.row)),
    settledFences: isFirst ? NO_VALUES : list(successes.map(({ lease }) => lease.fence)),
    settledEpoch: epoch,
    settledEpochs: isSame ? NO_VALUES : list(successes.map(({ lease }) => lease.epoch)),
    settledResults: hasResult ? texts(successes.map(({ change }) => change.result)) : NO_VALUES,
  };
}

function isPlain({ settledFences, settledEpochs, settledResults }: ReturnType<typeof settling>): boolean {
  return settledFences === NO_VALUES && settledEpochs === NO_VALUES && settledResults === NO_VALUES;
}

/** For one kind, for several, for kinds of which some are fair, and for the front of all kinds; of one kind and of the front also from floors on. */
type Form =
  | "ofOne"
  | "ofOneAbove"
  | "ofMany"
  | "ofFair"
  | "ofFront"
  | "ofFrontAbove"
  | "ofMixedFront"
  | "ofMixedFrontAbove";

const ONE_KIND = [...WORKER, "heedsDue", "heedsSuspects", "boundMs", "kind", "room", "free", "fair"] as const;
const RANGES = ["highest", "lowest", "floors"] as const;
const MANY_KINDS = [...WORKER, "heedsDue", "heedsSuspects", "boundMs", "kinds", "rooms", "shares", "total"] as const;
const FAIR_KINDS = [...MANY_KINDS, "fair"] as const;
const ALL_KINDS = [...WORKER, "heedsDue", "heedsSuspects", "boundMs", "kinds", "total", "slots", "front"] as const;

const MIXED_KINDS = [...ALL_KINDS, "waiting", "free", "fair"] as const;

/** How many jobs in front of all kinds are read for this many: a bound that does not depend on how many are of other kinds. */
const FRONT_FACTOR = 2;
const FRONT_LEAST = 50;

function claiming(
  claim: Claim,
): Record<(typeof ONE_KIND | typeof RANGES | typeof FAIR_KINDS | typeof MIXED_KINDS)[number], Value> {
  const { worker, kinds, total, ahead, heeds, from = kinds } = claim;
  const ranges = claim.floors === undefined ? [] : rangesOf(claim.floors);
  const form = formOf(claim);
  const each = form === "ofFair" || form === "ofMany" ? (from === "front" ? kinds : from) : [];
  return {
    ...workerValues(worker),
    heedsDue: heeds !== "nothing",
    heedsSuspects: heeds === "due and suspects",
    boundMs: ahead > 0 ? AHEAD_BOUND_MS : 0,
    kind: kinds[0]?.id ?? null,
    room: ahead > 0 ? total : Math.min(kinds[0]?.most ?? 0, total),
    highest: list(ranges.map(({ highest }) => highest)),
    lowest: list(ranges.map(({ lowest }) => lowest)),
    floors: list(ranges.map(({ floor }) => floor)),
    kinds: isOfFront(form) ? idsOf(kinds) : list(each.map(({ id }) => id)),
    waiting: isMixed(claim) ? list(kinds.flatMap((kind) => (kind.ahead ? [kind.id] : []))) : null,
    free: kinds.length === 1 ? Math.min(kinds[0]!.most, total - ahead) : total - ahead,
    fair: list(kinds.flatMap((kind) => (kind.fair ? [kind.id] : []))),
    rooms: list(each.map(({ most }) => most)),
    shares: list(each.map(({ shares }) => shares)),
    total,
    slots: Math.max(1, total - ahead),
    front: (total - ahead) * FRONT_FACTOR + ahead + FRONT_LEAST,
  };
}

function isOfFront(form: Form): boolean {
  return form === "ofFront" || form === "ofFrontAbove" || form === "ofMixedFront" || form === "ofMixedFrontAbove";
}

const IDS = new WeakMap<readonly OpenKind[], Value>();

function idsOf(open: readonly OpenKind[]): Value {
  let ids = IDS.get(open);
  if (ids === undefined) IDS.set(open, (ids = list(open.map(({ id }) => id))));
  return ids;
}

const HEADS = `SELECT o.kind FROM unnest($1::int[]) AS o (kind) JOIN outlive.kinds k ON k.id = o.kind AND NOT ${isPausedSql("k.")}
  CROSS JOIN LATERAL (SELECT j.priority, j.seq FROM outlive.jobs j WHERE j.kind = o.kind AND j.state = 0 AND j.lane = 1
    ORDER BY j.priority DESC, j.seq LIMIT 1) h
  ORDER BY h.priority DESC, h.seq LIMIT $2`;

/** Those of the kinds whose first job is among the first `limit`, and are not paused. */
export async function earliestKinds(session: Session, open: readonly OpenKind[], limit: number): Promise<OpenKind[]> {
  const rows = await session.rows<{ kind: number }>(HEADS, [idsOf(open), limit]);
  return rows.map(({ kind }) => kindById(open, kind));
}

/** Writes the successes. `me` has a row if the worker is registered in this very store. */
const SETTLES = `settled AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = clock.now, result = a.result, ${RESULT_SUM("a.result")}
    FROM clock, me, (SELECT u.seq, coalesce(u.fence, 1) AS fence, coalesce(u.epoch, :settledEpoch::bigint) AS epoch, u.result, :worker::bigint AS worker
      FROM unnest(:settledRows::bigint[], :settledFences::int[], :settledEpochs::bigint[], :settledResults::text[])
        AS u (seq, fence, epoch, result)) a
    WHERE ${OWNED} RETURNING j.seq, j.extras)`;

/**
 * The same for first attempts under one epoch whose handlers returned nothing: one scan of all rows instead of one for each, 6.5 instead of 7.5 µs of the
 * server for each of 500 jobs.
 */
const SETTLES_PLAIN = `settled AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = clock.now, result = NULL, result_sum = NULL
    FROM clock, me, (SELECT 1 AS fence, :settledEpoch::bigint AS epoch, :worker::bigint AS worker) a
    WHERE ${OWNED.replace("j.seq = a.seq", "j.seq = ANY (:settledRows::bigint[])")} RETURNING j.seq, j.extras)`;

/** The row numbers of the jobs that were settled. */
const WHICH_SETTLED = `(SELECT CASE WHEN count(*) < cardinality(:settledRows::bigint[]) THEN coalesce(string_agg(seq::text, ' '), '') ELSE '${ALL_SETTLED}' END FROM settled)`;

/**
 * Notes the ends of those that have extras, and says what was written: see `note_ends` in migrations/consequences.ts. The settings of the clock come first,
 * so that no trigger does the same for each of them.
 */
const noted = (handOver: string): string =>
  `coalesce((SELECT outlive.note_ends(array_agg(seq), ${handOver}) FROM settled WHERE extras HAVING count(*) > 0), 0)`;

const CLOCK = "clock AS MATERIALIZED (SELECT outlive.now_ms() AS now";
const NOTES = ", set_config('outlive_tx.notes', 'ends', true)";

// One row if the worker is registered in this very store, with the epoch under which it may claim: both are found with one step each.
const ME = `SELECT f.state, m.value AS epoch, coalesce((SELECT started FROM outlive.server_run WHERE one) = outlive.server_start(), false) AS lasts
    FROM outlive.fleet f, outlive.meta m WHERE ${isRowOf(":worker", ":workerId")} AND m.key = 'epoch' AND ${MARK_HOLDS}`;

// The worker's row is locked against recovery until the claim is committed: FOR KEY SHARE waits for a recovery in progress and then
// sees its mark, but does not wait for a heartbeat. greatest(): another process may have raised the epoch after this snapshot was taken.
function turn(form: Form, does: "settles and claims" | "claims" | "claims and does not wait for the disk"): string {
  const settles = does === "settles and claims";
  const ofOne = form === "ofOne" || form === "ofOneAbove";
  const ofFair = form === "ofFair";
  const ofFront = isOfFront(form);
  const mixed = form === "ofMixedFront" || form === "ofMixedFrontAbove";
  const above = form === "ofFrontAbove" || form === "ofMixedFrontAbove";
  return `WITH
  ${CLOCK}${settles ? NOTES : does === "claims" ? "" : ", set_config('synchronous_commit', 'off', true)"}),
  me AS MATERIALIZED (${ME} FOR KEY SHARE OF f),
  ${settles ? `${SETTLES},` : ""}
  due AS MATERIALIZED (SELECT least((SELECT run_at FROM outlive.jobs WHERE state = 0 AND lane = 0 ORDER BY run_at LIMIT 1),
    (SELECT expires_at FROM outlive.extras WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1)) - clock.now AS ms FROM clock),
  suspect AS MATERIALIZED (SELECT 1 FROM outlive.jobs WHERE state = 0 AND lane = 2 LIMIT 1),
  ${ofFair ? `gate AS MATERIALIZED (${GATE}),` : ""}
  may AS MATERIALIZED (SELECT EXISTS (SELECT 1 FROM me WHERE state = 'live' AND lasts)
    AND NOT (:heedsDue::boolean AND EXISTS (SELECT 1 FROM due WHERE ms <= 0))
    AND NOT (:heedsSuspects::boolean AND EXISTS (SELECT 1 FROM suspect)) AS claim),
  ${ofFront ? `${above ? FRONT_ABOVE : FRONT}${mixed ? OWN_IN_FRONT : ""}` : ofOne ? "own_kind AS MATERIALIZED (SELECT timeout_ms FROM outlive.kinds WHERE id = :kind)," : ""}
  ${ofFair ? FAIR_OPEN : ""}
  ready AS MATERIALIZED (${READY[form]}),
  taken AS (
    UPDATE outlive.jobs j SET state = 1, worker = :worker, epoch = greatest(j.epoch, me.epoch), fence = j.fence + 1, started_at = clock.now,
      deadline_at = clock.now + ${ofFair ? "ready" : ofOne ? "own_kind" : "k"}.timeout_ms + :boundMs::bigint${ofFair ? `, lane = ${LANE.open}, rated = j.rated AND NOT ready.at_gate` : ""}
    FROM clock, me, ${ofFair ? "ready WHERE j.ctid = ready.tid" : `${ofOne ? "own_kind" : "outlive.kinds k"} WHERE ${ALL_READY}${ofOne ? "" : " AND k.id = j.kind"}`}
    RETURNING j.seq, j.id, j.fence, j.priority, nullif(j.epoch, me.epoch) AS epoch, ${INTACT_INPUT} AS input${ofOne ? "" : `, j.kind, ${ofFair ? "ready" : "k"}.timeout_ms`})${ofFair ? FROM_GATE : ""}
  SELECT NULL::bigint AS seq,
    concat((SELECT ms FROM due), ',', (SELECT due_at - (SELECT now FROM clock) FROM outlive.keys WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1), ',', ${ofOne ? "(SELECT timeout_ms FROM own_kind)" : "''"}, ',', ${settles ? WHICH_SETTLED : `'${ALL_SETTLED}'`}) AS id,
    coalesce((SELECT CASE WHEN state = 'live' THEN ${FOUND.live} ELSE 0 END + CASE WHEN lasts THEN 0 ELSE ${FOUND.restarted} END FROM me), 0)
      + ${found("suspects", "SELECT 1 FROM suspect")} + ${found("wakes", "SELECT 1 FROM outlive.wakes ORDER BY id LIMIT 1")}
      + ${found("keys", "SELECT 1 FROM outlive.key_wakes ORDER BY id LIMIT 1")} + ${found("events", "SELECT 1 FROM outlive.reruns WHERE due ORDER BY job LIMIT 1")}
      + ${found("gates", ofFair ? "SELECT 1 FROM left_at_gate" : GATE)}
      + ${NOTED_FROM} * (${settles ? noted(":handOver::boolean") : "0"}${ofFront ? ` + ${mixed ? BLIND_IF_MIXED : BLIND}` : ofFair ? ` + ${CROWDED} + ${PASSED}` : ""}${ofOne || ofFair || mixed ? ` + CASE WHEN ${AT_OWN_GATE} THEN 32 ELSE 0 END` : ""}) AS fence,
    NULL::int AS priority, (SELECT epoch FROM me) AS epoch,
    (SELECT json_agg(json_build_object('id', j.id, 'seq', c.job, 'runs', coalesce(j.state = 1 AND j.worker = c.worker AND j.cancel_requested, false)))
      FROM outlive.cancels c LEFT JOIN outlive.jobs j ON j.seq = c.job WHERE c.worker = :worker)::text AS input${ofOne ? "" : ", NULL::int AS kind, NULL::bigint AS timeout_ms"}
  UNION ALL SELECT * FROM taken`;
}

const GATE = "SELECT 1 FROM outlive.extras WHERE door < 0 ORDER BY door LIMIT 1";

/** A worker without fair kinds pays for the length of an empty list. */
const AT_OWN_GATE = `(cardinality(:fair::int[]) > 0 AND EXISTS (SELECT 1 FROM outlive.kinds k WHERE k.id = ANY (:fair::int[]) AND NOT ${isPausedSql("k.")}
    AND EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = -k.id::bigint)))`;

/** `1 = (...)` instead of EXISTS, which would leave out the ORDER BY and with it the index. */
const found = (what: keyof typeof FOUND, row: string): string =>
  `CASE WHEN 1 = (${row}) THEN ${FOUND[what]} ELSE 0 END`;

/** One scan of all of them: a join reads each with a scan of its own, which made a claim cost 10.5 instead of 8.9 µs of the server for each of 500 jobs. */
const ALL_READY = "j.ctid = ANY (ARRAY(SELECT tid FROM ready))";

/** SQL: how many of one kind: as many as slots are free while jobs wait at its gate. */
const ROOM_OF_ONE = `CASE WHEN ${AT_OWN_GATE} THEN :free::int ELSE :room::int END`;

const READY_OF_ONE = `
    SELECT j.ctid AS tid FROM outlive.jobs j
    WHERE j.kind = :kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
      AND NOT (SELECT ${isPausedSql("")} FROM outlive.kinds WHERE id = :kind)
    ORDER BY j.priority DESC, j.seq LIMIT ${ROOM_OF_ONE} FOR UPDATE SKIP LOCKED`;

// From floors on: of each range in its order, until there is enough. A read of the index begins at a number only if its priority is given.
const fromFloors = (jobs: string, limit: string): string => `
    SELECT r.* FROM unnest(:highest::int[], :lowest::int[], :floors::bigint[]) AS f (highest, lowest, floor) CROSS JOIN LATERAL (
      SELECT * FROM (${jobs} AND f.floor IS NOT NULL AND j.priority = f.highest AND j.seq >= f.floor ORDER BY j.seq ${limit}) one
      UNION ALL SELECT * FROM (${jobs} AND f.floor IS NULL AND j.priority <= f.highest AND j.priority >= f.lowest
        ORDER BY j.priority DESC, j.seq ${limit}) more) r`;

const READY_ABOVE = `${fromFloors(
  `SELECT j.ctid AS tid FROM outlive.jobs j WHERE j.kind = :kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
        AND NOT (SELECT ${isPausedSql("")} FROM outlive.kinds WHERE id = :kind)`,
  `LIMIT ${ROOM_OF_ONE} FOR UPDATE SKIP LOCKED`,
)} LIMIT ${ROOM_OF_ONE}`;

// The best of all kinds by (priority, age), each within its own room. Rows that were locked but not taken are free again at the commit.
const bestOf = (columns: string, kinds: string, jobs: string): string => `
    SELECT tid, timeout_ms${columns} FROM (
      SELECT r.*, k.kind, k.timeout_ms, k.shares, k.room, row_number() OVER (PARTITION BY k.shares ORDER BY r.priority DESC, r.seq) AS nth
      FROM ${kinds} k CROSS JOIN LATERAL (${jobs}) r
    ) c WHERE NOT shares OR nth <= room ORDER BY priority DESC, seq LIMIT :total`;

const openKinds = (columns: string): string => `(
        SELECT o.kind, o.room, o.shares, k.timeout_ms${columns}
        FROM unnest(:kinds::int[], :rooms::int[], :shares::boolean[]) AS o (kind, room, shares)
        JOIN outlive.kinds k ON k.id = o.kind WHERE NOT ${isPausedSql("k.")}
      )`;

const openJobs = (columns: string): string => `
        SELECT j.ctid AS tid, j.priority, j.seq${columns} FROM outlive.jobs j
        WHERE j.kind = k.kind AND j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
        ORDER BY j.priority DESC, j.seq LIMIT least(k.room, :total::int) FOR UPDATE SKIP LOCKED`;

/** How many jobs that other workers are claiming at the same moment a claim passes at a gate, at most. */
const PASSED_AT_GATE = 2_000;

// As the statement for many kinds, and in addition the jobs of a key that waits alone at the gate of its kind (migrations/open-gates.ts). Suspects and jobs
// with other keys are passed; when one of them is first, the gate is not open.
const FAIR_OPEN = `open AS MATERIALIZED ${openKinds(`, k.fair,
          CASE WHEN k.fair AND o.room > 0 AND EXISTS (SELECT 1 FROM gate) AND (SELECT claim FROM may) THEN outlive.lone_ring(k.id) END AS ring`)},`;
const READY_OF_FAIR = bestOf(
  ", seq, at_gate, kind",
  "open",
  `
        SELECT * FROM (${openJobs(", false AS at_gate")}) ready
        UNION ALL SELECT * FROM (
          SELECT h.tid, h.priority, h.seq, true FROM (
            SELECT e.job FROM outlive.extras e WHERE e.door = -k.kind::bigint AND e.ring = k.ring AND e.key2 IS NULL
            ORDER BY e.rank DESC, e.job LIMIT ${PASSED_AT_GATE}) e
          CROSS JOIN LATERAL (
            SELECT j.ctid AS tid, j.priority, j.seq FROM outlive.jobs j WHERE j.seq = e.job AND j.state + 0 = ${STATE.queued} AND j.lane = ${LANE.held}
              AND j.crashes + j.losses = 0 FOR UPDATE SKIP LOCKED) h
          LIMIT least(k.room, :total::int)) held`,
);

/** Jobs that were claimed at a gate have left it, and count against their key as admitted ones do. */
const FROM_GATE = `,
  entered AS (UPDATE outlive.extras e SET place = 2, door = NULL FROM ready, me WHERE ready.at_gate AND e.job = ready.seq),
  left_at_gate AS MATERIALIZED (SELECT 1 FROM outlive.extras e WHERE e.door < 0 AND e.job <> ALL (ARRAY(SELECT seq FROM ready WHERE at_gate)) ORDER BY e.door LIMIT 1)`;

/** Another key waits at the gate of a kind whose lone batch has its blocks among the ready jobs (migrations/lone-batches.ts). */
const CROWDED = `CASE WHEN EXISTS (SELECT 1 FROM outlive.lone_batches l WHERE l.kind = ANY (:kinds::int[])
    AND (EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = -l.kind::bigint AND e.ring < l.ring)
      OR EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = -l.kind::bigint AND e.ring > l.ring))) THEN 16 ELSE 0 END`;

/**
 * Jobs of other kinds were claimed while jobs wait at the gate of a kind of which none is ready. Unless a visit makes some of them ready, plain jobs that came after
 * them take every slot, because a worker whose slots are full has no reason to visit.
 */
const PASSED = `CASE WHEN EXISTS (SELECT 1 FROM open o WHERE o.fair AND o.ring IS NULL AND EXISTS (SELECT 1 FROM outlive.extras e WHERE e.door = -o.kind::bigint)
    AND EXISTS (SELECT 1 FROM ready r WHERE r.kind <> o.kind)
    AND NOT EXISTS (SELECT 1 FROM outlive.jobs j WHERE j.kind = o.kind AND j.state = 0 AND j.lane = 1 AND j.ctid <> ALL (ARRAY(SELECT tid FROM ready)))) THEN 128 ELSE 0 END`;

// The best of all kinds by (priority, age), if each has room for all of them. What is read is not locked: most of it is not taken, and other workers, of
// one of the kinds for instance, would pass it by. Rows that another worker has locked or taken meanwhile are skipped.
const FRONT = `front AS MATERIALIZED (
    SELECT j.ctid AS tid, j.kind, j.priority, j.seq FROM outlive.jobs j WHERE j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)
    ORDER BY j.priority DESC, j.seq LIMIT :front),`;
const FRONT_ABOVE = `front AS MATERIALIZED (${fromFloors(
  "SELECT j.ctid AS tid, j.kind, j.priority, j.seq FROM outlive.jobs j WHERE j.state = 0 AND j.lane = 1 AND (SELECT claim FROM may)",
  "LIMIT :front",
)} LIMIT :front),`;
// IS TRUE makes a hash of a list instead of a join that reads it for each job, and each kind in front is looked up once, not for each of its jobs.
const IS_OWN = `(f.kind IN (SELECT k.id FROM (SELECT DISTINCT kind FROM front) d JOIN outlive.kinds k ON k.id = d.kind AND NOT ${isPausedSql("k.")}
        WHERE (k.id IN (SELECT unnest(:kinds::int[]))) IS TRUE)) IS TRUE`;
// `+ 0` keeps the planner from reading the index again: see `OWNED`.
const readyOf = (tids: string): string => `
    SELECT j.ctid AS tid FROM outlive.jobs j WHERE j.ctid = ANY (ARRAY(${tids}))
      AND j.state + 0 = 0 AND j.lane + 0 = 1 ORDER BY j.priority DESC, j.seq LIMIT :total FOR UPDATE SKIP LOCKED`;
const READY_IN_FRONT = readyOf(`SELECT f.tid FROM front f WHERE ${IS_OWN}`);
// For long only if other kinds have the front. Of its own kinds other workers may be taking what it has read: then the claim by kinds comes once, because it claims
// nothing ahead. While it came 32 times, four workers of two kinds settled 115 jobs a turn; now 298, at 28 instead of 36 us of CPU for each.
const BLIND = `CASE WHEN (SELECT count(*) FROM front) < :front::int OR (SELECT count(*) FROM ready) >= :slots::int THEN 0
    WHEN (SELECT count(*) FROM front f WHERE ${IS_OWN}) < :slots::int THEN 8 ELSE 64 END`;

// If some kinds may not wait: as many as slots are free, and then up to the first job of those kinds, or none while jobs wait at a gate. Of the first ones other workers may take some at this
// moment, and then a slot is left for what comes behind that job: a claim of each kind finds it.
const OWN_IN_FRONT = `
  own AS MATERIALIZED (SELECT f.tid, (f.kind IN (SELECT unnest(:waiting::int[]))) AS waits, row_number() OVER (ORDER BY f.priority DESC, f.seq) AS nth
    FROM front f WHERE ${IS_OWN}),`;
const READY_IN_MIXED_FRONT = readyOf(
  `SELECT o.tid FROM own o WHERE o.nth < coalesce((SELECT min(s.nth) FROM own s WHERE s.nth > :free::int AND NOT s.waits), o.nth + 1) AND (o.nth <= :free::int OR NOT ${AT_OWN_GATE})`,
);
const BLIND_IF_MIXED = `CASE WHEN (SELECT count(*) FROM front) >= :front::int AND (SELECT count(*) FROM own) < :slots::int THEN 8
    WHEN (SELECT count(*) FROM ready) < least(:free::int, (SELECT count(*) FROM own)) THEN 64 ELSE 0 END`;

const READY: Readonly<Record<Form, string>> = {
  ofOne: READY_OF_ONE,
  ofOneAbove: READY_ABOVE,
  ofMany: bestOf("", openKinds(""), openJobs("")),
  ofFair: READY_OF_FAIR,
  ofFront: READY_IN_FRONT,
  ofFrontAbove: READY_IN_FRONT,
  ofMixedFront: READY_IN_MIXED_FRONT,
  ofMixedFrontAbove: READY_IN_MIXED_FRONT,
};

const NAMES = {
  ofOne: ONE_KIND,
  ofOneAbove: [...ONE_KIND, ...RANGES],
  ofMany: MANY_KINDS,
  ofFair: FAIR_KINDS,
  ofFront: ALL_KINDS,
  ofFrontAbove: [...ALL_KINDS, ...RANGES],
  ofMixedFront: MIXED_KINDS,
  ofMixedFrontAbove: [...MIXED_KINDS, ...RANGES],
} as const;
type ClaimName = (typeof NAMES)[Form][number];

/** One statement for each form. */
function forms<Name extends string>(
  does: Parameters<typeof turn>[1],
  more: readonly Name[] = [],
): Readonly<Record<Form, Statement<ClaimName | Name>>> {
  const made = (Object.keys(NAMES) as Form[]).map((form) => [
    form,
    statement([...NAMES[form], ...more], turn(form, does)),
  ]);
  return Object.fromEntries(made) as Record<Form, Statement<ClaimName | Name>>;
}

const TURN = forms("settles and claims", [...SETTLED, "handOver"]);
/** For a worker that has nothing to settle. */
const DURABLE_CLAIM = forms("claims");
const CLAIM = forms("claims and does not wait for the disk");
const settleText = (settles: string): string =>
  `WITH ${CLOCK}${NOTES}), me AS MATERIALIZED (${ME}), ${settles} SELECT ${WHICH_SETTLED} AS settled, ${noted("true")} AS noted`;
/** Settles. */
const SETTLE = statement([...WORKER, ...SETTLED], settleText(SETTLES));
const SETTLE_PLAIN = statement([...WORKER, "settledRows", "settledEpoch"], settleText(SETTLES_PLAIN));
