// `outlive work` as a user runs it: a real supervisor with real worker processes, heard by its JSON log, and never left behind.
// Heartbeats are 1 s and the lease is 20 s: a busy machine must not look like a death. Tests about silence shorten them.
import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, readlinkSync, realpathSync } from "node:fs";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { killTrees, Place, untilTrue } from "../support/processes.ts";

export interface LogLine {
  readonly level: string;
  readonly message: string;
  readonly [key: string]: unknown;
}

export const BIN = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));
export const JOBS = fileURLToPath(new URL("../support/jobs.ts", import.meta.url));
export const KILL_AT = fileURLToPath(new URL("../support/kill-at.ts", import.meta.url));

/** For tests that wait for a lease to run out. */
export const SHORT_LEASE = { OUTLIVE_HEARTBEAT_INTERVAL: "300ms", OUTLIVE_HEARTBEAT_LEASE: "2s" } as const;

export class Supervised {
  readonly process: ChildProcess;
  readonly lines: LogLine[] = [];
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** What was not a line of the log. */
  other = "";

  constructor(child: ChildProcess) {
    this.process = child;
    let rest = "";
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop()!;
      for (const line of lines) this.#heard(line);
    });
    this.exited = new Promise((resolve) => child.on("exit", (code, signal) => resolve({ code, signal })));
  }

  #heard(line: string): void {
    if (line.startsWith("{")) this.lines.push(JSON.parse(line) as LogLine);
    else this.other += `${line}\n`;
  }

  /** The pids of the worker processes that ever worked, in the order in which they began. */
  get pids(): number[] {
    return this.lines.filter(({ message }) => / works on /.test(message)).map(({ pid }) => Number(pid));
  }

  /** The lines that match, as soon as there are `count` of them. */
  async said(pattern: RegExp, count = 1): Promise<LogLine[]> {
    const all = await untilTrue(
      () => this.lines.filter(({ message }) => pattern.test(message)),
      (found) => found.length >= count || this.hasEnded,
      `${count} line(s) like ${pattern}; heard:\n${this.lines.map(({ message }) => message).join("\n")}\n${this.other}`,
    );
    if (all.length >= count) return all;
    throw new Error(
      `it ended before it said ${pattern}:\n${this.lines.map((line) => line.message).join("\n")}\n${this.other}`,
    );
  }

  /** As soon as so many worker processes have begun to work. */
  async working(count = 1): Promise<number[]> {
    await this.said(/ works on /, count);
    return this.pids;
  }

  get hasEnded(): boolean {
    return this.process.exitCode !== null || this.process.signalCode !== null;
  }

  kill(signal: NodeJS.Signals): void {
    this.process.kill(signal);
  }
}

export interface FleetOptions {
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Default: the jobs of test/support. */
  readonly globs?: readonly string[];
  /** Runs the command, instead of this Node alone. */
  readonly under?: readonly string[];
}

/** A place for a database, and the supervisors on it. */
export class Fleet {
  readonly place: Place;
  readonly effects: string;
  readonly #supervised: Supervised[] = [];

  constructor(t: TestContext) {
    // Before the place's own clean-up, which removes the folder.
    t.after(async () => {
      for (const it of this.#supervised) {
        // Workers whose supervisor has ended are not its children any more. Their pids may be those of other processes by now.
        const workers = it.pids.filter((pid) => isIn(this.place.folder, pid));
        await killTrees(it.hasEnded ? workers : [it.process.pid!, ...workers]);
        await it.exited;
      }
    });
    this.place = new Place(t);
    this.effects = join(this.place.folder, "effects.txt");
  }

  work({ args = [], env = {}, globs = [JOBS], under = [] }: FleetOptions = {}): Supervised {
    mkdirSync(this.place.folder, { recursive: true });
    const command = [
      ...under,
      process.execPath,
      "--disable-warning=ExperimentalWarning",
      BIN,
      "work",
      ...globs,
      "--log",
      "json",
      ...args,
    ];
    const child = spawn(command[0]!, command.slice(1), {
      cwd: this.place.folder,
      stdio: ["ignore", "inherit", "pipe"],
      env: {
        ...process.env,
        OUTLIVE_STORE: this.place.url,
        OUTLIVE_EFFECTS: this.effects,
        OUTLIVE_HEARTBEAT_INTERVAL: "1s",
        OUTLIVE_HEARTBEAT_LEASE: "20s",
        OUTLIVE_HEARTBEAT_PROBE: "50ms",
        ...env,
      },
    });
    const supervised = new Supervised(child);
    this.#supervised.push(supervised);
    return supervised;
  }
}

function isIn(folder: string, pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === realpathSync(folder);
  } catch {
    return false;
  }
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

export function untilGone(pid: number): Promise<unknown> {
  return untilTrue(
    () => isAlive(pid),
    (alive) => !alive,
    `process ${pid} is gone`,
  );
}
