// One seed, one history: faults for a while, then calm until everything has ended, then everybody leaves, then the audit.
import type { JobDraft } from "../../src/job/job.ts";
import type { Database } from "../../src/stores/sqlite/database.ts";
import { drawDrafts } from "./actors/drafts.ts";
import { PlanBook } from "./actors/submitter.ts";
import { Outbox } from "./actors/signaller.ts";
import { audit } from "./oracle/audit.ts";
import { Oracle } from "./oracle/oracle.ts";
import type { Tally } from "./oracle/tally.ts";
import { demand, Violation } from "./oracle/violation.ts";
import { Watch } from "./oracle/watch.ts";
import { batches, drawPlans } from "./workloads/batches.ts";
import { workloadsNamed } from "./workloads/index.ts";
import { signalsFor } from "./workloads/waiting.ts";
import { createTables, openAccounts } from "./workloads/tables.ts";
import type { Workload } from "./workloads/workload.ts";
import { emptyDatabase, giveBack, takeBlank } from "./world/blank-database.ts";
import { Migration } from "./world/migration.ts";
import { Nemesis } from "./world/nemesis.ts";
import type { Event } from "./world/scheduler.ts";
import { Supervisor } from "./world/supervisor.ts";
import { TwoKills } from "./world/two-kills.ts";
import { World, type WorldOptions } from "./world/world.ts";

export interface History {
  readonly seed: number;
  /** What was broken; null: nothing. */
  readonly violation: string | null;
  /** Whether it was a law that was broken, and not an error that was thrown, by whatever part of it all. */
  readonly lawBroken: boolean;
  readonly tally: Tally;
  readonly simulatedMs: number;
  readonly events: number;
  /** The single strikes of faults that happened, by name. */
  readonly strikes: readonly string[];
  /** The ids of all jobs that were to be sent. */
  readonly jobs: readonly string[];
  /** How long the faults lasted. */
  readonly faultsMs: number;
  /** Of the whole story: a replay has the same. */
  readonly digest: string;
  readonly story: readonly string[];
}

/** However bad the faults were, this long after them all work is done. */
const DRAIN_MS = 180_000;
const LEAVE_MS = 30_000;
/** Longer than a lease: a process that takes its time to stop is not dead. */
const LONG_GRACE_MS = 8_000;

export async function simulate(seed: number, options: WorldOptions = {}): Promise<History> {
  const sort = options.mutant?.schema ? options.mutant.name : "sound";
  const prepare = (db: Database): void => {
    createTables(db);
    Watch.install(db);
    options.mutant?.schema?.(db);
  };
  const blank = takeBlank(sort, prepare);
  const world = new World(seed, blank, options);
  return world.profile.killMigration === 0
    ? live(seed, world, options, null).finally(() => giveBack(sort, blank))
    : inEmptyFile(seed, options, prepare).finally(() => giveBack(sort, blank));
}

/** The first processes make the tables. */
async function inEmptyFile(seed: number, options: WorldOptions, prepare: (db: Database) => void): Promise<History> {
  const db = emptyDatabase();
  return live(seed, new World(seed, db, options), options, prepare).finally(() => db.close());
}

async function live(
  seed: number,
  world: World,
  options: WorldOptions,
  prepare: ((db: Database) => void) | null,
): Promise<History> {
  const { scheduler, profile, story, disk, faults } = world;
  let violation: string | null = null;
  let lawBroken = false;
  const workloads = workloadsNamed(profile.workloads);
  const drafts = drawDrafts(world.random.fork("drafts"), profile, workloads, options.muted?.jobs);
  const jobs = drafts.map(({ id }) => id);
  try {
    const migration = new Migration(world, (db) => {
      prepare?.(db);
      openAccounts(db);
      disk.start();
    });
    if (prepare === null) migration.open(world.spawn("installer"));
    await unfold(world, workloads, drafts, migration);
  } catch (thrown) {
    lawBroken = thrown instanceof Violation;
    violation = thrown instanceof Error ? (lawBroken ? thrown.message : String(thrown.stack)) : String(thrown);
    story.tell("ORACLE", violation);
  } finally {
    for (const process of world.processes) process.kill("ended");
    disk.end();
  }
  story.tell("world", JSON.stringify({ profile, tally: world.tally }));
  return {
    seed,
    violation,
    lawBroken,
    tally: world.tally,
    simulatedMs: scheduler.now,
    events: scheduler.eventCount,
    strikes: faults.struck,
    jobs,
    faultsMs: profile.faultsMs,
    digest: story.digest(),
    story: story.last(),
  };
}

async function unfold(
  world: World,
  workloads: readonly Workload[],
  drafts: JobDraft[],
  migration: Migration,
): Promise<void> {
  const { scheduler, profile } = world;
  const outbox = new Outbox(signalsFor(drafts));
  const book = new PlanBook(workloads.includes(batches) ? drawPlans(world.random.fork("plans")) : []);
  const oracle = new Oracle({
    disk: world.disk,
    witness: world.witness,
    tally: world.tally,
    concurrency: profile.concurrency,
    ahead: profile.ahead,
    culpritAmong: profile.isolation === null ? null : drafts.length,
    process: (pid) => world.byPid(pid),
    processes: () => world.processes,
    holds: (worker) => world.kernel.holds(worker),
    isAlive: (worker) => world.kernel.isAlive(worker),
    isFree: (worker) => world.kernel.isFree(worker),
    reclaimed: (from) => void world.ambush(from, 100),
  });
  const supervisor = new Supervisor(world, {
    workloads,
    migration,
    drafts,
    outbox,
    book,
    rowTold: {
      began: (run, line) => oracle.rowTold(run, line, "began"),
      ended: (run, line, how) => oracle.rowTold(run, line, how),
      given: (run, outputs) => oracle.given(run, outputs),
    },
    stepCame: (run, step, result) => oracle.stepCame(run, step, result),
    handlerTold: (run, word) => oracle.handlerTold(run, word),
    leaseLost: (process, lateMs) => oracle.leaseLost(process, scheduler.now - lateMs),
    maintenanceKills: (process) => oracle.maintenanceKills(process, scheduler.now),
    acknowledged: (by, draft, id) => {
      // What a process from before a restore hears may be of the store that it had opened.
      if (by.bornAt > world.restoredAt) oracle.acknowledged(draft, id, scheduler.now);
    },
    jobs: () => oracle.inSight(),
  });
  const look = ({ thread }: Event): void => {
    // Before the last migration there is nothing that it could read.
    if (migration.done) oracle.look(thread?.process ?? null, scheduler.now, scheduler.wall);
    // Not a law: a mutant whose own code throws ends its processes as well.
    if (supervisor.unexplained !== null) throw new Error(supervisor.unexplained);
  };
  const twoKills =
    profile.isolation === "twoKills" ? new TwoKills(world, supervisor, oracle.model, drafts.length) : null;
  supervisor.start(twoKills === null ? profile.workers : 1);
  twoKills?.start();
  new Nemesis(world, supervisor, {
    powerLost: () => {
      outbox.wentBack();
      book.wentBack();
      oracle.powerLost();
    },
    restored: (takenAt) => {
      outbox.wentBack();
      book.wentBack();
      oracle.restored(takenAt, scheduler.now);
    },
  }).start();

  await scheduler.run(profile.faultsMs, look, () => false);
  demand(twoKills?.done !== false, () => `${profile.faultsMs} ms after the beginning not all jobs run again`);
  world.calm();
  oracle.calm(scheduler.now);
  const deploy = world.random.fork("deploy");
  if (deploy.chance(0.4))
    scheduler.at(scheduler.now + deploy.next() * LONG_GRACE_MS, null, () =>
      supervisor.deploy(deploy.below(profile.workers), LONG_GRACE_MS),
    );
  const atRest = (): boolean => supervisor.produced && oracle.drained && supervisor.allRunning && oracle.allRecovered;
  const drained = await scheduler.run(profile.faultsMs + DRAIN_MS, look, atRest);
  demand(drained, () => `${DRAIN_MS} ms after the last fault there is work left`);

  world.story.tell("world", "ALL LEAVE");
  supervisor.stopAll();
  await scheduler.run(scheduler.now + LEAVE_MS, look, () => supervisor.allStopped);
  demand(supervisor.allStopped, () => `${LEAVE_MS} ms after it was asked to stop, a worker is still there`);
  audit(world.disk.db, oracle, workloads);
  oracle.batches.audit(book.plans, world.blobs, world.faults.struck.length === 0);
}
