// One life of a worker in this process, from lock to unlock. Start: lock, row, claim. Stop: settle or release, row to stopped,
// unlock last, heartbeat until the very end. If the store says that the row is not live any more, this life has ended and the
// next one begins under a new id.
import type { RunnableKind } from "../job/contract.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { JobDraft, KindSettings } from "../job/job.ts";
import { trustedUntil } from "../job/lease.ts";
import { type Clock, pause, type Random } from "../job/time.ts";
import type { ClockReading } from "../recovery/confirmed-time.ts";
import type { UnfitReason } from "../recovery/maintenance.ts";
import type { RetentionTimes } from "../recovery/retention.ts";
import type { Backend, MaintenanceHandle } from "../stores/backend.ts";
import type { LivenessTimes, ProcessKey } from "../stores/liveness.ts";
import type { BeatAnswer, Store } from "../stores/port.ts";
import { Loop, type LoopOptions, type LoopOwner } from "./loop.ts";

/** What is there before a worker's life begins. The life makes its context of it. */
export type WorkerLifeDeps = Omit<WorkerContext, "worker" | "store" | "trust"> & { readonly backend: Backend };

export interface WorkerLifeOptions extends ProcessKey, LoopOptions {
  readonly id: string;
  readonly host: string;
  /** The id of this process's life before this one; null: there was none. */
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

/** The last word of a worker that had to stop. In a store that is not its own it leaves none. */
export const UNFIT = {
  "schema-newer": "too old for the store",
  "foreign-worker": "not alone on the file",
} as const;

/** How long after a lost answer what is held is compared. */
const COMPARE_MS = 20;

export class WorkerLife implements LoopOwner {
  readonly id: string;
  readonly loop: Loop;
  /** Resolves when this life has ended; never rejects. */
  readonly ended: Promise<EndOfLife>;
  readonly #context: WorkerContext;
  readonly #backend: Backend;
  readonly #trust: TrustByHeartbeat;
  readonly #dropLock: (remove: boolean) => Promise<void>;
  readonly #unhear: () => void;
  #maintenance: MaintenanceHandle | undefined;
  #end!: (end: EndOfLife) => void;
  /** It has ended or is about to: nothing else ends it any more. */
  #over = false;
  #stopping = false;
  #isReplaced = false;
  #beatAsked = false;
  #leasesAsked = false;
  /** The latest accepted sign of life; registering is the first. */
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
      // Its row may be there although the answer was lost; then it leaves with us, or a clean stop would look like a death.
      const left = registering && (await backend.store.leave(options.id).catch(() => false));
      await lock.drop(left);
      throw thrown;
    }
  }

  /** Claims while the maintenance is still starting: registering was the first sign of life, and a thread takes a while to boot. */
  async #awake(options: WorkerLifeOptions, registered: ClockReading): Promise<void> {
    this.loop.start();
    try {
      await this.#startMaintenance(options, registered);
      // Disowned while the thread booted: it is not known to `#abandon`, and would keep the process alive for ever.
      if (this.#over) await this.#maintenance?.stop().catch(() => {});
    } catch (thrown) {
      this.#over = true;
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
    this.loop = new Loop(this.#context, this, options);
    this.#unhear = backend.store.onWakeup(() => this.loop.ring());
  }

  /** Finishes what runs within the grace, releases the rest at no cost to it, and leaves. */
  async stop(graceMs: number): Promise<void> {
    if (this.#over) return void (await this.ended);
    this.#over = true;
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
      // The row stays live and the lock goes: recovery finds it and says so.
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
    };
    this.#maintenance = await backend.startMaintenance(maintenanceOptions, {
      beatsAt: (lastBeatMono) => void (this.#trust.lastBeatMono = lastBeatMono),
      contact: (inContact) => void (this.#trust.hasContact = inContact),
      beaten: (sentAtMono, answer) => this.#beaten(sentAtMono, answer),
      disowned: () => this.disowned(),
      unfit: (reason, detail) =>
        reason === "store-replaced" ? this.replaced(detail) : void this.#unfit(reason, detail),
    });
  }

  #beaten(sentAtMono: number, answer: BeatAnswer): void {
    this.#trust.beaten(sentAtMono);
    this.lastBeat = { atMono: sentAtMono, held: answer.held.count };
    this.loop.compare(answer, sentAtMono);
  }

  /** Asked for at once by several, answered by one: on a slow store the asking must not become a storm of heartbeats. */
  compareSoon(leases: boolean): void {
    this.#leasesAsked ||= leases;
    if (this.#beatAsked) return;
    this.#beatAsked = true;
    this.#context.clock.after(COMPARE_MS, () => {
      this.#beatAsked = false;
      if (!this.#over) this.#maintenance?.beat(this.#leasesAsked);
      this.#leasesAsked = false;
    });
  }

  /** Everything that ran is somebody else's now. The handlers are told; what they still write is refused by the fence. */
  disowned(): void {
    if (this.#over) return;
    this.#over = true;
    const held = this.loop.heldCount;
    this.loop.interruptAll("lease-lost", `worker ${this.id} was taken for dead and its work was given away`);
    this.#context.events.emit("worker.disowned", { worker: this.id, held });
    // Handlers that still run may end in their own time; each write of theirs is refused, counted and shown.
    void this.loop.drain().then(() => this.loop.close());
    void this.#quiet().then(() => this.#end({ why: "disowned" }));
  }

  /**
   * After `disowned`: not before the next life has registered. Until then contact with this one is lost, and a free lock would prove to the
   * others that its process died.
   */
  async unlock(): Promise<void> {
    await this.#dropLock(true).catch(() => {});
  }

  /**
   * What it registered with is not the store any more, so nothing of this life counts there: nothing is settled, released or deregistered,
   * and no next life begins. Handlers that still run are told; what they write is refused.
   */
  replaced(why: string): void {
    if (this.#isReplaced) return;
    this.#isReplaced = true;
    // A life that is over: what it still runs can't be settled any more.
    if (this.#over && !this.#stopping) return this.loop.close();
    this.#over = true;
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
    if (this.#over) return;
    this.#over = true;
    // Read by `why`: jobs that nobody runs any more have a cause.
    const lastWord = `${UNFIT[reason]}: ${detail}`;
    await this.#context.store.beat(this.id, { loopLagMs: 0, lastWord }).catch(() => {});
    await shutDown(this.loop, this.#context.clock, 0);
    await this.#leave();
    this.#end({ why: "unfit", reason, detail });
  }
}

/** By the heartbeats that the store accepted. Registering is the first. */
class TrustByHeartbeat implements Trust {
  readonly #leaseMs: number;
  #untilMono: number;
  /** Reads the last accepted heartbeat where it can be known before its message arrives (`MaintenanceListener.beatsAt`). */
  lastBeatMono: () => number | null = () => null;
  hasContact: () => boolean = () => true;

  constructor(leaseMs: number, registeredMono: number) {
    this.#leaseMs = leaseMs;
    this.#untilMono = trustedUntil(registeredMono, leaseMs);
  }

  get untilMono(): number {
    const last = this.lastBeatMono();
    return last === null ? this.#untilMono : Math.max(this.#untilMono, trustedUntil(last, this.#leaseMs));
  }

  get inContact(): boolean {
    return this.hasContact();
  }

  beaten(sentAtMono: number): void {
    this.#untilMono = Math.max(this.#untilMono, trustedUntil(sentAtMono, this.#leaseMs));
  }
}

// The end of a worker that was asked to stop: no more claims, what runs may finish, the rest is released at no cost.

/** For the last fifth of the grace, at most this long, handlers know that they should end. */
const NOTICE_MS = 5_000;
/** How long the settlements of what was released may take to become durable before the worker leaves without them. */
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

/** What the objects of one worker (life, loop, executor, attempt) share from its beginning to its end. */
export interface WorkerContext {
  /** The worker's id. */
  readonly worker: string;
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  /** Throws if the contract is not one of the program's own; omitted: all are taken. */
  readonly assertKnown?: (contract: { readonly name: string }) => void;
  readonly trust: Trust;
}

/** What a worker may believe of itself. */
interface Trust {
  /** Until when (own monotonic clock) it may trust what it holds. */
  readonly untilMono: number;
  /** Whether the session that speaks for this worker is there. */
  readonly inContact: boolean;
}

/**
 * Makes the draft of a child; done by the engine, which knows schemas and hashes. Without an id of the caller's it gets one made
 * of `idSeed` of its content, which is the same in every attempt.
 */
type DraftMaker = (
  kind: never,
  input: never,
  options: never,
  idSeed: (content: string) => string,
) => JobDraft | Promise<JobDraft>;
