// The world of one seed: one database, one kernel, one scheduler, the processes and what observes them. Nothing here decides
// anything; the nemesis, the workload and the oracle do.
import { idSource } from "../../src/core/ids.ts";
import type { Store } from "../../src/core/store.ts";
import type { Database } from "../../src/stores/sqlite/database.ts";
import { SqliteStore } from "../../src/stores/sqlite/store.ts";
import { newTally, type Tally } from "../oracle/tally.ts";
import { Witness } from "../oracle/witness.ts";
import { BellTower } from "./bell-tower.ts";
import { Kernel } from "./kernel.ts";
import { SimProcess } from "./process.ts";
import { SeededRandom } from "./random.ts";
import { Scheduler } from "./scheduler.ts";
import { Story } from "./story.ts";
import type { Thread } from "./thread.ts";
import { drawTemper, type Temper } from "./temper.ts";
import { wire, type Weather } from "./wire.ts";

/** A bug put between the wire and the real store, to see whether the oracle finds it. */
export type Plant = (store: Store, db: Database) => Store;

export interface WorldOptions {
  readonly plant?: Plant;
  /** Instead of what the seed would draw. */
  readonly temper?: Partial<Temper>;
  /** How many of the last lines of the story are kept. Default 80. */
  readonly keepLines?: number;
}

export class World {
  readonly random: SeededRandom;
  readonly temper: Temper;
  readonly scheduler = new Scheduler();
  readonly story: Story;
  readonly tally: Tally = newTally();
  readonly witness: Witness;
  readonly kernel: Kernel;
  readonly tower: BellTower;
  readonly weather: Weather = { calm: false };
  readonly db: Database;
  readonly processes: SimProcess[] = [];
  readonly #plant: Plant | null;

  constructor(seed: number, db: Database, options: WorldOptions) {
    this.db = db;
    this.random = new SeededRandom(`seed ${seed}`);
    this.temper = { ...drawTemper(this.random.fork("temper")), ...options.temper };
    this.story = new Story(this.scheduler, options.keepLines ?? 80);
    this.witness = new Witness(this.story, this.tally);
    this.kernel = new Kernel(this.temper.locksProve);
    this.tower = new BellTower(this.random.fork("bells"));
    this.#plant = options.plant ?? null;
  }

  spawn(name: string): SimProcess {
    const process = new SimProcess(name, this.processes.length + 1, this);
    process.onDeath((cause) => {
      this.tally.ambiguous += process.undelivered;
      if (cause !== "ended") this.tally.deaths++;
    });
    this.processes.push(process);
    return process;
  }

  byPid(pid: number): SimProcess | null {
    return this.processes[pid - 1] ?? null;
  }

  /** The store as one thread of a process has it: statements and group commits of its own, reached over a wire of its own. */
  storeFor(process: SimProcess, thread: Thread): Store {
    const random = process.random.fork(`store ${thread.name}`);
    const { clock } = thread;
    const real: Store = new SqliteStore({ db: this.db, clock, random, newId: idSource(clock, random), bell: null });
    return wire(this.#plant ? this.#plant(real, this.db) : real, {
      process,
      thread,
      temper: this.temper,
      weather: this.weather,
      witness: this.witness,
      tower: this.tower,
    });
  }
}
