// One wrapper around any store. It refuses calls on a closed store and writes on a read-only one, words the driver's errors, wakes
// workers when a call made work ready, measures each call for those who listen, and lets a simulator put its faults around every
// call. What it knows of each verb is one table. The wrapped verbs are plain functions, made once: no Proxy is on the way of a turn.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { JobKey } from "../job/limits.ts";
import type { Clock } from "../job/time.ts";
import { hasFollow } from "../job/transitions.ts";
import type { LossVerdict } from "../recovery/losses.ts";
import type { BatchDraft } from "../job/batches.ts";
import type { BatchEnd, Batches } from "./batches.ts";
import type { CollectionDraft } from "../job/collections.ts";
import type { Collections, CollectionStep } from "./collections.ts";
import type {
  CondemnRequest,
  FencedWrite,
  HeldQuery,
  Settlement,
  Store,
  TakeBackRequest,
  TurnAnswer,
  Wakeup,
} from "./port.ts";
import type { FiringAnswer, Schedules } from "./schedules.ts";
import type {
  HandChange,
  Inspecting,
  Losses,
  Operating,
  OperatorAnswer,
  Signal,
  SignalAnswer,
  Transacted,
  Transactions,
  Upkeep,
} from "./store-parts.ts";

type Engine = Omit<
  Store,
  keyof Parts | "name" | "bulk" | "bulkAtOnce" | "purgesAtOnce" | "wakesSurely" | "onWakeup" | "notify" | "close"
>;
/** Some verbs of a store, of its parts too. */
export type SomeVerbs = Partial<Omit<Store, keyof Parts>> & { readonly [P in keyof Parts]?: Partial<Parts[P]> };

interface Parts {
  readonly inspect: Inspecting;
  readonly operate: Operating;
  readonly losses: Losses;
  readonly upkeep: Upkeep;
  readonly transactions: Transactions;
  readonly batches: Batches;
  readonly schedules: Schedules;
  readonly collections: Collections;
}

/** Every call of the port by its name: `turn`, `inspect.get`, `operate.cancel`, ... */
export type Verb = keyof Engine | { [P in keyof Parts]: `${P}.${keyof Parts[P] & string}` }[keyof Parts];

export interface VerbFacts {
  /** What the store is doing meanwhile, for errors: "failed while ...". */
  readonly doing: string | ((...args: never[]) => string);
  /** Present: it writes, and this is what nothing can do on a read-only store. */
  readonly writes?: string;
  /** Whether it may have made work ready for other workers, or has news for one. */
  readonly wakes?: (args: never, answer: never) => boolean;
}

const always = (): boolean => true;

export const VERBS: Readonly<Record<Verb, VerbFacts>> = {
  declare: { doing: "declaring kinds", writes: "declare kinds" },
  enqueue: { doing: "enqueueing", writes: "enqueue", wakes: always },
  register: { doing: "registering a worker", writes: "work" },
  turn: {
    doing: "settling and claiming",
    writes: "work",
    // What was queued again, or follows, may be for another worker to run.
    wakes: ([, settlements]: [string, readonly Settlement[]], { woken = 0 }: TurnAnswer) =>
      woken > 0 || settlements.some(({ change }) => change.to === "queued" || hasFollow(change)),
  },
  write: {
    doing: "recording an attempt",
    writes: "write of an attempt",
    wakes: ([writes]: [readonly FencedWrite[]]) => writes.some(({ write }) => write.type === "enqueue"),
  },
  beat: { doing: "beating", writes: "beat" },
  leave: { doing: "deregistering a worker", writes: "deregister" },
  workers: { doing: "listing workers" },
  condemn: { doing: ({ worker }: CondemnRequest) => `condemning ${worker.id}`, writes: "recover" },
  heldBy: {
    doing: (query: HeldQuery) =>
      "condemned" in query ? `reading what ${query.condemned.worker} holds` : "looking for overdue jobs",
  },
  takeBack: {
    doing: ({ of }: TakeBackRequest) => (of ? `recovering ${of.worker}` : "fencing out overdue jobs"),
    writes: "recover",
    wakes: ([{ verdicts }]: [TakeBackRequest]) => verdicts.length > 0,
  },
  purge: { doing: "purging", writes: "purge" },

  "inspect.get": { doing: (id: string) => `reading job ${id}` },
  "inspect.outcomes": { doing: "reading how jobs ended" },
  "inspect.list": { doing: "listing jobs" },
  "inspect.counts": { doing: "counting jobs" },
  "inspect.isLimited": { doing: (kind: string) => `asking for the limits of ${kind}` },
  "inspect.ahead": { doing: (id: string) => `counting what is ahead of ${id}` },
  "inspect.keys": { doing: "reading keys" },
  "inspect.audit": { doing: "reading the audit" },
  "inspect.suspects": { doing: "listing held suspects" },
  "inspect.writer": { doing: "asking who writes" },
  "inspect.incidents": { doing: "listing incidents" },
  "inspect.incident": { doing: (id: string) => `reading incident ${id}` },
  "inspect.latestRecovery": { doing: "reading the latest recovery" },
  "inspect.health": { doing: "asking for the store's health" },

  "operate.cancel": {
    doing: (id: string) => `cancelling ${id}`,
    writes: "cancel a job",
    // Requested: the job's worker has to hear of it. Applied: another job may have waited for this one.
    wakes: (_: unknown, { is }: OperatorAnswer) => is === "requested" || is === "applied",
  },
  "operate.retry": {
    doing: (id: string) => `retrying ${id}`,
    writes: "retry a job",
    wakes: (_: unknown, answer: OperatorAnswer) => answer.is === "applied",
  },
  "operate.change": {
    doing: (ids: readonly string[], { do: what }: HandChange) =>
      `changing ${ids.length === 1 ? ids[0] : `${ids.length} jobs`} by ${what}`,
    writes: "change jobs",
    wakes: (_: unknown, answers: readonly OperatorAnswer[]) =>
      answers.some(({ is }) => is === "requested" || is === "applied" || is === "removed"),
  },
  "operate.signal": {
    doing: ({ job }: Signal) => `signalling ${job}`,
    writes: "send a signal",
    wakes: (_: unknown, { is }: SignalAnswer) => is === "kept",
  },
  "operate.setLimit": {
    doing: ({ limit, key }: JobKey) => `changing the limit ${limit} of ${key}`,
    writes: "change a limit",
    wakes: always,
  },
  "operate.pauseKey": {
    doing: ({ limit, key }: JobKey) => `pausing or resuming the key ${key} of the limit ${limit}`,
    writes: "pause a key",
    wakes: always,
  },
  "operate.setPaused": {
    doing: (kind: string) => `pausing or resuming ${kind}`,
    writes: "pause or resume a kind",
    wakes: ([, paused]: [string, boolean]) => !paused,
  },
  "operate.noteDeath": { doing: (worker: string) => `noting how ${worker} ended`, writes: "note a death" },

  "batches.open": { doing: ({ kind }: BatchDraft) => `opening a ${kind} batch`, writes: "open a batch" },
  "batches.append": {
    doing: (batch: string) => `appending to batch ${batch}`,
    writes: "append to a batch",
    wakes: always,
  },
  "batches.seal": { doing: (batch: string) => `sealing batch ${batch}`, writes: "seal a batch" },
  "batches.abort": { doing: (batch: string) => `aborting batch ${batch}`, writes: "abort a batch", wakes: always },
  "batches.tend": {
    doing: "cancelling and releasing blocks",
    writes: "work",
    // The maintenance asks every second, and there is mostly nothing. After the last piece a worker that polls finds the blocks.
    wakes: (_: unknown, more: boolean) => more,
  },
  "batches.get": { doing: "reading batches" },
  "batches.list": { doing: "listing batches" },
  "batches.fold": { doing: "adding up the rows of batches", writes: "work" },
  "batches.finish": {
    doing: ({ batch }: BatchEnd) => `ending batch ${batch}`,
    writes: "work",
    wakes: (_: unknown, ended: boolean) => ended,
  },
  "batches.blocks": { doing: (batch: string) => `reading the rows of batch ${batch}` },
  "batches.failures": { doing: (batch: string) => `reading the failed rows of batch ${batch}` },
  "batches.outputs": { doing: (batch: string) => `reading the outputs of batch ${batch}` },
  "batches.outputFiles": { doing: (batch: string) => `listing the outputs of batch ${batch}` },
  "batches.setOutputs": { doing: (batch: string) => `noting the outputs of batch ${batch}`, writes: "work" },
  "batches.reopen": {
    doing: (batch: string) => `retrying batch ${batch}`,
    writes: "retry a batch",
    wakes: (_: unknown, reopened: boolean) => reopened,
  },
  "batches.purge": { doing: "purging batches", writes: "purge" },

  "schedules.due": { doing: "reading what schedules are due" },
  "schedules.fire": {
    doing: "firing schedules",
    writes: "fire schedules",
    wakes: (_: unknown, answers: readonly FiringAnswer[]) =>
      answers.some((answer) => answer.is === "fired" && answer.enqueued.length > 0),
  },
  // The workers' timers may have to fire sooner.
  "schedules.write": {
    doing: ({ name }: { name: string }) => `writing the schedule ${name}`,
    writes: "change a schedule",
    wakes: (_: unknown, written: boolean) => written,
  },
  "schedules.remove": { doing: (name: string) => `removing the schedule ${name}`, writes: "remove a schedule" },
  "schedules.get": { doing: (name: string) => `reading the schedule ${name}` },
  "schedules.list": { doing: "listing schedules" },
  "schedules.occurrences": { doing: "reading what jobs were planned for" },
  "schedules.fired": { doing: (name: string) => `listing the jobs of the schedule ${name}` },
  "schedules.declare": { doing: "declaring schedules", writes: "declare schedules" },
  "schedules.declared": { doing: "reading what workers declare" },
  "schedules.noteZoneData": { doing: "noting the time-zone data", writes: "note time-zone data" },
  "schedules.review": { doing: "reviewing schedules" },
  "schedules.now": { doing: "reading the clock" },
  "collections.open": {
    doing: ({ id }: CollectionDraft) => `opening collection ${id}`,
    writes: "open a collection",
    wakes: ([{ follow }]: [CollectionDraft]) => follow.length > 0,
  },
  "collections.announce": {
    doing: (id: string) => `announcing parts of collection ${id}`,
    writes: "announce parts",
  },
  "collections.known": { doing: "looking for parts of collections" },
  "collections.put": { doing: "keeping parts of collections", writes: "put parts" },
  "collections.get": { doing: "reading collections" },
  "collections.list": { doing: "listing collections" },
  "collections.counts": { doing: "counting collections" },
  "collections.parts": { doing: (id: string) => `reading the parts of collection ${id}` },
  "collections.missing": { doing: (id: string) => `looking for what is missing of collection ${id}` },
  "collections.due": { doing: "looking for collections that are complete or abandoned" },
  "collections.step": {
    doing: ({ collection, to }: CollectionStep) => `making collection ${collection} ${to}`,
    writes: "work",
    wakes: ([{ follow }]: [CollectionStep], done: boolean) => done && follow.length > 0,
  },
  "collections.park": { doing: "parking messages", writes: "park messages" },
  "collections.parked": { doing: "listing parked messages" },
  "collections.unpark": { doing: "forgetting parked messages", writes: "unpark messages" },
  "collections.remove": { doing: (id: string) => `deleting collection ${id}`, writes: "purge" },

  "losses.open": { doing: "reading losses of contact" },
  "losses.resolve": { doing: (worker: string) => `resolving the loss of ${worker}`, writes: "recover" },
  "losses.jobs": { doing: (incident: string) => `reading the jobs of loss ${incident}` },
  "losses.judge": {
    doing: (incident: string) => `judging the jobs of loss ${incident}`,
    writes: "recover",
    wakes: ([, verdicts]: [string, readonly LossVerdict[]]) =>
      verdicts.some(({ change }) => change !== null && (change.to !== "running" || hasFollow(change))),
  },

  "transactions.commit": {
    doing: ({ lease }: Settlement) => `committing job ${lease.jobId}`,
    writes: "commit",
    wakes: ([{ change }]: [Settlement], { enqueued, signalled = 0 }: Transacted<unknown>) =>
      enqueued + signalled > 0 || hasFollow(change),
  },
  "transactions.write": {
    doing: ({ lease }: FencedWrite) => `committing a row of job ${lease.jobId}`,
    writes: "commit",
    wakes: (_: unknown, { enqueued }: Transacted<unknown>) => enqueued > 0,
  },
  "transactions.transact": {
    doing: "a transaction of yours",
    writes: "run a transaction",
    wakes: (_: unknown, { enqueued, signalled = 0 }: Transacted<unknown>) => enqueued + signalled > 0,
  },

  "upkeep.raiseEpoch": { doing: "raising the epoch", writes: "recover" },
  "upkeep.noticeRestore": { doing: "looking for signs of a restore", writes: "recover" },
  "upkeep.latestOpening": { doing: "reading the latest opening" },
  "upkeep.noteOpening": { doing: "keeping what an open found", writes: "keep a report" },
  "upkeep.untilWritable": { doing: "checking that the store can be written", writes: "write" },
  "upkeep.advice": { doing: "asking what an operator should know" },
  "upkeep.pending": { doing: "looking for what waits" },
  "upkeep.tend": { doing: "maintaining its files", writes: "maintain its files" },
  "upkeep.integrity": { doing: "checking the integrity" },
  "upkeep.repair": { doing: "repairing it", writes: "repair it" },
  "upkeep.inconsistencies": { doing: "looking for inconsistencies" },
  "upkeep.backup": { doing: "backing it up" },
};

/** How processes wake each other. */
export interface WakeupChannel {
  /** Wakes other processes. "proof": shows them, and this one, that wake-ups arrive. */
  notify(what?: Wakeup): void;
  /** Hears other processes until the returned function is called. */
  onWakeup(listener: (what: Wakeup) => void): () => void;
}

export type Call = () => Promise<unknown>;

export interface Observation {
  /** An error of the driver as one of ours; anything else as it is. Omitted: the store has worded them. */
  readonly words?: (doing: string, thrown: unknown) => unknown;
  /**
   * How others hear that work is ready; null: no other process has this store. The listeners of this process hear it at once. Omitted: the
   * store's own `onWakeup`, and nothing is rung.
   */
  readonly wakeups?: WakeupChannel | null;
  /** Verbs that notify the others within their own transaction. */
  readonly notifyThemselves?: readonly Verb[];
  /** Receives `store.called`, if there is a listener for it. */
  readonly telemetry?: { readonly events: Emitter; readonly clock: Clock };
  /** Every write is refused before the store is asked. */
  readonly readOnly?: boolean;
  /** Stands around every call: it may delay it, not make it, or lose its answer. For simulators and fault injection. */
  readonly around?: (verb: Verb, args: readonly unknown[], call: Call) => Promise<unknown>;
}

/** A store as its own code makes it: wake-ups may be left to the wrapper. */
export type BareStore<Tx = unknown> = Omit<Store<Tx>, "onWakeup"> & Partial<Pick<Store<Tx>, "onWakeup">>;

type Run = (...args: unknown[]) => Promise<unknown>;

export function observed<Tx>(store: BareStore<Tx>, how: Observation): Store<Tx> {
  const { words, wakeups, notifyThemselves = [], telemetry, readOnly = false, around } = how;
  const listeners = new Set<(what: Wakeup) => void>();
  let closing: Promise<void> | undefined;

  function notify(verb: Verb): void {
    for (const listener of listeners) listener("wake");
    if (!notifyThemselves.includes(verb)) wakeups?.notify();
  }

  function wrap(verb: Verb, run: Run): Run {
    const facts: VerbFacts = VERBS[verb];
    if (readOnly && facts.writes !== undefined) {
      const { writes } = facts;
      return () => Promise.reject(readOnlyError(writes));
    }
    const wakes =
      wakeups === undefined ? undefined : (facts.wakes as ((args: unknown, answer: unknown) => boolean) | undefined);
    const carried: Run = around ? (...args) => around(verb, args, () => run(...args)) : run;
    return async (...args) => {
      if (closing) throw closed();
      const sinceMono = telemetry?.events.has("store.called") ? telemetry.clock.mono() : null;
      let ok = false;
      try {
        const answer = await carried(...args);
        ok = true;
        if (wakes?.(args, answer)) notify(verb);
        return answer;
      } catch (thrown) {
        throw words ? words(doing(verb, args), thrown) : thrown;
      } finally {
        if (sinceMono !== null)
          telemetry!.events.emit("store.called", { verb, ok, durationMs: telemetry!.clock.mono() - sinceMono });
      }
    };
  }

  const wrapped: Record<string, unknown> = {
    name: store.name,
    ...(store.bulk !== undefined && { bulk: store.bulk }),
    ...(store.bulkAtOnce !== undefined && { bulkAtOnce: store.bulkAtOnce }),
    ...(store.purgesAtOnce !== undefined && { purgesAtOnce: store.purgesAtOnce }),
    ...(store.wakesSurely && { wakesSurely: true }),
    onWakeup(listener: (what: Wakeup) => void) {
      if (wakeups === undefined) return store.onWakeup?.(listener) ?? (() => {});
      listeners.add(listener);
      const unhear = wakeups?.onWakeup(listener);
      return () => {
        listeners.delete(listener);
        unhear?.();
      };
    },
    notify(what: Wakeup) {
      if (wakeups === undefined) return store.notify?.(what);
      // A proof has to come by the way that it is a proof of.
      if (what === "wake" || wakeups === null) for (const listener of listeners) listener(what);
      wakeups?.notify(what);
    },
    close() {
      listeners.clear();
      return (closing ??= store.close());
    },
  };
  for (const verb of Object.keys(VERBS) as Verb[]) {
    const [part, name] = verb.split(".") as [string, string | undefined];
    const owner = (name === undefined ? store : store[part as keyof Parts]) as
      | Record<string, Run | undefined>
      | undefined;
    const run = owner?.[name ?? part];
    if (run === undefined) continue;
    const into = name === undefined ? wrapped : ((wrapped[part] ??= {}) as Record<string, unknown>);
    into[name ?? part] = wrap(verb, run.bind(owner));
  }
  return wrapped as unknown as Store<Tx>;
}

/** The same store with some of its verbs replaced. */
export function withVerbs(store: Store, own: SomeVerbs): Store {
  const parts = PARTS.flatMap((part) => (own[part] ? [[part, { ...store[part], ...own[part] }]] : []));
  return { ...store, ...own, ...Object.fromEntries(parts) } as Store;
}

const PARTS = [
  "inspect",
  "operate",
  "losses",
  "upkeep",
  "transactions",
  "batches",
  "schedules",
  "collections",
] as const satisfies readonly (keyof Parts)[];

function doing(verb: Verb, args: readonly unknown[]): string {
  const text = VERBS[verb].doing;
  return typeof text === "string" ? text : text(...(args as never[]));
}

/** Whether this call, answered like this, may have made work ready for others. */
export function wakesOthers(verb: Verb, args: readonly unknown[], answer: unknown): boolean {
  return VERBS[verb].wakes?.(args as never, answer as never) ?? false;
}

export function closed(): OutliveError {
  return new OutliveError(
    ErrorCode.closed,
    "The store is closed.",
    "Open it again, or await what you started before you close it.",
  );
}

export function readOnlyError(what: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeReadOnly,
    `The store was opened with readOnly, so nothing can ${what}.`,
    "Nothing was written. Open it without readOnly to change it.",
  );
}
