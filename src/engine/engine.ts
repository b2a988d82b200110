// The engine: a client that can also work and change jobs. Made by `open()` (open.ts). What only operators need is in operator.ts.
import { BatchWorker } from "../batches/batch-worker.ts";
import type { BatchInfo } from "../batches/batch-client.ts";
import type { AnyBatch, BatchContract } from "../batches/contract.ts";
import type { BlobStore } from "../blobs/blob-store.ts";
import { CollectionWorker } from "../collections/collection-worker.ts";
import { Consuming } from "../collections/consuming.ts";
import type { AnyCollection } from "../collections/contract.ts";
import { csv } from "../files/csv.ts";
import { ndjson } from "../files/ndjson.ts";
import { type FileState, WatchedFolder } from "../files/watched-folder.ts";
import type { RequestWorker } from "../requests/request-worker.ts";
import type { Wire } from "../requests/wire.ts";
import type { AnyRequest } from "../requests/contract.ts";
import type { SecretSource } from "../requests/secrets.ts";
import type { AnyContract, RunnableKind } from "../job/contract.ts";
import { assertKey, type EnqueueOptions, idSource } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import { EVENT_NAMES, type EventBus, type EventName, type Listener } from "../job/events.ts";
import { isTerminal, type KindSettings } from "../job/job.ts";
import { type Clock, type Duration, durationMs, pause, type Random } from "../job/time.ts";
import { type ProcessIdentity, VERSION } from "../platform/identity.ts";
import { assertNotBundled } from "../platform/program-file.ts";
import type { Backend } from "../stores/backend.ts";
import type { Broker } from "../stores/broker.ts";
import type { ProcessCheck, WorkerRow } from "../stores/liveness.ts";
import type { KindCounts } from "../stores/port.ts";
import type { ScheduleDeclaration } from "../schedules/declaration.ts";
import { ScheduleFiring } from "../schedules/firing.ts";
import { Client, unknownKind, type WatchFolderOptions } from "./client.ts";
import { KeyLimits } from "./key-limits.ts";
import { aroundEnqueue, aroundKinds, type Middleware } from "./middleware.ts";
import { Operator } from "./operator.ts";
import { closest, refuse } from "./option-checks.ts";
import { type EngineSettings, settingsWithDefaults, type WorkOptions, workSettings } from "./options.ts";
import { runFetch } from "./request.ts";
import { WORKER_OPTIONS } from "./settings.ts";
import { explain, type Explanation } from "./why.ts";
import {
  childId,
  contentOf,
  runnableKinds,
  type Share,
  shareOf,
  type StartedShare,
  untilIdle,
  type WorkerHandle,
  WorkerHost,
} from "./work.ts";

/** The state of this process and its store. */
export interface Health {
  /** Whether the store works. */
  readonly ok: boolean;
  /** What the store is, and then its main facts: `"PostgreSQL 17.2"`, `"database app"`, `"3 sessions"`. */
  readonly summary: readonly [what: string, ...facts: string[]];
  /** What the store says about itself. */
  readonly store: Readonly<Record<string, string | number | boolean>>;
  /** How many jobs of each kind are in which state. */
  readonly kinds: readonly KindCounts[];
  /** The worker of this process; null: none runs here. */
  readonly worker: {
    /** The worker's id. */
    readonly id: string;
    /** How many jobs it holds. */
    readonly held: number;
    /** How many of them have ended and are not settled yet: a crash would run them again. At most its slots and 450. */
    readonly unsettled: number;
    /** How old its last heartbeat is, in ms. */
    readonly heartbeatAgeMs: number;
  } | null;
  /** The workers that the store knows. */
  readonly workers: readonly WorkerRow[];
}

/** What an engine is made of. Tests and the rig wrap its store. */
export interface Wiring {
  readonly backend: Backend;
  readonly settings: EngineSettings;
  readonly contracts: ReadonlyMap<string, AnyContract>;
  /** Kinds of batches. Omitted: none. */
  readonly batches?: ReadonlyMap<string, AnyBatch>;
  /** Kinds of requests. Omitted: none. */
  readonly requests?: ReadonlyMap<string, AnyRequest>;
  /** Values of secrets. Omitted: there are none. */
  readonly secrets?: SecretSource;
  /** In place of the network, for tests. Omitted: the network. */
  readonly wire?: { readonly wire?: Wire; readonly dnsServers?: readonly string[] };
  /** Schedules that the program declares. Omitted: none. */
  readonly schedules?: ReadonlyMap<string, ScheduleDeclaration>;
  /** Kinds of collections. Omitted: none. */
  readonly collections?: ReadonlyMap<string, AnyCollection>;
  /** Omitted or null: none. */
  readonly broker?: Broker | null;
  /** Around enqueues and attempts, the first outermost. Omitted: none. */
  readonly middleware?: readonly Middleware[];
  /** Where output files and parts go. Omitted or null: nowhere. */
  readonly blobs?: BlobStore | null;
  readonly clock: Clock;
  readonly random: Random;
  readonly bus: EventBus;
  readonly identity: ProcessIdentity;
  readonly processState: ProcessCheck;
  /** How many jobs a worker claims beyond its slots, for simulations. Omitted: as measured. */
  readonly claimsAhead?: number;
}

/** A client that also runs jobs. Made by `open()`. */
export class Engine<Kinds extends string = string> extends Client {
  /** For supervisors, monitors and the command line: explicit recovery, deaths, and the store itself. */
  readonly operator: Operator;
  readonly #wiring: Wiring;
  #host: WorkerHost | undefined;
  #batchWorker: BatchWorker | undefined;
  #requestWorker: RequestWorker | undefined;
  #limits: KeyLimits | undefined;
  readonly #folders = new Set<WatchedFolder>();
  #firing: ScheduleFiring | undefined;
  #consuming: Consuming | undefined;
  /** A worker that is on its way: a second one is refused, and a close waits for it. */
  #starting: Promise<StartedShare> | undefined;

  /** Use `open`. @internal */
  constructor(wiring: Wiring) {
    super(wiring.backend.store, wiring.contracts, () => wiring.backend.close(), {
      ...(wiring.batches && { batches: wiring.batches }),
      ...(wiring.schedules && { schedules: wiring.schedules }),
      ...(wiring.collections && { collections: wiring.collections }),
      blobs: wiring.blobs ?? null,
      events: wiring.bus,
      newId: idSource(wiring.clock, wiring.random),
      ...(wiring.middleware && { middleware: wiring.middleware }),
    });
    this.#wiring = wiring;
    this.operator = new Operator(wiring, {
      own: () => this.#host?.id,
      report: () => this.report(),
      changes: this.changes,
      startShare: (share, options) => this.#startShare(share, options),
    });
  }

  /** Calls the listener at every event of this name. Returns a function that removes it. If it throws, the engine emits `listener.failed`. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    if (!EVENT_NAMES.includes(name))
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `There is no event ${JSON.stringify(name)}.`,
        `Did you mean ${closest(String(name), EVENT_NAMES)}?`,
        { event: name, events: EVENT_NAMES },
      );
    return this.#wiring.bus.on(name, listener);
  }

  /** Runs a worker and resolves when it has stopped: by `options.signal`, or by `close()`. */
  async work(options: WorkOptions<Kinds> = {}): Promise<void> {
    const handle = await this.start(options);
    await handle.stopped;
  }

  /** Starts the worker of this process and returns a handle. Resolves when its maintenance runs, too; its first jobs may begin about 0.1 s before that. */
  async start(options: WorkOptions<Kinds> = {}): Promise<WorkerHandle> {
    return (await this.#startShare(null, options as WorkOptions)).worker;
  }

  async #startShare(share: Share | null, options: WorkOptions): Promise<StartedShare> {
    if (this.#host || this.#starting) {
      throw new OutliveError(
        ErrorCode.wrongState,
        `A worker runs in this engine already${this.#host ? ` (${this.#host.id})` : ""}.`,
        "Stop it first, or open a second engine.",
      );
    }
    const starting = this.#start(options, share);
    this.#starting = starting;
    try {
      return await starting;
    } finally {
      this.#starting = undefined;
    }
  }

  async #start(options: WorkOptions, share: Share | null): Promise<StartedShare> {
    const { backend, settings, clock, random, bus, identity, middleware } = this.#wiring;
    const around = middleware === undefined ? null : aroundEnqueue(middleware);
    // A worker claims while its maintenance thread starts, so a program whose thread can't start is refused here.
    if (!backend.private) assertNotBundled();
    const all = runnableKinds(this.contracts, options.only, this.#wiring.settings, await this.#kindsOfParts());
    const requests = new Set(this.#wiring.requests?.keys());
    const kinds = shareOf(share, all, requests);
    const { concurrency } = workSettings(options, [...all.keys()], [...requests], [...kinds.keys()]);
    const inFlight = [...requests].map((kind) => concurrency.perKind.get(kind) ?? 0);
    this.#requestWorker?.assertFits(inFlight.reduce((sum, one) => sum + one, 0));
    const { signal, grace = WORKER_OPTIONS.grace.default } = options;
    // Jobs run before the start has ended. The grace counts from the signal, not from when this hears of it.
    let abortedMono = signal?.aborted ? clock.mono() : null;
    signal?.addEventListener("abort", () => (abortedMono ??= clock.mono()), { once: true });
    const host = await WorkerHost.start(
      {
        backend,
        clock,
        random,
        events: bus,
        kinds: middleware === undefined ? kinds : this.#wrapped(middleware, kinds),
        ...(around && { around }),
        assertKnown: (contract) => this.assertKnown(contract),
        fetchOf: (attempt, given) => runFetch(attempt, given, this.#wiring.wire?.wire),
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
        ...(this.#wiring.claimsAhead !== undefined && { claimsAhead: this.#wiring.claimsAhead }),
      },
      identity,
    );
    this.#host = host;
    this.#requestWorker?.prepare([...(this.#wiring.requests?.values() ?? [])].filter(({ name }) => kinds.has(name)));
    const consuming = this.#consume(kinds, host);
    this.#consuming = consuming;
    void host.stopped
      .catch(() => {})
      .finally(() => {
        this.#host = undefined;
        void consuming?.stop();
      });
    if (signal?.aborted) {
      const passedMs = clock.mono() - (abortedMono ?? clock.mono());
      void host.stop({ grace: `${Math.max(0, Math.round(durationMs(grace, "grace") - passedMs))}ms` });
    } else signal?.addEventListener("abort", () => void host.stop({ grace }), { once: true });
    await this.#fireSchedules(host);
    const sent = kinds === all || share === "requests" ? [] : [...requests].filter((kind) => all.has(kind));
    return { worker: host, kinds: kinds === all ? null : [...kinds.keys()], sent };
  }

  #wrapped(
    middleware: readonly Middleware[],
    kinds: ReadonlyMap<string, RunnableKind>,
  ): ReadonlyMap<string, RunnableKind> {
    const failed = (thrown: unknown): void =>
      this.#wiring.bus.emit("listener.failed", { event: "attempt.ended", error: toStoredError(thrown) });
    return aroundKinds(middleware, kinds, (id) => this.store.inspect.get(id), failed);
  }

  /** What this process runs for each kind of batch, request and collection, by its name. */
  async #kindsOfParts(): Promise<ReadonlyMap<string, ReadonlyMap<string, RunnableKind>>> {
    return new Map([...this.#batchWorkerKinds(), ...(await this.#requestKinds()), ...this.#collectionWorkerKinds()]);
  }

  /** A program without requests loads nothing for them. */
  async #requestKinds(): Promise<ReadonlyMap<string, ReadonlyMap<string, RunnableKind>>> {
    const {
      requests = new Map<string, AnyRequest>(),
      backend,
      clock,
      random,
      bus,
      settings,
      secrets = {},
    } = this.#wiring;
    if (requests.size === 0) return new Map();
    const { RequestWorker: Sending } = await import("../requests/request-worker.ts");
    const worker = (this.#requestWorker ??= new Sending({
      ...this.#wiring.wire,
      store: backend.store,
      clock,
      random,
      events: bus,
      secrets,
      blobs: this.#wiring.blobs ?? null,
      settingsOf: (contract) => settingsWithDefaults(contract as never, settings),
    }));
    return new Map(
      [...requests].map(([name, contract]) => {
        const callbacks = Object.values(contract.callbacks).filter(({ handler }) => handler !== null);
        const runnable =
          callbacks.length === 0
            ? []
            : [...runnableKinds(new Map(callbacks.map((one) => [one.name, one])), undefined, settings)];
        const settled = worker.settledOf(contract);
        const cleaned = runnable.map(
          ([kind, one]) =>
            [kind, kind === contract.callbacks.response.name && settled ? { ...one, settled } : one] as const,
        );
        return [name, new Map([[name, worker.kind(contract)], ...cleaned])];
      }),
    );
  }

  /** A worker whose schedules are refused does not start. */
  async #fireSchedules(host: WorkerHost): Promise<void> {
    const { backend, clock, bus: events, settings } = this.#wiring;
    const { store } = backend;
    if (store.schedules === undefined) {
      if (this.declaredSchedules.size > 0) void this.schedules;
      return;
    }
    const { declaredSchedules: declared } = this;
    const firing = new ScheduleFiring(
      {
        store,
        clock,
        events,
        declared,
        worker: () => host.id,
        oftenMs: settings.pollMs,
        pollMs: () => host.schedulesMs,
      },
      store.schedules,
    );
    this.#firing = firing;
    void host.stopped.catch(() => {}).finally(() => void firing.stop());
    try {
      for (const { contract } of declared.values()) this.assertKnown(contract);
      await firing.start();
    } catch (thrown) {
      await host.stop({ grace: "0s" });
      throw thrown;
    }
  }

  /** Consumes what the kinds of this worker need. Undefined: there is no broker, or nothing to consume. */
  #consume(kinds: ReadonlyMap<string, RunnableKind>, { suspects }: WorkerHost): Consuming | undefined {
    const { broker, backend, blobs = null, bus, clock, random } = this.#wiring;
    const { collections } = backend.store;
    const own = [...this.collectionKinds.values()].filter(({ name }) => kinds.has(name));
    if (!broker || collections === undefined || (own.length === 0 && broker.consumes.length === 0)) return undefined;
    return new Consuming(
      {
        broker,
        collections,
        blobs,
        intake: (kind) => this.collectionClient.intake(kind),
        events: bus,
        clock,
        enqueue: (drafts) => backend.store.enqueue(drafts),
        draft: async (kind, input, id) => this.draft(kind as never, input, { id }),
        newId: idSource(clock, random),
        suspects,
      },
      own,
    );
  }

  #collectionWorkerKinds(): ReadonlyMap<string, ReadonlyMap<string, RunnableKind>> {
    const { backend, bus, settings, blobs = null, broker = null } = this.#wiring;
    const { collections } = backend.store;
    if (this.collectionKinds.size === 0 || collections === undefined) return new Map();
    const settingsOf = (contract: AnyContract): KindSettings => settingsWithDefaults(contract, settings);
    const worker = new CollectionWorker({ collections, events: bus, blobs, broker, settingsOf });
    return new Map([...this.collectionKinds].map(([name, contract]) => [name, worker.kinds(contract)]));
  }

  /** What this process runs for each kind of batch, by the name of the batch. */
  #batchWorkerKinds(): ReadonlyMap<string, ReadonlyMap<string, RunnableKind>> {
    const { backend, clock, bus, settings, blobs = null } = this.#wiring;
    const { batches } = backend.store;
    if (this.batchKinds.size === 0 || batches === undefined) return new Map();
    this.#batchWorker ??= new BatchWorker({
      batches,
      clock,
      events: bus,
      outputs: blobs,
      newId: idSource(clock, this.#wiring.random),
      rowsOf: ({ file, from, format }) =>
        (format === "csv" ? csv : ndjson)(from === "path" ? file : blobNamed(blobs, file)),
      settingsOf: (contract) => settingsWithDefaults(contract, settings),
      heldJobs: () => this.#host?.heldJobs() ?? [],
    });
    return new Map([...this.batchKinds].map(([name, contract]) => [name, this.#batchWorker!.kinds(contract)]));
  }

  /**
   * Reads each new file in a folder into its own batch, once, and moves it to `done` or `failed` in that folder. Runs until it is stopped
   * or the engine closes; several processes may watch the same folder. Every worker must be able to read it under this path.
   */
  async watchFolder<In, Context>(
    batch:
      | BatchContract<In, never, Context, never>
      | BatchContract<In, unknown, Context, never>
      | BatchContract<In, unknown, Context, unknown>,
    folder: string,
    options: WatchFolderOptions<NoInfer<Context>> = {},
  ): Promise<{
    /** Ends the watch. Files that are being read into batches are still read. */
    stop(): Promise<void>;
  }> {
    const { clock, bus: events } = this.#wiring;
    const { every = "1s", ...ofFile } = options;
    const contract = batch as unknown as AnyBatch;
    if (this.batchKinds.get(contract?.name) !== contract) throw unknownKind(contract?.name, this.batchKinds);
    const take = async (path: string, name: string): Promise<FileState> => {
      // Held until all rows are in: of a file that is broken in the middle none has run, and the corrected one runs them all.
      const job = await this.ingestAs(`${contract.name}:file:${name}`, contract, path, { ...ofFile, hold: true });
      const state = (await this.get(job))?.state ?? "queued";
      if (state === "succeeded") return "done";
      if (!isTerminal(state)) return "waiting";
      for (const { id, key } of await this.batches({ kind: contract.name, state: "open", limit: 1_000 }))
        if (key === job) await this.abortBatch(id);
      return "failed";
    };
    const everyMs = durationMs(every, "The option every of watchFolder");
    refuse(everyMs < 10, "every of watchFolder", `is ${JSON.stringify(every)}`, 'Use "10ms" or longer.');
    const watched = await new WatchedFolder(folder, everyMs, { clock, events, take }).start();
    this.#folders.add(watched);
    return {
      stop: async () => {
        this.#folders.delete(watched);
        await watched.stop();
      },
    };
  }

  /** Runs everything that is ready, and what that makes ready, then returns how it ended. Only for `sqlite::memory:`, in tests. */
  async runUntilIdle(options: Pick<WorkOptions<Kinds>, "only" | "concurrency"> = {}): Promise<readonly KindCounts[]> {
    if (!this.#wiring.backend.private)
      throw new OutliveError(
        ErrorCode.wrongState,
        "runUntilIdle() is for sqlite::memory: only.",
        "Use work() or start() on a store that others may share.",
      );
    const handle = await this.start(options);
    const { clock, settings } = this.#wiring;
    const kinds = new Set(runnableKinds(this.contracts, options.only, settings, await this.#kindsOfParts()).keys());
    const endsBatch = async (): Promise<boolean> => {
      if (this.batchKinds.size === 0) return false;
      const unended = async (state: "sealed" | "aborting"): Promise<readonly BatchInfo[]> =>
        (await this.batches({ state, limit: 1_000 })).filter(({ kind }) => kinds.has(kind));
      return (await unended("sealed")).some(({ rows }) => rows.left === 0) || (await unended("aborting")).length > 0;
    };
    try {
      return await untilIdle({ client: this, clock, kinds, endsBatch });
    } finally {
      await handle.stop();
    }
  }

  /** Limits, weights and pauses of single keys, changed at run time. */
  get limits(): KeyLimits {
    return (this.#limits ??= new KeyLimits(this.store, this.newId));
  }

  /** The state of the store, the kinds and the workers. */
  async health(): Promise<Health> {
    const [store, kinds, workers] = await Promise.all([this.store.inspect.health(), this.counts(), this.workers()]);
    const host = this.#host;
    const worker = host
      ? {
          id: host.id,
          held: host.held,
          unsettled: host.unsettled,
          heartbeatAgeMs: Math.round(this.#wiring.clock.mono() - host.lastBeat.atMono),
        }
      : null;
    return { ok: store.ok, summary: store.summary, store: store.detail, kinds, worker, workers };
  }

  /** Why a job is not running, or how it runs. Null: there is no such job. */
  async why(id: string): Promise<Explanation | null> {
    assertKey(id, "The job's id");
    const { backend, clock } = this.#wiring;
    const deps = { store: backend.store, deaths: () => this.operator.deaths(), now: () => clock.now() };
    const returning = async (worker: WorkerRow): Promise<number> => {
      const { liveness } = backend;
      return liveness.holdMs && (await liveness.probe(worker)) === "unknown" ? liveness.holdMs() : 0;
    };
    return explain({ ...deps, returning, pause: (ms) => pause(clock, ms) }, id);
  }

  /** Stops the worker of this process, if one runs, and closes the store. */
  override async close(options: { readonly grace?: Duration } = {}): Promise<void> {
    const { grace = WORKER_OPTIONS.grace.default } = options;
    await this.#starting?.catch(() => {});
    await this.#firing?.stop();
    await this.#consuming?.stop();
    await this.#host?.stop({ grace }).catch(() => {});
    await Promise.all([...this.#folders].map((watched) => watched.stop()));
    await this.#batchWorker?.close();
    await this.#requestWorker?.close();
    await this.#wiring.broker?.close();
    await super.close();
  }
}

export function blobNamed(blobs: BlobStore | null, key: string): AsyncIterable<Uint8Array> {
  if (blobs) return blobs.get(key);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The rows are in the blob ${key}, but this worker has no blob store.`,
    'Pass one to open(), for instance `blobs: "./blobs"`.',
    { blob: key },
  );
}
