// Worker processes whose places are filled again when one is killed.
import { type ChildProcess, fork } from "node:child_process";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import type { Chance } from "../../../src/torture/killer.ts";
import { atEnd } from "../../../src/torture/run.ts";
import { instant } from "./kinds.ts";

const STOPPED_WITHIN_MS = 20_000;

export interface WorkersOptions {
  readonly url: string;
  /** For the histories, one of each process. */
  readonly folder: string;
  readonly count: number;
  /** The module of their kinds. Default: kinds.ts. */
  readonly kinds?: URL;
  readonly env?: Readonly<Record<string, string>>;
  /** The number of the first one. Default 1. */
  readonly first?: number;
}

export class Workers {
  /** By the number of the process: the instant before the signal was sent. */
  readonly killedAt = new Map<number, number>();
  /** How many writes of theirs were refused because their jobs had other owners. */
  rejected = 0;
  readonly #options: WorkersOptions;
  readonly #living = new Map<ChildProcess, number>();
  #started: number;
  #hasEnded = false;

  constructor(options: WorkersOptions) {
    this.#options = options;
    this.#started = (options.first ?? 1) - 1;
    atEnd(() => this.destroy());
  }

  /** Resolves when all of the first ones work. */
  async start(): Promise<void> {
    const first = Array.from({ length: this.#options.count }, () => this.#fill());
    await Promise.all(first.map((child) => new Promise((resolve) => child.once("message", resolve))));
  }

  killOne(chance: Chance): void {
    const victim = chance.pick([...this.#living.keys()]);
    if (victim) this.#kill(victim);
  }

  /** Kills the process with this id; false: it is not one of these. */
  kill(pid: number): boolean {
    const victim = [...this.#living.keys()].find((child) => child.pid === pid);
    if (victim) this.#kill(victim);
    return victim !== undefined;
  }

  /** They are not replaced. Resolves when no process is left. */
  async killAll(): Promise<void> {
    this.#hasEnded = true;
    const exits = this.#exits();
    for (const child of this.#living.keys()) this.#kill(child);
    await exits;
  }

  async stop(): Promise<void> {
    this.#hasEnded = true;
    const exits = this.#exits();
    for (const child of this.#living.keys()) child.kill("SIGTERM");
    await Promise.race([exits, pause(STOPPED_WITHIN_MS, undefined, { ref: false })]);
    this.destroy();
  }

  destroy(): void {
    this.#hasEnded = true;
    for (const child of this.#living.keys()) child.kill("SIGKILL");
  }

  #exits(): Promise<unknown> {
    return Promise.all([...this.#living.keys()].map((child) => new Promise((resolve) => child.once("exit", resolve))));
  }

  #kill(child: ChildProcess): void {
    const number = this.#living.get(child)!;
    // A second signal changes nothing.
    if (!this.killedAt.has(number)) this.killedAt.set(number, instant());
    child.kill("SIGKILL");
  }

  #fill(): ChildProcess {
    const { url, folder, kinds = new URL("./kinds.ts", import.meta.url), env } = this.#options;
    const number = ++this.#started;
    const child = fork(fileURLToPath(new URL("./worker.ts", import.meta.url)), [url, kinds.href], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      env: {
        ...process.env,
        // Without it two thirds of the CPU of a start went into compiling the sources.
        NODE_COMPILE_CACHE: join(folder, "compiled"),
        ...env,
        OUTLIVE_FEATURES_HISTORY: join(folder, `${number}.history`),
        OUTLIVE_FEATURES_PROCESS: String(number),
      },
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    this.#living.set(child, number);
    child.on("message", (fact) => fact === "rejected" && this.rejected++);
    child.once("exit", () => {
      this.#living.delete(child);
      if (!this.#hasEnded) this.#fill();
    });
    return child;
  }
}
