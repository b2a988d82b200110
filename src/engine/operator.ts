// What supervisors, monitors and the command line need of an engine, and programs that run jobs do not: recovery by hand, what is known
// of a death, the state of the store itself. `engine.operator` holds it.
import type { AnyContract } from "../job/contract.ts";
import { type EnqueueOptions, idSource, makeDraft } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import type { By } from "../job/audit.ts";
import type { Enqueued, JobState } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import { pause } from "../job/time.ts";
import { FailureDetector, type Lost, RESTORED } from "../recovery/failure-detector.ts";
import { failedReport, reportText, withFailures } from "../recovery/incident.ts";
import { LossJudge } from "../recovery/losses.ts";
import { leftBehind, recoverDead, type RecoveryDeps, type RecoveryPass } from "../recovery/recover.ts";
import { type Inconsistency, type IntegrityReport, isNoteworthy, NOTHING_CHECKED } from "../stores/store-parts.ts";
import { type Death, isProof, type Probe, type ProcessState, type WorkerRow } from "../stores/liveness.ts";
import { readOnlyError } from "../stores/observed.ts";
import type { Backup, BackupOptions, Finding, LockHolder, Store, StoreHealth } from "../stores/port.ts";
import { evidenceText } from "../telemetry/log.ts";
import type { Changes } from "./changes.ts";
import type { Report } from "./client.ts";
import type { Wiring } from "./engine.ts";
import type { WorkOptions } from "./options.ts";
import type { Share, StartedShare } from "./work.ts";
import { blocker } from "./why.ts";

/** What the operator asks of its engine. */
interface OperatedEngine {
  /** The worker of this process, if one runs. */
  readonly own: () => string | undefined;
  readonly report: () => Promise<Report | null>;
  readonly changes: Changes;
  readonly startShare: (share: Share | null, options: WorkOptions) => Promise<StartedShare>;
}

/** `engine.operator`: what a person does to the store in operation. */
export class Operator {
  readonly #wiring: Wiring;
  readonly #engine: OperatedEngine;
  readonly #passes: RecoveryPasses;

  /** Use `engine.operator`. @internal */
  constructor(wiring: Wiring, engine: OperatedEngine) {
    this.#wiring = wiring;
    this.#engine = engine;
    this.#passes = new RecoveryPasses(wiring);
  }

  /**
   * Runs one recovery pass now. It requeues the jobs of every worker that is provably dead, or has been silent for a lease
   * since this engine began to watch. Returns the report, including failed recoveries, or null if it found nothing.
   */
  async recover(options: RecoverOptions = {}): Promise<Report | null> {
    const { signal } = options;
    const pass = options.restored
      ? await this.#passes.restored(signal)
      : await this.#passes.pass(this.#engine.own(), options);
    if (pass.incidents.length === 0 && pass.failed.length === 0) return null;
    const stored = pass.incidents.length === 0 ? null : await this.#engine.report();
    const report = stored
      ? withFailures(stored, pass.failed)
      : failedReport(pass, options.restored ? "restored" : (options.by ?? BY_DEFAULT));
    return { ...report, text: reportText(report) };
  }

  /** As `engine.start`, for one of the processes that have the kinds between them. `kinds` are its own; null: all. `sent` are left to others. @internal */
  startShare(share: Share | null, options: WorkOptions): Promise<StartedShare> {
    return this.#engine.startShare(share, options);
  }

  /** The start-up recovery of `open`. */
  recoverAtOpen(): Promise<void> {
    return this.#passes.atOpen();
  }

  /** The workers whose jobs `recover` would requeue now, and why. Changes nothing. */
  deaths(): Promise<
    readonly {
      /** The worker. */
      readonly worker: WorkerRow;
      /** What is known of its death. */
      readonly death: Death;
    }[]
  > {
    return this.#passes.findDead(this.#engine.own());
  }

  /**
   * For supervisors: records how the process of a worker ended ("killed by SIGKILL") for the report, even if the worker was
   * recovered already. It proves the death: call `recover` next, which requeues the jobs and counts the crash, even where no
   * kernel can be asked. Report only what the operating system reported about your own child process. Returns false if no
   * worker has that id.
   */
  noteDeath(
    worker: string,
    what: string,
    options: {
      /** How long ago it ended, in ms. Default 0. */
      readonly agoMs?: number;
    } = {},
  ): Promise<boolean> {
    return this.#passes.noteDeath(worker, what, options);
  }

  /**
   * Adds a job of a kind that is known by name: to the store, if not to this program. If this program knows the kind, its
   * schema checks the input. A kind with limits must be known here, because its contract computes the keys.
   */
  async enqueueByName(kind: string, input: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const { contracts, clock, random } = this.#wiring;
    const known = contracts.get(kind);
    if (!known && (await this.#store.inspect.isLimited(kind))) throw needsContract(kind);
    const contract = known ?? ({ name: kind, schema: null } as AnyContract);
    const draft = await makeDraft(contract, input, options, idSource(clock, random));
    const [enqueued] = await this.#store.enqueue([draft]);
    return enqueued!;
  }

  /**
   * Queues a finished job again with another input. If this program does not know its kind, no schema checks the input. A kind
   * with limits must be known here, because its contract computes the keys.
   */
  async retryWith(id: string, input: Json, by: By = {}): Promise<JobState> {
    const job = await this.#store.inspect.get(id);
    const isKnown = job === null || this.#wiring.contracts.has(job.kind);
    if (!isKnown && (await this.#store.inspect.isLimited(job.kind))) throw needsContract(job.kind);
    return this.#engine.changes.retry(id, { ...by, input, unchecked: !isKnown });
  }

  /** The health of the store, without what is in it. */
  storeHealth(): Promise<StoreHealth> {
    return this.#store.inspect.health();
  }

  /** What an operator should know of the server behind the store: its settings, the rights of the role, what is overdue. Nothing for SQLite. */
  async advice(): Promise<readonly Finding[]> {
    return (await this.#store.upkeep.advice?.()) ?? [];
  }

  /**
   * Reads the whole store and returns what is wrong with it, and which rows contradict each other. May take minutes on a large store, while workers continue.
   */
  async integrity(): Promise<IntegrityReport> {
    const { clock } = this.#wiring;
    const startedMono = clock.mono();
    const findings = await this.#store.upkeep.integrity();
    const verdict = findings.length === 0 ? "PASSED" : "FAILED";
    const inconsistencies = verdict === "PASSED" ? await this.inconsistencies() : [];
    return { verdict, depth: "full", findings, tookMs: Math.round(clock.mono() - startedMono), inconsistencies };
  }

  /** Rows that contradict each other: what recovery, retention or a repair still has to correct. Reads all rows. */
  async inconsistencies(): Promise<readonly Inconsistency[]> {
    return (await this.#store.upkeep.inconsistencies?.()) ?? [];
  }

  /**
   * Copies the store into a new file that only its owner can read, while workers run. The copy is consistent; when this
   * resolves, it is checked and on disk. After restoring it: `recover({ restored: true })`.
   */
  async backup(file: string, options: BackupOptions = {}): Promise<Backup> {
    if (this.#store.upkeep.backup) return this.#store.upkeep.backup(file, options);
    throw new OutliveError(
      ErrorCode.wrongState,
      "This store is not a file and can't be copied into one.",
      "Use the tools of its server, for instance pg_dump or a base backup.",
    );
  }

  /** On SQLite and Redis rebuilds the indexes; a PostgreSQL server is left to its own tools. Returns what is still wrong. Refused while a worker lives. `outlive check --repair` can do more. */
  async repair(): Promise<readonly string[]> {
    await this.#passes.assertNobodyWorks("repair it");
    return this.#store.upkeep.repair();
  }

  /** Which process holds the store's write lock now, as far as this host can tell; null: none, or not known. */
  writer(): Promise<LockHolder | null> {
    return this.#store.inspect.writer();
  }

  /** As `writer`, but only a process that held the lock at two checks in a row and let no other process write: it blocks the store. */
  blocker(): Promise<LockHolder | null> {
    return blocker({ store: this.#store, pause: (ms) => pause(this.#wiring.clock, ms) });
  }

  get #store(): Store {
    return this.#wiring.backend.store;
  }
}

// Recovery as the engine offers it: at the open, by hand, and with what a supervisor knows. The work itself is done in src/recovery.

/** The options of `engine.operator.recover`. */
export interface RecoverOptions {
  /** Ends the pass between two transactions when it aborts; the next pass continues. Default: none. */
  readonly signal?: AbortSignal;
  /** A backup was restored: requeues at once everything that it lists as running. Rejects while a worker lives. Default false. */
  readonly restored?: boolean;
  /** For callers with a timer: a pass that finds no dead worker emits no events, so it writes nothing to the log. Default false. */
  readonly periodic?: boolean;
  /** Who recovers, for events and reports. Default "recover". */
  readonly by?: string;
}

const BY_DEFAULT = "recover";

/** Longest evidence that a supervisor can add to a death. */
const MAX_EVIDENCE = 1_000;

/** How many reported exits are remembered. The work of each is taken by the next pass; more than a few are never open at once. */
const MAX_EXITS = 1_000;

/** A store that lets no write through for longer is blocked; less is ordinary work. */
const BLOCKED_MS = 500;

export class RecoveryPasses {
  readonly #wiring: Wiring;
  /** Silence is judged from when this engine began to watch. */
  readonly #detector: FailureDetector;
  readonly #losses: LossJudge;
  /** How processes ended, by the ids of their workers, as their parent reported it. */
  readonly #exits = new Map<string, string>();

  constructor(wiring: Wiring) {
    this.#wiring = wiring;
    const { clock, backend, bus, identity } = wiring;
    const { store, liveness } = backend;
    const processState = (worker: WorkerRow): ProcessState => this.#processState(worker);
    this.#detector = new FailureDetector({ clock, liveness, processState, bootId: identity.bootId });
    this.#losses = new LossJudge({ store, liveness, processState, clock, events: bus });
  }

  /** A parent's report proves an exit where the kernel can't: another namespace, or no boot id. A process that the kernel sees running has not exited. */
  #processState(worker: WorkerRow): ProcessState {
    const state = this.#wiring.processState(worker);
    return state === "unknown" && this.#exits.has(worker.id) ? "gone" : state;
  }

  /** One pass now. `own` is the worker of this process. */
  async pass(own: string | undefined, { signal, periodic = false, by }: RecoverOptions): Promise<RecoveryPass> {
    this.#assertWritable();
    const dead = await this.#withoutSilenceOfABlockedStore(await this.findDead(own), own);
    const deps = this.#deps();
    const pass =
      periodic && dead.length === 0
        ? nothingFound(deps)
        : await recoverDead(deps, dead, by ?? BY_DEFAULT, NOTHING_CHECKED, signal);
    await this.#judgeLosses();
    return pass;
  }

  /** Also what SQL has reclaimed: its losses are judged before a worker of this engine claims those jobs. */
  async #judgeLosses(): Promise<void> {
    const { bus, settings } = this.#wiring;
    await this.#losses
      .pass(settings.times.heartbeatMs)
      .catch((thrown: unknown) =>
        bus.emit("store.failed", { doing: "judging lost workers", error: toStoredError(thrown), retryInMs: 0 }),
      );
  }

  /**
   * After a backup was restored: the workers that its rows call alive are not, so all that they held is queued again at once, under a
   * new epoch. Refused while the lock of a worker is held, unless the store itself knows that it was restored.
   */
  async restored(signal: AbortSignal | undefined): Promise<RecoveryPass> {
    const { backend } = this.#wiring;
    this.#assertWritable();
    const isNew = await this.#noticeRestore();
    const fromBefore = (await backend.store.workers({})).filter((worker) => worker.restored);
    // A store that knows of its restore takes no write of a worker from before, whatever lock that holds. All others came after it.
    const isKnown = isNew || fromBefore.length > 0;
    const dead = this.#asRestored(isKnown ? fromBefore : await this.assertNobodyWorks("call it restored"));
    if (!isKnown) await backend.store.upkeep.raiseEpoch();
    return recoverDead(this.#deps(), dead, "restored", NOTHING_CHECKED, signal);
  }

  async #noticeRestore(): Promise<boolean> {
    const why = (await this.#wiring.backend.store.upkeep.noticeRestore?.()) ?? null;
    if (why !== null) this.#wiring.bus.emit("store.restored", { why });
    return why !== null;
  }

  /** What the rows of a backup say of workers is history. */
  #asRestored(workers: readonly WorkerRow[]): Lost[] {
    const detectedAt = this.#wiring.clock.now();
    const death = { how: "gone", lastSeenAliveAt: null, evidence: RESTORED, detectedAt } as const;
    return workers.map((worker) => ({ worker, death }));
  }

  /** The rows of workers that have not ended, if no lock is held; otherwise an error that names the workers that are alive. */
  async assertNobodyWorks(inOrderTo: string): Promise<readonly WorkerRow[]> {
    const { backend } = this.#wiring;
    const present = await backend.store.workers({});
    const probes = await this.#probe(present);
    const alive = present.filter((_, at) => probes[at] === "held");
    const [first] = alive;
    if (!first) return present;
    const named = alive.map(({ id, pid, host }) => `${id} (pid ${pid} on ${host})`).join(", ");
    throw new OutliveError(
      ErrorCode.wrongState,
      alive.length === 1 ? `Worker ${named} is alive on this store.` : `Workers are alive on this store: ${named}.`,
      `Stop ${alive.length === 1 ? "it" : "them"} to ${inOrderTo}, then try again. Nothing was changed.`,
      { worker: first.id, pid: first.pid, workers: alive.map(({ id }) => id) },
    );
  }

  /** The start-up recovery of `open`: nothing is accepted before it is finished. */
  async atOpen(): Promise<void> {
    const { backend } = this.#wiring;
    let well = false;
    try {
      await this.#atOpen();
      well = true;
    } finally {
      await backend.opened?.(well);
    }
  }

  async #atOpen(): Promise<void> {
    const { backend, clock } = this.#wiring;
    await this.#noticeRestore();
    // Workers from before a restore may hold their locks, but not in this store.
    const present = (await backend.store.workers({})).filter(({ restored }) => !restored);
    const probes = await this.#probe(present);
    const alone = !probes.includes("held");
    const findings = await backend.prepare(alone);
    if (alone) await backend.store.upkeep.raiseEpoch();
    const deps = this.#deps();
    const recovery = deps.newId();
    if (isNoteworthy(findings)) {
      const completedAt = clock.now();
      const startedAt = completedAt - (findings.tookMs ?? 0);
      await backend.store.upkeep.noteOpening?.({ recovery, startedAt, completedAt, findings });
    }
    await recoverDead(deps, await this.findDead(undefined), "open", findings, undefined, recovery);
    await this.#judgeLosses();
    await backend.removeStrays().catch((thrown: unknown) =>
      this.#wiring.bus.emit("store.failed", {
        doing: "removing stray locks",
        error: toStoredError(thrown),
        retryInMs: 0,
      }),
    );
  }

  /** Also workers that have ended but still hold jobs: an earlier recovery failed on those. */
  async findDead(own: string | undefined): Promise<{ worker: WorkerRow; death: Death }[]> {
    const { backend, settings, clock } = this.#wiring;
    const present = (await backend.store.workers({})).flatMap((row) => (row.id === own ? [] : [this.#withExit(row)]));
    const dead = await this.#detector.check(present, settings.times.heartbeatMs);
    return [...dead, ...leftBehind(await backend.store.workers({ which: "leftBehind" }), clock.now())];
  }

  /**
   * While no process could write, no worker could beat either, and their silence proves nothing. A worker notices that by its own
   * heartbeat; this watcher has none, so it tries to write before it believes in a silence.
   */
  async #withoutSilenceOfABlockedStore(dead: Lost[], own: string | undefined): Promise<Lost[]> {
    const { store } = this.#wiring.backend;
    if (store.upkeep.untilWritable === undefined || dead.every(({ death }) => isProof(death.how))) return dead;
    const { clock } = this.#wiring;
    const askedMono = clock.mono();
    const written = await store.upkeep.untilWritable().then(
      () => true,
      () => false,
    );
    // What was found may have ended while this waited: the rows and the kernel are asked again.
    if (written && clock.mono() - askedMono < BLOCKED_MS) return this.findDead(own);
    this.#detector.restart();
    return dead.filter(({ death }) => isProof(death.how));
  }

  /** Core reports a store's refusal to recover and continues; for a call it is the result. */
  #assertWritable(): void {
    if (this.#wiring.backend.readOnly) throw readOnlyError("recover");
  }

  async #probe(workers: readonly WorkerRow[]): Promise<readonly Probe[]> {
    const { liveness } = this.#wiring.backend;
    if (liveness.probeAll) return liveness.probeAll(workers);
    return Promise.all(workers.map((worker) => liveness.probe(worker)));
  }

  #deps(): RecoveryDeps {
    const { backend, clock, random, bus } = this.#wiring;
    return { store: backend.store, liveness: backend.liveness, clock, events: bus, newId: idSource(clock, random) };
  }

  /** The note itself may not have reached the store, or may have come before its worker's registration. */
  #withExit(worker: WorkerRow): WorkerRow {
    const exit = this.#exits.get(worker.id);
    return exit === undefined ? worker : { ...worker, lastWord: withWord(worker.lastWord, exit) };
  }

  /** By the worker's id only: a pid names another process in another namespace, and two machines' clocks are not compared. */
  async noteDeath(id: string, words: string, { agoMs = 0 }: { readonly agoMs?: number } = {}): Promise<boolean> {
    const what = evidenceText(words, MAX_EVIDENCE);
    const { backend, clock } = this.#wiring;
    // Before the store is asked: a pass uses the proof also if the store is down now.
    this.#exits.set(id, what);
    if (this.#exits.size > MAX_EXITS) this.#exits.delete(this.#exits.keys().next().value!);
    // Ids that differ in their last digit only are as good as impossible; the store lists ids after one, not one.
    const from = await backend.store.workers({ which: "all", after: id.slice(0, -1), limit: 16 });
    const worker = from.find((row) => row.id === id);
    if (!worker) return false;
    // It left cleanly: what its process did afterwards is not the end of a worker.
    if (worker.state === "stopped") return true;
    this.#detector.livedUntil(worker, Math.round(clock.now() - agoMs));
    const { lastWord } = worker;
    if (!lastWord?.includes(what)) await backend.store.operate.noteDeath(id, withWord(lastWord, what));
    // Another process may have found that contact was lost, before or since: the exit is the proof that was missing.
    if (this.#processState(worker) !== "alive") await backend.store.losses.resolve(id, "died");
    return true;
  }
}

function withWord(lastWord: string | null, what: string): string {
  if (lastWord === null) return what;
  return lastWord.includes(what) ? lastWord : `${lastWord}; ${what}`;
}

function nothingFound({ clock, newId }: RecoveryDeps): RecoveryPass {
  const now = clock.now();
  return {
    recovery: newId(),
    startedAt: now,
    completedAt: now,
    incidents: [],
    jobs: [],
    locked: [],
    failed: [],
  };
}

function needsContract(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `Jobs of the kind ${JSON.stringify(kind)} count against limits, and their keys are computed by its job(), which is not known here.`,
    "Nothing was enqueued. Name the modules that export it, as for `outlive work`: `jobs` in the configuration; or enqueue it from a program.",
    { kind },
  );
}
