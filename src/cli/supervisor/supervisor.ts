// Keeps a number of worker processes alive. It records each death for the report, recovers the jobs at once, and
// refills the place after a growing delay. It runs no user code, so nothing that kills a worker kills it.
import { accessSync, constants as modes } from "node:fs";
import { constants } from "node:os";
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../../engine/engine.ts";
import { whyStoreReplaced } from "../../job/errors.ts";
import type { Logger } from "../../log.ts";
import { describeProcess, type LivenessTimes } from "../../stores/liveness.ts";
import type { Share } from "../../engine/work.ts";
import { exitCodeOf } from "../terminal.ts";
import { Child, evidenceOf, type Exit, type WorkOrder } from "./child.ts";
import type { FleetMetrics } from "./http.ts";
import { ModuleWatch } from "./job-modules.ts";
import { counted } from "../../job/text.ts";

interface SupervisorOptions {
  readonly processes: number;
  readonly order: Omit<WorkOrder, "place" | "share">;
  readonly execArgv: readonly string[];
  readonly times: LivenessTimes;
  /** How long jobs may finish when modules have changed. */
  readonly watchGraceMs: number;
  readonly metrics: FleetMetrics | null;
  /** Receives what the worker processes write to stderr. */
  readonly stderr: (lines: string) => void;
}

/**
 * How long a child may take to leave after the grace before it is killed: its last settlements may wait for the store.
 */
const LEAVE_MS = 10_000;
/** Who recovered, in events and reports. */
const BY = "supervisor";
/** How many processes send requests, at most. */
const MOST_SENDING = 2;
/** After a second signal, how long the recovery of killed workers may take. */
const LAST_RECOVERY_MS = 2_000;

export class Supervisor {
  readonly #engine: Engine;
  readonly #log: Logger;
  readonly #options: SupervisorOptions;
  readonly #children = new Set<Child>();
  readonly #places: Promise<void>[] = [];
  readonly #stopping = new AbortController();
  readonly #storeWatch: StoreWatch;
  readonly #modules: ModuleWatch | null;
  /** Aborted and replaced with every change of the modules. */
  #changed = new AbortController();
  #everReady = false;
  #exitCode = 0;
  readonly #signals = new StopSignals();

  constructor(engine: Engine, log: Logger, options: SupervisorOptions) {
    this.#engine = engine;
    this.#log = log;
    this.#options = options;
    this.#storeWatch = new StoreWatch(options.times.leaseMs);
    this.#modules = options.order.watch ? new ModuleWatch(options.order.globs, (files) => this.#restart(files)) : null;
  }

  get children(): readonly Child[] {
    return [...this.#children];
  }

  /** Why no work is done here; null: work is being done. */
  unready(): string | null {
    if (this.#stopping.signal.aborted) return "draining";
    return this.children.some(({ ready }) => ready) ? null : "no worker process is working";
  }

  /** Resolves with an exit code when everything has ended: by a signal, or because nothing could ever start. */
  async run(): Promise<number> {
    const { processes, times } = this.#options;
    const signalled = (signal: NodeJS.Signals): void => this.#signalled(signal);
    // Never removed: a repeated signal must not kill this process while it closes its store.
    process.on("SIGTERM", signalled).on("SIGINT", signalled);
    await this.#modules?.start();
    const repeated = [
      this.#repeat(Math.min(5_000, times.leaseMs / 8), () => this.#checkStore()),
      this.#repeat(Math.min(times.heartbeatMs, times.leaseMs / 4), () => this.#recover()),
    ];
    try {
      for (let place = 1; place <= processes; place++) this.#places.push(this.#fill(place, "handlers"));
      // Those of requests are added while the others are filled.
      for (let filled = 0; filled < this.#places.length;) {
        filled = this.#places.length;
        await Promise.all(this.#places);
      }
    } finally {
      this.#stopping.abort();
      this.#modules?.close();
    }
    await Promise.race([Promise.all(repeated), pause(LAST_RECOVERY_MS, undefined, { ref: false })]);
    return this.#exitCode;
  }

  /**
   * Requests run in separate processes: a handler that keeps the event loop busy would delay thousands of them, and one that kills its process would make
   * their outcomes unknown. Two, so that one continues when the other dies.
   */
  #sendsApart(): void {
    const { processes } = this.#options;
    if (this.#places.length > processes || this.#stopping.signal.aborted) return;
    for (let one = 1; one <= Math.min(MOST_SENDING, processes); one++)
      this.#places.push(this.#fill(processes + one, "requests"));
  }

  /** One place: starts one process after another until everything has ended. */
  async #fill(place: number, share: Share): Promise<void> {
    const delay = new RestartDelay();
    while (!this.#stopping.signal.aborted) {
      const change = this.#changed.signal;
      const child = this.#start(place, share);
      const exit = await child.exited;
      this.#children.delete(child);
      this.#options.metrics?.addEnded(child);
      if (child.drained) {
        this.#log.info(`worker ${place} (pid ${child.pid}) has drained and stopped`, { place, pid: child.pid });
        continue;
      }
      await this.#died(child, exit);
      if (this.#stopping.signal.aborted) return;
      if (child.failed?.isFinal) return this.#giveUp(child.failed);
      if (child.failed && this.#modules) await this.#untilChanged(change);
      else if (child.failed && !this.#everReady) return this.#giveUp(child.failed);
      else await this.#wait(delay.next(exit.upMs), place);
    }
  }

  #start(place: number, share: Share): Child {
    const { order, execArgv, stderr } = this.#options;
    const child = new Child({ ...order, place, share }, execArgv, {
      ready: (it, kinds, sent) => {
        this.#everReady = true;
        if (sent.length > 0) this.#sendsApart();
        this.#log.info(`worker ${place} (pid ${it.pid}) works on ${kinds.join(", ")}`, { place, pid: it.pid, kinds });
      },
      loaded: (files) => this.#modules?.loaded(files),
      wrote: stderr,
    });
    this.#children.add(child);
    return child;
  }

  /** Records what is known about the death for the report, and recovers what the child held at once. */
  async #died(child: Child, exit: Exit): Promise<void> {
    const { place, pid, failed } = child;
    const how = evidenceOf(exit);
    if (failed) {
      const what = child.ready ? "gave up" : "could not start";
      this.#log.error(`worker ${place} (pid ${pid}) ${what}: ${failed.message}`, { place, pid });
    } else this.#log.warn(`worker ${place} (pid ${pid}) died after ${seconds(exit.upMs)}: ${how}`, { place, pid, how });
    try {
      await within(LAST_RECOVERY_MS, this.#stopping.signal, this.#recoverDead(child, how, exit.endedMono));
    } catch (thrown) {
      this.#log.warn(`the death of worker ${place} could not be recovered yet: ${message(thrown)}`, { place, pid });
    }
  }

  /** Recorded on its newest worker that is in the store. A registration may have failed, or the death cut it short. */
  async #recoverDead({ workers }: Child, how: string, endedMono: number): Promise<void> {
    for (const worker of workers.toReversed()) {
      const what = `${how} (${describeProcess(worker)})`;
      if (await this.#engine.operator.noteDeath(worker.worker, what, { agoMs: performance.now() - endedMono })) break;
    }
    await this.#engine.operator.recover({ by: BY, periodic: true });
  }

  async #wait(delayMs: number, place: number): Promise<void> {
    this.#log.info(`worker ${place} restarts in ${seconds(delayMs)}`, { place, delayMs });
    const signal = AbortSignal.any([this.#stopping.signal, this.#changed.signal]);
    await pause(delayMs, undefined, { signal }).catch(() => {});
  }

  async #untilChanged(change: AbortSignal): Promise<void> {
    this.#log.info("waiting until a module changes");
    const signal = AbortSignal.any([this.#stopping.signal, change]);
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  }

  /** Nothing has ever worked, or the store is not the one that was opened: a retry would fail the same way. */
  #giveUp({ exitCode }: { readonly exitCode: number }): void {
    this.#exitCode = exitCode;
    this.#drain();
  }

  // ---- signals and changes

  #signalled(signal: NodeJS.Signals): void {
    switch (this.#signals.heard(performance.now())) {
      case "first": {
        const grace = seconds(this.#options.order.graceMs);
        this.#log.info(
          `${signal}: ${counted(this.#children.size, "worker drains", "workers drain")}, for at most ${grace}; a second signal ends ${this.#children.size === 1 ? "it" : "them"} at once`,
        );
        return this.#drain();
      }
      case "same":
        return;
      case "again":
        this.#log.warn(`${signal} again: the workers are ended at once`);
        this.#exitCode = 128 + constants.signals[signal];
        for (const child of this.#children) child.kill("it was asked to end at once");
    }
  }

  #drain(): void {
    const { graceMs } = this.#options.order;
    this.#stopping.abort();
    for (const child of this.#children) leave(child, graceMs);
  }

  /** Every child drains, which costs its jobs nothing, and its place is filled with the new modules. */
  #restart(files: readonly string[]): void {
    if (this.#stopping.signal.aborted) return;
    this.#log.info(`${files.length === 1 ? files[0] : `${files.length} modules`} changed: the workers restart`);
    this.#changed.abort();
    this.#changed = new AbortController();
    for (const child of this.#children) leave(child, this.#options.watchGraceMs);
  }

  // ---- checks

  /** A child that blocks the store, or has no live worker, for a whole lease is useless. */
  async #checkStore(): Promise<void> {
    const { leaseMs } = this.#options.times;
    const [holder, workers] = await Promise.all([this.#engine.operator.writer(), this.#engine.workers()]);
    const mono = performance.now();
    // By the ids that the children reported: a worker of another namespace may have the same pid.
    const rows = new Map(workers.map((row) => [row.id, row]));
    const beats = new Map<number, number>();
    for (const { pid, workers: own } of this.#children)
      beats.set(
        pid,
        own.reduce((sum, { worker }) => sum + (rows.get(worker)?.beats ?? 0), 0),
      );
    const blocks = this.#storeWatch.check({ holder: holder?.pid ?? null, beats, mono });
    for (const child of this.#children) {
      if (child.pid === blocks?.pid) child.kill(`it blocked the store for ${seconds(blocks.forMs)}`);
      if (!child.ready || child.workers.some(({ worker }) => rows.get(worker)?.state === "live"))
        child.livedMono = mono;
      else if (mono - child.livedMono > leaseMs)
        child.kill(`it showed no sign of life for ${seconds(mono - child.livedMono)}`);
    }
  }

  async #recover(): Promise<void> {
    await this.#engine.operator.recover({ by: BY, periodic: true });
  }

  /** A replaced store is not this supervisor's: it would watch workers that it can't see. */
  #lookFailed(thrown: unknown): void {
    if (whyStoreReplaced(thrown) === null)
      return this.#log.warn(`the supervisor's check of the store failed: ${message(thrown)}`);
    if (this.#stopping.signal.aborted) return;
    this.#log.error(`the supervisor gives up: ${message(thrown)}`);
    this.#giveUp({ exitCode: exitCodeOf(thrown) });
  }

  async #repeat(everyMs: number, task: () => Promise<void>): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await task().catch((thrown: unknown) => this.#lookFailed(thrown));
      await pause(everyMs, undefined, { signal }).catch(() => {});
    }
  }
}

/** Asks the child to drain, and kills it if it does not stop. */
function leave(child: Child, graceMs: number): void {
  child.stop(graceMs);
  const timer = setTimeout(() => child.kill("it did not stop within the grace"), graceMs + LEAVE_MS);
  void child.exited.then(() => clearTimeout(timer));
}

/** Waits without limit in normal operation, and for `ms` once `hurry` is aborted. */
async function within(ms: number, hurry: AbortSignal, work: Promise<void>): Promise<void> {
  work.catch(() => {});
  const late = new Promise<void>((resolve) => {
    const start = (): void => void setTimeout(resolve, ms).unref();
    if (hurry.aborted) start();
    else hurry.addEventListener("abort", start, { once: true });
  });
  await Promise.race([work, late]);
}

function seconds(ms: number): string {
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${Math.round(ms / 100) / 10} s`;
}

function message(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}

// How long a place stays empty after a death. The delay grows, so that a process that dies at its start does not
// overload the machine, and resets after a minute of running well.

const FIRST_MS = 100;
const LONGEST_MS = 30_000;
const GOOD_RUN_MS = 60_000;

export class RestartDelay {
  #nextMs = FIRST_MS;

  /** The delay after a life of `upMs`. */
  next(upMs: number): number {
    if (upMs >= GOOD_RUN_MS) this.#nextMs = FIRST_MS;
    const delayMs = this.#nextMs;
    this.#nextMs = Math.min(LONGEST_MS, delayMs * 2);
    return delayMs;
  }
}

// Finds a process that blocks the store: it holds the write lock at every check for a whole lease, while its own
// heartbeat, which needs that lock, does not move. A process that only writes a lot sends heartbeats in between. The
// caller passes in checks and clock.

interface StoreSample {
  /** The process that currently holds the write lock; null: none. */
  readonly holder: number | null;
  /** The heartbeat count of each process's workers. */
  readonly beats: ReadonlyMap<number, number>;
  readonly mono: number;
}

export class StoreWatch {
  readonly #leaseMs: number;
  #since: { readonly holder: number; readonly beats: number; readonly mono: number } | null = null;

  constructor(leaseMs: number) {
    this.#leaseMs = leaseMs;
  }

  /** Which process has blocked the store for a lease, and how long; null: none. */
  check({ holder, beats, mono }: StoreSample): { readonly pid: number; readonly forMs: number } | null {
    if (holder === null) {
      this.#since = null;
      return null;
    }
    const beaten = beats.get(holder) ?? 0;
    if (this.#since?.holder !== holder || this.#since.beats !== beaten) {
      this.#since = { holder, beats: beaten, mono };
      return null;
    }
    const forMs = mono - this.#since.mono;
    return forMs >= this.#leaseMs ? { pid: holder, forMs } : null;
  }
}

// Running as the first process of a container (PID 1). The kernel reparents every orphan to it, and Node reaps only the
// children that it started itself, so dead orphans would pile up. A small shell therefore takes the place of PID 1: it
// reaps all of them, forwards signals, and exits as the supervisor exits. Where there is no shell, the supervisor
// itself stays PID 1 and only the reaping is missing.

const SHELL = "/bin/sh";
// `wait` returns early when a trapped signal arrives; if the supervisor is still alive, the shell waits again.
const SCRIPT = `
"$@" &
child=$!
trap 'kill -TERM $child' TERM
trap 'kill -INT $child' INT
while :; do
  wait $child
  code=$?
  kill -0 $child 2>/dev/null || exit $code
done`;

/** If this process is PID 1, a shell takes over and starts this same command again as its child. Otherwise nothing happens. */
export function becomeInit(): void {
  if (process.pid !== 1 || typeof process.execve !== "function") return;
  try {
    accessSync(SHELL, modes.X_OK);
  } catch {
    return;
  }
  const again = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
  process.execve(SHELL, ["sh", "-c", SCRIPT, "sh", ...again], environment());
}

function environment(): Record<string, string> {
  return Object.fromEntries(Object.entries(process.env).filter((entry): entry is [string, string] => !!entry[1]));
}

// What a stop signal means. Terminals, npm, process managers and a container's init often send one twice, once to the
// process and once to its group: two within 500 ms are one request. A deliberate second signal comes later.

const SAME_MS = 500;

export class StopSignals {
  #firstMono: number | null = null;

  /** `first`: stop and let running jobs finish. `same`: a duplicate. `again`: end at once. */
  heard(mono: number): "first" | "same" | "again" {
    if (this.#firstMono === null) {
      this.#firstMono = mono;
      return "first";
    }
    return mono - this.#firstMono < SAME_MS ? "same" : "again";
  }
}
