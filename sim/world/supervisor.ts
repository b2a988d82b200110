// Starts the processes of the simulated program and starts them again when they died, as a supervisor of the operating system
// would: after a moment, with nothing of the old memory.
import type { Engine } from "../../src/engine.ts";
import type { WorkerHandle } from "../../src/worker-host.ts";
import { contractsFor, type StepCame } from "../workload/kinds.ts";
import { operate } from "../workload/console.ts";
import { produce } from "../workload/producer.ts";
import type { JobDraft } from "../../src/core/job.ts";
import { openEngine } from "./engine-process.ts";
import type { SimProcess } from "./process.ts";
import type { World } from "./world.ts";

export interface Running {
  readonly process: SimProcess;
  handle: WorkerHandle | null;
}

export class Supervisor {
  readonly workers: (Running | null)[];
  producer: SimProcess | null = null;
  console: SimProcess | null = null;
  readonly #world: World;
  readonly #stepCame: StepCame;
  readonly #drafts: JobDraft[];
  readonly #acknowledged: (id: string) => void;
  readonly #jobs: () => readonly string[];
  #ending = false;

  constructor(
    world: World,
    workload: {
      stepCame: StepCame;
      drafts: JobDraft[];
      acknowledged: (id: string) => void;
      jobs: () => readonly string[];
    },
  ) {
    this.#world = world;
    this.#stepCame = workload.stepCame;
    this.#drafts = workload.drafts;
    this.#acknowledged = workload.acknowledged;
    this.#jobs = workload.jobs;
    this.workers = Array.from({ length: world.temper.workers }, () => null);
  }

  get produced(): boolean {
    return this.#drafts.length === 0;
  }

  start(): void {
    this.workers.forEach((_, slot) => this.#again(() => this.#startWorker(slot), 500));
    this.#startProducer();
    this.#startConsole();
  }

  /** A deploy: asked to stop, with a grace, and a new one in its place when it has. */
  deploy(slot: number, graceMs: number): void {
    const running = this.workers[slot];
    if (!running?.handle || !running.process.alive || running.process.paused) return;
    const { process, handle } = running;
    this.#world.story.tell(process.name, `DEPLOY with a grace of ${Math.round(graceMs)} ms`);
    running.handle = null;
    handle.stop({ grace: `${graceMs}ms` }).then(
      () => process.kill("ended"),
      (thrown: unknown) => this.#failed(process, thrown),
    );
  }

  /** The end of the history: everybody stops in peace and nobody is started again. */
  stopAll(): void {
    this.#ending = true;
    for (let slot = 0; slot < this.workers.length; slot++) {
      this.workers[slot]?.process.resume();
      this.deploy(slot, 1_000);
    }
    this.producer?.kill("ended");
    this.console?.kill("ended");
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
      const handle = await engine.start({ concurrency: this.#world.temper.concurrency });
      running.handle = handle;
      await handle.stopped;
    });
  }

  #startConsole(): void {
    const process = this.#world.spawn("console");
    this.console = process;
    process.onDeath(() => {
      if (!this.#world.weather.calm) this.#again(() => this.#startConsole(), 2_000);
    });
    this.#boot(process, (engine) => operate(process, engine, 600, this.#jobs, () => this.#world.weather.calm));
  }

  #startProducer(): void {
    const process = this.#world.spawn("producer");
    this.producer = process;
    process.onDeath(() => {
      if (!this.#ending && !this.produced) this.#again(() => this.#startProducer(), 1_000);
    });
    const { temper } = this.#world;
    const store = this.#world.storeFor(process, process.main);
    const spreadMs = temper.faultsMs / temper.jobs;
    const contracts = contractsFor(process, this.#stepCame);
    process.main.soon(() => {
      const settings = [...contracts.values()].map((contract) => contract.settings);
      store
        .declare(settings)
        .then(() => produce(process, store, this.#drafts, spreadMs, this.#acknowledged))
        .then(
          () => process.kill("ended"),
          (thrown: unknown) => this.#failed(process, thrown),
        );
    });
  }

  /** Opens the engine in the process and does `work` with it; the process ends with it, in peace or by its error. */
  #boot(process: SimProcess, work: (engine: Engine) => Promise<void>): void {
    process.main.soon(() => {
      openEngine(this.#world, process, contractsFor(process, this.#stepCame))
        .then(work)
        .then(
          () => process.main.soon(() => process.kill("ended")),
          (thrown: unknown) => this.#failed(process, thrown),
        );
    });
  }

  #failed(process: SimProcess, thrown: unknown): void {
    if (process.alive) this.#world.story.tell(process.name, `ends with an error: ${String(thrown)}`);
    process.kill("itself");
  }

  #again(start: () => void, withinMs: number): void {
    const { scheduler, random } = this.#world;
    const delay = random.fork(`start ${this.#world.processes.length} ${scheduler.eventCount}`).next() * withinMs;
    scheduler.at(scheduler.now + delay, null, start);
  }
}
