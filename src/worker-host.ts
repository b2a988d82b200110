// A worker as the user holds it: one life after the other until it is stopped. Losing a life (the store said that it was taken
// for dead) starts the next one under a new id; only an unfit process ends with an error.
import { graceOf } from "./engine/options.ts";
import { pause } from "./core/clock.ts";
import type { Duration } from "./core/duration.ts";
import { ErrorCode, OutliveError, toStoredError, whyStoreReplaced } from "./core/errors.ts";
import { type EndOfLife, Incarnation, type IncarnationDeps, type IncarnationOptions } from "./core/incarnation.ts";
import type { ClaimedJob } from "./core/job.ts";
import { newWorkerId, type ProcessIdentity } from "./platform/identity.ts";

/** A running worker. */
export interface WorkerHandle {
  /** The id of the worker's present life. */
  readonly id: string;
  /** How many jobs it holds now. */
  readonly held: number;
  /** Resolves when the worker has stopped; rejects if it had to give up. */
  readonly stopped: Promise<void>;
  /** Stops claiming, lets running jobs finish within `grace`, gives back the rest at no cost, and leaves. */
  stop(options?: { readonly grace?: Duration }): Promise<void>;
}

/** What all lives of a worker have in common. */
type LifeOptions = Omit<IncarnationOptions, "id" | "predecessor">;

export class WorkerHost implements WorkerHandle {
  readonly stopped: Promise<void>;
  readonly #deps: IncarnationDeps;
  readonly #options: LifeOptions;
  readonly #identity: ProcessIdentity;
  #life: Incarnation;
  /** Lives that were taken from us, whose handlers may still run. */
  readonly #former: Incarnation[] = [];
  #stopping: Promise<void> | undefined;
  readonly #wanted = new AbortController();

  static async start(deps: IncarnationDeps, options: LifeOptions, identity: ProcessIdentity): Promise<WorkerHost> {
    const id = newWorkerId(identity, deps.random);
    const life = await Incarnation.begin(deps, { ...options, id, predecessor: null });
    return new WorkerHost(deps, options, identity, life);
  }

  private constructor(deps: IncarnationDeps, options: LifeOptions, identity: ProcessIdentity, life: Incarnation) {
    this.#deps = deps;
    this.#options = options;
    this.#identity = identity;
    this.#life = life;
    this.stopped = this.#live();
    this.stopped.catch(() => {}); // heard by whoever awaits it; never an unhandled rejection of the library's own
  }

  get id(): string {
    return this.#life.id;
  }

  get held(): number {
    return this.#life.worker.heldCount;
  }

  get lastBeat(): Incarnation["lastBeat"] {
    return this.#life.lastBeat;
  }

  heldJobs(): readonly ClaimedJob[] {
    return this.#life.worker.heldJobs();
  }

  stop(options: { readonly grace?: Duration } = {}): Promise<void> {
    const graceMs = graceOf(options);
    this.#wanted.abort();
    for (const life of this.#former.splice(0)) life.worker.close();
    this.#stopping ??= this.#life.stop(graceMs);
    return this.#stopping.then(() => this.stopped);
  }

  async #live(): Promise<void> {
    for (;;) {
      const end = await this.#life.ended;
      if (end.why === "unfit") throw unfit(end);
      if (end.why === "stopped" || this.#wanted.signal.aborted) return;
      const next = await this.#nextLife();
      if (!next) return;
      // Stopped in the very moment in which the next life began: `stop` knew only the one before.
      if (this.#wanted.signal.aborted) return next.stop(0);
      this.#former.push(this.#life);
      this.#life = next;
    }
  }

  /** The store may be away just now; it is asked until it answers or somebody stops us. */
  async #nextLife(): Promise<Incarnation | null> {
    const { clock, events, random } = this.#deps;
    for (let retryInMs = 100; !this.#wanted.signal.aborted; retryInMs = Math.min(5_000, retryInMs * 2)) {
      try {
        const id = newWorkerId(this.#identity, random);
        const life = await Incarnation.begin(this.#deps, { ...this.#options, id, predecessor: this.#life.id });
        if (!this.#wanted.signal.aborted) return life;
        await life.stop(0);
      } catch (thrown) {
        if (whyStoreReplaced(thrown) !== null) throw thrown;
        events.emit("store.failed", { doing: "starting a worker again", error: toStoredError(thrown), retryInMs });
        await pause(clock, retryInMs, this.#wanted.signal);
      }
    }
    return null;
  }
}

function unfit({ reason, detail }: EndOfLife & { why: "unfit" }): OutliveError {
  switch (reason) {
    case "schema-newer":
      return new OutliveError(
        ErrorCode.schemaNewer,
        `This worker is too old for the store: ${detail}.`,
        "It stopped claiming and gave back what it held. Upgrade the outlive package in this program.",
      );
    case "foreign-worker":
      return new OutliveError(
        ErrorCode.foreignWorker,
        `Two machines use one SQLite file: ${detail}.`,
        "It stopped and gave back what it held. A SQLite file belongs to one machine; use PostgreSQL for several.",
      );
    case "store-replaced":
      return new OutliveError(
        ErrorCode.storeReplaced,
        `The store is not the one that this worker registered with: ${detail}.`,
        "It stopped at once, and nothing that it writes is accepted. If a backup was put back, start this program again; if not, check the store's address.",
        { why: detail },
      );
  }
}
