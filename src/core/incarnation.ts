// One life of a worker in this process, from lock to unlock. Start: lock, row, claim. Stop: settle or release, row to stopped,
// unlock last, heartbeat until the very end. If the store says that the row is not live any more, this life is over and the
// next one begins under a new id.
import type { Backend, KeeperHandle } from "./backend.ts";
import type { Clock, Random } from "./clock.ts";
import type { ClockReading } from "./confirmed-time.ts";
import type { Emitter } from "./events.ts";
import type { KindSettings } from "./job.ts";
import type { RunnableKind } from "./kind.ts";
import { trustedUntil } from "./lease.ts";
import type { UnfitReason } from "./keeper.ts";
import type { LivenessTimes } from "./liveness.ts";
import type { ProcessKey } from "./process-key.ts";
import type { RetentionTimes } from "./retention.ts";
import type { DraftMaker } from "./run.ts";
import type { Concurrency } from "./slots.ts";
import type { BeatAnswer } from "./store.ts";
import { toStoredError } from "./errors.ts";
import { shutDown } from "./shutdown.ts";
import { Worker } from "./worker.ts";

export interface IncarnationDeps {
  readonly backend: Backend;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  readonly assertKnown?: (contract: { readonly name: string }) => void;
}

export interface IncarnationOptions extends ProcessKey {
  readonly id: string;
  readonly host: string;
  /** The id of this process's life before this one; null: there was none. */
  readonly predecessor: string | null;
  readonly version: string;
  readonly times: LivenessTimes;
  readonly retention: RetentionTimes;
  readonly concurrency: Concurrency;
  readonly pollMs: number;
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

export class Incarnation {
  readonly id: string;
  readonly worker: Worker;
  /** Resolves when this life is over; never rejects. */
  readonly ended: Promise<EndOfLife>;
  readonly #deps: IncarnationDeps;
  readonly #dropLock: (remove: boolean) => Promise<void>;
  readonly #unhear: () => void;
  #keeper: KeeperHandle | undefined;
  #lastBeatMono: (() => number | null) | undefined;
  #inContact: () => boolean = () => true;
  #end!: (end: EndOfLife) => void;
  #trustedUntil: number;
  #over = false;
  #beatAsked = false;
  readonly #leaseMs: number;
  /** The latest accepted sign of life; registering is the first. */
  lastBeat: { readonly atMono: number; readonly held: number };

  static async begin(deps: IncarnationDeps, options: IncarnationOptions): Promise<Incarnation> {
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
      const life = new Incarnation(deps, options, lock.drop, sentAtMono);
      await life.#awake(options, registered);
      events.emit("worker.started", { worker: id, concurrency: concurrency.total, kinds });
      return life;
    } catch (thrown) {
      // Its row may be there although the answer was lost; then it leaves with us, or a clean stop would look like a death.
      const left = registering && (await backend.store.deregister(options.id).catch(() => false));
      await lock.drop(left);
      throw thrown;
    }
  }

  /** Claims while the keeper is still starting: registering was the first sign of life, and a thread takes a while to boot. */
  async #awake(options: IncarnationOptions, registered: ClockReading): Promise<void> {
    this.worker.start();
    try {
      await this.#startKeeper(options, registered);
      // Disowned while the thread booted: it is not known to `#abandon`, and would keep the process alive for ever.
      if (this.#over) await this.#keeper?.stop().catch(() => {});
    } catch (thrown) {
      this.#over = true;
      await shutDown(this.worker, this.#deps.clock, 0);
      await this.#leave();
      throw thrown;
    }
  }

  private constructor(
    deps: IncarnationDeps,
    options: IncarnationOptions,
    dropLock: (remove: boolean) => Promise<void>,
    sentAtMono: number,
  ) {
    this.id = options.id;
    this.#deps = deps;
    this.#dropLock = dropLock;
    this.#leaseMs = options.times.leaseMs;
    this.#trustedUntil = trustedUntil(sentAtMono, this.#leaseMs);
    this.lastBeat = { atMono: sentAtMono, held: 0 };
    this.ended = new Promise((resolve) => (this.#end = resolve));
    this.worker = new Worker(
      {
        ...deps,
        store: deps.backend.store,
        trustedUntil: () => this.#trust(),
        disowned: () => this.#disowned(),
        replaced: (why) => this.#replaced(why),
        inContact: () => this.#inContact(),
        compareSoon: () => this.#beatSoon(),
      },
      options,
    );
    this.#unhear = deps.backend.store.onBell(() => this.worker.ring());
  }

  /** Finishes what runs within the grace, releases the rest at no cost to it, and leaves. */
  async stop(graceMs: number): Promise<void> {
    if (this.#over) return void (await this.ended);
    this.#over = true;
    const released = await shutDown(this.worker, this.#deps.clock, graceMs);
    await this.#leave();
    this.#deps.events.emit("worker.stopped", { worker: this.id, released });
    this.#end({ why: "stopped" });
  }

  async #leave(): Promise<void> {
    const { store } = this.#deps.backend;
    this.#unhear();
    const left = await store.deregister(this.id).catch((thrown: unknown) => {
      // The row stays live and the lock goes: recovery finds it and says so.
      this.#deps.events.emit("store.failed", {
        doing: `deregistering ${this.id}`,
        error: toStoredError(thrown),
        retryInMs: 0,
      });
      return false;
    });
    this.worker.close();
    await this.#keeper?.stop();
    await this.#dropLock(left);
  }

  async #startKeeper(options: IncarnationOptions, registered: ClockReading): Promise<void> {
    const { backend } = this.#deps;
    const keeperOptions = {
      worker: this.id,
      bootId: options.bootId,
      times: options.times,
      retention: options.retention,
      registered,
      schemaVersion: backend.schemaVersion,
    };
    this.#keeper = await backend.startKeeper(keeperOptions, {
      beatsAt: (lastBeatMono) => void (this.#lastBeatMono = lastBeatMono),
      contact: (inContact) => void (this.#inContact = inContact),
      beaten: (sentAtMono, answer) => this.#beaten(sentAtMono, answer),
      disowned: () => this.#disowned(),
      unfit: (reason, detail) =>
        reason === "store-replaced" ? this.#replaced(detail) : void this.#unfit(reason, detail),
    });
  }

  #beaten(sentAtMono: number, answer: BeatAnswer): void {
    this.#trustedUntil = Math.max(this.#trustedUntil, trustedUntil(sentAtMono, this.#leaseMs));
    this.lastBeat = { atMono: sentAtMono, held: answer.held.length };
    this.worker.compare(answer.held, sentAtMono);
  }

  /** Asked for at once by several, answered by one: on a slow store the asking must not become a storm of heartbeats. */
  #beatSoon(): void {
    if (this.#beatAsked) return;
    this.#beatAsked = true;
    this.#deps.clock.after(COMPARE_MS, () => {
      this.#beatAsked = false;
      if (!this.#over) this.#keeper?.beat();
    });
  }

  #trust(): number {
    const last = this.#lastBeatMono?.() ?? null;
    return last === null ? this.#trustedUntil : Math.max(this.#trustedUntil, trustedUntil(last, this.#leaseMs));
  }

  /** Everything that ran is somebody else's now. The handlers are told; what they still write is refused by the fence. */
  #disowned(): void {
    if (this.#over) return;
    this.#over = true;
    const held = this.worker.heldCount;
    this.worker.interruptAll("lease-lost", `worker ${this.id} was taken for dead and its work was given away`);
    this.#deps.events.emit("worker.disowned", { worker: this.id, held });
    // Handlers that still run may end in their own time; each write of theirs is refused, counted and shown.
    void this.worker.drain().then(() => this.worker.close());
    void this.#abandon().then(() => this.#end({ why: "disowned" }));
  }

  /**
   * What it registered with is not the store any more, so nothing of this life counts there: nothing is settled, released or deregistered,
   * and no next life begins. Handlers that still run are told; what they write is refused.
   */
  #replaced(why: string): void {
    if (this.#over) return;
    this.#over = true;
    const held = this.worker.heldCount;
    this.worker.interruptAll("lease-lost", `the store is not the one that worker ${this.id} registered with: ${why}`);
    this.worker.close();
    this.#deps.events.emit("store.replaced", { worker: this.id, held, why });
    void this.#abandon().then(() => this.#end({ why: "unfit", reason: "store-replaced", detail: why }));
  }

  async #abandon(): Promise<void> {
    this.#unhear();
    await this.#keeper?.stop().catch(() => {});
    await this.#dropLock(true).catch(() => {});
  }

  async #unfit(reason: keyof typeof UNFIT, detail: string): Promise<void> {
    if (this.#over) return;
    this.#over = true;
    // Read by `why`: jobs that nobody runs any more have a cause.
    await this.#deps.backend.store.note(this.id, `${UNFIT[reason]}: ${detail}`).catch(() => {});
    await shutDown(this.worker, this.#deps.clock, 0);
    await this.#leave();
    this.#end({ why: "unfit", reason, detail });
  }
}
