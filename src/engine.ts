// The engine: a client that can also work, recover and operate. Made by `open()` (open.ts).
import { Client, type Report } from "./clients.ts";
import { closest } from "./engine/closest.ts";
import { type EngineSettings, type WorkOptions, workSettings } from "./engine/options.ts";
import { WORKER_OPTIONS } from "./engine/settings.ts";
import type { Backend } from "./core/backend.ts";
import { type Clock, pause, type Random } from "./core/clock.ts";
import type { AnyContract } from "./core/contract.ts";
import type { Duration } from "./core/duration.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";
import { EVENT_NAMES, type EventBus, type EventName, type Listener } from "./core/events.ts";
import { assertKey, idSource } from "./core/ids.ts";
import type { Enqueued, JobState } from "./core/job.ts";
import { type EnqueueOptions, makeDraft } from "./core/enqueue.ts";
import type { Death, WorkerRow } from "./core/liveness.ts";
import type { Inconsistency, IntegrityReport } from "./core/integrity.ts";
import { failedReport, reportText, withFailures } from "./core/report.ts";
import type { Backup, BackupOptions, Finding, KindCounts, LockHolder, StoreHealth } from "./core/store.ts";
import type { ProcessCheck } from "./core/liveness.ts";
import type { ProcessIdentity } from "./platform/identity.ts";
import { untilDrained } from "./drain.ts";
import { stateAfter } from "./operator-answer.ts";
import { Recoveries, type RecoverOptions } from "./recoveries.ts";
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
  readonly backend: Backend;
  readonly settings: EngineSettings;
  readonly contracts: ReadonlyMap<string, AnyContract>;
  readonly clock: Clock;
  readonly random: Random;
  readonly bus: EventBus;
  readonly identity: ProcessIdentity;
  readonly processState: ProcessCheck;
}

export class Engine extends Client {
  readonly #wiring: Wiring;
  readonly #recoveries: Recoveries;
  #host: WorkerHost | undefined;
  /** A worker that is on its way: a second one is refused, and a close waits for it. */
  #starting: Promise<WorkerHandle> | undefined;

  /** Use `open`. */
  constructor(wiring: Wiring) {
    super(wiring.backend.store, wiring.contracts, () => wiring.backend.close());
    this.#wiring = wiring;
    this.#recoveries = new Recoveries(wiring);
  }

  /** Calls the listener at every event of this name, and returns a function that ends that. A listener that throws harms nothing. */
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
    const { signal, grace = WORKER_OPTIONS.grace.default } = options;
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
    if (!this.#wiring.backend.private)
      throw new OutliveError(
        ErrorCode.wrongState,
        "drain() is for sqlite::memory: only.",
        "Use work() or start() on a store that others may share.",
      );
    const handle = await this.start(options);
    try {
      return await untilDrained({ client: this, clock: this.#wiring.clock, contracts: this.contracts }, options.only);
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
    return answer.is === "requested" ? "running" : stateAfter(id, "cancel", answer);
  }

  /** Queues a finished job again, with its counters at zero and its steps kept. */
  async retry(id: string): Promise<JobState> {
    assertKey(id, "The job's id");
    return stateAfter(id, "retry", await this.store.retry(id, "operator"));
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
   * Returns the report, with the recoveries that failed, or null if it found nothing.
   */
  async recover(options: RecoverOptions = {}): Promise<Report | null> {
    const { signal } = options;
    const pass = options.restored
      ? await this.#recoveries.restored(signal)
      : await this.#recoveries.pass(this.#host?.id, signal);
    if (pass.incidents.length === 0 && pass.failed.length === 0) return null;
    const stored = pass.incidents.length === 0 ? null : await this.report();
    const report = stored
      ? withFailures(stored, pass.failed)
      : failedReport(pass, options.restored ? "restored" : "recover");
    return { ...report, text: reportText(report) };
  }

  /** Whom `recover` would take the work from now, and why. Changes nothing. */
  deaths(): Promise<readonly { readonly worker: WorkerRow; readonly death: Death }[]> {
    return this.#recoveries.findDead(this.#host?.id);
  }

  /** Why a job is not running, or how it runs. Null: there is no such job. */
  async why(id: string): Promise<Explanation | null> {
    assertKey(id, "The job's id");
    const { backend, clock } = this.#wiring;
    const deps = { store: backend.store, deaths: () => this.deaths(), now: () => clock.now() };
    const returning = async (worker: WorkerRow): Promise<number> => {
      const { liveness } = backend;
      return liveness.holdMs && (await liveness.probe(worker)) === "unknown" ? liveness.holdMs() : 0;
    };
    return explain({ ...deps, returning, pause: (ms) => pause(clock, ms) }, id);
  }

  /** How the store is, without what is in it. */
  storeHealth(): Promise<StoreHealth> {
    return this.store.health();
  }

  /** What an operator should know of the server behind the store: its settings, our rights, what is overdue. Nothing for SQLite. */
  async advice(): Promise<readonly Finding[]> {
    return (await this.store.advice?.()) ?? [];
  }

  /**
   * Reads the whole store and answers what is wrong with it, and which rows contradict each other. May take minutes on a large
   * store; workers go on meanwhile.
   */
  async integrity(): Promise<IntegrityReport> {
    const { clock } = this.#wiring;
    const startedMono = clock.mono();
    const findings = await this.store.integrity();
    const verdict = findings.length === 0 ? "PASSED" : "FAILED";
    const inconsistencies = verdict === "PASSED" ? await this.inconsistencies() : [];
    return { verdict, depth: "full", findings, tookMs: Math.round(clock.mono() - startedMono), inconsistencies };
  }

  /** Rows that contradict each other: what recovery, retention or a repair has still to put right. Reads all rows. */
  async inconsistencies(): Promise<readonly Inconsistency[]> {
    return (await this.store.inconsistencies?.()) ?? [];
  }

  /**
   * Copies the store, as it is at one moment, into a new file that only its owner can read, while workers go on. The copy is
   * checked and on the disk when this resolves. After putting one back: `recover({ restored: true })`.
   */
  async backup(file: string, options: BackupOptions = {}): Promise<Backup> {
    if (this.store.backup) return this.store.backup(file, options);
    throw new OutliveError(
      ErrorCode.wrongState,
      "This store is not a file and can't be copied into one.",
      "Use the tools of its server, for instance pg_dump or a base backup.",
    );
  }

  /** On SQLite makes indexes anew; a server is left to its own tools. Answers what is still wrong. Refused while a worker lives. `outlive check --repair` can do more. */
  async repair(): Promise<readonly string[]> {
    await this.#recoveries.assertNobodyWorks("repair it");
    return this.store.repair();
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
   * For supervisors: how the process of a worker ended ("killed by SIGKILL"), kept for the report, also if the worker was
   * recovered meanwhile. `agoMs` is how long ago it ended. Returns false if no worker has that id. Call `recover` next.
   */
  noteDeath(worker: string, what: string, options: { readonly agoMs?: number } = {}): Promise<boolean> {
    return this.#recoveries.noteDeath(worker, what, options);
  }

  /** The start-up recovery of `open`. */
  recoverAtOpen(): Promise<void> {
    return this.#recoveries.atOpen();
  }

  /** Stops the worker of this process, if one runs, and closes the store. */
  override async close(options: { readonly grace?: Duration } = {}): Promise<void> {
    const { grace = WORKER_OPTIONS.grace.default } = options;
    await this.#starting?.catch(() => {});
    await this.#host?.stop({ grace }).catch(() => {});
    await super.close();
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
