// Starts the processes of the simulated program and starts them again when they died, as a supervisor of the operating system
// would: after a moment, with nothing of the old memory.
import type { Engine } from "../../../src/engine/engine.ts";
import type { WorkerHandle } from "../../../src/engine/work.ts";
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import type { JobDraft } from "../../../src/job/job.ts";
import { operate } from "../actors/console.ts";
import { produce } from "../actors/producer.ts";
import { type Outbox, signal } from "../actors/signaller.ts";
import { type PlanBook, submitAll } from "../actors/submitter.ts";
import { Echo, repeat } from "../actors/twin.ts";
import { Violation } from "../oracle/violation.ts";
import { limitedKeys } from "../workloads/keys.ts";
import type { RowTold } from "../workloads/batches.ts";
import { type Contracts, contractsFor, type HandlerTold, type StepCame, type Workload } from "../workloads/workload.ts";
import { maintenances, openEngine } from "./engine-process.ts";
import type { Migration } from "./migration.ts";
import type { SimProcess } from "./process.ts";
import { LEASE_MS } from "./profile.ts";
import type { World } from "./world.ts";

export interface Running {
  readonly process: SimProcess;
  handle: WorkerHandle | null;
}

/** What the supervised program is. */
export interface Program {
  readonly workloads: readonly Workload[];
  readonly migration: Migration;
  readonly drafts: JobDraft[];
  /** The signals that are sent to its jobs. */
  readonly outbox: Outbox;
  /** The batches that are submitted. */
  readonly book: PlanBook;
  readonly rowTold: RowTold;
  readonly stepCame: StepCame;
  readonly handlerTold: HandlerTold;
  /** The engine in this process stopped trusting what it holds. */
  readonly leaseLost: (process: SimProcess, lateMs: number) => void;
  /** The maintenance of this process ends it. */
  readonly maintenanceKills: (process: SimProcess) => void;
  /** A producer's enqueue resolved. */
  readonly acknowledged: (by: SimProcess, draft: JobDraft, id: string) => void;
  /** What a person at the console sees. */
  readonly jobs: () => readonly string[];
}

export class Supervisor {
  readonly workers: (Running | null)[];
  producer: SimProcess | null = null;
  twin: SimProcess | null = null;
  console: SimProcess | null = null;
  signaller: SimProcess | null = null;
  submitter: SimProcess | null = null;
  readonly #world: World;
  readonly #program: Program;
  readonly #echo = new Echo();
  #ending = false;
  #unexplained: string | null = null;

  constructor(world: World, program: Program) {
    this.#world = world;
    this.#program = program;
    this.workers = Array.from({ length: world.profile.workers }, () => null);
  }

  /** A process that ended with an error although nothing had been done to it; null: none did. */
  get unexplained(): string | null {
    return this.#unexplained;
  }

  get produced(): boolean {
    if (this.#program.book.left.length > 0) return false;
    return this.#program.drafts.length === 0 && (this.twin === null || this.#echo.done);
  }

  /** `workers`: so many of them, and the others when they are asked for. */
  start(workers = this.workers.length): void {
    this.#startWorkers(0, workers);
    this.#startProducer();
    if (this.#world.profile.console) this.#startConsole();
    if (this.#world.profile.producers === 2) this.#startTwin();
    if (!this.#program.outbox.isEmpty) this.#startSignaller();
    if (this.#program.book.plans.length > 0) this.#startSubmitter();
  }

  startOthers(): void {
    this.#startWorkers(1, this.workers.length);
  }

  #startWorkers(from: number, to: number): void {
    for (let slot = from; slot < to; slot++) this.#again(() => this.#startWorker(slot), 500);
  }

  /** A deploy: asked to stop, with a grace, and a new one in its place when it has. */
  deploy(slot: number, graceMs: number): void {
    const running = this.workers[slot];
    if (!running?.handle || !running.process.alive || running.process.paused) return;
    const { process, handle } = running;
    this.#world.story.tell(process.name, `DEPLOY with a grace of ${Math.round(graceMs)} ms`);
    running.handle = null;
    process.isLeaving = true;
    const maintenance = maintenances.get(process);
    if (maintenance) this.#world.mutant?.beforeStop?.(maintenance);
    handle.stop({ grace: `${graceMs}ms` }).then(
      () => process.kill("ended"),
      (thrown: unknown) => this.#failed(process, thrown),
    );
  }

  /** The end of the history: all processes stop in peace and none is started again. */
  stopAll(): void {
    this.#ending = true;
    for (let slot = 0; slot < this.workers.length; slot++) {
      this.workers[slot]?.process.resume();
      this.deploy(slot, 1_000);
    }
    this.producer?.kill("ended");
    this.twin?.kill("ended");
    this.console?.kill("ended");
    this.signaller?.kill("ended");
    this.submitter?.kill("ended");
  }

  /** Every worker is up and at work. */
  get allRunning(): boolean {
    return this.workers.every((running) => running !== null && running.process.alive && running.handle !== null);
  }

  get allStopped(): boolean {
    return this.workers.every((running) => running === null || !running.process.alive);
  }

  #startWorker(slot: number): void {
    const process = this.#world.spawn(`w${slot}.${this.#world.processes.length + 1}`);
    const running: Running = { process, handle: null };
    this.workers[slot] = running;
    process.onDeath(() => {
      if (!this.#ending) this.#again(() => this.#startWorker(slot), 2_000);
    });
    this.#boot(process, async (engine) => {
      const handle = await engine.start({ concurrency: this.#world.profile.concurrency });
      running.handle = handle;
      await handle.stopped;
    });
  }

  #startConsole(): void {
    const process = this.#world.spawn("console");
    this.console = process;
    process.onDeath(() => {
      if (!this.#world.conditions.calm) this.#again(() => this.#startConsole(), 2_000);
    });
    this.#boot(process, (engine) =>
      operate(
        process,
        engine,
        this.#world.profile.consoleEveryMs,
        this.#program.jobs,
        () => this.#world.conditions.calm,
        limitedKeys(this.#program.workloads),
      ),
    );
  }

  #startProducer(): void {
    const process = this.#world.spawn("producer");
    this.producer = process;
    process.onDeath(() => {
      if (!this.#ending && this.#program.drafts.length > 0) this.#again(() => this.#startProducer(), 1_000);
    });
    const { profile } = this.#world;
    const store = this.#world.storeFor(process, process.main);
    const spreadMs = profile.faultsMs / profile.jobs;
    const { drafts } = this.#program;
    const acknowledged = this.#acknowledgedBy(process);
    process.main.soon(() => {
      if (!this.#migrated(process)) return;
      const settings = [...this.#contracts(process).jobs.values()].map((contract) => contract.settings);
      store
        .declare(settings)
        .then(() => produce(process, store, drafts, spreadMs, (some) => this.#echo.sent(some), acknowledged))
        .then(
          () => {
            this.#echo.end();
            process.kill("ended");
          },
          (thrown: unknown) => this.#failed(process, thrown),
        );
    });
  }

  #startTwin(): void {
    const process = this.#world.spawn("twin");
    this.twin = process;
    process.onDeath(() => {
      if (!this.#ending && !this.#echo.done) this.#again(() => this.#startTwin(), 1_000);
    });
    this.#boot(process, (engine) => repeat(process, engine, this.#echo, this.#acknowledgedBy(process)));
  }

  /** A submission never takes as long as a worker lives: it is killed often. */
  #startSubmitter(): void {
    const process = this.#world.spawn("submitter");
    this.submitter = process;
    process.onDeath(() => {
      if (!this.#ending) this.#again(() => this.#startSubmitter(), 1_000);
    });
    const fate = process.random.fork("fate");
    const { scheduler, faults, conditions, profile } = this.#world;
    const { book } = this.#program;
    if (profile.nemesis.kill > 0 && fate.chance(0.7))
      scheduler.at(scheduler.now + fate.next() * 2_500, null, () => {
        if (!conditions.calm && process.alive && faults.strikes("kill", "submitter")) process.kill("nemesis");
      });
    const contracts = this.#contracts(process);
    this.#boot(process, (engine) => submitAll(process, engine, contracts.batches, book), contracts);
  }

  #startSignaller(): void {
    const process = this.#world.spawn("signaller");
    this.signaller = process;
    process.onDeath(() => {
      if (!this.#ending) this.#again(() => this.#startSignaller(), 1_000);
    });
    const store = this.#world.storeFor(process, process.main);
    process.main.soon(() => {
      if (!this.#migrated(process)) return;
      signal(process, store, this.#program.outbox).catch((thrown: unknown) => this.#failed(process, thrown));
    });
  }

  /** Opens the engine in the process and does `work` with it; the process ends with it, in peace or by its error. */
  #boot(
    process: SimProcess,
    work: (engine: Engine) => Promise<void>,
    contracts: Contracts = this.#contracts(process),
  ): void {
    process.main.soon(() => {
      if (!this.#migrated(process)) return;
      const { leaseLost, maintenanceKills } = this.#program;
      openEngine(this.#world.forEngine({ leaseLost, maintenanceKills }), process, contracts)
        .then(work)
        .then(
          () => process.main.soon(() => process.kill("ended")),
          (thrown: unknown) => this.#failed(process, thrown),
        );
    });
  }

  /** A file that is busy or full now can't be migrated: then the process ends, and the next one tries. */
  #migrated(process: SimProcess): boolean {
    try {
      this.#program.migration.open(process);
    } catch (thrown) {
      if (thrown instanceof Violation) throw thrown;
      this.#failed(process, thrown);
    }
    return process.alive;
  }

  #acknowledgedBy(process: SimProcess): (draft: JobDraft, id: string) => void {
    return (draft, id) => this.#program.acknowledged(process, draft, id);
  }

  #contracts(process: SimProcess): Contracts {
    const { workloads, stepCame, handlerTold, rowTold } = this.#program;
    return contractsFor(workloads, process, stepCame, handlerTold, rowTold);
  }

  #failed(process: SimProcess, thrown: unknown): void {
    if (process.alive) {
      this.#world.story.tell(process.name, `ends with an error: ${String(thrown)}`);
      const isReplaced = whyStoreReplaced(thrown) !== null;
      if (isReplaced && process.bornAt > this.#world.restoredAt)
        this.#unexplained ??= `${process.name} opened the store after every restore, and takes it for replaced: ${told(thrown)}`;
      if (!isReplaced && this.#leftAlone(process))
        this.#unexplained ??= `${process.name} ended in the calm: ${told(thrown)}`;
    }
    process.kill("itself");
  }

  /** It was started in the calm, or what was done to it before is so long ago that no call of that time is still under way. */
  #leftAlone({ bornAt, troubledUntil }: SimProcess): boolean {
    const { conditions, scheduler } = this.#world;
    if (!conditions.calm) return false;
    return bornAt >= conditions.calmAt || scheduler.now - troubledUntil > 2 * LEASE_MS;
  }

  #again(start: () => void, withinMs: number): void {
    const { scheduler, random } = this.#world;
    const delay = random.fork(`start ${this.#world.processes.length} ${scheduler.eventCount}`).next() * withinMs;
    scheduler.at(scheduler.now + delay, null, start);
  }
}

function told(thrown: unknown): string {
  return thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
}
