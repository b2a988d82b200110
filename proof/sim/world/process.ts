// A simulated process: a main thread, a maintenance thread, and what dies with them. Killed, it does nothing more: no timer fires,
// no call it made is answered or carried out. Paused, it keeps its memory and knows nothing of the time that passes.
import type { Kernel } from "./kernel.ts";
import type { SeededRandom } from "./random.ts";
import type { Scheduler } from "./scheduler.ts";
import type { Story } from "./story.ts";
import { Thread } from "./thread.ts";

/** Why a process died: by the nemesis, by a job that kills, by its own decision (an error at start, a blocked loop), or in peace. */
export type DeathCause = "nemesis" | "poison" | "itself" | "ended";

export class SimProcess {
  readonly name: string;
  readonly pid: number;
  readonly random: SeededRandom;
  readonly main: Thread;
  readonly maintenance: Thread;
  readonly bornAt: number;
  alive = true;
  cause: DeathCause | null = null;
  /** When the main loop was blocked, if it is. */
  blockedAt: number | null = null;
  /** It was asked to stop, and claims nothing more. */
  isLeaving = false;
  /** Hears that its connections are back. */
  onReconnect: () => void = () => {};
  /** How wrong its own wall clock is. */
  clockErrorMs = 0;
  /** Until when the latest harm to it lasted: a process that was left alone for longer is in good health. */
  troubledUntil = 0;
  /** Answers of applied writes that are on their way here: if it dies now, it will never know. */
  undelivered = 0;
  /**
   * When it was stopped, by SIGSTOP or with its whole machine, or when no process could write. `unnoticedMs`: how long that may last before
   * a watcher notices it, and what it watches until then counts.
   */
  readonly sleeps: { readonly from: number; readonly to: number; readonly unnoticedMs?: number }[] = [];
  /** When its connections were cut, although it lived. */
  readonly cuts: { readonly from: number; to: number }[] = [];
  readonly #scheduler: Scheduler;
  readonly #kernel: Kernel;
  readonly #story: Story;
  readonly #hosts: number;
  readonly #mourners: ((cause: DeathCause) => void)[] = [];
  #paused = false;
  #pausedAt = 0;

  /** `punctual`: a source of lateness for its timers, instead of chance. */
  constructor(
    name: string,
    pid: number,
    world: { scheduler: Scheduler; kernel: Kernel; story: Story; random: SeededRandom; hosts?: number },
    punctual: Pick<SeededRandom, "next"> | null = null,
  ) {
    this.name = name;
    this.pid = pid;
    this.#scheduler = world.scheduler;
    this.#kernel = world.kernel;
    this.#story = world.story;
    this.#hosts = world.hosts ?? 1;
    this.random = world.random.fork(`process ${pid}`);
    const monoOrigin = this.random.below(1_000_000);
    this.bornAt = this.troubledUntil = world.scheduler.now;
    this.main = new Thread(name, this, world.scheduler, punctual ?? this.random.fork("main"), monoOrigin);
    this.maintenance = new Thread(
      `${name}/maintenance`,
      this,
      world.scheduler,
      punctual ?? this.random.fork("maintenance"),
      monoOrigin,
    );
  }

  /** The host that it runs on, of those that the world has. */
  get host(): string {
    return `host-${this.pid % this.#hosts}`;
  }

  get isWorker(): boolean {
    return this.name.startsWith("w");
  }

  get paused(): boolean {
    return this.#paused;
  }

  onDeath(mourner: (cause: DeathCause) => void): void {
    this.#mourners.push(mourner);
  }

  kill(cause: DeathCause): void {
    if (!this.alive) return;
    this.#story.tell(this.name, cause === "ended" ? "ended" : `KILLED (${cause})`);
    this.alive = false;
    this.cause = cause;
    this.main.kill();
    this.maintenance.kill();
    this.#kernel.died(this);
    for (const mourner of this.#mourners) mourner(cause);
  }

  /** SIGSTOP for `ms`, then SIGCONT. */
  pause(ms: number): void {
    if (!this.alive || this.#paused) return;
    this.#story.tell(this.name, `PAUSED for ${Math.round(ms)} ms`);
    this.#paused = true;
    this.#pausedAt = this.#scheduler.now;
    this.trouble(ms);
    this.main.stop();
    this.maintenance.stop();
    this.#scheduler.at(this.#scheduler.now + ms, null, () => this.resume());
  }

  resume(): void {
    if (!this.alive || !this.#paused) return;
    this.#story.tell(this.name, "RESUMED");
    this.#paused = false;
    this.sleeps.push({ from: this.#pausedAt, to: this.#scheduler.now });
    this.trouble(0);
    this.maintenance.goOn();
    if (this.blockedAt === null) this.main.goOn();
  }

  /** The main loop stands still for `ms`; the maintenance thread goes on. */
  block(ms: number): void {
    if (!this.alive || this.blockedAt !== null || this.#paused) return;
    this.#story.tell(this.name, `BLOCKED for ${Math.round(ms)} ms`);
    this.blockedAt = this.#scheduler.now;
    this.main.stop();
    this.#scheduler.at(this.#scheduler.now + ms, null, () => {
      this.blockedAt = null;
      if (this.alive && !this.#paused) this.main.goOn();
    });
  }

  trouble(forMs: number): void {
    this.troubledUntil = Math.max(this.troubledUntil, this.#scheduler.now + forMs);
  }

  /** Its connections are reset, and refused for `ms`. */
  cutOff(ms: number): void {
    if (!this.alive || this.isCut) return;
    this.#story.tell(this.name, `CUT OFF for ${Math.round(ms)} ms`);
    const cut = { from: this.#scheduler.now, to: this.#scheduler.now + ms };
    this.cuts.push(cut);
    this.trouble(ms);
    this.#scheduler.at(cut.to, null, () => {
      // Ended before, by the calm.
      if (this.#scheduler.now === cut.to) this.onReconnect();
    });
  }

  get isCut(): boolean {
    const last = this.cuts.at(-1);
    return last !== undefined && this.#scheduler.now < last.to;
  }

  reconnect(): void {
    if (!this.isCut) return;
    this.cuts.at(-1)!.to = this.#scheduler.now;
    this.onReconnect();
  }

  /** Whether it was cut off for this long without a break, within the last `lately` ms: a takeover for that may still be on its way. */
  wasCutOffFor(ms: number, lately: number): boolean {
    const { now } = this.#scheduler;
    return this.cuts.some(({ from, to }) => Math.min(to, now) - from >= ms && now - to < lately);
  }

  /** Its own wall clock says something else from now on. */
  jumpClock(byMs: number): void {
    this.#story.tell(this.name, `ITS CLOCK JUMPS by ${Math.round(byMs)} ms`);
    this.clockErrorMs += byMs;
  }

  loopLagMs(): number {
    return this.blockedAt === null ? 0 : this.#scheduler.now - this.blockedAt;
  }
}
