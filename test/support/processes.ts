// Children of tests: started, heard, killed, and never left behind. A test waits on the facts that they tell.
import { type ChildProcess, fork } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";
import { type Engine, type EngineOptions, open } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { standsStill } from "../../src/torture/audit.ts";
import type { BatchProcess } from "./batch-process.ts";
import type { CollectionProcess } from "./collection-process.ts";
import type { CollectorProcess } from "./collector-process.ts";
import { operatorOf } from "./former-names.ts";
import { jobs } from "./jobs.ts";

export interface Fact {
  readonly fact: string;
  readonly [key: string]: unknown;
}

/** How long a fact may take before the test fails: generous, for a loaded machine. It is a limit, never a wait. */
const FACT_MS = 60_000;

export class Child {
  readonly process: ChildProcess;
  readonly facts: Fact[] = [];
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  readonly #heard = new Set<() => void>();
  #stderr = "";
  #ended = false;

  constructor(process: ChildProcess) {
    this.process = process;
    process.stderr?.on("data", (data: Buffer) => (this.#stderr += data.toString()));
    process.on("message", (fact) => {
      this.facts.push(fact as Fact);
      for (const hear of this.#heard) hear();
    });
    // What the child said last may arrive after its end: it has ended when the channel is closed, too.
    const disconnected = new Promise<void>((resolve) => process.once("disconnect", resolve));
    this.exited = new Promise((resolve) => {
      process.on("exit", (code, signal) => {
        resolve({ code, signal });
        void disconnected.then(() => {
          this.#ended = true;
          for (const hear of this.#heard) hear();
        });
      });
    });
  }

  get pid(): number {
    return this.process.pid!;
  }

  kill(signal: NodeJS.Signals = "SIGKILL"): void {
    this.process.kill(signal);
  }

  /** The first fact for which `is` holds, as soon as it is reported. Rejects if the child ends without reporting it. */
  until(is: (fact: Fact) => boolean, what: string): Promise<Fact> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => done(new Error(`not reported within ${FACT_MS} ms: ${what}\n${this.#stderr}`)),
        FACT_MS,
      );
      const hear = (): void => {
        const fact = this.facts.find(is);
        if (fact) done(null, fact);
        else if (this.#ended) done(new Error(`the child ended before: ${what}\n${this.#stderr}`));
      };
      const done = (error: Error | null, fact?: Fact): void => {
        clearTimeout(timer);
        this.#heard.delete(hear);
        if (error) reject(error);
        else resolve(fact!);
      };
      this.#heard.add(hear);
      hear();
    });
  }

  untilFact(fact: string, match: Record<string, unknown> = {}): Promise<Fact> {
    return this.until(
      (told) => told.fact === fact && Object.entries(match).every(([key, value]) => told[key] === value),
      `${fact} ${JSON.stringify(match)}`,
    );
  }

  untilEvent(name: string): Promise<Record<string, unknown>> {
    const is = (told: Fact): boolean => told.fact === "event" && (told["event"] as { name: string }).name === name;
    return this.until(is, `event ${name}`).then((told) => told["event"] as Record<string, unknown>);
  }
}

export interface ChildOptions {
  readonly concurrency?: number;
  readonly heartbeat?: NonNullable<EngineOptions["heartbeat"]>;
  readonly only?: readonly string[];
  readonly recoverOnly?: boolean;
  /** From every end of a job that it writes another one follows (following.ts). */
  readonly follows?: boolean;
  /** How often it polls for work without a wake-up. Default 1 s. */
  readonly poll?: NonNullable<EngineOptions["poll"]>;
  readonly killAt?: string;
  /** Frozen at `killAt` instead of killed. */
  readonly freeze?: boolean;
  readonly execArgv?: readonly string[];
  /** Instead of this Node: a program that starts one, in other surroundings. */
  readonly execPath?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Another name of the same file. */
  readonly url?: string;
}

/** Deaths are found by their locks at once; a process that stands still for seconds on a busy machine is not taken for silent. */
export const PATIENT = { interval: "200ms", lease: "20s", probe: "50ms", sweep: "1s" } as const;
/** For a worker that falls silent in a test, so that it is found while the test waits. */
export const SHORT = { ...PATIENT, lease: "1s" } as const;

/** One temporary folder with one database, its children and its engines, all gone after the test. */
export class Place {
  readonly folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  readonly path = join(this.folder, "jobs.db");
  readonly url = `sqlite:${this.path}`;
  readonly #effects = join(this.folder, "effects.txt");
  readonly #children: Child[] = [];
  readonly #engines: Engine[] = [];

  constructor(t: TestContext) {
    t.after(async () => {
      for (const child of this.#children) child.kill("SIGKILL");
      await Promise.all(this.#children.map((child) => child.exited));
      for (const engine of this.#engines) await engine.close({ grace: "0ms" }).catch(() => {});
      rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
    });
  }

  child(options: ChildOptions = {}): Child {
    const { killAt, freeze, execArgv = [], execPath = process.execPath, env = {}, url = this.url, ...given } = options;
    const support = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
    const child = new Child(
      fork(support("./worker-process.ts"), [url, JSON.stringify({ heartbeat: PATIENT, ...given })], {
        execPath,
        execArgv: [
          "--disable-warning=ExperimentalWarning",
          ...(killAt ? ["--import", support("./kill-at.ts")] : []),
          ...execArgv,
        ],
        env: {
          ...process.env,
          OUTLIVE_EFFECTS: this.#effects,
          ...env,
          ...(killAt ? { OUTLIVE_KILL_AT: killAt } : {}),
          ...(freeze ? { OUTLIVE_KILL_SIGNAL: "SIGSTOP" } : {}),
        },
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#children.push(child);
    return child;
  }

  /** A process that enqueues, reads or writes and stays until it is killed (file-user.ts). */
  fileUser(does: { readonly enqueue?: number; readonly read?: true; readonly uncommitted?: number }): Child {
    const program = fileURLToPath(new URL("./file-user.ts", import.meta.url));
    const child = new Child(
      fork(program, [this.url, this.path, JSON.stringify(does)], {
        execArgv: ["--disable-warning=ExperimentalWarning"],
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#children.push(child);
    return child;
  }

  /** A process that works on batches or submits one (batch-process.ts). Output files are in the folder `blobs`. */
  batchProcess(does: BatchProcess = {}, killAt?: string): Child {
    return this.#program("./batch-process.ts", does, killAt);
  }

  /** A process that works on collections or fills one (collection-process.ts). Blobs are in the folder `blobs`. */
  collectionProcess(does: CollectionProcess = {}, killAt?: string): Child {
    return this.#program("./collection-process.ts", does, killAt);
  }

  /** A worker that collects from RabbitMQ (collector-process.ts). */
  collector(does: CollectorProcess, killAt?: string): Child {
    return this.#program("./collector-process.ts", does, killAt);
  }

  #program(program: string, does: object, killAt: string | undefined): Child {
    const support = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
    const child = new Child(
      fork(support(program), [this.url, join(this.folder, "blobs"), JSON.stringify(does)], {
        execArgv: ["--disable-warning=ExperimentalWarning", ...(killAt ? ["--import", support("./kill-at.ts")] : [])],
        env: {
          ...process.env,
          OUTLIVE_EFFECTS: this.#effects,
          ...(killAt ? { OUTLIVE_KILL_AT: killAt } : {}),
        },
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#children.push(child);
    return child;
  }

  async engine(options: EngineOptions = {}): Promise<Engine> {
    const engine = await open(this.url, { jobs, logger: false, heartbeat: PATIENT, ...options });
    this.#engines.push(engine);
    return engine;
  }

  /** The ledger of the transfers, without any constraint that could hide a double. */
  async ledger(engine: Engine): Promise<void> {
    await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE IF NOT EXISTS ledger (job TEXT, n INTEGER)"));
  }

  ledgerRows(engine: Engine): Promise<{ job: string; n: number }[]> {
    return engine.transaction(sqlite, (tx) =>
      tx.all<{ job: string; n: number }>("SELECT job, n FROM ledger").map((row) => ({ ...row })),
    );
  }

  /** How often each effect happened. */
  effects(): Map<string, number> {
    const counts = new Map<string, number>();
    let text = "";
    try {
      text = readFileSync(this.#effects, "utf8");
    } catch {
      // None happened.
    }
    for (const line of text.split("\n").filter(Boolean)) counts.set(line, (counts.get(line) ?? 0) + 1);
    return counts;
  }
}

/**
 * Kills these processes and everything that they started, and resolves when none of them runs. Each is stopped before its children are
 * listed, so that it starts no more of them.
 */
export async function killTrees(roots: readonly number[]): Promise<void> {
  const pids = [...roots];
  for (const pid of pids) {
    signal(pid, "SIGSTOP");
    pids.push(...childrenOf(pid));
  }
  for (const pid of pids) signal(pid, "SIGKILL");
  await untilTrue(
    () => pids.filter((pid) => !hasEnded(pid)),
    (left) => left.length === 0,
    "every process has ended",
  );
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended.
  }
}

/** As this test's own PID namespace knows them; none without /proc. */
export function childrenOf(pid: number): number[] {
  return linesOf(`/proc/${pid}/task/${pid}/children`).flatMap((line) => line.split(" ").filter(Boolean).map(Number));
}

/** A zombie only waits for its parent. */
function hasEnded(pid: number): boolean {
  return !linesOf(`/proc/${pid}/status`).some((line) => /^State:\s+[^ZX]/.test(line));
}

function linesOf(path: string): string[] {
  try {
    return readFileSync(path, "utf8").split("\n");
  } catch {
    return [];
  }
}

/** SIGSTOP, at a moment at which the process does not hold the file's write lock: everybody else would stand still with it. */
export async function freezeOutsideOfAWrite(engine: Engine, pid: number): Promise<void> {
  for (;;) {
    process.kill(pid, "SIGSTOP");
    await untilTrue(() => standsStill(pid), Boolean, `process ${pid} stands still`);
    if ((await operatorOf(engine).writer())?.pid !== pid) return;
    process.kill(pid, "SIGCONT");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Resolves when `is` holds; asks again until it does. Rejects with what was seen last, after a minute in which that did not change. */
export async function untilTrue<T>(ask: () => Promise<T> | T, is: (value: T) => boolean, what: string): Promise<T> {
  const began = performance.now();
  let changedAt = began;
  let last = "";
  for (;;) {
    const value = await ask();
    if (is(value)) return value;
    const seen = inspect(value, { depth: 4 });
    const now = performance.now();
    if (seen !== last) changedAt = now;
    last = seen;
    if (now - changedAt > FACT_MS || now - began > 4 * FACT_MS)
      throw new Error(`never came true: ${what}; last seen: ${seen}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Resolves when the job is in that state. */
export function untilState(engine: Engine, id: string, state: string): Promise<unknown> {
  return untilTrue(
    () => engine.get(id),
    (job) => job?.state === state,
    `job ${id} is ${state}`,
  );
}
