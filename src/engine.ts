// The engine: a client that can also work, recover and operate. Made by `open()` (open.ts).
import { Client, type Report } from "./clients.ts";
import { DEFAULT_GRACE, type EngineSettings, type WorkOptions, workSettings } from "./config.ts";
import { type Clock, pause, type Random } from "./core/clock.ts";
import type { AnyContract } from "./core/contract.ts";
import type { Duration } from "./core/duration.ts";
import { ErrorCode, OutliveError, toStoredError } from "./core/errors.ts";
import type { EventBus, EventName, Listener } from "./core/events.ts";
import { assertKey, idSource } from "./core/ids.ts";
import type { Enqueued, JobState } from "./core/job.ts";
import { type EnqueueOptions, makeDraft } from "./core/enqueue.ts";
import { Lookout } from "./core/lookout.ts";
import type { Death, WorkerRow } from "./core/liveness.ts";
import { NOTHING_CHECKED, recoverDead, type RecoveryDeps } from "./core/recovery.ts";
import type { KindCounts, LockHolder, OperatorAnswer, StoreHealth } from "./core/store.ts";
import type { ProcessIdentity } from "./platform/identity.ts";
import type { SqliteBackend } from "./stores/sqlite/open.ts";
import { childId, contentOf, runnableKinds } from "./runnable.ts";
import { VERSION } from "./version.ts";
import { blocker, type Explanation, explain } from "./why.ts";
import { type WorkerHandle, WorkerHost } from "./worker-host.ts";

/** How this process and its store are. */
export interface Health {
  readonly ok: boolean;
  readonly store: Readonly<Record<string, string | number | boolean>>;
  readonly kinds: readonly KindCounts[];
  /** The worker of this process; null: none runs here. */
  readonly worker: { readonly id: string; readonly held: number; readonly heartbeatAgeMs: number } | null;
  readonly workers: readonly WorkerRow[];
}

/** What an engine is made of. Tests and the rig wrap its store. */
export interface Wiring {
  readonly backend: SqliteBackend;
  readonly settings: EngineSettings;
  readonly contracts: ReadonlyMap<string, AnyContract>;
  readonly clock: Clock;
  readonly random: Random;
  readonly bus: EventBus;
  readonly identity: ProcessIdentity;
  readonly memory: boolean;
}

export class Engine extends Client {
  readonly #wiring: Wiring;
  readonly #lookout: Lookout;
  #host: WorkerHost | undefined;
  /** A worker that is on its way: a second one is refused, and a close waits for it. */
  #starting: Promise<WorkerHandle> | undefined;

  /** Use `open`. */
  constructor(wiring: Wiring) {
    super(wiring.backend.store, wiring.contracts, () => wiring.backend.store.close());
    this.#wiring = wiring;
    this.#lookout = new Lookout({
      clock: wiring.clock,
      liveness: wiring.backend.liveness,
      bootId: wiring.identity.bootId,
    });
  }

  /** Hears an event; answers how to stop hearing. A listener that throws harms nothing. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    return this.#wiring.bus.on(name, listener);
  }

  /** Runs a worker and resolves when it has stopped: by `options.signal`, or by `close()`. */
  async work(options: WorkOptions = {}): Promise<void> {
    const handle = await this.start(options);
    await handle.stopped;
  }

  /** Starts the worker of this process and answers a handle. */
  async start(options: WorkOptions = {}): Promise<WorkerHandle> {
    if (this.#host || this.#starting) {
      throw new OutliveError(
        ErrorCode.wrongState,
        `A worker runs in this engine already${this.#host ? ` (${this.#host.id})` : ""}.`,
        "Stop it first, or open a second engine.",
      );
    }
    this.#starting = this.#start(options);
    try {
      return await this.#starting;
    } finally {
      this.#starting = undefined;
    }
  }

  async #start(options: WorkOptions): Promise<WorkerHandle> {
    const { backend, settings, clock, random, bus, identity } = this.#wiring;
    const kinds = runnableKinds(this.contracts, options.only, this.#wiring.settings);
    const { concurrency } = workSettings(options, [...kinds.keys()]);
    const { signal, grace = DEFAULT_GRACE } = options;
    const host = await WorkerHost.start(
      {
        backend,
        clock,
        random,
        events: bus,
        kinds,
        assertKnown: (contract) => this.assertKnown(contract),
        draft: async (contract, input, given: EnqueueOptions, idSeed) => {
          const draft = await this.draft(contract, input, given, () => "");
          return given.id === undefined ? { ...draft, id: childId(idSeed(contentOf(draft))) } : draft;
        },
      },
      {
        ...identity,
        version: VERSION,
        times: settings.times,
        retention: settings.retention,
        concurrency,
        pollMs: settings.pollMs,
      },
      identity,
    );
    this.#host = host;
    void host.stopped.catch(() => {}).finally(() => (this.#host = undefined));
    if (signal?.aborted) void host.stop({ grace });
    else signal?.addEventListener("abort", () => void host.stop({ grace }), { once: true });
    return host;
  }

  /** Runs everything that is ready, and what that makes ready, then answers how it ended. Only for `sqlite::memory:`, in tests. */
  async drain(options: Pick<WorkOptions, "only" | "concurrency"> = {}): Promise<readonly KindCounts[]> {
    if (!this.#wiring.memory)
      throw new OutliveError(
        ErrorCode.wrongState,
        "drain() is for sqlite::memory: only.",
        "Use work() or start() on a store that others may share.",
      );
    const handle = await this.start(options);
    try {
      for (;;) {
        const counts = await this.counts();
        const mine = options.only
          ? counts.filter(({ kind }) => options.only!.some(({ name }) => name === kind))
          : counts;
        const left = mine.filter(
          ({ kind, paused, ready, running }) =>
            running > 0 || (ready > 0 && !paused && this.contracts.get(kind)?.handler),
        );
        if (left.length === 0) return counts;
        await new Promise<void>((resolve) => this.#wiring.clock.after(1, resolve));
      }
    } finally {
      await handle.stop();
    }
  }

  /** Adds a job of a kind that is known by name only: to the store, if not to this program. Its schema is asked if it is known here. */
  async enqueueByName(kind: string, input: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const contract = this.contracts.get(kind) ?? ({ name: kind, schema: null } as AnyContract);
    const draft = await makeDraft(contract, input, options, idSource(this.#wiring.clock, this.#wiring.random));
    const [enqueued] = await this.store.enqueue([draft]);
    return enqueued!;
  }

  /** Asks for the end of a job: a queued one is cancelled now, a running one is told by its signal. Answers the state it is in after that. */
  async cancel(id: string): Promise<JobState> {
    assertKey(id, "The job's id");
    const answer = await this.store.cancel(id, "operator");
    return answer.is === "requested" ? "running" : done(id, "cancel", answer);
  }

  /** Queues a finished job again, with its counters at zero and its steps kept. */
  async retry(id: string): Promise<JobState> {
    assertKey(id, "The job's id");
    return done(id, "retry", await this.store.retry(id, "operator"));
  }

  /** Nobody claims jobs of this kind until `resume`. What runs goes on. */
  async pause(kind: { readonly name: string } | string): Promise<void> {
    await this.#setPaused(kind, true);
  }

  async resume(kind: { readonly name: string } | string): Promise<void> {
    await this.#setPaused(kind, false);
  }

  async health(): Promise<Health> {
    const [store, kinds, workers] = await Promise.all([this.store.health(), this.counts(), this.workers()]);
    const host = this.#host;
    const worker = host
      ? {
          id: host.id,
          held: host.held,
          heartbeatAgeMs: Math.round(this.#wiring.clock.mono() - host.lastBeat.atMono),
        }
      : null;
    return { ok: store.ok, store: store.detail, kinds, worker, workers };
  }

  /**
   * One pass of recovery now: whoever is provably dead, or has been silent for a lease since this engine began to watch.
   * Answers the report, or null if it found nothing.
   */
  async recover(options: { readonly signal?: AbortSignal } = {}): Promise<Report | null> {
    const dead = await this.#findDead();
    if (dead.length === 0) return null;
    const pass = await recoverDead(this.#recoveryDeps(), dead, "recover", NOTHING_CHECKED, options.signal);
    return pass.incidents.length === 0 ? null : this.report();
  }

  /** Whom `recover` would take the work from now, and why. Changes nothing. */
  deaths(): Promise<readonly { readonly worker: WorkerRow; readonly death: Death }[]> {
    return this.#findDead();
  }

  /** Why a job is not running, or how it runs. Null: there is no such job. */
  async why(id: string): Promise<Explanation | null> {
    assertKey(id, "The job's id");
    const { backend, clock } = this.#wiring;
    return explain({ store: backend.store, now: () => clock.now(), pause: (ms) => pause(clock, ms) }, id);
  }

  /** How the store is, without what is in it. */
  storeHealth(): Promise<StoreHealth> {
    return this.store.health();
  }

  /** Which process holds the store's write lock just now, as far as this host can tell; null: none, or not known. */
  writer(): Promise<LockHolder | null> {
    return this.store.writer();
  }

  /** As `writer`, if it holds the lock at two looks and lets nobody through: nothing moves while it does. */
  blocker(): Promise<LockHolder | null> {
    return blocker({ store: this.store, pause: (ms) => pause(this.#wiring.clock, ms) });
  }

  /**
   * For supervisors: what is known of the death of a process of this machine ("killed by SIGKILL"), kept for the report, also if
   * somebody recovered it meanwhile. `bornAt` keeps an earlier process with the same pid apart. Call `recover` next.
   */
  async noteDeath(
    pid: number,
    what: string,
    times: { readonly bornAt?: number; readonly diedAt?: number } = {},
  ): Promise<void> {
    const { bornAt = 0, diedAt = this.#wiring.clock.now() } = times;
    const { bootId } = this.#wiring.identity;
    const lives = (await this.workers({ all: true })).filter(
      (worker) =>
        worker.pid === pid &&
        worker.bootId === bootId &&
        worker.state !== "stopped" &&
        worker.startedAt >= bornAt &&
        (worker.state !== "gone" || bornAt > 0),
    );
    const last = lives.toSorted((a, b) => a.startedAt - b.startedAt).at(-1);
    if (!last) return;
    this.#lookout.livedUntil(last, diedAt);
    const { lastWord } = last;
    if (lastWord?.includes(what)) return;
    await this.store.note(last.id, lastWord === null ? what : `${lastWord}; ${what}`);
  }

  /** Stops the worker of this process, if one runs, and closes the store. */
  override async close(options: { readonly grace?: Duration } = {}): Promise<void> {
    const { grace = DEFAULT_GRACE } = options;
    await this.#starting?.catch(() => {});
    await this.#host?.stop({ grace }).catch(() => {});
    await super.close();
  }

  /** The start-up recovery of `open`. */
  async recoverAtOpen(): Promise<void> {
    const { backend } = this.#wiring;
    const present = await backend.store.workers({});
    const probes = await Promise.all(present.map((worker) => backend.liveness.probe(worker)));
    const alone = !probes.includes("held");
    const findings = backend.checkpoint(alone);
    if (alone) await backend.store.raiseEpoch();
    await recoverDead(this.#recoveryDeps(), await this.#findDead(), "open", findings);
    await backend.removeStrays().catch((thrown: unknown) =>
      this.#wiring.bus.emit("store.failed", {
        doing: "removing stray locks",
        error: toStoredError(thrown),
        retryInMs: 0,
      }),
    );
  }

  /** Also workers that are over but still hold jobs: an earlier recovery could not deal with those. */
  async #findDead(): Promise<{ worker: WorkerRow; death: Death }[]> {
    const { backend, settings, clock } = this.#wiring;
    const all = await backend.store.workers({ over: true });
    const present = all.filter(
      ({ state, id }) => (state === "live" || state === "recovering") && id !== this.#host?.id,
    );
    const over = all.filter(({ state, heldCount }) => (state === "gone" || state === "stopped") && heldCount > 0);
    const dead = await this.#lookout.look(present, settings.times.heartbeatMs);
    const left = over.map((worker) => ({
      worker,
      death: {
        how: "gone" as const,
        lastSeenAliveAt: null,
        detectedAt: clock.now(),
        evidence: `it was ${worker.state} and still held ${worker.heldCount} job(s)`,
      },
    }));
    return [...dead, ...left];
  }

  #recoveryDeps(): RecoveryDeps {
    const { backend, clock, random, bus } = this.#wiring;
    return { store: backend.store, liveness: backend.liveness, clock, events: bus, newId: idSource(clock, random) };
  }

  async #setPaused(kind: { readonly name: string } | string, paused: boolean): Promise<void> {
    const name = typeof kind === "string" ? kind : kind.name;
    if (!(await this.store.setPaused(name, paused)))
      throw new OutliveError(
        ErrorCode.notFound,
        `No kind ${JSON.stringify(name)} is in the store.`,
        "Check the name; a kind appears with the first program that declares it.",
        { kind: name },
      );
  }
}

function done(id: string, change: string, answer: OperatorAnswer): JobState {
  switch (answer.is) {
    case "applied":
      return answer.state;
    case "requested":
      return "running";
    case "missing":
      throw new OutliveError(
        ErrorCode.notFound,
        `There is no job ${id}.`,
        "Check the id; finished jobs are kept for the retention time only.",
        { jobId: id },
      );
    case "wrong-state":
      throw new OutliveError(
        ErrorCode.wrongState,
        `Job ${id} is ${answer.state}; it can't be changed by "${change}".`,
        change === "retry" ? "Only finished jobs can be retried." : "Only queued and running jobs can be cancelled.",
        { jobId: id, state: answer.state },
      );
    case "key-held":
      throw new OutliveError(
        ErrorCode.keyHeld,
        `Job ${id} can't be retried: job ${answer.holder} is unfinished and holds its dedupe key ${JSON.stringify(answer.dedupeKey)}.`,
        "Cancel that job, or let it finish.",
        { jobId: id, holder: answer.holder, dedupeKey: answer.dedupeKey },
      );
  }
}
