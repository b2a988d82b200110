// How values cross the wire: flat texts in the arguments of a script, and what the scripts return back into the forms of the port. An empty text
// stands for nothing. Texts that a handler trusts carry a checksum in front, which is compared here: scripts do not look at them.
import type { AuditEntry } from "../../job/audit.ts";
import { crc32 } from "node:zlib";
import type { BegunRow, FailedRow, RowEnds } from "../../job/batches.ts";
import { toStoredError, undeclaredKind } from "../../job/errors.ts";
import { ANY_NUMBER, boundOf, isSuspect } from "../../job/isolation.ts";
import {
  type Counters,
  type HistoryEntry,
  isTerminal,
  JOB_STATES,
  type JobDraft,
  type JobInfo,
  type JobState,
  NO_COUNTERS,
  type Outcome,
} from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import type { JobKey } from "../../job/limits.ts";
import { CHANGES, type Change } from "../../job/transitions.ts";
import { shownWait, WAIT_PREFIX } from "../../job/waits.ts";
import type { WorkerRecord, WorkerRow, WorkerState } from "../liveness.ts";
import { APPLIED, REPEATED, type WriteAnswer } from "../port.ts";
import { NEVER_DUE, NO_TIMEOUT, STATE, storedError } from "../rows.ts";
import type { Reply } from "./driver.ts";
import { COUNTER_FIELDS, COUNTERS } from "./lua/changes.ts";

/** Between the parts of a packed text. Control characters are not allowed in ids, keys and names, and JSON escapes them. */
const FIELD = "\u001F";

// ---- texts with checksums

/** Whose the input of a job is: all jobs of a dedupe key have one kind, and an input may become that of another of them. */
export const inputOwner = (kind: string): string => `input\n${kind}`;
/** The step of a wait gets the payload of a signal as it was sent, and its sender knew no step. */
export const stepOwner = (id: string, name: string): string => (name.startsWith(WAIT_PREFIX) ? id : `${id}\n${name}`);

/** Of a row that failed, and of what rows wrote to a file, by the id of their block. */
export const rowOwner = (blockId: string, line: number): string => `row ${line}\n${blockId}`;
export const partOwner = (blockId: string, file: string): string => `output ${file}\n${blockId}`;

const INPUT_SUMS = new Map<string, number>();

/** The checksum of what comes before the inputs of a kind. */
function sumOfKind(kind: string): number {
  let sum = INPUT_SUMS.get(kind);
  if (sum === undefined) INPUT_SUMS.set(kind, (sum = crc32(`${inputOwner(kind)}\n`)));
  return sum;
}

/** As `checked` and `unchecked`, of the input of a job. */
export function checkedInput(text: string, kind: string): string {
  return `${crc32(text, sumOfKind(kind)).toString(16).padStart(8, "0")}+${text}`;
}

export function uncheckedInput(
  stored: string,
  kind: string,
): { readonly text: string | null; readonly intact: boolean } {
  if (stored[8] !== "+") return unchecked(stored, inputOwner(kind));
  const text = stored.slice(9);
  return { text, intact: Number.parseInt(stored.slice(0, 8), 16) === crc32(text, sumOfKind(kind)) };
}

/** A text as it is stored. Null, which is stored too, is a checksum with a mark in place of the text. */
export function checked(text: string | null, owner: string): string {
  const sum = crc32(`${owner}\n${text ?? "\0"}`)
    .toString(16)
    .padStart(8, "0");
  return text === null ? `${sum}-` : `${sum}+${text}`;
}

/** What was stored, and whether it is what was written. */
export function unchecked(stored: string, owner: string): { readonly text: string | null; readonly intact: boolean } {
  const text = stored[8] === "-" ? null : stored.slice(9);
  return { text, intact: stored.length > 8 && checked(text, owner) === stored };
}

// ---- arguments

const orNothing = (value: string | number | null | undefined): string =>
  value === null || value === undefined ? "" : String(value);

/** What many drafts of a call have in common is one text, which a script takes apart once. */
function draftHead({
  kind,
  priority,
  runAt,
  delayMs,
  dedupeKey,
  dedupe,
  keys = [],
  fair,
  expiresMs,
  trace,
}: JobDraft): string {
  return [
    kind,
    priority,
    orNothing(runAt),
    delayMs,
    orNothing(dedupeKey),
    orNothing(dedupe?.then),
    orNothing(dedupe?.debounce?.waitMs),
    orNothing(dedupe?.debounce?.maxMs),
    orNothing(fair),
    orNothing(expiresMs),
    orNothing(trace),
    packedKeys(keys),
  ].join(FIELD);
}

/** Heads, each once, then all drafts as one text (Q.readAll in lua/plain.ts): id, place of the head, and input of each. */
export function draftsArgs(drafts: readonly JobDraft[]): string[] {
  if (drafts.length === 0) return ["0"];
  const heads = new Map<string, string>();
  const parts: string[] = [];
  for (const draft of drafts) {
    const head = draftHead(draft);
    let place = heads.get(head);
    if (place === undefined) heads.set(head, (place = String(heads.size + 1)));
    parts.push(draft.id, place, checkedInput(draft.input, draft.kind));
  }
  return [String(drafts.length), String(heads.size), ...heads.keys(), packed(parts)];
}

/** Drafts that are staged: three arguments for each. */
export function stagedArgs(drafts: readonly JobDraft[]): string[] {
  const args = [String(drafts.length)];
  for (const draft of drafts) args.push(draft.id, draftHead(draft), checkedInput(draft.input, draft.kind));
  return args;
}

/** Many texts as one argument: `unpacked` in lua/records.ts. */
export const packed = (texts: readonly string[]): string => texts.join(FIELD) + FIELD;

function packedKeys(keys: readonly JobKey[]): string {
  return keys.flatMap(({ id, limit, key }) => [String(id), limit, key]).join(FIELD);
}

export function leaseArgs({ row, jobId, epoch, fence, worker }: Lease): string[] {
  return [String(row), jobId, String(epoch), String(fence), worker];
}

/** Rows that end, of a block of this id; nothing: none do. */
export function rowsArgs(ends: RowEnds | undefined, blockId: string): string[] {
  if (ends === undefined) return [""];
  const { succeeded, failed, outputs } = ends;
  return [
    "1",
    succeeded.join(","),
    String(failed.length),
    ...failed.flatMap((row) => failedArgs(row, blockId)),
    String(outputs.length),
    ...outputs.flatMap(({ file, texts }) => [file, checked(texts, partOwner(blockId, file))]),
  ];
}

export function failedArgs({ row, line, as, input, error }: FailedRow, blockId: string): string[] {
  return [String(row), String(line), as, checked(input, rowOwner(blockId, line)), JSON.stringify(error)];
}

/** Jobs that one script begins to wait for, about 2 ms; more of them are prepared in pieces before (turn.ts). */
export const MAX_AWAITED = 100;

export function changeArgs(change: Change, id: string): string[] {
  const { name, to, add, outcome, delayMs, result, error, reason, wait, together, follow = [], ifCancelled } = change;
  const stored = result === null ? "" : checked(result, id);
  if (name === "succeed") return [name, stored, ...rowsArgs(change.rows, id), ...draftsArgs(follow)];
  const until = wait?.until ?? null;
  const waiting =
    wait === undefined
      ? [""]
      : until === null
        ? ["sleep", wait.step, orNothing(wait.forMs)]
        : "signal" in until
          ? ["signal", wait.step, orNothing(wait.forMs), until.signal]
          : until.jobs.length > MAX_AWAITED
            ? ["jobs", wait.step, orNothing(wait.forMs), "1", "0"]
            : ["jobs", wait.step, orNothing(wait.forMs), "", String(until.jobs.length), ...until.jobs];
  return [
    name,
    String(STATE[to]),
    orNothing(outcome),
    String(delayMs),
    error === null ? "" : JSON.stringify(error),
    orNothing(reason),
    ...COUNTERS.map((counter) => String(add[counter] ?? 0)),
    change.resets ? "1" : "",
    change.waitsForResolution ? "1" : "",
    orNothing(together),
    change.unstarted ? "1" : "",
    stored,
    ...waiting,
    ...rowsArgs(change.rows, id),
    ...draftsArgs(follow),
    ...(ifCancelled === undefined ? [""] : ["1", ...changeArgs(ifCancelled, id)]),
  ];
}

/** Why a change can't be written; null: it can. A script is not rolled back, so everything is checked before it is sent. */
export function faultOf(change: Change): string | null {
  const { name, to, delayMs, add, ifCancelled } = change;
  if (!Object.hasOwn(CHANGES, name)) return `there is no change called ${name}`;
  if (!JOB_STATES.includes(to)) return `${to} is not a state`;
  if (!Number.isFinite(delayMs)) return "its delay is not a number";
  for (const [counter, by] of Object.entries(add))
    if (!Object.hasOwn(NO_COUNTERS, counter) || !Number.isInteger(by)) return `${counter} can't grow by ${by}`;
  return ifCancelled === undefined ? null : faultOf(ifCancelled);
}

export function assertWritable(change: Change, id: string): void {
  const fault = faultOf(change);
  if (fault !== null) throw new TypeError(`The change of job ${id} can't be written: ${fault}.`);
}

// ---- replies

/** A script that found a kind that was never declared has written nothing. */
export function assertDeclared(reply: Reply): void {
  if (!Array.isArray(reply) || reply[0] !== "!kind") return;
  throw undeclaredKind(String(reply[1]));
}

export const undeclaredMessage = (kind: string): string => toStoredError(undeclaredKind(kind)).message;

export type Fields = Readonly<Record<string, string>>;

export function fieldsOf(flat: readonly string[]): Fields {
  return Object.fromEntries(Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at]!, flat[2 * at + 1]!]));
}

/** A job as `J.show` returns it. */
export interface ShownJob {
  readonly row: number;
  readonly id: string;
  readonly kind: string;
  readonly state: JobState;
  readonly priority: number;
  readonly fence: number;
  readonly worker: string | null;
  readonly epoch: number;
  readonly startedAt: number;
  readonly deadlineAt: number | null;
  readonly finishedAt: number;
  readonly createdAt: number;
  readonly parent: string | null;
  readonly waitStep: string | null;
  readonly d: Fields;
  readonly counters: Counters;
}

export function shownJob(reply: Reply): ShownJob {
  const [
    row,
    id,
    kind,
    state,
    priority,
    fence,
    worker,
    epoch,
    started,
    deadline,
    finished,
    created,
    parent,
    step,
    flat,
  ] = reply as [string, string, string, number, number, ...string[]] as unknown as string[];
  const d = fieldsOf(flat as unknown as string[]);
  return {
    row: Number(row),
    id: id!,
    kind: kind!,
    state: JOB_STATES[Number(state)]!,
    priority: Number(priority),
    fence: Number(fence),
    worker: worker || null,
    epoch: Number(epoch),
    startedAt: Number(started),
    deadlineAt: deadline === "" ? null : Number(deadline),
    finishedAt: Number(finished),
    createdAt: Number(created),
    parent: parent || null,
    waitStep: step || null,
    d,
    counters: countersOf(d),
  };
}

export function countersOf(d: Fields): Counters {
  return Object.fromEntries(
    COUNTERS.map((counter, at) => [counter, Number(d[COUNTER_FIELDS[at]!] ?? 0)]),
  ) as unknown as Counters;
}

export function jobInfo(job: ShownJob, now: number): JobInfo {
  const { d, counters, state } = job;
  const isClaimed = job.fence > 0;
  const runAt = d["ra"] === undefined ? null : Number(d["ra"]);
  // A block of a batch that is held has the same due time, and was never claimed.
  const waitsForResolution = isClaimed && state === "queued" && runAt === NEVER_DUE;
  const keys = keysOf(d);
  const outcome = lastOutcome(job);
  const bound = boundOf({ ...counters, together: Number(d["to"] ?? 0) });
  // A due job that no turn has looked at yet waits at no door.
  const isHeld = state === "queued" && d["ln"] === "h" && (runAt === null || runAt <= now);
  return {
    id: job.id,
    kind: job.kind,
    state,
    priority: job.priority,
    dedupeKey: d["dk"] ?? null,
    createdAt: job.createdAt,
    runAt: runAt === NEVER_DUE || runAt === NO_TIMEOUT ? null : runAt,
    startedAt: isClaimed ? job.startedAt : null,
    deadlineAt: isClaimed ? job.deadlineAt : null,
    finishedAt: isTerminal(state) ? job.finishedAt : null,
    worker: job.worker,
    epoch: isClaimed ? job.epoch : 0,
    attempt: job.fence,
    counters,
    together: isSuspect(counters) && bound < ANY_NUMBER ? bound : 0,
    lastOutcome: outcome,
    error: d["ex"] === undefined ? null : storedError(d["ex"]),
    cancelRequested: d["ca"] !== undefined,
    parent: job.parent,
    waitsAt:
      state === "queued" && outcome === "waiting" && runAt !== null && job.waitStep !== null
        ? shownWait(job.waitStep)
        : null,
    keys: keys.map(named),
    heldBy: isHeld ? heldBy(d, keys) : null,
    waitsForResolution,
    ...(d["xp"] !== undefined && state === "queued" && !isClaimed && { expiresAt: Number(d["xp"]) }),
    ...(d["la"] !== undefined && { latestAt: Number(d["la"]) }),
  };
}

/** The row that the latest attempt of a block has begun. Nothing is read from an input that is not what was stored: then the block is judged as a whole. */
export function begunRow({ d, kind }: ShownJob, storedInput: string): { readonly begun?: BegunRow } {
  if (storedInput === "") return {};
  const { text, intact } = unchecked(storedInput, inputOwner(kind));
  return intact && text !== null ? { begun: { row: Number(d["bg"]), input: text } } : {};
}

export function lastOutcome({ state, d }: Pick<ShownJob, "state" | "d">): Outcome | null {
  return (d["oc"] as Outcome | undefined) ?? (state === "succeeded" ? "succeeded" : null);
}

/** The door at which it waits; at the gate of its kind, it waits for the turn of its fair key. */
function heldBy(d: Fields, keys: ReturnType<typeof keysOf>): JobInfo["heldBy"] {
  const isAtGate = d["dr"]!.startsWith("-");
  const door = keys.find(({ id }) => id === d[isAtGate ? "fr" : "dr"]);
  return door ? { ...named(door), ...(isAtGate && { turn: true as const }) } : null;
}

function named({ limit, key }: { readonly limit: string; readonly key: string }): { limit: string; key: string } {
  return { limit, key };
}

function keysOf(d: Fields): { readonly id: string; readonly limit: string; readonly key: string }[] {
  if (d["ks"] === undefined) return [];
  const parts = d["ks"].split(FIELD);
  return Array.from({ length: parts.length / 3 }, (_, at) => ({
    id: parts[3 * at]!,
    limit: parts[3 * at + 1]!,
    key: parts[3 * at + 2]!,
  }));
}

export interface KeptStep {
  readonly name: string;
  readonly result: string | null;
  readonly at: number;
  readonly attempt: number;
  readonly intact: boolean;
}

/** In the order in which they were written. */
export function keptSteps(id: string, flat: readonly string[]): KeptStep[] {
  const steps = Object.entries(fieldsOf(flat)).map(([name, packed]) => {
    const [ordinal, at, attempt, stored] = splitInto(packed, 4);
    const { text, intact } = unchecked(stored!, stepOwner(id, name));
    return { name, result: text, at: Number(at), attempt: Number(attempt), intact, ordinal: Number(ordinal) };
  });
  return steps.toSorted((a, b) => a.ordinal - b.ordinal);
}

export function historyEntry(packed: string): HistoryEntry {
  const [at, event, from, to, actor, epoch, attempt, incident, startedAt, owner, reason] = splitInto(packed, 11);
  return {
    at: Number(at),
    event: event!,
    from: JOB_STATES[Number(from)]!,
    to: JOB_STATES[Number(to)]!,
    actor: actor!,
    epoch: Number(epoch),
    attempt: Number(attempt),
    startedAt: startedAt ? Number(startedAt) : null,
    owner: owner || null,
    reason: reason!,
    incident: incident || null,
  };
}

/** The last part may contain the separator. */
export function splitInto(packed: string, count: number): string[] {
  const parts = packed.split(FIELD);
  return [...parts.slice(0, count - 1), parts.slice(count - 1).join(FIELD)];
}

/** A worker as the scripts show it. */
export function workerRow(reply: Reply, withIds = false): WorkerRow {
  const [id, record, state, started, heartbeat, beats, lag, word, hasWord, restored, , held, ids] =
    reply as unknown as [...string[], string[]];
  return {
    ...(JSON.parse(String(record)) as WorkerRecord),
    id: String(id),
    state: state as WorkerState,
    startedAt: Number(started),
    heartbeatAt: Number(heartbeat),
    beats: Number(beats),
    loopLagMs: Number(lag),
    heldCount: Number(held),
    ...(withIds && { heldIds: ids as string[] }),
    lastWord: Number(hasWord) === 1 ? String(word) : null,
    ...(Number(restored) === 1 && { restored: true as const }),
  };
}

/** Of a write under a lease. */
export function writeAnswer(reply: Reply, lease: Lease, tried: string): WriteAnswer {
  const [is, state, worker, epoch, fence] = reply as [string, string, string, string, string];
  if (is === "applied") return APPLIED;
  if (is === "repeated") return REPEATED;
  return {
    is: "stale",
    stale: {
      lease,
      tried,
      state: state === "" ? "missing" : JOB_STATES[Number(state)]!,
      worker: worker || null,
      epoch: Number(epoch),
      fence: Number(fence),
    },
  };
}

/** What a person changed, for the audit. Nothing: no entry is kept. */
export function entryArgs(entry: AuditEntry | undefined): string[] {
  return entry ? [entry.id, entry.actor, entry.action, entry.target, entry.reason ?? ""] : [""];
}
