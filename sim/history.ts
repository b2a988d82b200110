// One seed, one history: faults for a while, then calm until everything has ended, then everybody leaves, then the audit.
import { audit } from "./oracle/audit.ts";
import { Oracle } from "./oracle/oracle.ts";
import { Watch } from "./oracle/watch.ts";
import type { Tally } from "./oracle/tally.ts";
import { demand } from "./oracle/violation.ts";
import { drawDrafts } from "./workload/producer.ts";
import { ACCOUNTS, BALANCE, createTables, openAccounts } from "./workload/tables.ts";
import { giveBack, takeBlank } from "./world/blank-database.ts";
import { Nemesis } from "./world/nemesis.ts";
import type { Event } from "./world/scheduler.ts";
import { Supervisor } from "./world/supervisor.ts";
import { World, type WorldOptions } from "./world/world.ts";

export interface History {
  readonly seed: number;
  /** What was broken; null: nothing. */
  readonly violation: string | null;
  readonly tally: Tally;
  readonly simulatedMs: number;
  readonly events: number;
  /** Of the whole story: a replay has the same. */
  readonly digest: string;
  readonly story: readonly string[];
}

/** However bad the faults were, this long after them all work is done. */
const DRAIN_MS = 180_000;
const LEAVE_MS = 30_000;

export async function simulate(seed: number, options: WorldOptions = {}): Promise<History> {
  const db = takeBlank((blank) => {
    createTables(blank);
    Watch.install(blank);
  });
  const world = new World(seed, db, options);
  const { scheduler, temper, story } = world;
  let violation: string | null = null;
  try {
    openAccounts(db);
    await live(world);
  } catch (thrown) {
    violation =
      thrown instanceof Error ? (thrown.name === "Violation" ? thrown.message : String(thrown.stack)) : String(thrown);
    story.tell("ORACLE", violation);
  } finally {
    for (const process of world.processes) process.kill("ended");
    giveBack(db);
  }
  story.tell("world", JSON.stringify({ temper, tally: world.tally }));
  return {
    seed,
    violation,
    tally: world.tally,
    simulatedMs: scheduler.now,
    events: scheduler.eventCount,
    digest: story.digest(),
    story: story.last(),
  };
}

async function live(world: World): Promise<void> {
  const { scheduler, temper, weather } = world;
  const oracle = new Oracle({
    db: world.db,
    witness: world.witness,
    tally: world.tally,
    concurrency: temper.concurrency,
    process: (pid) => world.byPid(pid),
    holds: (worker) => world.kernel.holds(worker),
  });
  const supervisor = new Supervisor(world, {
    stepCame: (job, step, result) => oracle.stepCame(job, step, result),
    drafts: drawDrafts(world.random.fork("drafts"), temper.jobs, temper.poison),
    acknowledged: (id) => oracle.acknowledged(id),
    jobs: () => oracle.inSight(),
  });
  const look = ({ thread }: Event): void => oracle.look(thread?.process ?? null, scheduler.now);
  supervisor.start();
  new Nemesis(world, supervisor).start();

  await scheduler.run(temper.faultsMs, look, () => false);
  world.story.tell("world", "CALM");
  weather.calm = true;
  oracle.calm(scheduler.now);
  for (const process of world.processes) process.resume();
  const atRest = (): boolean => supervisor.produced && oracle.drained && supervisor.allRunning && oracle.buried;
  const drained = await scheduler.run(temper.faultsMs + DRAIN_MS, look, atRest);
  demand(drained, () => `${DRAIN_MS} ms after the last fault there is work left`);

  world.story.tell("world", "ALL LEAVE");
  supervisor.stopAll();
  await scheduler.run(scheduler.now + LEAVE_MS, look, () => supervisor.allStopped);
  demand(supervisor.allStopped, () => `${LEAVE_MS} ms after it was asked to stop, a worker is still there`);
  audit(world.db, oracle, ACCOUNTS * BALANCE);
}
