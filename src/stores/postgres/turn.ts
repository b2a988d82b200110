// The worker's turn as the port defines it: usually one statement, and more work when that statement's result asks for it.
import { hasRoomForSuspects, type HeldSuspects } from "../../job/isolation.ts";
import type { ClaimedJob } from "../../job/job.ts";
import type { Clock } from "../../job/time.ts";
import { type Change, hasFollow } from "../../job/transitions.ts";
import { APPLIED, type CorruptJob, type Room, type Settlement, type TurnAnswer, type WriteAnswer } from "../port.ts";
import {
  type Claim,
  claimedJobs,
  type ClaimedRows,
  earliestKinds,
  isMixed,
  OpenKinds,
  type OpenKind,
  promoteDue,
  type TakenRow,
  takeClaim,
  takeTurn,
  takeTurnInTwo,
  type Turn,
} from "./claim.ts";
import { rowsBeforeSuccess, rowsCharacters } from "./blocks.ts";
import type { Connection } from "./connection.ts";
import type { Kinds } from "./enqueue.ts";
import { expireDue } from "./expiry.ts";
import { cancelChildren } from "./families.ts";
import { Floors } from "./floors.ts";
import type { Settling } from "./settle.ts";
import { MAX_CHARACTERS } from "./statements.ts";
import { claimSuspects } from "./suspects.ts";
import { applyEvents } from "./reruns.ts";
import { type Admitted, admitHeld, type Demand, type Left, NONE_ADMITTED, toGates, whatIsLeft } from "./admission.ts";
import { actOnWakes } from "./waits.ts";
import type { Workers } from "./workers.ts";

export interface TurnDeps {
  readonly connection: Connection;
  readonly kinds: Kinds;
  readonly workers: Workers;
  readonly settling: Settling;
  readonly clock: Pick<Clock, "mono">;
  /** With this many successes or more, a second statement settles them alongside the claim. With fewer it costs more than it hides. */
  readonly inTwoFrom: number;
  /** With this many or more, a settlement that hands over slots is two statements at the same time. */
  readonly halvesFrom: number;
}

interface Claimed
  extends ClaimedRows, Pick<Turn, "due" | "keys" | "events" | "gates" | "keyDue" | "blindFor" | "passed"> {}

interface Sound {
  readonly claimed: readonly ClaimedJob[];
  readonly corrupt: readonly CorruptJob[];
}

/** What was made ready. */
interface Woken {
  readonly woken: number;
  /** Of these, jobs that limits had held, or that waited for the turn of their key. */
  readonly admitted: number;
  /** Jobs that another worker has admitted since the claim. */
  readonly ready: number;
  /** In how many ms there is more to do; null: nothing is known to come. */
  readonly dueInMs: number | null;
}

/**
 * A turn that settles this many and leaves its worker no room does not wait for the admission that follows from it: nothing of it is for this worker
 * now, and its five round trips would keep what was claimed from starting. A worker with fewer ends at once has time to wait.
 */
const ADMITS_LATER_FROM = 10;

/** With more kinds than this, their first jobs are compared before more of any of them is read. */
const HEADS_FROM = 8;

/** An admission that goes on after its turn has returned. */
interface Admitting {
  readonly outcome: Promise<Admitted>;
  hasEnded: boolean;
}

export class Turns {
  readonly #deps: TurnDeps;
  /** At most one. A later turn reports what it came to. */
  #admitting: Admitting | null = null;
  readonly #open: OpenKinds;
  readonly #floors = new Floors();
  /** So many turns go by before one looks in front of all kinds again. */
  #skips = 0;
  /** The latest turn with room asked each of its kinds, and none had a job. */
  #foundNone = false;
  /** As the latest turn saw it. */
  #mayBeAtGate = true;
  /** The latest settlement handed over slots. */
  #handsOver = false;

  constructor(deps: TurnDeps) {
    this.#deps = deps;
    this.#open = new OpenKinds(deps.kinds);
  }

  /** Something of this process may have made an old job ready. */
  lookAgain(): void {
    this.#floors.lookAgain();
  }

  /** Settlements that are too large for one statement go into several, and only the last of them claims. */
  async turn(workerId: string, settlements: readonly Settlement[], room: Room): Promise<TurnAnswer> {
    const slices = slicesOf(settlements);
    const settled: WriteAnswer[] = [];
    let woken = 0;
    for (const slice of slices.slice(0, -1)) {
      const answer = await this.#turn(workerId, slice, NO_ROOM);
      settled.push(...answer.settled);
      woken += answer.woken ?? 0;
    }
    const last = await this.#turn(workerId, slices.at(-1) ?? settlements, room);
    if (settled.length === 0) return last;
    return { ...last, settled: [...settled, ...last.settled], woken: woken + (last.woken ?? 0) };
  }

  async #turn(workerId: string, settlements: readonly Settlement[], room: Room): Promise<TurnAnswer> {
    const { connection, workers, settling, clock, inTwoFrom, halvesFrom } = this.#deps;
    const worker = { id: workerId, seq: workers.known(workerId) ?? (await workers.seqOf(connection, workerId)) };
    const heeds = !room.suspects || hasRoomForSuspects(room.suspects) ? "due and suspects" : "due";
    const open = await this.#open.of(connection, room);
    // What is behind a job that may not wait for a slot is not claimed ahead. Only the statement for the front of all kinds looks for that.
    const asked = room.ahead !== undefined && room.kinds.some((kind) => kind.ahead) ? room.ahead : 0;
    const from = await this.#from(open, room.total, asked);
    const mayWait = open.length === 1 ? open[0]!.ahead && (isPlain(open) || from === "front") : from === "front";
    const ahead = mayWait ? asked : 0;
    const { successes, others } = sorted(settlements, workerId);
    if (others.length > 0) this.#floors.lookAgain();
    const beganMono = clock.mono();
    const floors =
      from === "front" || isPlain(open) ? this.#floors.of(from === "front" ? open : open[0]!.id, beganMono) : null;
    const claim: Claim = {
      worker,
      kinds: open,
      total: room.total + ahead,
      ahead,
      heeds,
      from,
      ...(floors && { floors }),
    };
    let refused: ReadonlyMap<Settlement, WriteAnswer> = NONE;
    let turn: Turn;
    if (others.length === 0 && successes.length >= inTwoFrom && claim.total > 0)
      turn = await takeTurnInTwo(connection, successes, claim, this.#handsOver && successes.length >= halvesFrom);
    else if (settlements.length === 0) turn = await takeClaim(connection, claim);
    else if (others.length === 0) turn = await takeTurn(connection, successes, claim);
    else
      [turn, refused] = await connection.transaction(async (tx) => {
        const answers = await settling.settle(tx, others);
        const answered = new Map(others.map((settlement, i) => [settlement, answers[i]!]));
        return [await takeTurn(tx, successes, claim, false), answered];
      });
    if (turn.restarted) {
      await workers.raiseEpochOnce(connection);
      turn = { ...(await takeClaim(connection, claim)), settled: turn.settled, wakes: true };
    }
    if (successes.length > 0) this.#handsOver = turn.handedOver > 0;
    const mayLook = this.#read(claim, turn, beganMono);
    if (claim.total > 0) {
      this.#mayBeAtGate = turn.atOwnGate;
      // Its kinds were paused, or empty. What it finds now may be in front, and only from there jobs are claimed ahead.
      if (this.#foundNone && turn.taken.length > 0) this.#skips = 0;
      this.#foundNone = turn.taken.length === 0 && from !== "front";
    }
    const settled = await this.#answers(settlements, successes, turn, refused);
    const cancels = await this.#cancels(worker.seq, turn, settlements);
    const replaced = await workers.whyReplaced(connection, worker, turn);
    if (!turn.live || replaced !== null)
      return {
        settled,
        claimed: [],
        live: false,
        cancels: [],
        nextDueInMs: null,
        ...(replaced !== null && { replaced }),
      };
    const { due, keys, events, gates, keyDue, blindFor, passed, ...first } = await this.#sound(claim, room, turn);
    if (turn.crowded)
      await toGates(
        connection,
        open.flatMap(({ id, fair }) => (fair ? id : [])),
      );
    // After the commit of what was settled, and after the claim: what is admitted is claimed by a second one, and what wakes up by the next turn.
    const known = { wakes: turn.wakes, events: events || turn.events, doors: keys || turn.keys };
    const left = first.corrupt.length > 0 ? await whatIsLeft(connection) : known;
    const inSlots = withoutAhead(claim);
    const demands = demandsOf(without(inSlots, first.claimed));
    const isBusy = demands.length === 0 && settlements.length >= ADMITS_LATER_FROM;
    // What a gate lets through while the slots are full is ready in the order of all kinds.
    const atGates =
      demands.length === 0 && passed ? demandsOf({ ...inSlots, kinds: open.filter(({ fair }) => fair) }) : demands;
    const wake = await this.#wake(left, keyDue, atGates, gates || turn.gates, isBusy);
    const claims =
      turn.handedOver + wake.admitted + wake.ready > 0 && demands.length > 0
        ? await this.#claimMore(inSlots, room, first)
        : first;
    const woken = Math.max(0, turn.handedOver + wake.woken - (claims.claimed.length - first.claimed.length));
    if (turn.handedOver + wake.woken + wake.ready > 0) this.#floors.lookAgain();
    const dueInMs = woken > 0 || this.#mayHaveMissed(inSlots, blindFor, first.claimed.length) ? 0 : wake.dueInMs;
    const lookInMs = mayLook ? sooner(this.#floors.lookInMs(clock.mono()), dueInMs) : dueInMs;
    const nextDueInMs = due === null ? lookInMs : Math.max(0, sooner(due, lookInMs));
    return { settled, ...claims, live: true, cancels, nextDueInMs, ...(woken > 0 && { woken }) };
  }

  /**
   * Where the jobs of several kinds are looked for. The front of all kinds costs the same however many there are. If it found nothing, or if kinds have
   * limits of their own, their first jobs are compared, so that not more kinds than jobs are read any further.
   */
  async #from(open: readonly OpenKind[], total: number, ahead: number): Promise<NonNullable<Claim["from"]>> {
    if (total + ahead === 0) return open;
    // What waits at the gate of a fair kind is neither in front nor a first job of it.
    const fair = open.filter((kind) => kind.fair);
    const isAtGate = fair.length > 0 && this.#mayBeAtGate;
    if (open.length <= 1) return fair.length === 0 || isAtGate ? open : "front";
    if (this.#skips > 0) this.#skips--;
    else if (!isAtGate && open.every(({ most }) => most >= total)) return "front";
    if (total === 0 || open.length - fair.length <= HEADS_FROM) return open;
    const plain = fair.length === 0 ? open : open.filter((kind) => !kind.fair);
    const limit = open.some(({ shares }) => shares) ? open.length : total;
    return [...fair, ...(await earliestKinds(this.#deps.connection, plain, limit))];
  }

  /**
   * Remembers how far the claim of one kind, or of the front of all kinds, has come. A statement that left the claim to others shows nothing. Returns whether there may be ready jobs below
   * the floors from which it read.
   */
  #read(claim: Claim, turn: Turn, beganMono: number): boolean {
    const { kinds, total, ahead, from, floors } = claim;
    const { taken, live, restarted, due, suspects, blindFor } = turn;
    const asked = ahead > 0 || kinds.length !== 1 ? total : Math.min(total, kinds[0]!.most);
    if (asked === 0) return false;
    const isFull = taken.length >= asked;
    // What was claimed ahead may have ended at a job that may not wait: there is more behind.
    const mayBeMore = isFull || isMixed(claim);
    const isShown = live && !restarted && !suspects && blindFor === 0 && (due === null || due > 0);
    if (isShown && (from === "front" || isPlain(kinds)))
      this.#floors.read({
        taken,
        isFull: mayBeMore,
        bounded: floors !== undefined,
        beganMono,
        endedMono: this.#deps.clock.mono(),
      });
    else this.#floors.lookAgain();
    return floors !== undefined && !isFull;
  }

  /** Whether the claim may have left what it had room for. */
  #mayHaveMissed({ from, kinds, total }: Claim, blindFor: number, claimed: number): boolean {
    if (blindFor > 0) this.#skips = blindFor;
    const isPart = typeof from === "object" && from.length >= total && from.length < kinds.length;
    return blindFor > 0 || (isPart && claimed < total);
  }

  /** What was admitted, as far as there is room: those of fair kinds were admitted for this worker. */
  async #claimMore(claim: Claim, room: Room, first: Sound): Promise<Sound> {
    const left = without(claim, first.claimed);
    const turn = await takeClaim(this.#deps.connection, left);
    if (!turn.live || turn.restarted) return first;
    const suspects = withThese(room.suspects ?? NO_SUSPECTS, first.claimed);
    const more = await this.#sound(left, { ...room, total: left.total, suspects }, turn);
    return { claimed: [...first.claimed, ...more.claimed], corrupt: [...first.corrupt, ...more.corrupt] };
  }

  /** Jobs whose wait has ended, events whose job has ended, and then jobs that a limit holds: each of these may add to the next. */
  async #wake(
    known: Left,
    keyDue: number | null,
    demands: readonly Demand[],
    hasGates: boolean,
    isBusy: boolean,
  ): Promise<Woken> {
    const { connection, kinds } = this.#deps;
    const isDue = keyDue !== null && keyDue <= 0;
    const wakes = known.wakes ? await actOnWakes(connection) : NO_WAKES;
    const family = wakes.families ? await cancelChildren(connection) : NO_FAMILY;
    const left = wakes.woken + family.cancelled > 0 ? await whatIsLeft(connection) : known;
    const events = left.events ? await applyEvents(connection, kinds) : NO_EVENTS;
    const isHeld = left.doors || events.applied > 0 || isDue || (hasGates && demands.length > 0);
    const admit = (): Promise<Admitted> => admitHeld(connection, demands, hasGates);
    const held = await this.#admit(isHeld ? admit : null, keyDue, isBusy);
    const woken = wakes.woken + events.applied + held.admitted + held.toGates;
    const dueInMs = wakes.more || family.more || events.more || wakes.woken + events.applied > 0 ? 0 : held.dueInMs;
    return { woken, admitted: held.admitted, ready: held.ready, dueInMs };
  }

  /**
   * Admits, and adds what an earlier turn began to admit. The turn of a busy worker waits for neither, and asks for another turn at once, which reports it.
   * `admit`: null if nothing is held.
   */
  async #admit(admit: (() => Promise<Admitted>) | null, keyDue: number | null, isBusy: boolean): Promise<Admitted> {
    const former = this.#admitting;
    if (former && isBusy && !former.hasEnded) return { ...NONE_ADMITTED, dueInMs: 0 };
    this.#admitting = null;
    const earlier = former ? await former.outcome : { ...NONE_ADMITTED, dueInMs: null };
    let now: Admitted = { ...NONE_ADMITTED, dueInMs: keyDue };
    if (admit && isBusy) {
      this.#admitLater(admit());
      now = { ...NONE_ADMITTED, dueInMs: 0 };
    } else if (admit) now = await admit();
    return {
      admitted: earlier.admitted + now.admitted,
      toGates: earlier.toGates + now.toGates,
      ready: earlier.ready + now.ready,
      dueInMs: earlier.dueInMs === null ? now.dueInMs : sooner(earlier.dueInMs, now.dueInMs),
    };
  }

  /** If it fails, the turn that asks for its outcome does. */
  #admitLater(outcome: Promise<Admitted>): void {
    const admitting: Admitting = { outcome, hasEnded: false };
    const end = (): void => void (admitting.hasEnded = true);
    outcome.then(end, end);
    this.#admitting = admitting;
  }

  /**
   * The claimed jobs whose stored texts are intact. Corrupt ones are quarantined, and others are claimed in their place, once: with a million
   * corrupt jobs in front the turn would never end.
   */
  async #sound(claim: Claim, room: Room, first: Turn): Promise<Omit<Claimed, "corrupt"> & Sound> {
    const { connection, settling } = this.#deps;
    const inSlots = withoutAhead(claim);
    let pass = await this.#claimed(claim, room, first);
    const claimed = [...pass.claimed];
    const corrupt: CorruptJob[] = [];
    for (let passes = 1; pass.corrupt.length > 0; passes++) {
      const settlements = pass.corrupt;
      const answers = await connection.transaction((tx) => settling.settle(tx, settlements));
      for (const [at, { lease, change }] of settlements.entries())
        if (answers[at]!.is === "applied") corrupt.push({ lease, kind: lease.kind, change });
      if (passes > 1) break;
      const left = without(inSlots, claimed);
      const turn = await takeClaim(connection, left);
      if (!turn.live || turn.restarted) break;
      const suspects = withThese(room.suspects ?? NO_SUSPECTS, claimed);
      pass = await this.#claimed(left, { ...room, total: left.total, suspects }, turn);
      claimed.push(...pass.claimed);
    }
    return { ...pass, claimed, corrupt };
  }

  /** What the statement claimed. If it claimed nothing because jobs are due or suspects wait, deals with those and claims then. */
  async #claimed(claim: Claim, room: Room, turn: Turn): Promise<Claimed> {
    const { connection } = this.#deps;
    const { worker, kinds: open } = claim;
    const held = room.suspects ?? NO_SUSPECTS;
    const jobs = ({ taken, epoch, timeoutMs }: Turn, together = NOT_SUSPECT): Promise<ClaimedRows> =>
      claimedJobs(connection, taken, { worker, open, epoch, timeoutMs, together });
    const isDue = turn.due !== null && turn.due <= 0;
    const mayTake = (!room.suspects || hasRoomForSuspects(held)) && room.total > 0 && open.length > 0;
    if (!isDue && !(turn.suspects && mayTake)) return { ...(await jobs(turn)), ...dueOf(turn) };
    // What has expired must not be claimed. While more of it is left than one turn takes, nothing is.
    if (isDue && (await expireDue(connection))) return { claimed: [], corrupt: [], ...dueOf(turn) };
    if (isDue) await promoteDue(connection);
    const { taken, together } = mayTake
      ? await claimSuspects(connection, worker, open, room.total, held)
      : { taken: [], together: NOT_SUSPECT };
    const suspects = await jobs({ ...turn, taken }, together);
    const inSlots = withoutAhead(claim);
    const left = { ...without(inSlots, suspects.claimed, suspects.corrupt), heeds: "nothing" } as const;
    const second = await takeClaim(connection, left);
    const fresh = await jobs(second);
    return {
      claimed: byPriority([...taken, ...second.taken], [...suspects.claimed, ...fresh.claimed]),
      corrupt: [...suspects.corrupt, ...fresh.corrupt],
      ...dueOf(second),
    };
  }

  async #answers(
    settlements: readonly Settlement[],
    successes: readonly Settlement[],
    turn: Turn,
    others: ReadonlyMap<Settlement, WriteAnswer>,
  ): Promise<WriteAnswer[]> {
    if (turn.settled === null && others.size === 0) return settlements.map(() => APPLIED);
    const answers = new Map(others);
    const applied = new Set(turn.settled ?? successes.map(({ lease }) => lease.row));
    for (const settlement of successes) {
      const { lease, change } = settlement;
      const { connection, settling } = this.#deps;
      const answer = applied.has(lease.row)
        ? APPLIED
        : await connection.transaction((tx) => settling.refused(tx, lease, change.name, change));
      answers.set(settlement, answer);
    }
    return settlements.map((settlement) => answers.get(settlement)!);
  }

  /**
   * Jobs of this worker with a cancel request. Every turn reports them until the attempt has ended, because the reply to one turn may be
   * lost. A cancel request for an earlier attempt (the job no longer carries its mark) is not reported to a later one.
   */
  async #cancels(worker: number, { cancels }: Turn, settlements: readonly Settlement[]): Promise<string[]> {
    if (cancels === null) return [];
    if (cancels.some(({ runs }) => !runs))
      await this.#deps.connection.run(
        `DELETE FROM outlive.cancels c WHERE c.worker = $1 AND NOT EXISTS
           (SELECT 1 FROM outlive.jobs j WHERE j.seq = c.job AND j.state = 1 AND j.worker = $1 AND j.cancel_requested)`,
        [worker],
      );
    // The statement read the rows as they were before it settled them.
    const ended = new Set(settlements.map(({ lease }) => lease.row));
    return cancels.filter(({ runs, seq }) => runs && !ended.has(seq)).map(({ id }) => id);
  }
}

/** One kind whose ready jobs are all in its index: none waits at a gate. */
function isPlain(open: readonly OpenKind[]): boolean {
  return open.length === 1 && !open[0]!.fair;
}

function dueOf({ due, keys, events, gates, keyDue, blindFor, passed }: Turn): Omit<Claimed, keyof ClaimedRows> {
  return { due, keys, events, gates, keyDue, blindFor, passed };
}

function sooner(one: number, other: number | null): number {
  return other === null ? one : Math.min(one, other);
}

function demandsOf({ kinds, total }: Claim): Demand[] {
  if (total <= 0) return [];
  return kinds.flatMap(({ id, most }) => {
    const demand = Math.min(most, total);
    return demand > 0 ? [{ kind: id, demand }] : [];
  });
}

/** The claim of what free slots have room for, from the front. */
function withoutAhead(claim: Claim): Claim {
  const { worker, kinds, total, ahead, heeds, from } = claim;
  if (ahead === 0 && claim.floors === undefined) return claim;
  return { worker, kinds, total: total - ahead, ahead: 0, heeds, ...(from && { from }) };
}

/** The claim for the room that these jobs leave. */
function without(claim: Claim, claimed: readonly ClaimedJob[], corrupt: readonly Settlement[] = []): Claim {
  const total = claim.total - claimed.length - corrupt.length;
  if (total === claim.total) return claim;
  if (total <= 0) return { ...claim, kinds: [], total: 0 };
  const taken = new Map<string, number>();
  for (const { kind } of [...claimed, ...corrupt.map(({ lease }) => lease)])
    taken.set(kind, (taken.get(kind) ?? 0) + 1);
  const shared = claim.kinds.reduce((sum, { kind, shares }) => sum + (shares ? (taken.get(kind) ?? 0) : 0), 0);
  const left = (open: OpenKind): OpenKind => {
    const count = open.shares ? shared : (taken.get(open.kind) ?? 0);
    return count === 0 ? open : { ...open, most: Math.max(0, open.most - count) };
  };
  const from = typeof claim.from === "object" ? claim.from.map(left) : claim.from;
  return { ...claim, kinds: claim.kinds.map(left), total, ...(from && { from }) };
}

/** The suspects that the worker holds, including those among the newly claimed jobs. */
function withThese(held: HeldSuspects, claimed: readonly ClaimedJob[]): HeldSuspects {
  const together = claimed.flatMap((job) => job.together ?? []);
  if (together.length === 0) return held;
  const smallest = Math.min(held.together ?? Number.POSITIVE_INFINITY, ...together);
  return { ...held, count: held.count + together.length, together: smallest };
}

/** In the order in which one statement would have claimed them. */
function byPriority(taken: readonly TakenRow[], claimed: readonly ClaimedJob[]): ClaimedJob[] {
  const priority = new Map(taken.map((row) => [row.seq, row.priority]));
  const of = ({ lease }: ClaimedJob): number => priority.get(lease.row)!;
  return claimed.toSorted((a, b) => of(b) - of(a) || a.lease.row - b.lease.row);
}

/**
 * Splits settlements into those that the turn's own statement can write (successes of this worker, each job once, in the order of rows, without
 * anything to keep of rows of a block) and all others. If any of them enqueues follow-up jobs, all are others: those jobs are enqueued after every settlement and before the claim.
 */
function sorted(
  settlements: readonly Settlement[],
  worker: string,
): { successes: readonly Settlement[]; others: readonly Settlement[] } {
  if (settlements.some(({ change }) => hasFollow(change))) return { successes: [], others: settlements };
  const successes: Settlement[] = [];
  const others: Settlement[] = [];
  const rows = new Set<number>();
  for (const settlement of settlements) {
    const { lease, change } = settlement;
    const isPlain = change.name === "succeed" && lease.worker === worker && !hasRowsToWrite(change);
    if (!isPlain || rows.has(lease.row)) others.push(settlement);
    else {
      rows.add(lease.row);
      successes.push(settlement);
    }
  }
  return { successes: successes.sort((a, b) => a.lease.row - b.lease.row), others };
}

/** Slices in the order of the settlements, each small enough for one statement. */
function slicesOf(settlements: readonly Settlement[]): (readonly Settlement[])[] {
  const slices: Settlement[][] = [];
  let characters = Number.POSITIVE_INFINITY;
  for (const settlement of settlements) {
    const own = charactersOf(settlement);
    characters += own;
    if (characters > MAX_CHARACTERS) {
      slices.push([]);
      characters = own;
    }
    slices.at(-1)!.push(settlement);
  }
  return slices;
}

function charactersOf({ change }: Settlement): number {
  const { result, error, reason } = change;
  const ofError = error === null ? 0 : error.message.length + (error.stack?.length ?? 0);
  return (result?.length ?? 0) + ofError + (reason?.length ?? 0) + followingCharacters(change);
}

function followingCharacters({ follow, rows, ifCancelled }: Change): number {
  const own = follow?.reduce((sum, { input }) => sum + input.length, 0) ?? 0;
  return own + (rows ? rowsCharacters(rows) : 0) + (ifCancelled ? followingCharacters(ifCancelled) : 0);
}

const NO_EVENTS = { applied: 0, more: false } as const;
const NO_FAMILY = { cancelled: 0, more: false } as const;
const NO_WAKES = { woken: 0, more: false, families: false } as const;
const NO_ROOM: Room = { total: 0, kinds: [] };
const NO_SUSPECTS: HeldSuspects = { count: 0, together: null, oldestFirst: false };
const NOT_SUSPECT: ReadonlyMap<number, number> = new Map();
const NONE: ReadonlyMap<Settlement, WriteAnswer> = new Map();

/** Plain jobs, which are most, do not come to blocks.ts. */
function hasRowsToWrite(change: Change): boolean {
  return change.rows !== undefined && rowsBeforeSuccess(change) !== null;
}
