// Does harm, at random moments and to random processes, until the conditions is calm.
import type { Backup } from "./disk.ts";
import type { SimProcess } from "./process.ts";
import type { SeededRandom } from "./random.ts";
import type { Supervisor } from "./supervisor.ts";
import { type Act, CONTACT_MS, HEARTBEAT_MS, LEASE_MS } from "./profile.ts";
import type { World } from "./world.ts";

const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;
/** What is not synced is at most this old. */
const SYNC_WITHIN_MS = 2_500;
/** A watcher holds back when its own heartbeat is older than this. */
const OWN_SILENCE_MS = 1.5 * HEARTBEAT_MS;
/** A backup is taken so often. */
const BACKUP_WITHIN_MS = 2_000;
/** After a sleep of the machine its processes go on one after the other. */
const WAKES_WITHIN_MS = 20;
/** Share of claims with a lost answer after which their worker is deployed. */
const DEPLOY_UNKNOWING = 0.3;

/** Hears what the disk lost. */
export interface Hears {
  /** All processes are dead and the disk has lost what it lost. */
  readonly powerLost: () => void;
  /** The store is a copy of this time (virtual ms), and processes live. */
  readonly restored: (takenAt: number) => void;
}

export class Nemesis {
  readonly #world: World;
  readonly #supervisor: Supervisor;
  readonly #random: SeededRandom;
  readonly #heard: Hears;
  /** Copies of the store as it is now, the latest last. */
  #backups: Backup[] = [];

  constructor(world: World, supervisor: Supervisor, heard: Hears) {
    this.#world = world;
    this.#supervisor = supervisor;
    this.#random = world.random.fork("nemesis");
    this.#heard = heard;
  }

  start(): void {
    if (this.#world.profile.durability === "relaxed") this.#syncNowAndThen(this.#world.random.fork("sync"));
    if (this.#world.profile.nemesis.restore > 0) this.#backUpNowAndThen(this.#world.random.fork("backup"));
    if (this.#world.profile.nemesis.deploy > 0) this.#world.onClaimLost = (process) => this.#deployUnknowing(process);
    this.#next();
  }

  /** Who has to leave with jobs of which it has not heard is seldom met by chance. */
  #deployUnknowing(process: SimProcess): void {
    const { random, scheduler, faults, conditions } = this.#world;
    const slot = this.#supervisor.workers.findIndex((running) => running?.process === process);
    const own = random.fork(`unknowing ${scheduler.now}`);
    if (slot < 0 || !own.chance(DEPLOY_UNKNOWING) || !faults.strikes("deploy", "nemesis")) return;
    scheduler.at(scheduler.now + own.next() * 20, null, () => {
      if (!conditions.calm) this.#supervisor.deploy(slot, own.pick([0, 200]));
    });
  }

  #next(): void {
    const { scheduler, profile, conditions } = this.#world;
    const sum = Object.values(profile.nemesis).reduce((all, weight) => all + weight, 0);
    if (sum === 0) return;
    scheduler.at(scheduler.now + this.#random.next() * 2 * profile.nemesisEveryMs, null, () => {
      if (conditions.calm) return;
      this.#act(this.#random.weighted(profile.nemesis), this.#random.fork(`act ${scheduler.now}`));
      this.#next();
    });
  }

  #act(act: Act, random: SeededRandom): void {
    const { faults, disk, scheduler, conditions, story } = this.#world;
    const { workers } = this.#supervisor;
    const slot = random.below(workers.length);
    const other = random.next();
    const { producer, twin, console, signaller } = this.#supervisor;
    const victim =
      other < 0.06
        ? other < 0.03 && twin
          ? twin
          : producer
        : other < 0.12
          ? other < 0.08 && signaller
            ? signaller
            : console
          : workers[slot]?.process;
    const forMs = random.between(5, 0.8 * LEASE_MS);
    if (!faults.strikes(act, "nemesis")) return;
    switch (act) {
      case "kill":
        return victim?.kill("nemesis");
      case "killAll":
        for (const running of workers) running?.process.kill("nemesis");
        return;
      case "pause":
        if (victim?.alive) this.#world.tally.pauses++;
        return victim?.pause(random.pick([0.2, 1, 1.3, 2, 4]) * LEASE_MS * random.between(0.7, 1.3));
      case "suspend":
        return this.#suspend(random);
      case "block":
        return victim?.block(random.between(0.3, 2) * LEASE_MS);
      case "clockJump":
        return victim?.alive ? victim.jumpClock(jump(random, random.pick([2_000, 3_600_000, DAY_MS]))) : undefined;
      case "hostClockJump":
        return this.#jumpHostClock(random);
      case "busy":
        story.tell("world", `THE FILE IS BUSY for ${Math.round(forMs)} ms`);
        disk.busyUntil = Math.max(disk.busyUntil, scheduler.now + forMs);
        return this.#world.troubleAll(forMs);
      case "fullDisk":
        story.tell("world", `THE DISK IS FULL for ${Math.round(forMs)} ms`);
        disk.fullUntil = scheduler.now + forMs;
        return this.#world.troubleAll(forMs);
      case "storeRestart":
        story.tell("world", `THE STORE RESTARTS and is back in ${Math.round(forMs)} ms`);
        conditions.downUntil = scheduler.now + forMs;
        conditions.restarts++;
        return this.#world.troubleAll(forMs);
      case "cut":
        return victim?.cutOff(random.pick([0.3, 1.2, 2, 6]) * CONTACT_MS * random.between(0.7, 1.3));
      case "blockStore":
        return this.#blockStore(LEASE_MS * random.between(1.2, 2.5));
      case "restore":
        return this.#restore(random);
      case "powerLoss":
        return this.#losePower();
      case "deploy":
        return this.#supervisor.deploy(slot, random.pick([0, 200, 2_000, 2.5 * LEASE_MS]));
    }
  }

  /** The whole machine sleeps for longer than a lease: who watches slept as long as who is watched. */
  #suspend(random: SeededRandom): void {
    const { story, processes, profile } = this.#world;
    const forMs = LEASE_MS * random.between(1.1, 3);
    story.tell("world", `THE MACHINE SLEEPS for ${Math.round(forMs)} ms`);
    // After a loss of power it is not known what the clock said before it: see docs.
    if (random.chance(0.5) && profile.durability === "full") this.#jumpHostClock(random);
    for (const process of processes) process.pause(forMs + random.next() * WAKES_WITHIN_MS);
  }

  /** Another process holds the write lock for longer than a lease: no worker can beat, and no watcher either. */
  #blockStore(forMs: number): void {
    const { story, disk, scheduler, processes } = this.#world;
    const from = scheduler.now;
    story.tell("world", `NOBODY CAN WRITE for ${Math.round(forMs)} ms`);
    disk.busyUntil = Math.max(disk.busyUntil, from + forMs);
    this.#world.troubleAll(forMs);
    // The calm ends it sooner.
    scheduler.at(from + forMs, null, () => {
      const to = Math.min(scheduler.now, this.#world.conditions.calmAt ?? Infinity);
      for (const process of processes) process.sleeps.push({ from, to, unnoticedMs: OWN_SILENCE_MS });
    });
  }

  #jumpHostClock(random: SeededRandom): void {
    const { story, scheduler } = this.#world;
    // Back by hours, and what is delayed would be due in hours.
    const byMs = random.chance(0.4) ? random.between(1, 3) * HOUR_MS : jump(random, 20_000);
    story.tell("world", `THE HOST'S CLOCK JUMPS by ${Math.round(byMs)} ms`);
    scheduler.wallJumpMs += byMs;
  }

  #losePower(): void {
    const { story, disk, processes, scheduler, tally } = this.#world;
    story.tell("world", `POWER LOST; what came after ${disk.syncedAt.toFixed(3)} is not on the disk`);
    for (const process of processes) process.kill("nemesis");
    disk.losePower();
    tally.powerLosses++;
    this.#heard.powerLost();
    disk.syncedAt = scheduler.now;
  }

  #backUpNowAndThen(random: SeededRandom): void {
    const { scheduler, disk, conditions } = this.#world;
    scheduler.at(scheduler.now + random.next() * BACKUP_WITHIN_MS, null, () => {
      if (conditions.calm) return;
      const backup = disk.backup();
      if (backup) this.#backups.push(backup);
      this.#backUpNowAndThen(random);
    });
  }

  /**
   * An older copy is put in the place of the store, and processes live. If it is written into the file itself, only its epoch shows that
   * to processes that come later, and its rows show it to no worker that did nothing since the backup: so the copy is older than the latest
   * epoch, and the person who does it runs `outlive recover --restored` before any other process writes, as the docs say.
   */
  #restore(random: SeededRandom): void {
    const { disk, story, scheduler, tally } = this.#world;
    const over = random.chance(0.5);
    const chosen = random.next();
    const backup = this.#backups[Math.floor(chosen * this.#backups.length)];
    if (!backup || scheduler.now < Math.max(disk.busyUntil, disk.fullUntil)) return;
    const way = over && backup.epoch < (disk.mark?.epoch ?? 0) ? "over" : "moved";
    story.tell(
      "world",
      `RESTORED to ${backup.takenAt.toFixed(3)}, ${way === "over" ? "written over the file" : "as another file"}`,
    );
    disk.restore(backup, way);
    // What was copied since then is of a store that is not there any more.
    this.#backups = [];
    tally.restores++;
    this.#world.restoredAt = scheduler.now;
    this.#world.troubleAll(0);
    this.#heard.restored(backup.takenAt);
    if (way === "over") this.#world.noticeRestore();
  }

  #syncNowAndThen(random: SeededRandom): void {
    const { scheduler, disk } = this.#world;
    scheduler.at(scheduler.now + random.next() * SYNC_WITHIN_MS, null, () => {
      disk.sync();
      this.#syncNowAndThen(random);
    });
  }
}

function jump(random: SeededRandom, most: number): number {
  return random.between(-most, most);
}
