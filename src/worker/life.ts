// One life of a worker in this process, from lock to unlock. Start: lock, register, claim. Stop: settle or release,
// mark the row stopped, unlock last; heartbeats continue until the very end. If the store reports that the row is no
// longer live, this life has ended and the next one begins under a new id.
import type { EnqueueAround } from "../job/around.ts";
import type { RunnableKind } from "../job/contract.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { JobDraft, KindSettings } from "../job/job.ts";
import { type Trust, TrustByHeartbeat } from "../job/lease.ts";
import { type Clock, pause, type Random } from "../job/time.ts";
import { AheadCells } from "../recovery/ahead-cells.ts";
import type { ClockReading } from "../recovery/confirmed-time.ts";
import type { UnfitReason } from "../recovery/maintenance.ts";
import type { RetentionTimes } from "../recovery/retention.ts";
import type { Backend, MaintenanceHandle } from "../stores/backend.ts";
import type { LivenessTimes, ProcessKey } from "../stores/liveness.ts";
import type { BeatAnswer, Store } from "../stores/port.ts";
import { Loop, type LoopOptions, type LoopOwner } from "./loop.ts";
import type { FetchOptions, RequestAttempt } from "./run.ts";

/** What exists before a worker's life begins. The life builds its context from it. */
export type WorkerLifeDeps = Omit<WorkerContext, "worker" | "store" | "trust"> & { readonly backend: Backend };

export interface WorkerLifeOptions extends ProcessKey, LoopOptions {
  readonly id: string;
  readonly host: string;
  /** The id of this process's previous life; null: there was none. */
  readonly predecessor: string | null;
  readonly version: string;
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
}

/** Why a life ended. */
export type EndOfLife =
  | { readonly why: "stopped" }
  | { readonly why: "disowned" }
  | { readonly why: "unfit"; readonly reason: UnfitReason; readonly detail: string };

/** The last word of a worker that had to stop. In a store that is not its own it leaves no last word. */
export const UNFIT = {
  "schema-newer": "too old for the store",
  "foreign-worker": "not alone on the file",
} as const;

/** How long after a lost response the worker compares what it holds with the store. */
const COMPARE_MS = 20;

export class WorkerLife implements LoopOwner {
  readonly id: string;
  readonly loop: Loop;
  /** Resolves when this life has ended; never rejects. */
  readonly ended: Promise<EndOfLife>;
  readonly #context: WorkerContext;
  readonly #backend: Backend;
  readonly #trust: TrustByHeartbeat;
  readonly #cells = new AheadCells();
  readonly #dropLock: (remove: boolean) => Promise<void>;
  readonly #unhear: () => void;
  #maintenance: MaintenanceHandle | undefined;
  #end!: (end: EndOfLife) => void;
  /** This life has ended or is about to end: nothing else can end it. */
  #hasEnded = false;
  #stopping = false;
  #isReplaced = false;
  #beatAsked = false;
  #leasesAsked = false;
  /** The latest accepted heartbeat; registering is the first. */
  lastBeat: { readonly atMono: number; readonly held: number };

  static async begin(deps: WorkerLifeDeps, options: WorkerLifeOptions): Promise<WorkerLife> {
    const { backend, clock, events } = deps;
    const { namespace, startTicks } = options;
    events.emit("worker.registering", { worker: options.id, pid: options.pid, namespace, startTicks });
    const lock = await backend.liveness.take(options.id);
    const sentAtMono = clock.mono();
    let registering = false;
    try {
      await backend.store.declare([...deps.kinds.values()].map((kind): KindSettings => kind.settings));
      const kinds = [...deps.kinds.keys()];
      const { id, host, bootId, namespace, pid, startTicks, predecessor, version, times, concurrency } = options;
      registering = true;
      const askedMono = clock.mono();
      const { now } = await backend.store.register({
        id,
        host,
        bootId,
        namespace,
        pid,
        startTicks,
        predecessor,
        version,
        leaseMs: times.leaseMs,
        concurrency: concurrency.total,
        kinds,
        lock: lock.evidence,
      });
      const registered = { now, sentMono: askedMono, receivedMono: clock.mono() };
      const life = new WorkerLife(deps, options, lock.drop, sentAtMono);
      await life.#awake(options, registered);
      events.emit("worker.started", { worker: id, concurrency: concurrency.total, kinds });
      return life;
    } catch (thrown) {
      // The row may exist although the response was lost. Leave now, or a clean stop would look like a death.
      const left = registering && (await backend.store.leave(options.id).catch(() => false));
      await lock.drop(left);
      throw thrown;
    }
  }

  /**
   * Claims while the maintenance is still starting: registering was the first sign of life, and a thread takes a while
   * to boot.
   */
  async #awake(options: WorkerLifeOptions, registered: ClockReading): Promise<void> {
    this.loop.start();
    try {
      await this.#startMaintenance(options, registered);
      // Disowned while the thread booted: `#abandon` does not know about it, and it would keep the process alive
      // forever.
      if (this.#hasEnded) await this.#maintenance?.stop().catch(() => {});
    } catch (thrown) {
      this.#hasEnded = true;
      await shutDown(this.loop, this.#context.clock, 0);
      await this.#leave();
      throw thrown;
    }
  }

  private constructor(
    deps: WorkerLifeDeps,
    options: WorkerLifeOptions,
    dropLock: (remove: boolean) => Promise<void>,
    sentAtMono: number,
  ) {
    const { backend, ...rest } = deps;
    this.id = options.id;
    this.#backend = backend;
    this.#trust = new TrustByHeartbeat(options.times.leaseMs, sentAtMono);
    this.#context = { ...rest, worker: options.id, store: backend.store, trust: this.#trust };
    this.#dropLock = dropLock;
    this.lastBeat = { atMono: sentAtMono, held: 0 };
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.loop = new Loop(this.#context, this, options, this.#cells);
    this.#unhear = backend.store.onWakeup(this.loop.heard);
  }

  /** Finishes running jobs within the grace, releases the rest at no cost to them, and leaves. */
  async stop(graceMs: number): Promise<void> {
    if (this.#hasEnded) return void (await this.ended);
    this.#hasEnded = true;
    this.#stopping = true;
    const released = await shutDown(this.loop, this.#context.clock, graceMs);
    await this.#leave();
    this.#context.events.emit("worker.stopped", { worker: this.id, released });
    this.#end({ why: "stopped" });
  }

  async #leave(): Promise<void> {
    const { store } = this.#context;
    this.#unhear();
    const left = await (this.#isReplaced ? Promise.resolve(false) : store.leave(this.id)).catch((thrown: unknown) => {
      // The row stays live and the lock is released: recovery finds it and reports it.
      this.#context.events.emit("store.failed", {
        doing: `deregistering ${this.id}`,
        error: toStoredError(thrown),
        retryInMs: 0,
      });
      return false;
    });
    this.loop.close();
    await this.#maintenance?.stop();
    await this.#dropLock(left);
  }

  async #startMaintenance(options: WorkerLifeOptions, registered: ClockReading): Promise<void> {
    const backend = this.#backend;
    const maintenanceOptions = {
      worker: this.id,
      bootId: options.bootId,
      times: options.times,
      retention: options.retention,
      registered,
      schemaVersion: backend.schemaVersion,
      ahead: this.#cells.shared,
      pollMs: options.pollMs,
    };
    this.#maintenance = await backend.startMaintenance(maintenanceOptions, {
      beatsAt: (lastBeatMono) => void (this.#trust.lastBeatMono = lastBeatMono),
      contact: (inContact) => void (this.#trust.hasContact = inContact),
      beaten: (sentAtMono, answer) => this.#beaten(sentAtMono, answer),
      elected: (is) => void (this.loop.pace.isElected = is),
      disowned: () => this.disowned(),
      unfit: (reason, detail) =>
        reason === "store-replaced" ? this.replaced(detail) : void this.#unfit(reason, detail),
    });
  }

  #beaten(sentAtMono: number, answer: BeatAnswer): void {
    this.#trust.beaten(sentAtMono);
    this.lastBeat = { atMono: sentAtMono, held: answer.held.count };
    if (answer.pending) this.loop.polled(sentAtMono, answer.pending);
    this.loop.compare(answer, sentAtMono);
  }

  /**
   * Several callers may ask at once and one heartbeat serves them all: on a slow store the requests must not become a
   * storm of heartbeats.
   */
  compareSoon(leases: boolean): void {
    this.#leasesAsked ||= leases;
    if (this.#beatAsked) return;
    this.#beatAsked = true;
    this.#context.clock.after(COMPARE_MS, () => {
      this.#beatAsked = false;
      if (!this.#hasEnded) this.#maintenance?.beat(this.#leasesAsked);
      this.#leasesAsked = false;
    });
  }

  /**
   * Other workers own everything that ran here. The handlers are aborted, and the fence rejects what they still write.
   */
  disowned(): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    const held = this.loop.heldCount;
    this.loop.interruptAll("lease-lost", `worker ${this.id} was declared dead and its jobs were taken`);
    this.#context.events.emit("worker.disowned", { worker: this.id, held });
    // Handlers that still run may end in their own time; each of their writes is rejected, counted and reported.
    void this.loop.drain().then(() => this.loop.close());
    void this.#quiet().then(() => this.#end({ why: "disowned" }));
  }

  /**
   * After `disowned`, not before the next life has registered. Until then contact with this one is lost, and a free
   * lock would prove to other workers that its process died.
   */
  async unlock(): Promise<void> {
    await this.#dropLock(true).catch(() => {});
  }

  /**
   * The store is no longer the one this life registered with, so nothing of this life counts there: nothing is settled,
   * released or deregistered, and no next life begins. Handlers that still run are aborted, and the store rejects what
   * they write.
   */
  replaced(why: string): void {
    if (this.#isReplaced) return;
    this.#isReplaced = true;
    // This life has ended: what it still runs can no longer be settled.
    if (this.#hasEnded && !this.#stopping) return this.loop.close();
    this.#hasEnded = true;
    const held = this.loop.heldCount;
    this.loop.interruptAll("lease-lost", `the store is not the one that worker ${this.id} registered with: ${why}`);
    this.loop.close();
    this.#context.events.emit("store.replaced", { worker: this.id, held, why });
    if (this.#stopping) return;
    void this.#abandon().then(() => this.#end({ why: "unfit", reason: "store-replaced", detail: why }));
  }

  async #abandon(): Promise<void> {
    await this.#quiet();
    await this.unlock();
  }

  async #quiet(): Promise<void> {
    this.#unhear();
    await this.#maintenance?.stop().catch(() => {});
  }

  async #unfit(reason: keyof typeof UNFIT, detail: string): Promise<void> {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    // `why` shows this, so jobs that no worker runs any more have a cause.
    const lastWord = `${UNFIT[reason]}: ${detail}`;
    await this.#context.store.beat(this.id, { loopLagMs: 0, lastWord }).catch(() => {});
    await shutDown(this.loop, this.#context.clock, 0);
    await this.#leave();
    this.#end({ why: "unfit", reason, detail });
  }
}

// How a worker shuts down: it stops claiming, lets running jobs finish, and releases the rest at no cost to them.

/** Handlers are asked to end for the last fifth of the grace, at most this long. */
const NOTICE_MS = 5_000;
/** How long the settlements of released jobs may take to become durable before the worker leaves without them. */
const FLUSH_MS = 5_000;

/** Returns how many jobs were released. */
export async function shutDown(
  loop: Pick<Loop, "drain" | "interruptAll" | "releaseAll">,
  clock: Clock,
  graceMs: number,
): Promise<number> {
  const empty = loop.drain();
  const noticeMs = Math.min(NOTICE_MS, graceMs / 5);
  if (await within(clock, empty, graceMs - noticeMs)) return 0;
  loop.interruptAll("shutdown", "the worker shuts down");
  if (await within(clock, empty, noticeMs)) return 0;
  const released = loop.releaseAll("its worker shut down");
  await within(clock, empty, FLUSH_MS);
  return released;
}

async function within(clock: Clock, done: Promise<void>, ms: number): Promise<boolean> {
  const given = new AbortController();
  const won = await Promise.race([done.then(() => true), pause(clock, ms, given.signal).then(() => false)]);
  given.abort();
  return won;
}

/** What the objects of one worker (life, loop, executor, attempt) share for its whole lifetime. */
export interface WorkerContext {
  /** The worker's id. */
  readonly worker: string;
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  /** What the program has around each enqueue of a run. Omitted: nothing. */
  readonly around?: EnqueueAround;
  /** Throws if the contract is not one of the program's own; omitted: all are accepted. */
  readonly assertKnown?: (contract: { readonly name: string }) => void;
  /** Makes the `fetch` of an attempt; the engine implements it, because it knows the network. Omitted: there is none. */
  readonly fetchOf?: (attempt: RequestAttempt, options: FetchOptions) => typeof fetch;
  readonly trust: Trust;
}

/**
 * Builds the draft of a child job; the engine implements it, because it knows schemas and hashes. Without an id from
 * the caller, the child gets one that `idSeed` derives from its content, which is the same in every attempt.
 */
type DraftMaker = (
  kind: never,
  input: never,
  options: never,
  idSeed: (content: string) => string,
) => JobDraft | Promise<JobDraft>;
