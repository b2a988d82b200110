// Every change of a job's state, each a pure named function, and nothing else. Stores apply what these return, under the
// fence; they never decide. The diagram is in ARCHITECTURE.md, and a test walks every (state, change) pair.
import { type BegunRow, decodeBlock, type RowEnds } from "./batches.ts";
import { ErrorCode, OutliveError, type StoredError } from "./errors.ts";
import { blame, type InFlight, mustWaitForResolution, ranAlone, togetherAfter } from "./isolation.ts";
import {
  type ClaimedJob,
  type Counters,
  type JobDraft,
  type JobState,
  type KindSettings,
  type Limits,
  NO_COUNTERS,
  type Outcome,
} from "./job.ts";
import { isUncountedDeath, type RequestDecision } from "./requests.ts";
import { type Wait, waitText } from "./waits.ts";

/** From which states each change may start. Everything that is not listed is refused. */
export const CHANGES = {
  claim: ["queued"],
  succeed: ["running"],
  fail: ["running"],
  timeOut: ["running"],
  crash: ["running"],
  lose: ["running"],
  countLoss: ["queued", "running"],
  forgetLoss: ["queued", "running"],
  release: ["running"],
  wait: ["running"],
  endCancelled: ["running"],
  refuse: ["running"],
  quarantine: ["running"],
  cancel: ["queued"],
  expire: ["queued"],
  promote: ["queued"],
  remove: ["queued", "succeeded", "dead", "cancelled", "quarantined"],
  retry: ["succeeded", "dead", "cancelled", "quarantined"],
} as const satisfies Record<string, readonly JobState[]>;

export type ChangeName = keyof typeof CHANGES;

/** What a decision is made from. */
export interface JobView {
  readonly id: string;
  readonly state: JobState;
  readonly counters: Counters;
}

/** A claimed job as its owner sees it. */
export function runningView({ lease, counters }: ClaimedJob): JobView {
  return { id: lease.jobId, state: "running", counters };
}

/**
 * What becomes of the job, as data that needs no second read of its row: what is added to its counters instead of what they will be, and
 * what is done instead if a cancel was requested. The store adds the instants from its own clock.
 */
export interface Change {
  readonly name: ChangeName;
  readonly to: JobState;
  /** What is added to each counter; what is not named stays. */
  readonly add: Partial<Counters>;
  /** All counters start again at 0. Omitted: no. */
  readonly resets?: true;
  readonly outcome: Outcome | null;
  /** For `to: queued`: how long from now it must wait. */
  readonly delayMs: number;
  /** JSON text of the result, for `succeed`. */
  readonly result: string | null;
  readonly error: StoredError | null;
  /** What the history row says; null: no row is written (a success). */
  readonly reason: string | null;
  /** For `to: queued`: it waits until it is known what happened to the workers that held it. Left out: no. */
  readonly waitsForResolution?: boolean;
  /** For `to: queued`: what it waits for. The store keeps it with the job, and checks the condition once this is committed. Omitted: nothing. */
  readonly wait?: Wait;
  /** Its handler never began. If its claim was a start of a rate, that is returned, as far as time has not done so already (`returnedMs` in limits.ts). Omitted: it may have begun. */
  readonly unstarted?: true;
  /** For `to: queued`: with how many suspects it may run (isolation.ts); 0: with any number. Omitted: as before. */
  readonly together?: number;
  /** What is written instead if a cancel of the job was requested meanwhile. Omitted: the cancel comes too late. */
  readonly ifCancelled?: Change;
  /**
   * Jobs that follow: enqueued in the transaction that applies this change, and only if it is applied. A settlement that is stale or repeated
   * enqueues nothing; where `ifCancelled` is applied, its own `follow` counts and this one does not. The caller gives the ids and derives them
   * (from the job, or from its attempt), so that the same change decided twice adds each job once. As in any enqueue, a known id or a held dedupe key adds
   * nothing, and the change is applied all the same. A kind that was never declared fails the whole call, and nothing of it is written; in `takeBack`
   * it fails its own job only.
   */
  readonly follow?: readonly JobDraft[];
  /** Rows of a block that end with this, applied in the same transaction. Where `ifCancelled` is applied, its own `rows` count. Omitted: none. */
  readonly rows?: RowEnds;
}

/** Whether jobs follow if this change, or its alternative, is applied. */
export function hasFollow({ follow, ifCancelled }: Change): boolean {
  return (follow !== undefined && follow.length > 0) || (ifCancelled !== undefined && hasFollow(ifCancelled));
}

/** The counters of a job to which a change was applied. */
export function afterChange(counters: Counters, { add, resets }: Change): Counters {
  const after = { ...(resets ? NO_COUNTERS : counters) };
  for (const name of Object.keys(add) as (keyof Counters)[]) after[name] = Math.max(0, after[name] + add[name]!);
  return after;
}

export function claim(job: JobView): Change {
  return change(job, "claim", { to: "running", outcome: null });
}

/** The handler returned. Written out, because it is the one that is made for every job. */
export function succeed(job: JobView, result: string | null): Change {
  if (job.state !== "running") return change(job, "succeed", { to: "succeeded", outcome: "succeeded" });
  return {
    name: "succeed",
    to: "succeeded",
    add: NOTHING,
    outcome: "succeeded",
    delayMs: 0,
    result,
    error: null,
    reason: null,
  };
}

const NOTHING: Partial<Counters> = {};

/** The handler threw. Queued again after `delayMs`, or dead when the errors are used up or the error is terminal. */
export function fail(job: JobView, kind: KindSettings, error: StoredError, delayMs: number, terminal: boolean): Change {
  const errors = job.counters.errors + 1;
  const count = `error ${errors} of ${kind.limits.errors}`;
  const counted = { add: { errors: 1 }, outcome: "failed", error } as const;
  if (terminal || errors >= kind.limits.errors) {
    const reason = terminal ? `terminal error: ${error.message}` : `${count}, no more are allowed: ${error.message}`;
    return change(job, "fail", { ...counted, to: "dead", reason });
  }
  return queuedAgain(change(job, "fail", { ...counted, to: "queued", delayMs, reason: `${count}: ${error.message}` }));
}

/** The attempt was past its deadline and its grace. */
export function timeOut(job: JobView, kind: KindSettings, delayMs: number): Change {
  // Never beyond the limit: a job that had used it up already (the limit was lowered) ends with its count as it was.
  const add = job.counters.timeouts < kind.limits.timeouts ? 1 : 0;
  const timeouts = job.counters.timeouts + add;
  const count = `timeout ${timeouts} of ${kind.limits.timeouts}`;
  const error = { name: "Timeout", message: `the attempt passed its deadline (${count})` };
  const counted = { add: { timeouts: add }, outcome: "timed-out", error } as const;
  return timeouts >= kind.limits.timeouts
    ? change(job, "timeOut", { ...counted, to: "dead", reason: `${count}, no more are allowed` })
    : queuedAgain(change(job, "timeOut", { ...counted, to: "queued", delayMs, reason: count }));
}

/** What recovery decides about a job. quarantine-row: only the guilty row of a block is quarantined, and the block continues. */
export type CrashDecision =
  | "retry"
  | "requeue"
  | "fail"
  | "quarantine"
  | "quarantine-row"
  | "cancel"
  | "lost"
  | RequestDecision;

/** What recovery decided about a job whose worker died, or with whose worker contact was lost. */
export interface CrashVerdict {
  readonly change: Change;
  readonly decision: CrashDecision;
}

/**
 * The worker died while it held the job. `inFlight`: what it held. `deathsElsewhere`: workers that died meanwhile without
 * holding it. A cancel that was requested before the death is honoured, so that a job that kills its workers can be stopped.
 */
export function crash(
  job: JobView,
  kind: KindSettings,
  inFlight: InFlight,
  deathsElsewhere = 0,
  begun?: BegunRow,
): CrashVerdict {
  const reason = "cancelled; its worker died before it could end the attempt";
  const ifCancelled = change(job, "crash", { to: "cancelled", outcome: "cancelled", reason });
  const { decision, change: decided } = crashed(job, kind, inFlight, deathsElsewhere, begun);
  return { decision, change: { ...decided, ifCancelled } };
}

function crashed(
  job: JobView,
  kind: KindSettings,
  inFlight: InFlight,
  deathsElsewhere: number,
  begun: BegunRow | undefined,
): CrashVerdict {
  const action = kind.onCrash;
  if (action === "requeue") {
    const reason = "its worker died; queued again, not counted";
    return { decision: "requeue", change: change(job, "crash", { to: "queued", outcome: "crashed", reason }) };
  }
  if (isUncountedDeath(job.counters, kind)) {
    const reason = "its worker died; a request is queued again at once";
    const counted = { add: { interruptions: 1 }, outcome: "crashed" } as const;
    return { decision: "requeue", change: change(job, "crash", { ...counted, to: "queued", reason }) };
  }
  const alone = ranAlone(job.counters, inFlight);
  const { counters, guilty } = blame(job.counters, alone, kind.limits, deathsElsewhere);
  const error = { name: "WorkerDied", message: `the worker died during the attempt (crash ${counters.crashes})` };
  const counted = { add: blamed(alone), outcome: "crashed", error } as const;
  if (action === "fail") {
    const reason = "its worker died, and its kind says that a crash ends the job";
    return { decision: "fail", change: change(job, "crash", { ...counted, to: "dead", reason }) };
  }
  if (guilty) {
    const reason = `its worker died ${times(counters.blamed)} while it ran alone (limit ${kind.limits.crashes})`;
    if (begun) return quarantinedRow(change(job, "crash", { to: "queued", outcome: "crashed", reason }), begun, error);
    return { decision: "quarantine", change: change(job, "crash", { ...counted, to: "quarantined", reason }) };
  }
  const spent = usedUp(job.counters, kind.limits);
  if (spent !== null) {
    // The counters stay as they were: the job had no attempt left before its worker died.
    const died = { ...error, message: `the worker died during the attempt (${spent})` };
    const reason = `its worker died; ${spent}, no more are allowed`;
    return { decision: "fail", change: change(job, "crash", { to: "dead", outcome: "crashed", error: died, reason }) };
  }
  const spared = alone && counters.blamed >= kind.limits.crashes;
  const together = togetherAfter(job.counters, inFlight);
  const next = spared
    ? `; not blamed, because ${deathsElsewhere} workers that did not hold it died meanwhile`
    : willRun(together);
  const reason = `its worker died (crash ${counters.crashes}, ${counters.blamed} of ${kind.limits.crashes} alone)${next}`;
  return { decision: "retry", change: change(job, "crash", { ...counted, to: "queued", reason, together }) };
}

/** The block goes on without the row that killed its workers, and its counters start again: they were that row's. */
function quarantinedRow(queued: Change, { row, input }: BegunRow, error: StoredError): CrashVerdict {
  const { line, input: value } = decodeBlock(input).rows[row]!;
  const guilty = { row, line, input: JSON.stringify(value), error, as: "quarantined" } as const;
  const rows = { succeeded: [], failed: [guilty], outputs: [] };
  const reason = `${queued.reason}; the row of line ${line} was quarantined, the others continue`;
  return { decision: "quarantine-row", change: { ...queued, resets: true, reason, rows } };
}

function willRun(together: number): string {
  if (together === 0) return "";
  const others = `with at most ${together - 1} other suspect(s)`;
  return `; it will run ${together === 1 ? "as the only suspect" : others}`;
}

/** What one more crash adds. */
function blamed(alone: boolean): Partial<Counters> {
  return alone ? { crashes: 1, blamed: 1 } : { crashes: 1 };
}

/** The limit that a running job had reached before, because the limit was lowered since; null: none. */
function usedUp({ errors, timeouts }: Counters, limits: Limits): string | null {
  if (timeouts >= limits.timeouts) return `timeout ${timeouts} of ${limits.timeouts}`;
  return errors >= limits.errors ? `error ${errors} of ${limits.errors}` : null;
}

/**
 * Contact with the worker was lost, and nothing proves that it died. The job is fenced and queued again, and nothing is counted
 * until the loss is resolved (losses.ts). A kind whose jobs a crash ends must not run twice at once: its job ends.
 */
export function lose(job: JobView, kind: KindSettings, inFlight: InFlight): CrashVerdict {
  const reason = "cancelled; contact with its worker was lost before it could end the attempt";
  const ifCancelled = change(job, "lose", { to: "cancelled", outcome: "cancelled", reason });
  const { decision, change: decided } = lost(job, kind, inFlight);
  return { decision, change: { ...decided, ifCancelled } };
}

function lost(job: JobView, kind: KindSettings, inFlight: InFlight): CrashVerdict {
  if (kind.onCrash === "requeue") {
    const reason = "contact with its worker was lost; queued again, not counted";
    return { decision: "requeue", change: change(job, "lose", { to: "queued", outcome: "lost", reason }) };
  }
  if (isUncountedDeath(job.counters, kind)) {
    const reason = "contact with its worker was lost; a request is queued again at once";
    const counted = { add: { interruptions: 1 }, outcome: "lost" } as const;
    return { decision: "requeue", change: change(job, "lose", { ...counted, to: "queued", reason }) };
  }
  const error = { name: "ContactLost", message: "contact with the worker was lost during the attempt" };
  if (kind.onCrash === "fail") {
    const reason = "contact with its worker was lost, and its kind says that a crash ends the job";
    return { decision: "fail", change: change(job, "lose", { to: "dead", outcome: "lost", error, reason }) };
  }
  const spent = usedUp(job.counters, kind.limits);
  if (spent !== null) {
    const ended = { ...error, message: `${error.message} (${spent})` };
    const reason = `contact with its worker was lost; ${spent}, no more are allowed`;
    return { decision: "fail", change: change(job, "lose", { to: "dead", outcome: "lost", error: ended, reason }) };
  }
  const counters = { ...job.counters, losses: job.counters.losses + 1 };
  const waitsForResolution = mustWaitForResolution(counters, kind.limits);
  const together = togetherAfter(job.counters, inFlight);
  const next = waitsForResolution ? "; it waits until it is known what happened to them" : willRun(together);
  const reason = `contact with its worker was lost (${counters.losses} unresolved, limit ${kind.limits.crashes})${next}`;
  const counted = { add: { losses: 1 }, outcome: "lost", error, waitsForResolution, together } as const;
  return { decision: "lost", change: change(job, "lose", { ...counted, to: "queued", reason }) };
}

/** The worker turned out to be dead, or stayed away: the loss is counted as the crash that it was. `alone`: see `ranAlone`. */
export function countLoss(
  job: JobView,
  kind: KindSettings,
  alone: boolean,
  resolution: "died" | "away",
  deathsElsewhere = 0,
  begun?: BegunRow,
): CrashVerdict {
  const add = { ...blamed(alone), losses: -1 };
  const { counters, guilty } = blame(withoutLoss(job.counters), alone, kind.limits, deathsElsewhere);
  const what = resolution === "died" ? "its lost worker turned out to be dead" : "its lost worker stayed away";
  const counted = `${what} (crash ${counters.crashes}, ${counters.blamed} of ${kind.limits.crashes} alone)`;
  if (guilty && job.state === "queued") {
    const error = { name: "WorkerDied", message: `the worker died during the attempt (crash ${counters.crashes})` };
    if (begun) {
      const queued = change(job, "countLoss", { to: "queued", outcome: null, reason: counted });
      return quarantinedRow(queued, begun, error);
    }
    const to = { to: "quarantined", add, outcome: "crashed", error, reason: counted } as const;
    return { decision: "quarantine", change: change(job, "countLoss", to) };
  }
  return { decision: "retry", change: stayed(job, "countLoss", add, counters, kind, counted) };
}

/** The worker returned: it had not died, and nothing is counted. */
export function forgetLoss(job: JobView, kind: KindSettings, reason: string): CrashVerdict {
  return {
    decision: "retry",
    change: stayed(job, "forgetLoss", { losses: -1 }, withoutLoss(job.counters), kind, reason),
  };
}

function withoutLoss(counters: Counters): Counters {
  return { ...counters, losses: Math.max(0, counters.losses - 1) };
}

/** The job stays where it is, queued or running; only its counters, and with them where it waits, change. */
function stayed(
  job: JobView,
  name: "countLoss" | "forgetLoss",
  add: Partial<Counters>,
  after: Counters,
  kind: KindSettings,
  reason: string,
): Change {
  const waitsForResolution = mustWaitForResolution(after, kind.limits);
  return change(job, name, { to: job.state, add, outcome: null, reason, waitsForResolution });
}

/** Released without a verdict: a shutdown, a lost lease, a claim whose answer was lost, a full store. Costs the job nothing. */
export function release(job: JobView, reason: string, delayMs = 0): Change {
  return queuedAgain(released(job, reason, delayMs));
}

/** As `release`, of a job that was claimed and whose handler never began: claimed ahead, or by a turn whose answer was lost. */
export function releaseUnstarted(job: JobView, reason: string): Change {
  return queuedAgain({ ...released(job, reason, 0), unstarted: true });
}

function released(job: JobView, reason: string, delayMs: number): Change {
  return change(job, "release", { add: { interruptions: 1 }, outcome: "released", to: "queued", reason, delayMs });
}

/** The attempt ends, and the job holds no slot until the wait ends. No counter rises. */
export function wait(job: JobView, until: Wait): Change {
  return queuedAgain(change(job, "wait", { to: "queued", outcome: "waiting", reason: waitText(until), wait: until }));
}

/** The handler of a job whose cancel was asked for has ended, or was given up. */
export function endCancelled(job: JobView, reason: string): Change {
  return change(job, "endCancelled", { to: "cancelled", outcome: "cancelled", reason });
}

/** A cancel that was requested while the attempt ran is honoured however the attempt ended: the job is not queued again. */
function queuedAgain(ended: Change): Change {
  const reason = `${ended.reason}; its cancel had been asked for`;
  const { wait: _, ...without } = ended;
  return { ...ended, ifCancelled: { ...without, to: "cancelled", delayMs: 0, reason } };
}

/** The stored input does not fit the kind's schema any more, or is not JSON: no attempt can succeed. */
export function refuse(job: JobView, error: StoredError): Change {
  return change(job, "refuse", {
    to: "dead",
    outcome: "rejected",
    error,
    reason: `its stored input was refused: ${error.message}`,
  });
}

/** What is stored of it is not what was written: running it could do anything. `what`: "input", "step NAME". */
export function quarantine(job: JobView, what: readonly string[]): Change {
  const said = `the stored ${what.join(" and ")} of job ${job.id} ${what.length === 1 ? "does not match its checksum" : "do not match their checksums"}`;
  return change(job, "quarantine", {
    to: "quarantined",
    outcome: "corrupt",
    error: {
      name: "Corrupt",
      code: ErrorCode.corrupt,
      message: `${said}: the store was damaged. It was not run. ${CORRUPT_HINT}`,
    },
    reason: `corrupt: ${said}`,
  });
}

/** What to do about a job of which a stored text is not what was written. */
export const CORRUPT_HINT =
  "Enqueue it again with the right input, or restore a backup; a retry is quarantined again as long as the damage is there. To find more: outlive check --integrity.";

/**
 * An operator, or the program, does not want it any more. A running job is only asked to end: `endCancelled` does it. `parent`: the job with whose
 * cancel this one was asked for, too.
 */
export function cancel(job: JobView, parent?: string): Change {
  const reason = `cancelled before it ran${parent === undefined ? "" : `, with its parent ${parent}`}`;
  return change(job, "cancel", { to: "cancelled", outcome: "cancelled", reason });
}

/** Whether the cancel of its parent cancels this job, too: no attempt has begun. */
export function hasNotBegun(state: JobState, fence: number): boolean {
  return state === "queued" && fence === 0;
}

/** No attempt has begun in time. The same consequences as any end: parents wake, keys get room, the dedupe key is free. */
export function expire(job: JobView): Change {
  const message = "no attempt had begun when the job expired";
  const error = { name: "Expired", code: ErrorCode.expired, message };
  return change(job, "expire", { to: "cancelled", outcome: "expired", error, reason: `expired: ${message}` });
}

/** The change of every job that expires: it depends on nothing but that the job is queued and has not begun. */
export const EXPIRE = expire({ id: "", state: "queued", counters: NO_COUNTERS });

/** A delayed job becomes ready at once. Only its time changes; a job that waits for a signal, for others or in a sleep is not promoted. */
export function promote(job: JobView): Change {
  return change(job, "promote", { to: "queued", outcome: null, reason: "made ready by hand before its time" });
}

/**
 * A person wants it gone, with all that belongs to it. What has not ended ends, with the consequences of any end. If its parent is unfinished, the row stays, without
 * contents, and says so: the parent learns that it was removed, and a replay of the parent finds the id and does not enqueue it again.
 */
export function remove(job: JobView): Change {
  const error = { name: "Removed", code: ErrorCode.removed, message: "the job was removed by hand" };
  return change(job, "remove", { to: "cancelled", outcome: "removed", error, reason: "removed by hand" });
}

/** An operator's redrive: all counters start again, the fence goes on. */
export function retry(job: JobView, delayMs: number): Change {
  return change(job, "retry", {
    to: "queued",
    resets: true,
    outcome: null,
    delayMs,
    reason: `retried by hand from ${job.state}`,
  });
}

/** What a person asks of one job, decided before the store has found it: its change in each state. In any other state nothing is written. */
export interface ByHand {
  readonly changes: Readonly<Partial<Record<JobState, Change>>>;
  /** A running job is only asked to end, and its history says this. Null: a running job is refused. */
  readonly request: string | null;
}

/** Neither depends on the job's counters, so that a store need not read the row to apply it. */
export const BY_HAND = {
  cancel: { changes: byHand("cancel", cancel), request: "its end was asked for while it ran" },
  retry: { changes: byHand("retry", (job) => retry(job, 0)), request: null },
  promote: { changes: byHand("promote", promote), request: null },
  remove: { changes: byHand("remove", remove), request: null },
} as const satisfies Record<string, ByHand>;

function byHand(name: "cancel" | "retry" | "promote" | "remove", make: (job: JobView) => Change): ByHand["changes"] {
  return Object.fromEntries(CHANGES[name].map((state) => [state, make({ id: "", state, counters: NO_COUNTERS })]));
}

function change(job: JobView, name: ChangeName, to: Partial<Change> & Pick<Change, "to" | "outcome">): Change {
  const from: readonly JobState[] = CHANGES[name];
  if (!from.includes(job.state)) {
    throw new OutliveError(
      ErrorCode.wrongState,
      `Job ${job.id} is ${job.state}; "${name}" is possible only from ${from.join(", ")}.`,
      "Check the job again: another process may have ended it.",
      { jobId: job.id, state: job.state, change: name },
    );
  }
  return { name, add: NOTHING, delayMs: 0, result: null, error: null, reason: null, ...to };
}

function times(count: number): string {
  return count === 1 ? "once" : `${count} times`;
}
