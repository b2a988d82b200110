// `outlive work` with a real supervisor and real worker processes, heard by its log, and never left behind.
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { childrenOf, killTrees, untilTrue } from "../support/processes.ts";

const bin = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));
const jobs = fileURLToPath(new URL("../support/jobs.ts", import.meta.url));

export interface WorkOptions {
  readonly store: string;
  readonly folder: string;
  /** Default: this Node. */
  readonly node?: string;
  readonly nodeOptions?: readonly string[];
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export class Supervisors {
  readonly #started: Supervised[] = [];

  /** Made before anything that the supervisors use, so that they are gone first. */
  constructor(t: { after: (clean: () => Promise<void>) => void }) {
    t.after(async () => {
      for (const supervised of this.#started) await supervised.end();
    });
  }

  work({ store, folder, node = process.execPath, nodeOptions = [], args = [], env = {} }: WorkOptions): Supervised {
    const options = ["--disable-warning=ExperimentalWarning", ...nodeOptions];
    const child = spawn(node, [...options, bin, "work", jobs, "--log", "json", ...args], {
      cwd: folder,
      stdio: ["ignore", "inherit", "pipe"],
      env: {
        ...process.env,
        OUTLIVE_STORE: store,
        OUTLIVE_HEARTBEAT_INTERVAL: "300ms",
        OUTLIVE_HEARTBEAT_LEASE: "20s",
        OUTLIVE_HEARTBEAT_PROBE: "50ms",
        ...env,
      },
    });
    const supervised = new Supervised(child);
    this.#started.push(supervised);
    return supervised;
  }
}

export class Supervised {
  readonly lines: string[] = [];
  readonly #process: ChildProcess;
  readonly #ended: Promise<unknown>;

  constructor(process: ChildProcess) {
    this.#process = process;
    this.#ended = once(process, "exit");
    createInterface(process.stderr!).on("line", (line) => this.lines.push(line));
  }

  said(pattern: RegExp): string[] {
    return this.lines.filter((line) => pattern.test(line));
  }

  async untilSaid(pattern: RegExp, count = 1): Promise<void> {
    const enough = (found: string[]): boolean => found.length >= count || this.#process.exitCode !== null;
    await untilTrue(() => this.said(pattern), enough, `${count} x ${pattern} in:\n${this.lines.join("\n")}`);
    if (this.said(pattern).length < count) throw new Error(`it ended:\n${this.lines.join("\n")}`);
  }

  /** Every process that it started, as this test's own PID namespace knows them. */
  pids(): number[] {
    const found = [this.#process.pid!];
    for (const pid of found) found.push(...childrenOf(pid));
    return found.slice(1);
  }

  /** Everything is killed: what it ran is of no interest any more. */
  async end(): Promise<void> {
    if (this.#process.exitCode === null && this.#process.signalCode === null) await killTrees([this.#process.pid!]);
    await this.#ended;
  }
}
