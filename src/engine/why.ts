// Why a job is not running, or how it runs: one sentence that names the cause, and the next thing to do. It only reads.
import { ANY_NUMBER, isSuspect } from "../job/isolation.ts";
import type { JobDetails } from "../job/job.ts";
import { jobKey, type KeyState, throttleSettings } from "../job/limits.ts";
import { counted, shellWord } from "../job/text.ts";
import { humanMs, isoInstant } from "../job/time.ts";
import { SCHEDULED } from "../job/schedules.ts";
import { CORRUPT_HINT } from "../job/transitions.ts";
import { awaitedAt } from "../job/waits.ts";
import type { Death, HowLost, WorkerRow } from "../stores/liveness.ts";
import type { KindCounts, LockHolder, Store, WorkerSuspects } from "../stores/port.ts";
import { UNFIT } from "../worker/life.ts";

/** The answer to "why is it not running?". */
export interface Explanation {
  /** The job's id. */
  readonly jobId: string;
  /** The name of its kind. */
  readonly kind: string;
  /** Its state. */
  readonly state: JobDetails["state"];
  /** The reason; stable, for programs. */
  readonly because:
    | "running"
    | "overdue"
    | "owner-gone"
    | "owner-silent"
    | "owner-lost"
    | "contact-lost"
    | "degraded"
    | "not-due"
    | "sleeping"
    | "waits-for-signal"
    | "waits-for-jobs"
    | "limit"
    | "rate"
    | "strict-order"
    | "debounced"
    | "key-paused"
    | "held-off"
    | "fair-turn"
    | "paused"
    | "no-worker"
    | "schema-too-old"
    | "store-blocked"
    | "store-returned"
    | "suspect"
    | "waiting-its-turn"
    | "about-to-run"
    | "finished"
    | "expired"
    | "quarantined";
  /** The reason as a sentence, for people. */
  readonly text: string;
  /** The next thing to do; empty: nothing. */
  readonly next: string;
  /** The facts behind the sentences, for programs. */
  readonly details: Readonly<Record<string, string | number | boolean | null>>;
}

/** A write lock that is free again within this time is ordinary work. */
const BLOCKED_AFTER_MS = 300;

export interface WhyDeps {
  readonly store: Store;
  /** Workers whose jobs could be taken over now: those that provably died, and those that were silent for a lease while a process watched. */
  readonly deaths: () => Promise<readonly { readonly worker: WorkerRow; readonly death: Death }[]>;
  /** How long a worker whose lock is not held still has to come back, because the store was away a moment ago; 0: not that. */
  readonly returning?: (worker: WorkerRow) => Promise<number>;
  readonly now: () => number;
  readonly pause: (ms: number) => Promise<void>;
}

/** Null: there is no such job. */
export async function explain(deps: WhyDeps, id: string): Promise<Explanation | null> {
  const job = await deps.store.inspect.get(id);
  if (!job) return null;
  const explained =
    job.state === "running"
      ? await owned(deps, job)
      : job.state === "queued"
        ? withExpiry(await queued(deps, job), job, deps.now())
        : finished(job);
  return id.startsWith(SCHEDULED) ? ofSchedule(deps.store, explained) : explained;
}

/** What a schedule enqueued it for, and what that schedule skips because of it. */
async function ofSchedule({ schedules }: Store, explained: Explanation): Promise<Explanation> {
  const [planned] = (await schedules?.occurrences([explained.jobId])) ?? [];
  if (!planned) return explained;
  const { schedule, at, caughtUp } = planned;
  const row = await schedules!.get(schedule).catch(() => null);
  const late = caughtUp ? ", late" : "";
  const from = `The schedule ${schedule} enqueued it for ${isoInstant(at)}${late}.`;
  const isUnfinished = explained.state === "queued" || explained.state === "running";
  const holdsUp = row?.lastJob === explained.jobId && isUnfinished;
  const next = row?.nextAt === null || row?.nextAt === undefined ? "" : `, the next at ${isoInstant(row.nextAt)}`;
  const count = row?.skipped.overlap ?? 0;
  const overlap = !holdsUp
    ? ""
    : row.overlap === "skip"
      ? ` Until it ends the schedule skips its occurrences${next}; it has skipped ${count} for that.`
      : row.overlap === "queue"
        ? " Until it ends, jobs of later occurrences wait."
        : "";
  return {
    ...explained,
    text: `${explained.text} ${from}${overlap}`,
    details: {
      ...explained.details,
      schedule,
      occurrence: isoInstant(at),
      caughtUp,
      ...(holdsUp && { overlap: row.overlap, skippedForOverlap: count }),
    },
  };
}

/** Whatever it waits for, it does not wait for longer. */
function withExpiry(explained: Explanation, { expiresAt }: JobDetails, now: number): Explanation {
  if (expiresAt === undefined) return explained;
  const { text, details } = explained;
  const left =
    expiresAt > now
      ? `It expires in ${humanMs(expiresAt - now)}`
      : "It has expired, and the next turn of a worker ends it";
  return {
    ...explained,
    text: `${text} ${left} (${isoInstant(expiresAt)}) unless an attempt begins.`,
    details: { ...details, expiresAt },
  };
}

function pausedKind(kind: string, pause: KindCounts["pause"], now: number): Wording {
  const next = `outlive resume ${shellWord(kind)}`;
  if (pause === undefined) return { because: "paused", text: `The kind ${kind} is paused.`, next };
  const { by, reason, at, until } = pause;
  const end = until === null ? "until it is resumed" : `for ${humanMs(Math.max(0, until - now))} more`;
  const why = reason === null ? "" : `: ${reason}`;
  const text = `The kind ${kind} has been paused by ${by} since ${isoInstant(at)}, ${end}${why}.`;
  return { because: "paused", text, next, details: { by, reason, at, until } };
}

/** What `why` reports about a job. */
export type Wording = Pick<Explanation, "because" | "text" | "next"> & { readonly details?: Explanation["details"] };

function say(job: JobDetails, said: Wording): Explanation {
  return { jobId: job.id, kind: job.kind, state: job.state, details: {}, ...said };
}

async function owned(deps: WhyDeps, job: JobDetails): Promise<Explanation> {
  const [workers, deaths] = await Promise.all([deps.store.workers({ which: "all" }), deps.deaths()]);
  const owner = workers.find(({ id }) => id === job.worker);
  const lost = owner && lossOf(owner, deaths, deps.now());
  const holdMs = (owner && (await deps.returning?.(owner))) ?? 0;
  if (owner && holdMs > 0) return held(job, owner, holdMs);
  if (!owner || !lost) return running(job, workers, deps.now());
  const lastStep = job.steps.at(-1)?.name ?? null;
  const beat = `its last heartbeat was ${humanMs(Math.max(0, deps.now() - owner.heartbeatAt))} ago`;
  return say(job, {
    because: `owner-${lost}`,
    text: `It was running (attempt ${job.attempt}) in worker ${owner.id}, which is ${LOST[lost]}; ${beat}; last step ${lastStep ?? "none"}. No process has taken it over yet.`,
    next:
      lost === "silent"
        ? "A live worker takes it over when it has watched the silence for one lease; or: outlive recover --wait"
        : "Start a worker, which recovers it at once, or: outlive recover",
    details: {
      worker: owner.id,
      workerState: owner.state,
      heartbeatAgeMs: Math.max(0, deps.now() - owner.heartbeatAt),
      lastStep,
    },
  });
}

const LOST: Readonly<Record<HowLost, string>> = {
  gone: "dead",
  lost: "out of contact: its process may live, but the server does not see its session",
  silent: "silent: frozen, cut off, or on a machine that is gone",
};

/** After a restart of the store every connection is gone; that proves no death. */
function held(job: JobDetails, owner: WorkerRow, holdMs: number): Explanation {
  return say(job, {
    because: "store-returned",
    text: `It runs (attempt ${job.attempt}) in worker ${owner.id}, which lost its connection when the store was away and has not come back yet. It has ${humanMs(holdMs)} left to do so before its work is taken.`,
    next: "Check again in a few seconds: it continues there, or another worker takes it over.",
    details: { worker: owner.id, workerState: owner.state, holdMs },
  });
}

/** What is known against a worker: proved dead, or without a heartbeat for longer than its lease; null: nothing. */
function lossOf(
  worker: WorkerRow,
  deaths: readonly { readonly worker: WorkerRow; readonly death: Death }[],
  now: number,
): HowLost | null {
  const found = deaths.find(({ worker: { id } }) => id === worker.id);
  if (found) return found.death.how;
  return worker.state === "live" && now - worker.heartbeatAt > worker.leaseMs ? "silent" : null;
}

function running(job: JobDetails, workers: readonly WorkerRow[], now: number): Explanation {
  const owner = workers.find(({ id }) => id === job.worker);
  const overdue = job.deadlineAt !== null && job.deadlineAt < now;
  const lastStep = job.steps.at(-1)?.name ?? null;
  const beatAgeMs = owner ? Math.max(0, now - owner.heartbeatAt) : null;
  const lag =
    owner && owner.loopLagMs > 1_000 ? `; its event loop has been blocked for ${humanMs(owner.loopLagMs)}` : "";
  const runs = job.startedAt === null ? "It runs" : `It has run for ${humanMs(Math.max(0, now - job.startedAt))}`;
  const deadline =
    job.deadlineAt === null
      ? "no deadline"
      : `deadline ${overdue ? "passed" : "in"} ${humanMs(Math.abs(job.deadlineAt - now))}${overdue ? " ago" : ""}`;
  return say(job, {
    because: overdue ? "overdue" : "running",
    text: `${runs} (attempt ${job.attempt}) in worker ${job.worker}, whose last heartbeat was ${beatAgeMs === null ? "never seen" : `${humanMs(beatAgeMs)} ago`}${lag}; last step ${lastStep ?? "none"}; ${deadline}.${job.cancelRequested ? " Its cancel was requested." : ""}`,
    next: overdue
      ? "Its worker aborts it after the grace, or is killed if its loop is blocked; check again in a few seconds."
      : "",
    details: {
      worker: job.worker,
      workerState: owner?.state ?? null,
      heartbeatAgeMs: beatAgeMs,
      loopLagMs: owner?.loopLagMs ?? null,
      lastStep,
      deadlineInMs: job.deadlineAt === null ? null : job.deadlineAt - now,
      cancelRequested: job.cancelRequested,
    },
  });
}

async function queued(deps: WhyDeps, job: JobDetails): Promise<Explanation> {
  const { store, now } = deps;
  if (job.waitsForResolution) return waitsForResolution(job);
  if (job.waitsAt !== null) return say(job, await waiting(deps, job, job.waitsAt));
  if (job.runAt !== null && job.runAt > now() && job.latestAt !== undefined && job.attempt === 0)
    return say(job, debounced(job.runAt, job.latestAt, now()));
  if (job.runAt !== null && job.runAt > now()) {
    const wait = humanMs(job.runAt - now());
    const cause =
      job.lastOutcome === null
        ? "it was enqueued for that time"
        : `its last attempt ${job.lastOutcome}: ${job.error?.message ?? ""}`;
    return say(job, {
      because: "not-due",
      text: `It is due in ${wait} (${isoInstant(job.runAt)}): ${cause}.`,
      next: "",
      details: { dueInMs: job.runAt - now() },
    });
  }
  const kinds = await store.inspect.counts();
  const kind = kinds.find(({ kind: name }) => name === job.kind)!;
  if (kind.paused) return say(job, pausedKind(job.kind, kind.pause, now()));
  const health = await store.inspect.health();
  if (!health.ok) {
    return say(job, {
      because: "degraded",
      text: `The store does not accept writes at the moment: ${String(health.detail["lastFailure"] ?? "unknown reason")}.`,
      next: "outlive check; free disk space or correct the file's permissions, and workers continue automatically.",
    });
  }
  const deaths = await deps.deaths();
  const present = await store.workers({});
  const workers = present.filter((worker) => lossOf(worker, deaths, now()) === null);
  const lost = present.length - workers.length;
  const able = workers.filter(({ state, kinds: known }) => state === "live" && known.includes(job.kind));
  if (able.length === 0) return tooOld(job, await store.workers({ which: "all" })) ?? noWorker(job, workers, lost);
  const stuck = await blocker(deps);
  if (stuck) {
    return say(job, {
      because: "store-blocked",
      text: `Process ${stuck.pid} (${stuck.command || "unknown command"}) holds the store's write lock and does not release it.`,
      next: `Check process ${stuck.pid}; if it is frozen or stuck inside a transaction, end it: nothing is lost.`,
      details: { pid: stuck.pid, command: stuck.command },
    });
  }
  if (job.heldBy !== null) return say(job, heldByKey(job.heldBy, await keyOf(store, job.heldBy), now()));
  const ahead = await store.inspect.ahead(job.id);
  if (ahead === null && isSuspect(job.counters)) return say(job, suspect(job, able, await store.inspect.suspects()));
  const explained = turn(job, kind, able, ahead ?? 0);
  return explained.because === "about-to-run" && kind.running > 0 ? unlessLeft(deps, job, explained) : explained;
}

/** The rows of workers have their slots, and not how many of them each kind may take. A job that is left while others of its kind run finds that number taken. */
async function unlessLeft({ store, pause }: WhyDeps, job: JobDetails, explained: Explanation): Promise<Explanation> {
  await pause(BLOCKED_AFTER_MS);
  const later = await store.inspect.get(job.id);
  if (later?.state !== "queued" || later.attempt !== job.attempt) return explained;
  const { held, slots, running } = explained.details;
  return say(job, {
    because: "waiting-its-turn",
    text: `${held} of ${slots} slots are taken, but no worker takes it while ${running} of its kind run: as many as \`concurrency\` allows of one kind (of a kind of request 256 in each process, if it is not named).`,
    next: `Wait, raise the concurrency of ${job.kind}, or start more workers.`,
    details: explained.details,
  });
}

function debounced(runAt: number, latestAt: number, now: number): Wording {
  const dueInMs = runAt - now;
  const bound =
    runAt < latestAt
      ? ", and every further event with its key postpones it"
      : ": that is the latest time that `max` allows";
  return {
    because: "debounced",
    text: `It is debounced and starts in ${humanMs(dueInMs)} (${isoInstant(runAt)})${bound}.`,
    next: "",
    details: { dueInMs, latestInMs: latestAt - now },
  };
}

/** `step`: the wait that it began, by which its handler finds it again. */
async function waiting({ store, now }: WhyDeps, job: JobDetails, step: string): Promise<Wording> {
  const dueInMs = job.runAt === null ? null : job.runAt - now();
  const limit = dueInMs === null ? "without a time limit" : `for at most ${humanMs(Math.max(0, dueInMs))} more`;
  const awaited = awaitedAt(step);
  const details = { step, dueInMs };
  if (awaited.type === "signal")
    return {
      because: "waits-for-signal",
      text: `It waits for the signal ${JSON.stringify(awaited.name)}, ${limit}. It holds no slot meanwhile.`,
      next: `outlive signal ${shellWord(job.id)} ${shellWord(awaited.name)}`,
      details: { ...details, signal: awaited.name },
    };
  if (awaited.type === "sleep")
    return {
      because: "sleeping",
      text: `It sleeps and continues in ${humanMs(Math.max(0, dueInMs ?? 0))}${job.runAt === null ? "" : ` (${isoInstant(job.runAt)})`}. It holds no slot meanwhile.`,
      next: "",
      details,
    };
  const unfinished = await Promise.all(
    (["queued", "running"] as const).map((state) => store.inspect.list({ parent: job.id, state }, 1_000, null)),
  );
  const [queuedPage, runningPage] = unfinished as [(typeof unfinished)[0], (typeof unfinished)[0]];
  const first = runningPage.jobs.at(-1) ?? queuedPage.jobs.at(-1);
  const more = unfinished.some(({ next }) => next !== null) ? "at least " : "";
  const count = queuedPage.jobs.length + runningPage.jobs.length;
  return {
    because: "waits-for-jobs",
    text: `It waits for other jobs, ${limit}: ${more}${count} of its children have not ended, ${runningPage.jobs.length} of them run. It holds no slot meanwhile.`,
    next: first === undefined ? "" : `outlive why ${first.id}`,
    details: { ...details, children: count, running: runningPage.jobs.length },
  };
}

async function keyOf(
  { inspect }: Store,
  { limit, key }: NonNullable<JobDetails["heldBy"]>,
): Promise<KeyState | undefined> {
  return (await inspect.keys?.({ key: jobKey(limit, key) }))?.[0];
}

/** `state`: the key's state; undefined: the store does not know it. */
function heldByKey(
  { limit, key, turn: isTurn }: NonNullable<JobDetails["heldBy"]>,
  state: KeyState | undefined,
  now: number,
): Wording {
  const throttle = throttleSettings(limit);
  const name = `the key ${JSON.stringify(key)} of the limit ${JSON.stringify(limit)}`;
  const details = { limit, key, ...(state && { taken: state.taken, held: state.held }) };
  if (state?.paused) {
    const { reason, at, until } = state.paused;
    const end = until === null ? "until it is resumed" : `for ${humanMs(Math.max(0, until - now))} more`;
    return {
      because: "key-paused",
      text: `It is ready, but ${name} has been paused since ${isoInstant(at)}, ${end}: ${reason}.`,
      next: `outlive limit ${shellWord(limit)} ${shellWord(key)} --resume`,
      details: { ...details, reason, until },
    };
  }
  if (state && state.heldOffUntil !== null)
    return {
      because: "held-off",
      text: `It is ready, but a job has held off ${name} for ${humanMs(Math.max(0, state.heldOffUntil - now))} more: nothing of it starts before then.`,
      next: "",
      details: { ...details, heldOffUntil: state.heldOffUntil },
    };
  if (isTurn)
    return {
      because: "fair-turn",
      text: `It is ready, and waits until a worker has room and it is the turn of its key ${JSON.stringify(key)}: the keys of its kind are served one after the other, however many jobs each has.`,
      next: `Wait, start more workers, or give the key more turns: outlive limit ${shellWord(limit)} ${shellWord(key)} --weight N`,
      details,
    };
  if (throttle)
    return {
      because: "rate",
      text: `It is throttled: the previous job started less than ${humanMs(throttle.intervalMs!)} ago. It starts when that time has passed.`,
      next: "",
      details,
    };
  if (state?.applies.strict)
    return {
      because: "strict-order",
      text: `It is ready, but an earlier job of ${name} has not ended${state.applies.intervalMs === null ? "" : ", or its rate allows no start yet"}: the order of this limit is strict, so the jobs of a key run one after the other, even through retries and waits.`,
      next: "See the earlier jobs of its kind: outlive jobs --state queued, and outlive why ID of the first",
      details,
    };
  if (state && isOfRate(state))
    return {
      because: "rate",
      text: `It is ready, but as many jobs of ${name} have started as its rate allows: one in ${humanMs(state.applies.intervalMs!)}, and at most ${state.applies.burst} at once after an idle time. It starts when its turn has come.`,
      next: `Wait, or give the key a higher rate: outlive limit ${shellWord(limit)} ${shellWord(key)} --rate N`,
      details: { ...details, intervalMs: state.applies.intervalMs, burst: state.applies.burst },
    };
  if (state && state.applies.running !== null)
    return {
      because: "limit",
      text: `It is ready, but ${name} is full: ${state.taken} of ${state.applies.running} that may run at once do, or are about to. It is admitted when one of them has ended.`,
      next: `Wait, or give the key more room: outlive limit ${shellWord(limit)} ${shellWord(key)} --running N`,
      details: { ...details, running: state.applies.running },
    };
  return {
    because: "limit",
    text: `It is ready, but the limit ${JSON.stringify(limit)} has no room for the key ${JSON.stringify(key)}: as many of its jobs run, or have started lately, as it allows. It is admitted when there is room.`,
    next: `Wait, or give the key more room: outlive limit ${shellWord(limit)} ${shellWord(key)} --running N`,
    details,
  };
}

/** Whether the rate of a key holds its jobs, and not the number of those that run. */
function isOfRate({ applies: { running, intervalMs }, taken }: KeyState): boolean {
  return intervalMs !== null && (running === null || taken < running);
}

function waitsForResolution(job: JobDetails): Explanation {
  const { losses } = job.counters;
  return say(job, {
    because: "contact-lost",
    text: `Contact with its worker was lost ${losses} times, and it is not known yet whether those workers died. It waits, because it may be what killed them.`,
    next: "Check again later: a loss is resolved when the worker returns, when its death is proved, or after two leases. If it is harmless: outlive cancel, and enqueue it again.",
    details: { losses },
  });
}

/** The latest worker that knew the kind stopped because the store's schema had outgrown it. */
function tooOld(job: JobDetails, all: readonly WorkerRow[]): Explanation | null {
  const able = all.filter(({ kinds }) => kinds.includes(job.kind)).toSorted((a, b) => a.heartbeatAt - b.heartbeatAt);
  const last = able.at(-1);
  if (last?.state !== "stopped" || !last.lastWord?.startsWith(UNFIT["schema-newer"])) return null;
  return say(job, {
    because: "schema-too-old",
    text: `Worker ${last.id} (outlive ${last.version}) stopped because it is ${last.lastWord}.`,
    next: "Upgrade the outlive package in the program that runs this kind, and start it again.",
    details: { worker: last.id, version: last.version },
  });
}

function noWorker(job: JobDetails, workers: readonly WorkerRow[], lost: number): Explanation {
  const others = workers.filter(({ state }) => state === "live");
  const text =
    others.length === 0
      ? `No worker is alive${lost > 0 ? ` (${lost} dead or silent)` : ""}.`
      : `${others.length === 1 ? "The only live worker does not know" : `None of the ${others.length} live workers knows`} the kind ${job.kind}.`;
  const known = [...new Set(others.flatMap(({ kinds }) => kinds))].sort().join(", ");
  const next =
    others.length === 0
      ? "Start one: outlive work"
      : `Start a worker that has a handler for ${job.kind}; they know ${known}.`;
  return say(job, { because: "no-worker", text, next, details: { liveWorkers: others.length } });
}

/** The same process at two checks, and no commit in between: not just a transaction of a busy process. */
export async function blocker(deps: Pick<WhyDeps, "store" | "pause">): Promise<LockHolder | null> {
  const first = await deps.store.inspect.writer();
  if (!first) return null;
  await deps.pause(BLOCKED_AFTER_MS);
  const second = await deps.store.inspect.writer();
  return second?.pid === first.pid && second.version === first.version ? second : null;
}

function turn(job: JobDetails, kind: KindCounts, able: readonly WorkerRow[], ahead: number): Explanation {
  const slots = able.reduce((sum, { concurrency }) => sum + concurrency, 0);
  const held = able.reduce((sum, { heldCount }) => sum + heldCount, 0);
  const details = { ahead, slots, held, ready: kind.ready, running: kind.running };
  if (held < slots && ahead < slots - held) {
    return say(job, {
      because: "about-to-run",
      text: `A worker has room for it (${held} of ${slots} slots are taken, ${ahead} ahead): it should start now.`,
      next: "Check again; if this stays, read the workers' logs.",
      details,
    });
  }
  return say(job, {
    because: "waiting-its-turn",
    text: `${held} of ${slots} slots of ${counted(able.length, "worker")} are taken, and ${counted(ahead, "job")} of its kind ${ahead === 1 ? "is" : "are"} ahead of it.`,
    next: "Wait, raise the concurrency, or start more workers.",
    details,
  });
}

const ENDED: Readonly<Partial<Record<JobDetails["state"], string>>> = {
  succeeded: "It succeeded",
  dead: "It died",
  cancelled: "It was cancelled",
};

function finished(job: JobDetails): Explanation {
  const last = job.history.findLast(({ to }) => to === job.state);
  const when = job.finishedAt === null ? "" : ` at ${isoInstant(job.finishedAt)}`;
  if (job.state === "quarantined") {
    const corrupt = job.lastOutcome === "corrupt";
    return say(job, {
      because: "quarantined",
      text: `It was quarantined${when}: ${last?.reason ?? "no reason was kept"}.`,
      next: corrupt
        ? CORRUPT_HINT
        : `outlive incident ${last?.incident ?? "ID"}; when it is safe: outlive quarantine release ${job.id}`,
      details: { incident: last?.incident ?? null },
    });
  }
  const why = job.state === "succeeded" ? "" : `: ${last?.reason ?? job.error?.message ?? ""}`;
  const damaged = job.corrupt.length === 0 ? "" : ` Its stored data is damaged: ${job.corrupt.join(", ")}.`;
  return say(job, {
    because: job.lastOutcome === "expired" && job.state === "cancelled" ? "expired" : "finished",
    text: `${ENDED[job.state] ?? `It is ${job.state}`}${when}${why}.${damaged}`,
    next: job.state === "succeeded" ? "" : `outlive retry ${job.id}`,
  });
}

// What `why` says of a suspect that waits. It only words what is known; which worker takes it is decided in job/isolation.ts.

/** `able`: the live workers that know its kind. */
export function suspect(job: JobDetails, able: readonly WorkerRow[], suspects: readonly WorkerSuspects[]): Wording {
  const { crashes, losses } = job.counters;
  const times = crashes + losses;
  const others =
    job.together === 0 ? "any number of other such jobs" : `at most ${counted(job.together - 1, "other such job")}`;
  const base = `It was in flight when ${times === 1 ? "a worker" : `${times} workers`} died or lost contact, so it runs with ${others} in one process.`;
  const bound = job.together === 0 ? ANY_NUMBER : job.together;
  const full = able.flatMap((worker) => {
    const held = suspects.find((one) => one.worker === worker.id);
    const together = Math.min(bound, held?.together ?? bound);
    return held && held.count >= together ? [{ ...held, together }] : [];
  });
  const details = { together: job.together, workers: able.length, withoutRoom: full.length };
  if (full.length < able.length)
    return {
      because: "suspect",
      text: `${base} ${able.length - full.length} of ${counted(able.length, "worker")} may take it as soon as a slot is free and no job of a higher priority is ready.`,
      next: "Check again; if this stays, raise the concurrency, or start more workers.",
      details,
    };
  const [first] = full;
  const more =
    full.length > 1
      ? ` The other ${full.length === 2 ? "worker holds" : `${full.length - 1} workers hold`} too many as well.`
      : "";
  return {
    because: "suspect",
    text: `${base} Worker ${first!.worker} holds ${first!.count} of them, which is all that may run together (${first!.together}).${more}`,
    next: "Wait until those have ended, or start another worker.",
    details,
  };
}
