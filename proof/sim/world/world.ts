// The world of one seed: one disk, one kernel, one scheduler, the processes and what observes them. Nothing here decides
// anything; the nemesis, the workloads and the oracle do.
import { idSource } from "../../../src/job/enqueue.ts";
import type { Clock } from "../../../src/job/time.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { sqliteStore } from "../../../src/stores/sqlite/store.ts";
import type { Mutant } from "../mutants/mutant.ts";
import { newTally, type Tally } from "../oracle/tally.ts";
import { Witness } from "../oracle/witness.ts";
import { drawWorkloads } from "../workloads/index.ts";
import { SimBlobs } from "../workloads/batches.ts";
import { sequels, withSequels } from "../workloads/sequels.ts";
import { Conditions } from "./conditions.ts";
import { Disk } from "./disk.ts";
import type { EngineWorld } from "./engine-process.ts";
import { Faults, type Muted } from "./faults.ts";
import { Kernel } from "./kernel.ts";
import { SimProcess } from "./process.ts";
import { drawProfile, type Profile } from "./profile.ts";
import { SeededRandom } from "./random.ts";
import { Scheduler } from "./scheduler.ts";
import { Story } from "./story.ts";
import type { Thread } from "./thread.ts";
import { WakeupHub } from "./wakeup-hub.ts";
import { wire } from "./wire.ts";

export interface WorldOptions {
  /** A bug on purpose, to see whether the oracle finds it. */
  readonly mutant?: Mutant;
  /** Instead of what the seed would draw. */
  readonly profile?: Partial<Profile>;
  /** What is left out of what the seed would do: faults, and jobs by their ids. */
  readonly muted?: Muted & { readonly jobs?: ReadonlySet<string> };
  /** How many of the last lines of the story are kept. Default 80. */
  readonly keepLines?: number;
}

/** Who wakes up before its recovery loses nothing: more often it should be too late. */
const BEFORE_RECOVERY = 0.15;

/** All processes run in the same boot. */
export const BOOT_ID = "boot-1";

export class World {
  readonly random: SeededRandom;
  readonly profile: Profile;
  readonly scheduler = new Scheduler();
  readonly story: Story;
  readonly tally: Tally = newTally();
  readonly witness: Witness;
  readonly kernel: Kernel;
  readonly wakeups: WakeupHub;
  readonly conditions = new Conditions();
  readonly faults: Faults;
  readonly disk: Disk;
  readonly processes: SimProcess[] = [];
  readonly blobs = new SimBlobs();
  readonly mutant: Mutant | null;
  /** When an older copy of the store was last put in its place (virtual ms). */
  restoredAt = Number.NEGATIVE_INFINITY;
  /** Hears of a process that was given jobs and will not know: until it has compared, it holds what it did not hear of. */
  onClaimLost: (process: SimProcess) => void = () => {};

  constructor(seed: number, db: Database, options: WorldOptions) {
    this.random = new SeededRandom(`seed ${seed}`);
    this.profile = { ...drawProfile(this.random.fork("profile"), drawWorkloads), ...options.profile };
    this.disk = new Disk(db, this.profile.durability, () => this.scheduler.now);
    this.faults = new Faults(options.muted ?? {});
    this.story = new Story(this.scheduler, options.keepLines ?? 80);
    this.witness = new Witness(this.story, this.tally);
    this.kernel = new Kernel({
      ...this.profile,
      now: () => this.scheduler.now,
      byPid: (pid) => this.byPid(pid),
    });
    this.wakeups = new WakeupHub(this.random.fork("bells"));
    this.mutant = options.mutant ?? null;
  }

  /** A process that stands still wakes up at the worst moment. `share`: how often, in addition to how often the seed does it at all. */
  ambush(victim: SimProcess, withinMs: number, share = 1): boolean {
    const { scheduler, profile, conditions } = this;
    if (!victim.alive || !victim.paused || conditions.calm) return false;
    const random = victim.random.fork(`ambush ${scheduler.now}`);
    if (!random.chance(share * profile.ambush) || !this.faults.strikes("ambush", victim.name)) return false;
    scheduler.at(scheduler.now + random.next() * withinMs, null, () => victim.resume());
    return true;
  }

  /** From now on nothing is lost, slow, stopped or killed from outside. */
  calm(): void {
    this.story.tell("world", "CALM");
    const { now } = this.scheduler;
    this.conditions.calmAt = now;
    this.conditions.downUntil = this.disk.busyUntil = this.disk.fullUntil = now;
    this.troubleAll(0);
    for (const process of this.processes) {
      process.resume();
      process.reconnect();
    }
  }

  spawn(name: string): SimProcess {
    const process = new SimProcess(name, this.processes.length + 1, { ...this.#parts(), hosts: this.profile.hosts });
    process.onDeath((cause) => {
      if (cause === "ended") return;
      this.tally.ambiguous += process.undelivered;
      this.tally.deaths++;
    });
    this.processes.push(process);
    return process;
  }

  #parts(): { scheduler: Scheduler; kernel: Kernel; story: Story; random: SeededRandom } {
    const { scheduler, kernel, story, random } = this;
    return { scheduler, kernel, story, random };
  }

  forEngine(heard: Pick<EngineWorld, "leaseLost" | "maintenanceKills">): EngineWorld {
    const { kernel, story, mutant, blobs } = this;
    const { ahead: claimsAhead } = this.profile;
    return {
      kernel,
      story,
      mutant,
      blobs,
      claimsAhead,
      ...heard,
      storeFor: (process, thread) => this.storeFor(process, thread),
    };
  }

  byPid(pid: number): SimProcess | null {
    return this.processes[pid - 1] ?? null;
  }

  troubleAll(forMs: number): void {
    for (const process of this.processes) if (process.alive) process.trouble(forMs);
  }

  /** The store as one thread of a process has it: statements and group commits of its own, reached over a wire of its own. */
  storeFor(process: SimProcess, thread: Thread): Store {
    const random = process.random.fork(`store ${thread.name}`);
    const { scheduler, mutant } = this;
    // The store's own clock, whatever the process believes.
    const clock: Clock = { ...thread.clock, now: () => Math.floor(scheduler.wall) };
    const storeClock = mutant?.storeClock?.(clock, thread.clock) ?? clock;
    const sqlite = this.#sqlite(process.name, storeClock, random, idSource(clock, random));
    const real = this.profile.sessions ? withPollingBeats(sqlite) : sqlite;
    const wired = wire(mutant?.store?.(real, this.disk.db, clock) ?? real, {
      process,
      thread,
      scheduler,
      profile: this.profile,
      conditions: this.conditions,
      faults: this.faults,
      witness: this.witness,
      wakeups: this.wakeups,
      othersAwake: () => this.processes.some((one) => one.isWorker && one !== process && one.alive && !one.paused),
      aboutToRecover: (pid) => this.ambush(this.processes[pid - 1]!, 1, BEFORE_RECOVERY),
      claimLost: () => this.onClaimLost(process),
    });
    const asked = mutant?.asks?.(wired) ?? wired;
    return this.profile.workloads.includes(sequels.name) ? withSequels(asked) : asked;
  }

  /** What `outlive recover --restored` does first, within this event: before any other process writes. */
  noticeRestore(): void {
    const { scheduler, mutant } = this;
    const clock: Clock = {
      now: () => Math.floor(scheduler.wall),
      mono: () => scheduler.now,
      after: (ms, task) => scheduler.at(scheduler.now + ms, null, task),
      soon: queueMicrotask,
    };
    const random = this.random.fork(`restore ${scheduler.now}`);
    const real = this.#sqlite("operator", clock, random, idSource(clock, random));
    void (mutant?.store?.(real, this.disk.db, clock) ?? real).upkeep.noticeRestore?.();
  }

  #sqlite(name: string, clock: Clock, random: SeededRandom, newId: () => string): Store {
    const { disk, mutant } = this;
    const connection = disk.connect(name);
    const db = mutant?.connection?.(connection) ?? connection;
    const mark = mutant?.mark?.(disk.markFile) ?? disk.markFile;
    return sqliteStore({ db, clock, random, newId, bootId: BOOT_ID, mark, wakeup: null });
  }
}

/** As on a server: the heartbeat of a worker that holds nothing polls, for the kinds of all workers. */
function withPollingBeats(store: Store): Store {
  return withVerbs(store, {
    async beat(worker, beat) {
      const answer = await store.beat(worker, beat);
      if (!answer.live || answer.held.count > 0 || beat.pollMs === undefined) return answer;
      const workers = await store.workers({});
      return { ...answer, pending: await store.upkeep.pending!(workers.flatMap(({ kinds }) => kinds)) };
    },
  });
}
