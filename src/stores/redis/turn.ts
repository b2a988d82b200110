// The worker's loop, and the small writes of its attempts.
import type { ClaimedJob } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import { quarantine } from "../../job/transitions.ts";
import {
  APPLIED,
  type CorruptJob,
  type FencedWrite,
  AHEAD_BOUND_MS,
  type Room,
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
  inputOwner,
  keptSteps,
  MAX_AWAITED,
  lastOutcome,
  leaseArgs,
  rowsArgs,
  stepOwner,
  unchecked,
  writeAnswer,
} from "./encoding.ts";

/** Attempts that just succeed come first, in a short form (lua/attempts.ts). `order` has the places of all as they are sent. */
function settlementsArgs(settlements: readonly Settlement[]): {
  readonly args: string[];
  readonly order: number[];
  readonly plainCount: number;
} {
  const [plain, others]: [number[], number[]] = [[], []];
  const first = settlements.find(isPlainSuccess)?.lease;
  for (const [place, settlement] of settlements.entries()) {
    const { lease } = settlement;
    const isPlain = isPlainSuccess(settlement) && lease.worker === first!.worker && lease.epoch === first!.epoch;
    (isPlain ? plain : others).push(place);
  }
  const args = [first?.worker ?? "", String(first?.epoch ?? 0), String(plain.length)];
  for (const place of plain) {
    const { lease, change } = settlements[place]!;
    const result = change.result === null ? "" : checked(change.result, lease.jobId);
    args.push(String(lease.row), String(lease.fence), lease.jobId, result);
  }
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

export async function turn(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  room: Room,
): Promise<TurnAnswer> {
  await prepareWaits(connection, settlements);
  const first = settlements.slice(0, MAX_IN_SCRIPT);
  if (first.length < settlements.length) {
    const { settled, woken = 0 } = await turnOnce(connection, worker, first, { total: 0, kinds: [] });
    const rest = await turn(connection, worker, settlements.slice(MAX_IN_SCRIPT), room);
    return { ...rest, settled: [...settled, ...rest.settled], woken: woken + (rest.woken ?? 0) };
  }
  const answer = await turnOnce(connection, worker, settlements, {
    ...room,
    total: Math.min(room.total, MAX_IN_SCRIPT),
    ahead: Math.max(0, Math.min(aheadOf(room), MAX_IN_SCRIPT - room.total)),
  });
  const left = roomAfter(room, answer.claimed);
  const isCut = answer.claimed.length === MAX_IN_SCRIPT && left.total > 0;
  // What was quarantined leaves its place to another.
  if (answer.corrupt === undefined && !isCut) return answer;
  const more = await turn(connection, worker, [], left);
  const corrupt = [...(answer.corrupt ?? []), ...(more.corrupt ?? [])];
  return {
    ...more,
    settled: answer.settled,
    claimed: [...answer.claimed, ...more.claimed],
    ...(corrupt.length > 0 && { corrupt }),
    woken: (answer.woken ?? 0) + (more.woken ?? 0),
  };
}

/** What is behind a job that may not wait for a slot is not claimed ahead, and the script does not look for that. */
function aheadOf({ ahead = 0, kinds }: Room): number {
  return kinds.every((kind) => kind.ahead) ? ahead : 0;
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
      await connection.eval("prepareWait", args);
    }
  }
}

/** What is left of a room after these were taken. */
function roomAfter(room: Room, claimed: readonly ClaimedJob[]): Room {
  const sharing = new Set(room.kinds.filter(({ shares }) => shares).map(({ kind }) => kind));
  const kinds = room.kinds.map((one) => {
    const used = claimed.filter(({ kind }) => (one.shares ? sharing.has(kind) : kind === one.kind)).length;
    return { ...one, room: one.room - used };
  });
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

async function turnOnce(
  connection: Connection,
  worker: string,
  settlements: readonly Settlement[],
  room: Room,
): Promise<TurnAnswer> {
  const { total, kinds, suspects = NO_SUSPECTS, ahead = 0 } = room;
  const { count, together, oldestFirst } = suspects;
  const { args: ends, order, plainCount } = settlementsArgs(settlements);
  const args = [
    worker,
    ...ends,
    String(total),
    String(count),
    together === null ? "" : String(together),
    oldestFirst ? "1" : "",
    ...aheadArgs(ahead),
    String(kinds.length),
    ...kinds.flatMap((one) => [one.kind, String(one.room), one.shares ? "1" : ""]),
  ];
  const again = settlements.length === 0 ? [] : [{ script: "settleAgain", args: ends } as const];
  const isPlain = count === 0 && settlements.length === plainCount;
  const reply =
    (isPlain && (await plainTurn(connection, worker, ends, room, again))) ||
    (await connection.eval("turn", args, again));
  assertDeclared(reply);
  const [refused, named, flat, extras, live, replaced, cancels, next, woken, epoch] = reply as unknown as [
    [number, Reply][],
    [string, string][],
    string[],
    Extra[],
    number,
    string,
    string[],
    string,
    number,
    string,
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
  const settled: WriteAnswer[] = settlements.map(() => APPLIED);
  for (const [place, answer] of refused) {
    const { lease, change } = settlements[order[place - 1]!]!;
    settled[order[place - 1]!] = writeAnswer(answer, lease, change.name);
  }
  const corrupt = broken.length === 0 ? [] : await quarantined(connection, broken);
  return {
    settled,
    claimed,
    ...(corrupt.length > 0 && { corrupt }),
    live: live === 1,
    ...(replaced !== "" && { replaced }),
    cancels,
    nextDueInMs: next === "" ? null : Number(next),
    ...(woken > 0 && { woken }),
  };
}

/**
 * The turn in which everything is plain (lua/plain.ts); null: something is not, and nothing was written. A worker that finds that again and again asks less
 * often, up to one turn of 17.
 */
async function plainTurn(
  connection: Connection,
  worker: string,
  ends: readonly string[],
  { total, kinds, ahead = 0 }: Room,
  again: readonly Resendable[],
): Promise<Reply | null> {
  const state = PLAIN_TURNS.get(connection) ?? { pause: 0, left: 0 };
  PLAIN_TURNS.set(connection, state);
  if (state.left > 0) {
    state.left--;
    return null;
  }
  const rooms = kinds.flatMap((one) => [one.kind, String(one.room), one.shares ? "1" : ""]);
  // Without the last argument: how many other ends there are.
  const args = [worker, ...ends.slice(0, -1), String(total), ...aheadArgs(ahead), String(kinds.length), ...rooms];
  const reply = await connection.eval("turnPlain", args, again);
  const isPlain = (reply as Reply[])[0] !== "!full";
  state.pause = isPlain ? 0 : Math.min(16, state.pause * 2 + 1);
  state.left = state.pause;
  return isPlain ? reply : null;
}

const PLAIN_TURNS = new WeakMap<Connection, { pause: number; left: number }>();

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
  const input = unchecked(flat[at + 4]!, inputOwner(kind));
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
  assertDeclared(await connection.eval("settle", settlementsArgs(corrupt).args));
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
