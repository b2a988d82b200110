// Every event of the engine, typed in one place. Core never logs: it emits, and one subscriber writes the log.
import type { Resolution } from "../recovery/losses.ts";
import type { Inconsistency, IntegrityCheck, Repair, StoreFindings } from "../stores/store-parts.ts";
import type { HowLost, ProcessKey } from "../stores/liveness.ts";
import type { RecoveredJob, Stale, StoreNews } from "../stores/port.ts";
import type { RunCall } from "../worker/run.ts";
import type { RowTotals } from "./batches.ts";
import type { CollectionState, PutAnswer } from "./collections.ts";
import type { StoredError } from "./errors.ts";
import type { JobState, Outcome } from "./job.ts";
import type { SkipReason } from "./schedules.ts";

/** Events about a job have these. */
interface OfJob {
  /** The job's id. */
  readonly jobId: string;
  /** The name of its kind. */
  readonly kind: string;
}

/** Events about an attempt have these. */
interface OfAttempt extends OfJob {
  /** The number of the attempt. */
  readonly attempt: number;
}

/** Events about a worker have this. */
interface OfWorker {
  /** The worker's id. */
  readonly worker: string;
}

/** Events about jobs that a worker still holds have these. */
interface OfHolder extends OfWorker {
  /** How many jobs it holds. */
  readonly held: number;
}

/** Events about a recovery pass have these. */
interface OfRecovery {
  /** The id of the pass. */
  readonly recovery: string;
  /** Who recovers: the id of a worker, or the name that the caller passed. */
  readonly by: string;
  /** What `open` found out about the store itself; a pass by a worker has none. */
  readonly findings?: StoreFindings;
}

/** Events about a schedule have this. */
interface OfSchedule {
  /** The name of the schedule. */
  readonly schedule: string;
}

/** Events about a collection have these. */
interface OfCollection {
  /** The collection's id. */
  readonly collection: string;
  /** The name of its kind. */
  readonly kind: string;
}

/** Events about a part of a collection have these. */
interface OfPart extends OfCollection {
  /** The name of its series. */
  readonly series: string;
  /** Its number within the series, from 1. */
  readonly ordinal: number;
}

/** Events about a key of requests have these. */
interface OfKey {
  /** The kind of the requests. */
  readonly kind: string;
  /** The key that they share. */
  readonly key: string;
}

/** Events about something that failed have this. */
interface OfError {
  /** What went wrong. */
  readonly error: StoredError;
}

/** Events about something that failed and is tried again have these. */
interface OfRetry extends OfError {
  /** When it is tried again, in ms from now. */
  readonly retryInMs: number;
}

/** Events about something that has a reason have this. */
interface OfReason {
  /** Why, in words. */
  readonly reason: string;
}

/** Events about something that took time have this. */
interface OfTime {
  /** How long it took, in ms. */
  readonly durationMs: number;
}

/** Every event of the engine, with its data. */
export interface Events {
  /** A recovery pass begins: at `open`, by a worker that saw a death, by a supervisor, or by `outlive recover`. */
  "recovery.started": OfRecovery & {
    /** How many dead workers it found; 0: there is nothing to recover. */
    readonly workers: number;
  };
  /** A recovery pass has ended. */
  "recovery.completed": OfRecovery &
    OfTime & {
      /** The ids of its incidents; empty: it found nothing. */
      readonly incidents: readonly string[];
      /** How many jobs the dead workers held. */
      readonly jobs: number;
      /** How many of them it could not take over. */
      readonly failed: number;
    };
  /** The recovery of one worker failed and will be tried again. */
  "recovery.failed": OfWorker & OfError;
  /** Another session of the store holds these jobs of a dead worker, or its row: the others were taken, and these will be taken when it releases them. */
  "recovery.waits": OfWorker & {
    /** How many jobs are left. */
    readonly jobs: number;
  };
  /** A round of a batch has ended. Emitted by the process that ended it. */
  "batch.ended": {
    /** The batch's id. */
    readonly batch: string;
    /** The name of its kind. */
    readonly kind: string;
    /** The number of the round, from 1. */
    readonly round: number;
    /** How it ended. */
    readonly state: "completed" | "failed" | "aborted";
    /** How many rows ended in which way. */
    readonly rows: RowTotals;
  };
  /** A schedule enqueued the job of an occurrence. Emitted by the process that did it. */
  "schedule.fired": OfSchedule &
    OfJob & {
      /** The occurrence, in milliseconds since 1970. */
      readonly at: number;
      /** It was enqueued late, after it was missed. */
      readonly caughtUp: boolean;
    };
  /** Occurrences of a schedule were not enqueued: they were missed, too old, or the job before had not ended. */
  "schedule.skipped": OfSchedule & {
    /** The kind of job that it enqueues. */
    readonly kind: string;
    /** Why they were skipped. */
    readonly reason: SkipReason;
    /** The first of them, in milliseconds since 1970. */
    readonly from: number;
    /** The last of them, in milliseconds since 1970. */
    readonly to: number;
    /** At least this many. */
    readonly count: number;
  };
  /** A schedule could not be fired, or declared. It is tried again. */
  "schedule.failed": OfSchedule & OfError;
  /** The program declares an older form of a schedule than another live worker does: the newer one is kept. */
  "schedule.outdated": OfSchedule;
  /** The time of a schedule was computed with other time-zone data than this process has: the two may disagree about its occurrences. */
  "schedule.zones": OfSchedule & {
    /** The version of this process's data. */
    readonly here: string;
    /** The version of the data that the time was computed with. */
    readonly there: string;
  };
  /** A collection was opened. */
  "collection.started": OfCollection;
  /** A collection is in another state. Emitted by the process that wrote it. */
  "collection.changed": OfCollection & {
    /** Its new state. */
    readonly state: Exclude<CollectionState, "requested">;
    /** Why it was abandoned or cancelled. */
    readonly why: string | null;
  };
  /** An open found collections that have not ended. */
  "collections.found": {
    /** How many are in which state. */
    readonly counts: Readonly<Partial<Record<CollectionState, number>>>;
  };
  /** A part is durable. */
  "part.accepted": OfPart & {
    /** Its size in bytes. */
    readonly bytes: number;
  };
  /** A part was not stored: it exists already, or has no place. */
  "part.skipped": OfPart & {
    /** What became of it. */
    readonly answer: Exclude<PutAnswer, "accepted">;
  };
  /** A message was parked. */
  "message.parked": OfReason & {
    /** The id of the parked message. */
    readonly id: string;
    /** The kind of collection that it came for. */
    readonly kind: string;
    /** Its collection; null: it names none. */
    readonly collection: string | null;
    /** Its series; null: it names none. */
    readonly series: string | null;
    /** Its number within the series; null: it names none. */
    readonly ordinal: number | null;
  };
  /** The connection to the message broker was lost or restored, or the broker refuses the queues of one kind. */
  "broker.changed": {
    /** Where the broker is. */
    readonly broker: string;
    /** The state of the connection. */
    readonly state: "connected" | "lost" | "refused";
    /** What happened, in words. */
    readonly text: string;
  };
  /** One job of a dead worker was dealt with. */
  "job.recovered": RecoveredJob &
    OfWorker & {
      /** The id of the incident. */
      readonly incident: string;
      /** Whether the job is a request. */
      readonly isRequest: boolean;
    };
  /** A worker's death was found, or contact with it was lost. */
  "worker.gone": OfWorker & {
    /** How it was lost. */
    readonly how: HowLost;
    /** The id of the incident. */
    readonly incident: string;
    /** What proves it, in words; null: nothing does. */
    readonly evidence: string | null;
  };
  /** It became known what happened to a worker with which contact was lost, and its jobs were judged accordingly. */
  "loss.resolved": {
    /** The id of the incident. */
    readonly incident: string;
    /** The worker's id; null: not known. */
    readonly worker: string | null;
    /** What happened to it. */
    readonly resolution: Resolution;
  };
  /** Nothing is left of a dead worker but its row and its incident: its lock file was removed (SQLite), or its sessions and their lock are gone (PostgreSQL). */
  "worker.cleaned": OfWorker & {
    /** The lock file; null: it had none. */
    readonly lock: string | null;
  };
  /** A worker of this process is about to register. Emitted before its row is written: a process that dies right after that is known by its worker's id. */
  "worker.registering": Omit<ProcessKey, "bootId"> & OfWorker;
  /** A worker began to take jobs. */
  "worker.started": OfWorker & {
    /** How many jobs it runs at once. */
    readonly concurrency: number;
    /** The kinds that it runs. */
    readonly kinds: readonly string[];
  };
  /** A worker was stopped. */
  "worker.stopped": OfWorker & {
    /** How many jobs it released. */
    readonly released: number;
  };
  /** This process's own worker was declared dead; it starts again under a new id. */
  "worker.disowned": OfHolder;
  /** The store is not the one that this worker registered with: it stopped at once, and does not start again. */
  "store.replaced": OfHolder & {
    /** What shows it, in words. */
    readonly why: string;
  };
  /** `open`, or `recover --restored`, found that the store was restored from a backup: earlier workers can't write any more. */
  "store.restored": {
    /** What shows it, in words. */
    readonly why: string;
  };
  /** The event loop was blocked; the worker keeps its jobs. */
  "worker.blocked": OfWorker & {
    /** For how long, in ms. */
    readonly loopLagMs: number;
  };
  /** The process was paused for longer than its lease allows; what it ran was aborted before anything was written. */
  "lease.lost": OfHolder & {
    /** How late its heartbeat was, in ms. */
    readonly lateMs: number;
  };
  /** A heartbeat could not be written. */
  "heartbeat.failed": OfWorker &
    OfError & {
      /** How many in a row. */
      readonly failures: number;
    };
  /** A write of an attempt that no longer owns its job was refused. */
  "write.rejected": Stale & {
    /** What happened, in words. */
    readonly text: string;
  };
  /** An attempt failed. */
  "job.failed": OfAttempt &
    OfError & {
      /** Whether the job runs again. */
      readonly to: "queued" | "dead";
      /** When it does, in ms from now. */
      readonly delayMs: number;
    };
  /** A job failed for good. */
  "job.dead": OfJob & OfReason;
  /** A job is kept from running, because its workers died. */
  "job.quarantined": OfJob & OfReason;
  /** A job succeeded. Only for listeners that ask for it by name. */
  "job.succeeded": OfAttempt & OfTime;
  /** A worker took a job: an attempt begins. Only for listeners that ask for it by name. */
  "job.claimed": OfAttempt;
  /** An attempt ended, however it did, and that is durable. Only for listeners that ask for it by name. */
  "attempt.ended": OfAttempt &
    OfTime & {
      /** How it ended. */
      readonly outcome: Outcome;
      /** The state of the job after it. */
      readonly to: JobState;
    };
  /** A job is past its deadline. */
  "job.overdue": OfJob &
    OfWorker & {
      /** True: it was taken from its worker. False: its signal was aborted. */
      readonly fencedOut: boolean;
    };
  /** A claimed job that this worker does not run (an answer was lost) was released. */
  "job.released": Omit<OfJob, "kind"> & OfReason;
  /** What a handler wrote with `run.log`. */
  "job.log": OfAttempt & {
    /** The text. */
    readonly message: string;
  };
  /**
   * A call of a handler (`run.progress`, `run.step` and so on) failed, and the handler may not know: its attempt had ended, or it need not
   * have awaited the call. Nothing was written. Emitted once per attempt.
   */
  "call.failed": OfAttempt &
    OfError & {
      /** Which method of `run`. */
      readonly call: RunCall;
      /** Whether the attempt had ended. */
      readonly attemptEnded: boolean;
    };
  /** The circuit of a key of requests opened: no process sends to it for a while. */
  "request.circuit": OfKey & {
    /** For how long, in ms. */
    readonly pauseMs: number;
  };
  /** Nothing is sent to this key of requests until it is resumed. */
  "request.disabled": OfKey & OfReason;
  /** A request whose process died, or lost contact, is sent by another one. */
  "request.sentAgain": OfAttempt & {
    /** The host that it is sent to. */
    readonly host: string;
    /** The worker that had it; null: its incident could not be read. */
    readonly worker: string | null;
  };
  /** One sending of a request has ended. Only for listeners that ask for it by name. */
  "request.ended": OfAttempt &
    OfTime & {
      /** The host that it was sent to. */
      readonly host: string;
      /** Method and URL, without the values of its query: `GET https://api.example/v1/items?page=...`. */
      readonly request: string;
      /** The status code; null: no answer came. */
      readonly status: number | null;
      /** What went wrong, in a word; null: nothing did. */
      readonly fault: string | null;
    };
  /** The store refused or failed; the engine tries again automatically. */
  "store.failed": OfRetry & {
    /** What the engine was doing. */
    readonly doing: string;
  };
  /** A watched folder, or a file in it, could not be read or moved; it is tried again. */
  "folder.failed": OfRetry & {
    /** The path of the folder. */
    readonly folder: string;
  };
  /** A call to the store has ended. Only for listeners that ask for it by name: every turn is one. */
  "store.called": OfTime & {
    /** What was called: `turn`, `inspect.get`, `operate.cancel`, ... */
    readonly verb: string;
    /** Whether it succeeded. */
    readonly ok: boolean;
  };
  /** Another process starts up on this store; this `open` continues after it. */
  "open.waits": {
    /** Its PID; null: not known. */
    readonly pid: number | null;
    /** Its command line; empty: not known. */
    readonly command: string;
  };
  /** The store was checked at `open`. */
  "integrity.checked": IntegrityCheck & {
    /** The check continued in the background, because `open` could not finish it in time. */
    readonly background: boolean;
  };
  /** A damaged store was worked on; `sound` says whether that was enough. */
  "store.repaired": Repair;
  /** Rows that contradict each other were found. */
  "store.inconsistent": {
    /** What contradicts itself. */
    readonly inconsistencies: readonly Inconsistency[];
  };
  /** What the store did to its own files or settings, or could not do. Nothing is lost: it is done again at the next open or pass. */
  "store.upkeep": StoreNews;
  /** Something about the store that makes it less than it could be. Emitted once; nothing has failed. */
  "store.notice": {
    /** What it is about. */
    readonly about: "pooler" | "maintenance" | "wake-ups" | "durability" | "liveness";
    /** What it is, in words. */
    readonly text: string;
  };
  /** The store was unreachable a moment ago: no worker is declared dead before it has had time to return. */
  "recovery.held": {
    /** What was wrong, in words. */
    readonly why: string;
    /** For how long, in ms. */
    readonly holdMs: number;
  };
  /** A listener of yours threw. */
  "listener.failed": OfError & {
    /** The name of the event. */
    readonly event: string;
  };
}

/** The names of the events. */
export type EventName = keyof Events;

/** Every event. True: it happens to every job, so it is built only for listeners that ask for it by name. */
const IS_FREQUENT: Readonly<Record<EventName, boolean>> = {
  "recovery.started": false,
  "recovery.completed": false,
  "recovery.failed": false,
  "recovery.waits": false,
  "batch.ended": false,
  "schedule.fired": false,
  "schedule.skipped": false,
  "schedule.failed": false,
  "schedule.outdated": false,
  "schedule.zones": false,
  "collection.started": false,
  "collection.changed": false,
  "collections.found": false,
  "part.accepted": true,
  "part.skipped": false,
  "message.parked": false,
  "broker.changed": false,
  "job.recovered": false,
  "worker.gone": false,
  "loss.resolved": false,
  "worker.cleaned": false,
  "worker.registering": false,
  "worker.started": false,
  "worker.stopped": false,
  "worker.disowned": false,
  "store.replaced": false,
  "store.restored": false,
  "worker.blocked": false,
  "lease.lost": false,
  "heartbeat.failed": false,
  "write.rejected": false,
  "job.failed": false,
  "job.dead": false,
  "job.quarantined": false,
  "job.succeeded": true,
  "job.claimed": true,
  "attempt.ended": true,
  "job.overdue": false,
  "job.released": false,
  "job.log": false,
  "call.failed": false,
  "request.circuit": false,
  "request.sentAgain": false,
  "request.disabled": false,
  "request.ended": true,
  "store.failed": false,
  "folder.failed": false,
  "store.called": true,
  "open.waits": false,
  "integrity.checked": false,
  "store.repaired": false,
  "store.inconsistent": false,
  "store.upkeep": false,
  "store.notice": false,
  "recovery.held": false,
  "listener.failed": false,
};

/** For checks of names where no compiler has done it. */
export const EVENT_NAMES = Object.keys(IS_FREQUENT) as readonly EventName[];

/** An event with its name and its data. */
export type EngineEvent = {
  [Name in EventName]: {
    /** The name of the event. */
    readonly name: Name;
  } & Events[Name];
}[EventName];
/** A function of yours that hears events of one name. */
export type Listener<Name extends EventName> = (event: Events[Name]) => void;

export interface Emitter {
  emit<Name extends EventName>(name: Name, event: Events[Name]): void;
  /** Whether there is a listener, so that hot paths build no event for nothing. */
  has(name: EventName): boolean;
}

/** A typed emitter: listeners run at once, in order; one that throws harms neither the others nor the engine. */
export class EventBus implements Emitter {
  readonly #listeners = new Map<EventName, Set<Listener<never>>>();
  readonly #all = new Set<(event: EngineEvent) => void>();
  readonly #describe: (thrown: unknown) => StoredError;

  constructor(describe: (thrown: unknown) => StoredError) {
    this.#describe = describe;
  }

  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    const set = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, set);
    set.add(listener);
    return () => void set.delete(listener);
  }

  /** Hears everything but what happens to every job (`IS_FREQUENT`), which is built only for listeners that asked for it by name. */
  onAny(listener: (event: EngineEvent) => void): () => void {
    this.#all.add(listener);
    return () => void this.#all.delete(listener);
  }

  has(name: EventName): boolean {
    return (this.#listeners.get(name)?.size ?? 0) > 0 || (this.#all.size > 0 && !IS_FREQUENT[name]);
  }

  emit<Name extends EventName>(name: Name, event: Events[Name]): void {
    for (const listener of this.#listeners.get(name) ?? []) this.#call(name, () => (listener as Listener<Name>)(event));
    if (IS_FREQUENT[name]) return;
    for (const listener of this.#all) this.#call(name, () => listener({ name, ...event } as unknown as EngineEvent));
  }

  /** An asynchronous listener fails later, by its promise. */
  #call(name: EventName, listener: () => unknown): void {
    try {
      const returned = listener();
      if (returned instanceof Promise) returned.catch((thrown: unknown) => this.#failed(name, thrown));
    } catch (thrown) {
      this.#failed(name, thrown);
    }
  }

  /** If a listener of this very event fails, there is no further listener to report to. */
  #failed(name: EventName, thrown: unknown): void {
    if (name !== "listener.failed") this.emit("listener.failed", { event: name, error: this.#describe(thrown) });
  }
}
