// The small scope: two workers, two jobs (a transfer with `commit`, a chain of one step), the real engine without maintenance, and a
// replacement for a killed process, whose open recovers. Time stands still while any process waits for the store.
import type { Engine } from "../../../src/engine/engine.ts";
import { idSource } from "../../../src/job/enqueue.ts";
import type { Clock } from "../../../src/job/time.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { sqliteStore } from "../../../src/stores/sqlite/store.ts";
import { sqlite } from "../../../src/stores/sqlite/transaction.ts";
import type { Mutant } from "../mutants/mutant.ts";
import { noRows } from "../oracle/audit-rows.ts";
import { Oracle } from "../oracle/oracle.ts";
import { newTally } from "../oracle/tally.ts";
import { Witness } from "../oracle/witness.ts";
import { TRANSFER } from "../workloads/money.ts";
import { auditTables, openAccounts } from "../workloads/tables.ts";
import { contractsFor, ORDINARY, type Workload } from "../workloads/workload.ts";
import { Disk } from "../world/disk.ts";
import { type EngineWorld, openEngine } from "../world/engine-process.ts";
import { Kernel } from "../world/kernel.ts";
import { SimProcess } from "../world/process.ts";
import { SeededRandom } from "../world/random.ts";
import { allAtRest, Scheduler } from "../world/scheduler.ts";
import { Story } from "../world/story.ts";
import { Turnstile } from "./turnstile.ts";

const CONCURRENCY = 2;
const NOT_HEARD = (): void => {};
const ON_TIME = { next: () => 0 };

/** As the large workloads, without any time in them. */
const AT_ONCE: Workload = {
  name: "at once",
  share: 1,
  weight: 1,
  kinds: { [TRANSFER]: ORDINARY, chain: ORDINARY },
  wish: () => ({ kind: TRANSFER, input: null }),
  handlers: ({ stepCame, commits }) => ({
    [TRANSFER]: (_, run) =>
      run.commit(sqlite, (tx) => {
        commits(run);
        tx.run("UPDATE accounts SET balance = balance - 1 WHERE id = 0");
        tx.run("UPDATE accounts SET balance = balance + 1 WHERE id = 1");
        tx.run("INSERT INTO ledger VALUES (?, ?, 0, 1, 1)", run.id, run.attempt);
      }),
    async chain(_, run) {
      stepCame(run, "s", await run.step("s", () => `of attempt ${run.attempt}`));
    },
  }),
};

export class Scope {
  readonly scheduler = new Scheduler();
  readonly story = new Story(this.scheduler, 1_000);
  readonly tally = newTally();
  readonly turnstile: Turnstile;
  readonly oracle: Oracle;
  readonly processes: SimProcess[] = [];
  readonly #disk: Disk;
  readonly #kernel = new Kernel({
    locksProve: true,
    sessions: false,
    processesProve: false,
    now: () => this.scheduler.now,
    byPid: () => null,
  });
  readonly #random = new SeededRandom("small scope");
  readonly #engineWorld: EngineWorld;
  #tables: readonly string[] | null = null;

  constructor(db: Database, mutant: Mutant | null) {
    this.#disk = new Disk(db, "full", () => this.scheduler.now);
    const witness = new Witness(this.story, this.tally);
    this.turnstile = new Turnstile(witness);
    this.oracle = new Oracle({
      disk: this.#disk,
      witness,
      tally: this.tally,
      concurrency: CONCURRENCY,
      ahead: 0,
      culpritAmong: null,
      process: (pid) => this.processes[pid - 1] ?? null,
      processes: () => this.processes,
      holds: (worker) => this.#kernel.holds(worker),
      isAlive: (worker) => this.#kernel.isAlive(worker),
      // No maintenance watches here.
      isFree: () => false,
      reclaimed: () => {},
    });
    this.#engineWorld = {
      kernel: this.#kernel,
      story: this.story,
      mutant: null,
      maintenances: false,
      storeFor: (process) => {
        const real = this.#storeOf(process, mutant);
        return this.turnstile.guard(mutant?.store?.(real, db, process.main.clock) ?? real, process);
      },
    };
  }

  /** The accounts, the two jobs and the two workers; nothing is claimed yet. */
  async begin(): Promise<void> {
    openAccounts(this.#disk.db);
    const installer = this.spawn("installer");
    const store = this.#storeOf(installer);
    const settings = [...contractsFor([AT_ONCE], installer, NOT_HEARD, NOT_HEARD).jobs.values()].map(
      (contract) => contract.settings,
    );
    const draft = { priority: 0, runAt: null, delayMs: 0, dedupeKey: null, input: "null" };
    const drafts = [TRANSFER, "chain"].map((kind) => ({ ...draft, kind, id: `${kind}-1` }));
    const enqueued = store.declare(settings).then(() => store.enqueue(drafts));
    await this.settle();
    (await enqueued).forEach(({ id }, i) => this.oracle.acknowledged(drafts[i]!, id, 0));
    installer.kill("ended");
    this.startWorker();
    this.startWorker();
  }

  startWorker(): void {
    const process = this.spawn(`w${this.processes.length}`);
    const contracts = contractsFor(
      [AT_ONCE],
      process,
      (run, step, result) => this.oracle.stepCame(run, step, result),
      (run, word) => this.oracle.handlerTold(run, word),
    );
    process.main.soon(() => {
      openEngine(this.#engineWorld, process, contracts)
        .then((engine: Engine) => engine.start({ concurrency: CONCURRENCY }))
        .catch((thrown: unknown) => {
          this.story.tell(process.name, `ends with an error: ${String(thrown)}`);
          process.kill("itself");
        });
    });
  }

  spawn(name: string): SimProcess {
    const world = { scheduler: this.scheduler, kernel: this.#kernel, story: this.story, random: this.#random };
    const process = new SimProcess(name, this.processes.length + 1, world, ON_TIME);
    this.processes.push(process);
    return process;
  }

  /** Everything that needs no store call has happened. `mover`: whose call was let through last. */
  async settle(mover: SimProcess | null = null): Promise<void> {
    const { scheduler, oracle } = this;
    await allAtRest();
    oracle.look(mover, scheduler.now, scheduler.wall);
    await scheduler.run(
      scheduler.now,
      ({ thread }) => oracle.look(thread?.process ?? null, scheduler.now, scheduler.wall),
      () => false,
    );
  }

  /** The time, all rows, what each living process knows, asks and waits for: two schedules that meet here have the same futures. */
  state(): string {
    const { db } = this.#disk;
    this.#tables ??= tablesOf(db);
    const rows = this.#tables.map((table) => `${table} ${JSON.stringify(db.sql(`SELECT * FROM ${table}`).all())}`);
    const minds = this.processes.map((process) => (process.alive ? this.turnstile.heardBy(process) : "dead"));
    const asks = this.turnstile.waiting.map(({ text }) => text).toSorted();
    const timers = this.scheduler.pending().map(({ at, thread }) => `${thread?.process.name} at ${at}`);
    return [`${this.scheduler.now}`, ...rows, ...minds, ...asks, ...timers.toSorted()].join("\n");
  }

  audit(): void {
    noRows(this.#disk.db, "SELECT id, state FROM outlive_jobs WHERE state <> 2", "not succeeded");
    auditTables(this.#disk.db, TRANSFER);
  }

  #storeOf(process: SimProcess, mutant: Mutant | null = null): Store {
    const random = process.random.fork("store");
    const { scheduler } = this;
    const clock: Clock = { ...process.main.clock, now: () => Math.floor(scheduler.wall) };
    const connection = this.#disk.connect();
    const db = mutant?.connection?.(connection) ?? connection;
    const mark = this.#disk.markFile;
    return sqliteStore({ db, clock, random, newId: idSource(clock, random), mark, wakeup: null });
  }
}

/** Every table of the engine and of the workloads; not the oracle's notebook, whose rows are numbered by the events. */
function tablesOf(db: Database): readonly string[] {
  const rows = db.sql("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").all() as { name: string }[];
  return rows.map(({ name }) => name).filter((name) => !name.startsWith("sqlite_") && !name.startsWith("sim_"));
}
