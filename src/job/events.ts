// Every event of the engine, typed in one place. Core never logs: it emits, and one subscriber writes the log.
import type { Resolution } from "../recovery/losses.ts";
import type { Inconsistency, IntegrityCheck, Repair, StoreFindings } from "../stores/store-parts.ts";
import type { HowLost, ProcessKey } from "../stores/liveness.ts";
import type { RecoveredJob, Stale, StoreNews } from "../stores/port.ts";
import type { RunCall } from "../worker/run.ts";
import type { RowSums } from "./batches.ts";
import type { CollectionState, PutAnswer } from "./collections.ts";
import type { StoredError } from "./errors.ts";
import type { JobState, Outcome } from "./job.ts";
import type { SkipReason } from "./schedules.ts";

/** Every event of the engine, with its data. */
export interface Events {
  /** A recovery pass begins: at `open`, by a worker that saw a death, by a supervisor, or by `outlive recover`. */
  "recovery.started": {
    readonly recovery: string;
    readonly by: string;
    /** How many dead workers it found; 0: there is nothing to recover. */
    readonly workers: number;
    readonly findings?: StoreFindings;
  };
  /** A recovery pass has ended. `incidents` is empty if it found nothing. */
  "recovery.completed": {
    readonly recovery: string;
    readonly by: string;
    readonly incidents: readonly string[];
    readonly jobs: number;
    readonly failed: number;
    readonly durationMs: number;
    /** What `open` found out about the store itself; a pass by a worker has none. */
    readonly findings?: StoreFindings;
  };
  /** The recovery of one worker failed and will be tried again. */
  "recovery.failed": { readonly worker: string; readonly error: StoredError };
  /** Another session of the store holds these jobs of a dead worker, or its row: the others were taken, and these will be taken when it releases them. */
  "recovery.waits": { readonly worker: string; readonly jobs: number };
  /** A round of a batch has ended. Emitted by the process that ended it. */
  "batch.ended": {
    readonly batch: string;
    readonly kind: string;
    readonly round: number;
    readonly state: "completed" | "failed" | "aborted";
    readonly rows: RowSums & { readonly total: number };
  };
  /** A schedule enqueued the job of an occurrence (`at`, in ms). Emitted by the process that did it. */
  "schedule.fired": {
    readonly schedule: string;
    readonly kind: string;
    readonly jobId: string;
    readonly at: number;
    readonly caughtUp: boolean;
  };
  /** Occurrences of a schedule were not enqueued: they were missed, too old, or the job before had not ended. At least `count` of them. */
  "schedule.skipped": {
    readonly schedule: string;
    readonly kind: string;
    readonly reason: SkipReason;
    readonly from: number;
    readonly to: number;
    readonly count: number;
  };
  /** A schedule could not be fired, or declared. It is tried again. */
  "schedule.failed": { readonly schedule: string; readonly error: StoredError };
  /** The program declares an older form of a schedule than another live worker does: the newer one is kept. */
  "schedule.outdated": { readonly schedule: string };
  /** The time of a schedule was computed with other time-zone data than this process has: the two may disagree about its occurrences. */
  "schedule.zones": { readonly schedule: string; readonly here: string; readonly there: string };
  /** A collection was opened. */
  "collection.started": { readonly collection: string; readonly kind: string };
  /** A collection is in another state. Emitted by the process that wrote it. */
  "collection.changed": {
    readonly collection: string;
    readonly kind: string;
    readonly state: Exclude<CollectionState, "requested">;
    /** Why it was abandoned or cancelled. */
    readonly why: string | null;
  };
  /** An open found collections that have not ended: how many are in which state. */
  "collections.found": { readonly counts: Readonly<Partial<Record<CollectionState, number>>> };
  /** A part is durable. */
  "part.accepted": {
    readonly collection: string;
    readonly kind: string;
    readonly series: string;
    readonly ordinal: number;
    readonly bytes: number;
  };
  /** A part was not stored: it exists already, or has no place. */
  "part.skipped": {
    readonly collection: string;
    readonly kind: string;
    readonly series: string;
    readonly ordinal: number;
    readonly answer: Exclude<PutAnswer, "accepted">;
  };
  /** A message was parked. */
  "message.parked": {
    readonly id: string;
    readonly kind: string;
    readonly collection: string | null;
    readonly series: string | null;
    readonly ordinal: number | null;
    readonly reason: string;
  };
  /** The connection to the message broker was lost or restored, or the broker refuses the queues of one kind. */
  "broker.changed": {
    readonly broker: string;
    readonly state: "connected" | "lost" | "refused";
    readonly text: string;
  };
  /** One job of a dead worker was dealt with. */
  "job.recovered": RecoveredJob & { readonly incident: string; readonly worker: string };
  /** A worker's death was found, or contact with it was lost (`how`). */
  "worker.gone": {
    readonly worker: string;
    readonly how: HowLost;
    readonly incident: string;
    readonly evidence: string | null;
  };
  /** It became known what happened to a worker with which contact was lost, and its jobs were judged accordingly. */
  "loss.resolved": { readonly incident: string; readonly worker: string | null; readonly resolution: Resolution };
  /** Nothing is left of a dead worker but its row and its incident: its lock file was removed (SQLite), or its sessions and their lock are gone (PostgreSQL). */
  "worker.cleaned": { readonly worker: string; readonly lock: string | null };
  /** A worker of this process is about to register. Emitted before its row is written: a process that dies right after that is known by its worker's id. */
  "worker.registering": Omit<ProcessKey, "bootId"> & { readonly worker: string };
  /** A worker began to take jobs. */
  "worker.started": { readonly worker: string; readonly concurrency: number; readonly kinds: readonly string[] };
  /** A worker was stopped. `released` is how many jobs it released. */
  "worker.stopped": { readonly worker: string; readonly released: number };
  /** This process's own worker was declared dead; it starts again under a new id. */
  "worker.disowned": { readonly worker: string; readonly held: number };
  /** The store is not the one that this worker registered with: it stopped at once, and does not start again. */
  "store.replaced": { readonly worker: string; readonly held: number; readonly why: string };
  /** `open`, or `recover --restored`, found that the store was restored from a backup: earlier workers can't write any more. */
  "store.restored": { readonly why: string };
  /** The event loop was blocked; the worker keeps its jobs. */
  "worker.blocked": { readonly worker: string; readonly loopLagMs: number };
  /** The process was paused for longer than its lease allows; what it ran was aborted before anything was written. */
  "lease.lost": { readonly worker: string; readonly held: number; readonly lateMs: number };
  /** A heartbeat could not be written. `failures` counts those in a row. */
  "heartbeat.failed": { readonly worker: string; readonly error: StoredError; readonly failures: number };
  /** A write of an attempt that does not own its job any more was refused. */
  "write.rejected": Stale & { readonly text: string };
  /** An attempt failed. `to` says whether the job runs again, `delayMs` when. */
  "job.failed": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly error: StoredError;
    readonly to: "queued" | "dead";
    readonly delayMs: number;
  };
  /** A job failed for good. */
  "job.dead": { readonly jobId: string; readonly kind: string; readonly reason: string };
  /** A job is kept from running, because its workers died. */
  "job.quarantined": { readonly jobId: string; readonly kind: string; readonly reason: string };
  /** A job succeeded. */
  "job.succeeded": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly durationMs: number;
  };
  /** A worker took a job: an attempt begins. Only for listeners that ask for it by name. */
  "job.claimed": { readonly jobId: string; readonly kind: string; readonly attempt: number };
  /** An attempt ended, however it did, and that is durable. Only for listeners that ask for it by name. */
  "attempt.ended": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly outcome: Outcome;
    readonly to: JobState;
    readonly durationMs: number;
  };
  /** Past its deadline: its signal was aborted, or, with `fencedOut`, it was taken from its worker. */
  "job.overdue": {
    readonly jobId: string;
    readonly kind: string;
    readonly worker: string;
    readonly fencedOut: boolean;
  };
  /** A claimed job that this worker does not run (an answer was lost) was released. */
  "job.released": { readonly jobId: string; readonly reason: string };
  /** What a handler wrote with `run.log`. */
  "job.log": { readonly jobId: string; readonly kind: string; readonly attempt: number; readonly message: string };
  /**
   * A call of a handler (`run.progress`, `run.step` and so on) failed, and the handler may not know: its attempt had ended, or it need not
   * have awaited the call. Nothing was written. Emitted once per attempt.
   */
  "call.failed": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly call: RunCall;
    readonly attemptEnded: boolean;
    readonly error: StoredError;
  };
  /** The circuit of a key of requests opened: no process sends to it for this long. */
  "request.circuit": { readonly kind: string; readonly key: string; readonly pauseMs: number };
  /** Nothing is sent to this key of requests until it is resumed. */
  "request.disabled": { readonly kind: string; readonly key: string; readonly reason: string };
  /** A request whose process died, or lost contact, is sent by another one. `job.recovered` names the worker that had it. */
  "request.sentAgain": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly host: string;
  };
  /** One sending of a request has ended. Emitted only to listeners that ask for it by name. `status`: null if no answer came. */
  "request.ended": {
    readonly jobId: string;
    readonly kind: string;
    readonly attempt: number;
    readonly host: string;
    /** Method and URL, without the values of its query: `GET https://api.example/v1/items?page=...`. */
    readonly request: string;
    readonly status: number | null;
    readonly fault: string | null;
    readonly durationMs: number;
  };
  /** The store refused or failed; the engine tries again automatically. */
  "store.failed": { readonly doing: string; readonly error: StoredError; readonly retryInMs: number };
  /** A watched folder, or a file in it, could not be read or moved; it is tried again. */
  "folder.failed": { readonly folder: string; readonly error: StoredError; readonly retryInMs: number };
  /** A call to the store has ended: `turn`, `inspect.get`, `operate.cancel`, ... Emitted only to listeners that ask for it by name: every turn is one. */
  "store.called": { readonly verb: string; readonly ok: boolean; readonly durationMs: number };
  /** Another process starts up on this store; this `open` continues after it. */
  "open.waits": { readonly pid: number | null; readonly command: string };
  /** The store was checked at `open`. `background`: the check continued in the background, because `open` could not finish it in time. */
  "integrity.checked": IntegrityCheck & { readonly background: boolean };
  /** A damaged store was worked on; `sound` says whether that was enough. */
  "store.repaired": Repair;
  /** Rows that contradict each other were found. */
  "store.inconsistent": { readonly inconsistencies: readonly Inconsistency[] };
  /** What the store did to its own files or settings, or could not do. Nothing is lost: it is done again at the next open or pass. */
  "store.upkeep": StoreNews;
  /** Something about the store that makes it less than it could be; said once, nothing has failed. */
  "store.notice": { readonly about: "pooler" | "maintenance" | "wake-ups" | "durability"; readonly text: string };
  /** The store was unreachable a moment ago: no worker is declared dead before it has had time to return. */
  "recovery.held": { readonly why: string; readonly holdMs: number };
  /** A listener of yours threw. */
  "listener.failed": { readonly event: string; readonly error: StoredError };
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
export type EngineEvent = { [Name in EventName]: { readonly name: Name } & Events[Name] }[EventName];
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
