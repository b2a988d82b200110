// What supervisors, monitors and the command line need of an engine, and programs that run jobs do not: recovery by hand, what is known
// of a death, the state of the store itself. `engine.operator` holds it.
import type { AnyContract } from "../job/contract.ts";
import { type EnqueueOptions, idSource, makeDraft } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Enqueued } from "../job/job.ts";
import { pause } from "../job/time.ts";
import { failedReport, reportText, withFailures } from "../recovery/incident.ts";
import type { Inconsistency, IntegrityReport } from "../stores/integrity.ts";
import type { Death, WorkerRow } from "../stores/liveness.ts";
import type { Backup, BackupOptions, Finding, LockHolder, Store, StoreHealth } from "../stores/port.ts";
import type { Report } from "./client.ts";
import type { Wiring } from "./engine.ts";
import { Recoveries, type RecoverOptions } from "./recovery-pass.ts";
import { blocker } from "./why.ts";

/** What the operator asks of its engine. */
interface OperatedEngine {
  /** The worker of this process, if one runs. */
  readonly own: () => string | undefined;
  readonly report: () => Promise<Report | null>;
}

export class Operator {
  readonly #wiring: Wiring;
  readonly #engine: OperatedEngine;
  readonly #recoveries: Recoveries;

  /** Use `engine.operator`. */
  constructor(wiring: Wiring, engine: OperatedEngine) {
    this.#wiring = wiring;
    this.#engine = engine;
    this.#recoveries = new Recoveries(wiring);
  }

  /**
   * One recovery pass now. It takes the work of every worker that is provably dead, or has been silent for a lease since this engine
   * began to watch. Returns the report, with the recoveries that failed, or null if it found nothing.
   */
  async recover(options: RecoverOptions = {}): Promise<Report | null> {
    const { signal } = options;
    const pass = options.restored
      ? await this.#recoveries.restored(signal)
      : await this.#recoveries.pass(this.#engine.own(), options);
    if (pass.incidents.length === 0 && pass.failed.length === 0) return null;
    const stored = pass.incidents.length === 0 ? null : await this.#engine.report();
    const report = stored
      ? withFailures(stored, pass.failed)
      : failedReport(pass, options.restored ? "restored" : "recover");
    return { ...report, text: reportText(report) };
  }

  /** The start-up recovery of `open`. */
  recoverAtOpen(): Promise<void> {
    return this.#recoveries.atOpen();
  }

  /** The workers whose work `recover` would take now, and why. Changes nothing. */
  deaths(): Promise<readonly { readonly worker: WorkerRow; readonly death: Death }[]> {
    return this.#recoveries.findDead(this.#engine.own());
  }

  /**
   * For supervisors: how the process of a worker ended ("killed by SIGKILL"), kept for the report, also if the worker was
   * recovered meanwhile. It proves the death: call `recover` next, which takes the work and counts the crash, also where no kernel can
   * be asked. Report only what the operating system told you of your own child. `agoMs` is how long ago it ended. Returns false if no
   * worker has that id.
   */
  noteDeath(worker: string, what: string, options: { readonly agoMs?: number } = {}): Promise<boolean> {
    return this.#recoveries.noteDeath(worker, what, options);
  }

  /** Adds a job of a kind that is known by name only: to the store, if not to this program. Its schema is asked if it is known here. */
  async enqueueByName(kind: string, input: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const { contracts, clock, random } = this.#wiring;
    const contract = contracts.get(kind) ?? ({ name: kind, schema: null } as AnyContract);
    const draft = await makeDraft(contract, input, options, idSource(clock, random));
    const [enqueued] = await this.#store.enqueue([draft]);
    return enqueued!;
  }

  /** The health of the store, without what is in it. */
  storeHealth(): Promise<StoreHealth> {
    return this.#store.inspect.health();
  }

  /** What an operator should know of the server behind the store: its settings, our rights, what is overdue. Nothing for SQLite. */
  async advice(): Promise<readonly Finding[]> {
    return (await this.#store.upkeep.advice?.()) ?? [];
  }

  /**
   * Reads the whole store and returns what is wrong with it, and which rows contradict each other. May take minutes on a large
   * store; workers go on meanwhile.
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
   * Copies the store, as it is at one moment, into a new file that only its owner can read, while workers go on. The copy is
   * checked and on the disk when this resolves. After restoring it: `recover({ restored: true })`.
   */
  async backup(file: string, options: BackupOptions = {}): Promise<Backup> {
    if (this.#store.upkeep.backup) return this.#store.upkeep.backup(file, options);
    throw new OutliveError(
      ErrorCode.wrongState,
      "This store is not a file and can't be copied into one.",
      "Use the tools of its server, for instance pg_dump or a base backup.",
    );
  }

  /** On SQLite rebuilds the indexes; a server is left to its own tools. Returns what is still wrong. Refused while a worker lives. `outlive check --repair` can do more. */
  async repair(): Promise<readonly string[]> {
    await this.#recoveries.assertNobodyWorks("repair it");
    return this.#store.upkeep.repair();
  }

  /** Which process holds the store's write lock now, as far as this host can tell; null: none, or not known. */
  writer(): Promise<LockHolder | null> {
    return this.#store.inspect.writer();
  }

  /** As `writer`, if it holds the lock at two checks and lets no other process write: nothing moves while it does. */
  blocker(): Promise<LockHolder | null> {
    return blocker({ store: this.#store, pause: (ms) => pause(this.#wiring.clock, ms) });
  }

  get #store(): Store {
    return this.#wiring.backend.store;
  }
}
