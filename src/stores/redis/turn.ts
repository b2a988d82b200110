// The worker's loop, and the small writes of its attempts.
import { createHash } from "node:crypto";
import type { ClaimedJob } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import { quarantine } from "../../job/transitions.ts";
import {
  APPLIED,
  type CorruptJob,
  type FencedWrite,
  AHEAD_BOUND_MS,
  type Room,
  type RoomOfKind,
  type Settlement,
  triedBy,
  type TurnAnswer,
  type WriteAnswer,
} from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { costOf, enqueuedOf, insertChildren, MAX_COST } from "./enqueue.ts";
import type { Resendable } from "./journal.ts";
import {
  assertDeclared,
  assertWritable,
  changeArgs,
  checked,
  countersOf,
  draftsArgs,
  fieldsOf,
  keptSteps,
  MAX_AWAITED,
  lastOutcome,
  leaseArgs,
  packed,
  rowsArgs,
  stepOwner,
  uncheckedInput,
  writeAnswer,
} from "./encoding.ts";

interface Ends {
  readonly args: readonly string[];
  /** The places of all as they are sent. */
  readonly order: readonly number[];
  readonly plainCount: number;
}

/** Attempts that just succeed come first, in a short form (lua/attempts.ts). */
function settlementsArgs(settlements: readonly Settlement[]): Ends {
  const [plain, others]: [number[], number[]] = [[], []];
  const first = settlements.find(isPlainSuccess)?.lease;
  for (const [place, settlement] of settlements.entries()) {
    const { lease } = settlement;
    const isPlain = isPlainSuccess(settlement) && lease.worker === first!.worker && lease.epoch === first!.epoch;
    (isPlain ? plain : others).push(place);
  }
  const args = [first?.worker ?? "", String(first?.epoch ?? 0), String(plain.length)];
  const ends: string[] = [];
  for (const place of plain) {
    const { lease, change } = settlements[place]!;
    const result = change.result === null ? "" : checked(change.result, lease.jobId);
    ends.push(String(lease.row), String(lease.fence), lease.jobId, result);
  }
  if (ends.length > 0) args.push(packed(ends));
  args.push(String(others.length));
  for (const place of others) {
    const { lease, change } = settlements[place]!;
    assertWritable(change, lease.jobId);
    args.push(...leaseArgs(lease), ...changeArgs(change, lease.jobId));
  }
  return { args, order: [...plain, ...others], plainCount: plain.length };
}

function isPlainSuccess({ change: { name, rows, follow = [] } }: Settlement): boolean {
  return name === "succeed" && rows === undefined && follow.length === 0;
}

/** What one script settles and claims, so that it holds the server for a few milliseconds only. A turn of more is several scripts, each whole or nothing. */
const MAX_IN_SCRIPT = 250;
/** What it settles while jobs have keys. */
const MAX_KEYED_ENDS = 150;

/** `replaces`: what is quarantined leaves its place to another. Those are not replaced again: with a million corrupt jobs in front the turn would never end. */
export async function turn(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  room: Room,
  replaces = true,
): Promise<TurnAnswer> {
  await prepareWaits(connection, settlements);
  const first = settlements.slice(0, maySettle(connection));
  if (first.length < settlements.length) {
    const done = await turnOnce(connection, worker, first, { total: 0, kinds: [] });
    if (done === null) return turn(connection, worker, settlements, room, replaces);
    const { settled, woken = 0 } = done.answer;
    const rest = await turn(connection, worker, settlements.slice(first.length), room);
    return { ...rest, settled: [...settled, ...rest.settled], woken: woken + (rest.woken ?? 0) };
  }
  const done = await turnOnce(connection, worker, settlements, {
    ...room,
    total: Math.min(room.total, MAX_IN_SCRIPT),
    ahead: Math.max(0, Math.min(room.ahead ?? 0, MAX_IN_SCRIPT - room.total)),
  });
  if (done === null) return turn(connection, worker, settlements, room, replaces);
  const { answer, hasMore } = done;
  const isCut = room.total > answer.claimed.length && (hasMore || answer.claimed.length === MAX_IN_SCRIPT);
  const hasGaps = answer.corrupt !== undefined && replaces;
  if (!hasGaps && !isCut) return answer;
  const left = roomAfter(room, answer.claimed);
  const more = await turn(connection, worker, [], left, !hasGaps && replaces);
  const corrupt = [...(answer.corrupt ?? []), ...(more.corrupt ?? [])];
  return {
    ...more,
    settled: answer.settled,
    claimed: [...answer.claimed, ...more.claimed],
    ...(corrupt.length > 0 && { corrupt }),
    woken: (answer.woken ?? 0) + (more.woken ?? 0),
  };
}

function aheadArgs(ahead: number): string[] {
  return [String(ahead), String(ahead > 0 ? AHEAD_BOUND_MS : 0)];
}

/** Waits for more jobs than one script takes. Killed in between, the attempt has not ended, and the next one begins its wait from the start. */
async function prepareWaits(connection: Connection, settlements: readonly Settlement[]): Promise<void> {
  for (const { lease, change } of settlements) {
    const until = change.wait?.until ?? null;
    if (until === null || !("jobs" in until) || until.jobs.length <= MAX_AWAITED) continue;
    for (let from = 0; from < until.jobs.length; from += MAX_AWAITED) {
      const piece = until.jobs.slice(from, from + MAX_AWAITED);
      const args = [...leaseArgs(lease), from === 0 ? "1" : "", String(piece.length), ...piece];
      // 2: an earlier wait for many is forgotten first.
      while ((await connection.eval("prepareWait", args)) === 2);
    }
  }
}

/** What is left of a room after these were taken. */
function roomAfter(room: Room, claimed: readonly ClaimedJob[]): Room {
  const used = new Map<string, number>();
  for (const { kind } of claimed) used.set(kind, (used.get(kind) ?? 0) + 1);
  const usedBy = ({ kind }: { readonly kind: string }): number => used.get(kind) ?? 0;
  const shared = room.kinds.reduce((sum, one) => sum + (one.shares ? usedBy(one) : 0), 0);
  const kinds = room.kinds.map((one) => ({ ...one, room: one.room - (one.shares ? shared : usedBy(one)) }));
  const bounds = claimed.flatMap(({ together }) => (together === null ? [] : [together]));
  const { count, together, oldestFirst } = room.suspects ?? NO_SUSPECTS;
  const smallest = Math.min(together ?? Number.POSITIVE_INFINITY, ...bounds);
  const suspects = {
    count: count + bounds.length,
    together: Number.isFinite(smallest) ? smallest : null,
    oldestFirst,
  };
  return { total: Math.max(0, room.total - claimed.length), kinds, suspects };
}

const NO_SUSPECTS = { count: 0, together: null, oldestFirst: false };

interface TurnOnce {
  readonly answer: TurnAnswer;
  /** It has left jobs that there was room for. */
  readonly hasMore: boolean;
}

/** One script, or a few if it is not a plain turn. Null: not all is plain, and those are more ends than one script of another kind takes. */
async function turnOnce(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  room: Room,
): Promise<TurnOnce | null> {
  const { count } = room.suspects ?? NO_SUSPECTS;
  const ends = settlementsArgs(settlements);
  const rooms = roomsOf(connection, room.kinds);
  const isPlain = count === 0 && settlements.length === ends.plainCount;
  const reply = isPlain ? await shortTurn(connection, worker, ends, room, rooms, againOf(settlements, ends)) : null;
  if (reply === null && isPlain && ends.plainCount > MAX_KEYED_ENDS) return null;
  if (reply === null) return fullTurn(connection, worker, settlements, room);
  if ((reply as Reply[])[0] !== "!kinds") return turnAnswer(connection, worker, settlements, ends.order, reply);
  await keepKinds(connection, worker, rooms);
  return turnOnce(connection, worker, settlements, room);
}

/** What the script that knows everything settles and claims: each job may take 100 us of the server. */
const MAX_IN_FULL = 50;

/** As many of them, from the first on, as one script settles: what follows from an end, and whom it waits for, takes its time, too. */
function firstPiece(settlements: readonly Settlement[]): readonly Settlement[] {
  let cost = 0;
  const end = settlements.findIndex(({ change }, at) => (cost += costOfEnd(change)) > MAX_IN_FULL && at > 0);
  return end === -1 ? settlements : settlements.slice(0, end);
}

function costOfEnd({ follow, wait }: Settlement["change"]): number {
  const awaited = wait?.until && "jobs" in wait.until ? wait.until.jobs.length : 0;
  return 1 + (follow?.length ?? 0) + (awaited <= MAX_AWAITED ? awaited / 2 : 0);
}

async function fullTurn(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  room: Room,
): Promise<TurnOnce> {
  const settled: WriteAnswer[] = [];
  let rest = settlements;
  for (let piece = firstPiece(rest); piece.length < rest.length; piece = firstPiece(rest)) {
    const { args, order } = settlementsArgs(piece);
    const refused = await connection.eval("settle", args, [{ script: "settleAgain", args }]);
    assertDeclared(refused);
    settled.push(...settledOf(piece, order, refused as unknown as Refused));
    rest = rest.slice(piece.length);
  }
  const total = Math.min(room.total, MAX_IN_FULL);
  const ahead = Math.max(0, Math.min(room.ahead ?? 0, MAX_IN_FULL - room.total));
  const { count, together, oldestFirst } = room.suspects ?? NO_SUSPECTS;
  const ends = settlementsArgs(rest);
  for (;;) {
    const rooms = roomsOf(connection, room.kinds);
    const args = [
      worker,
      ...rooms.listed,
      ...ends.args,
      String(total),
      String(count),
      together === null ? "" : String(together),
      oldestFirst ? "1" : "",
      ...aheadArgs(ahead),
      ...rooms.single,
    ];
    const reply = await connection.eval("turn", args, againOf(rest, ends));
    if ((reply as Reply[])[0] === "!kinds") {
      await keepKinds(connection, worker, rooms);
      continue;
    }
    const { answer, hasMore } = await turnAnswer(connection, worker, rest, ends.order, reply);
    return {
      answer: { ...answer, settled: [...settled, ...answer.settled] },
      hasMore: hasMore || (total < room.total && answer.claimed.length >= total),
    };
  }
}

/** How they are sent again if the store loses them: no script settles more jobs of any sort. */
function againOf(settlements: readonly Settlement[], ends: Ends): readonly Resendable[] {
  if (settlements.length === 0) return [];
  const pieces: Resendable[] = [];
  for (let rest = settlements; rest.length > 0;) {
    const piece = firstPiece(rest);
    if (piece.length === settlements.length) return [{ script: "settleAgain", args: ends.args }];
    pieces.push({ script: "settleAgain", args: settlementsArgs(piece).args });
    rest = rest.slice(piece.length);
  }
  return pieces;
}

/** What did not apply, by its place among those that were sent. */
type Refused = readonly (readonly [place: number, answer: Reply])[];

function settledOf(settlements: readonly Settlement[], order: readonly number[], refused: Refused): WriteAnswer[] {
  const settled: WriteAnswer[] = settlements.map(() => APPLIED);
  for (const [place, answer] of refused) {
    const { lease, change } = settlements[order[place - 1]!]!;
    settled[order[place - 1]!] = writeAnswer(answer, lease, change.name);
  }
  return settled;
}

async function turnAnswer(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  order: readonly number[],
  reply: Reply,
): Promise<TurnOnce> {
  assertDeclared(reply);
  const [refused, named, flat, extras, live, replaced, cancels, next, woken, epoch, cut] = reply as unknown as [
    Refused,
    [string, string][],
    string[],
    Extra[],
    number,
    string,
    string[],
    string,
    number,
    string,
    number,
  ];
  const claimed: ClaimedJob[] = [];
  const broken: { readonly job: ClaimedJob; readonly what: readonly string[] }[] = [];
  const kindsNamed = named.map(([kind, timeout]): NamedKind => ({
    kind,
    deadlineInMs: timeout === "" ? null : Number(timeout),
  }));
  let nextExtra = 0;
  for (let at = 0; at < flat.length; at += CLAIM_PARTS) {
    const extra = extras[nextExtra]?.[0] === at / CLAIM_PARTS ? extras[nextExtra++]! : null;
    const { job, what } = claimedJob(flat, at, kindsNamed, extra, worker, Number(epoch));
    if (what.length === 0) claimed.push(job);
    else broken.push({ job, what });
  }
  const settled = settledOf(settlements, order, refused);
  const corrupt = broken.length === 0 ? [] : await quarantined(connection, broken);
  const answer: TurnAnswer = {
    settled,
    claimed,
    ...(corrupt.length > 0 && { corrupt }),
    live: live === 1,
    ...(replaced !== "" && { replaced }),
    cancels,
    nextDueInMs: next === "" ? null : Number(next),
    ...(woken > 0 && { woken }),
  };
  return { answer, hasMore: cut === 1 };
}

/** Scripts that do not know everything, the one that knows least first: lua/plain.ts, lua/keyed.ts. */
const SHORT_TURNS = ["turnPlain", "turnKeyed"] as const;

/**
 * The turn in which everything is plain, or has keys and is otherwise plain; null: something is not, and nothing was written. A worker that finds that again and
 * again asks less often, up to one turn of 17.
 */
async function shortTurn(
  connection: Connection,
  worker: string,
  ends: Ends,
  { total, ahead = 0 }: Room,
  rooms: RoomArgs,
  again: readonly Resendable[],
): Promise<Reply | null> {
  const states = TRIED.get(connection) ?? SHORT_TURNS.map(() => ({ pause: 0, left: 0 }));
  TRIED.set(connection, states);
  // Without the last argument: how many other ends there are.
  const args = [
    worker,
    ...rooms.listed,
    ...ends.args.slice(0, -1),
    String(total),
    ...aheadArgs(ahead),
    ...rooms.single,
  ];
  for (const [at, state] of states.entries()) {
    if (state.left > 0) {
      state.left--;
      continue;
    }
    if (at > 0 && ends.plainCount > MAX_KEYED_ENDS) return null;
    const reply = await connection.eval(SHORT_TURNS[at]!, args, again);
    const isShort = (reply as Reply[])[0] !== "!full";
    state.pause = isShort ? 0 : Math.min(16, state.pause * 2 + 1);
    state.left = state.pause;
    if (isShort) return reply;
  }
  return null;
}

const TRIED = new WeakMap<Connection, readonly { pause: number; left: number }[]>();

/** As long as the turn in which everything is plain was the right one. */
function maySettle(connection: Connection): number {
  return (TRIED.get(connection)?.[0]?.pause ?? 0) > 0 ? MAX_KEYED_ENDS : MAX_IN_SCRIPT;
}

/** Rooms as a turn takes them: of many kinds with the same room the name of their list, which the worker keeps in its row, and of the others each. */
interface RoomArgs {
  readonly listed: readonly [list: string, room: string, flags: string];
  readonly single: readonly string[];
  /** The kinds of the list. */
  readonly names: readonly string[];
}

/** Fewer kinds than this do not make a list. */
const MIN_LISTED = 9;
/** Lists that one connection keeps: rooms that change all the time would make more and more of them. */
const MAX_LISTS = 16;
const NO_LIST = ["", "0", ""] as const;
const ROOM_ARGS = new WeakMap<Room["kinds"], RoomArgs>();
/** The lists of a connection, and those that could not be kept. */
const LISTS = new WeakMap<Connection, { readonly kept: Set<string>; readonly refused: Set<string> }>();

function roomsOf(connection: Connection, kinds: Room["kinds"]): RoomArgs {
  if (kinds.length < MIN_LISTED) return singleRooms(kinds);
  const made = ROOM_ARGS.get(kinds) ?? listedRooms(kinds);
  ROOM_ARGS.set(kinds, made);
  const lists = LISTS.get(connection) ?? { kept: new Set(), refused: new Set() };
  LISTS.set(connection, lists);
  const [list] = made.listed;
  if (lists.refused.has(list) || (!lists.kept.has(list) && lists.kept.size >= MAX_LISTS)) return singleRooms(kinds);
  lists.kept.add(list);
  return made;
}

function singleRooms(kinds: Room["kinds"]): RoomArgs {
  const single = kinds.flatMap((one) => [one.kind, String(one.room), flagsOf(one)]);
  return { listed: NO_LIST, single: [String(kinds.length), ...single], names: [] };
}

/** As the scripts read them (`newRoom` in lua/plain.ts). */
function flagsOf({ shares, ahead, fair }: RoomOfKind): string {
  return `${shares ? "s" : ""}${ahead && !fair ? "a" : ""}`;
}

/** The list has the kinds with the room that most of them have. */
function listedRooms(kinds: Room["kinds"]): RoomArgs {
  const roomOf = (one: RoomOfKind): string => `${one.room} ${flagsOf(one)}`;
  const byRoom = Map.groupBy(kinds, roomOf);
  const most = [...byRoom.values()].reduce((a, b) => (b.length > a.length ? b : a));
  const names = most.map(({ kind }) => kind);
  const list = createHash("sha1").update(names.join("\n")).digest("base64url");
  const [first] = most;
  const { single } = singleRooms(kinds.filter((one) => roomOf(one) !== roomOf(first!)));
  return { listed: [list, String(first!.room), flagsOf(first!)], single, names };
}

/** A worker has a row of its own in each run of the server, and its lists with it. */
async function keepKinds(connection: Connection, worker: string, { listed: [list], names }: RoomArgs): Promise<void> {
  const args = [worker, list, String(names.length), ...names];
  if ((await connection.eval("keepKinds", args)) === 0) LISTS.get(connection)!.refused.add(list);
}

/** Of a job that has more than its record: its place among those that were claimed, and what else there is. */
type Extra = readonly [place: number, d: string[], steps: string[], wait: "" | [string, string], bound: string];
/** Row, id, place of the kind, fence and input of each. */
const CLAIM_PARTS = 5;

interface NamedKind {
  readonly kind: string;
  readonly deadlineInMs: number | null;
}

const NO_COUNTERS = countersOf({});
const INTACT: readonly string[] = [];

function claimedJob(
  flat: readonly string[],
  at: number,
  named: readonly NamedKind[],
  extra: Extra | null,
  worker: string,
  epoch: number,
): { readonly job: ClaimedJob; readonly what: readonly string[] } {
  const { kind, deadlineInMs } = named[Number(flat[at + 2]) - 1]!;
  const jobId = flat[at + 1]!;
  const input = uncheckedInput(flat[at + 4]!, kind);
  const lease: Lease = { kind, jobId, row: Number(flat[at]), worker, epoch, fence: Number(flat[at + 3]) };
  const plain = {
    lease,
    kind,
    input: input.text ?? "null",
    counters: NO_COUNTERS,
    deadlineInMs,
    together: null,
    lastOutcome: null,
    steps: [],
  };
  const damage = input.intact ? INTACT : ["input"];
  if (extra === null) return { job: plain, what: damage };
  const [, fields, kept, wait, bound] = extra;
  const d = fieldsOf(fields);
  const steps = keptSteps(jobId, kept);
  const job = {
    ...plain,
    counters: countersOf(d),
    together: bound === "" ? null : Number(bound),
    lastOutcome: lastOutcome({ state: "running", d }),
    steps: steps.map(({ name, result }) => ({ name, result })),
    ...(d["mk"] !== undefined && { block: { marks: d["mk"] } }),
    ...(wait !== "" && { wait: { step: wait[0], remainingMs: wait[1] === "" ? null : Number(wait[1]) } }),
  };
  return { job, what: [...damage, ...steps.filter(({ intact }) => !intact).map(({ name }) => `step ${name}`)] };
}

/**
 * What was claimed and is not what was stored is not handed out. Scripts do not compute checksums, so this is a second call; a process that dies
 * before it leaves a job that is claimed and recovered like any other.
 */
async function quarantined(
  connection: Connection,
  broken: readonly { readonly job: ClaimedJob; readonly what: readonly string[] }[],
): Promise<CorruptJob[]> {
  const corrupt = broken.map(({ job: { lease, kind, counters }, what }) => {
    const change = quarantine({ id: lease.jobId, state: "running", counters }, what);
    return { lease, kind, change };
  });
  for (let from = 0; from < corrupt.length; from += MAX_IN_FULL)
    assertDeclared(await connection.eval("settle", settlementsArgs(corrupt.slice(from, from + MAX_IN_FULL)).args));
  return corrupt;
}

/** In the order in which they came, as many in one script as it may take. */
export async function write(connection: Connection, writes: readonly FencedWrite[]): Promise<readonly WriteAnswer[]> {
  const answers: WriteAnswer[] = [];
  for (let from = 0; from < writes.length;) {
    const { lease, write: first } = writes[from]!;
    if (first.type === "enqueue" && costOf(first.drafts) > MAX_COST) {
      answers.push(await insertChildren(connection, lease, first.drafts, triedBy(first)));
      from++;
      continue;
    }
    let upTo = from;
    for (let cost = 0; upTo < writes.length; upTo++) {
      const { write: one } = writes[upTo]!;
      cost += one.type === "enqueue" ? 1 + costOf(one.drafts) : 1;
      if (cost > MAX_COST && upTo > from) break;
    }
    answers.push(...(await writeTogether(connection, writes.slice(from, upTo))));
    from = upTo;
  }
  return answers;
}

async function writeTogether(connection: Connection, writes: readonly FencedWrite[]): Promise<readonly WriteAnswer[]> {
  const args = [String(writes.length)];
  for (const { lease, write: one } of writes) {
    args.push(...leaseArgs(lease), one.type, triedBy(one));
    if (one.type === "step") args.push(one.name, checked(one.result, stepOwner(lease.jobId, one.name)));
    else if (one.type === "progress") args.push(one.value);
    else if (one.type === "log") args.push(one.message);
    else if (one.type === "enqueue") args.push(...draftsArgs(one.drafts));
    else if (one.type === "holdOff") args.push(String(one.key.id), one.key.limit, one.key.key, String(one.forMs));
    else if (one.type === "rows") args.push(...rowsArgs(one.ends, lease.jobId));
    else if (one.type === "rowBegins") args.push(String(one.row));
    else if (one.type === "signal")
      args.push(one.step, one.name, one.hasEnded ? "1" : "", checked(null, stepOwner(lease.jobId, one.step)));
  }
  const reply = await connection.eval("write", args);
  assertDeclared(reply);
  return (reply as unknown as Reply[][]).map((one, at) => {
    const { lease, write: tried } = writes[at]!;
    if (one[1] === "enqueued" && tried.type === "enqueue")
      return { is: "applied", enqueued: enqueuedOf(one[2]!, tried.drafts) };
    if (one[1] === "signal")
      return { is: "applied", signal: signalOf(one as [string, string, number, string?], lease, tried) };
    return writeAnswer(one, lease, triedBy(tried));
  });
}

function signalOf(
  [, , kept, packed]: [string, string, number, string?],
  { jobId }: Lease,
  write: FencedWrite["write"],
): { kept: true; payload: string | null } | { kept: false } {
  if (kept === 0 || packed === undefined || write.type !== "signal") return { kept: false };
  return { kept: true, payload: keptSteps(jobId, [write.step, packed])[0]!.result };
}
