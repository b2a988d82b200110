// Where a metric runs: temporary folders on the real disk, child processes, counts that shrink with --quick, progress. Whatever
// happens, no folder and no process outlives the bench.
import { type ChildProcess, fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Figure } from "./figure.ts";
import type { Ask, FromProgram } from "./program.ts";
import { TestedSqlite } from "./stores/sqlite.ts";
import type { StoreName, TestedStore } from "./stores/tested-store.ts";

/** One thing that is measured; some that need the same long set-up are measured together. */
export interface Metric {
  readonly names: readonly string[];
  /** On which stores other engines are measured next to us. */
  readonly peers?: Readonly<Partial<Record<StoreName, boolean>>>;
  run(bench: Bench): Promise<Figure[]>;
}

const SPEAK_EVERY_MS = 5_000;
/** A --quick bench that is not done after this is on a busy machine. */
const QUICK_LATE_MS = 40_000;

export interface BenchOptions {
  readonly store: StoreName;
  /** Whether the peers are measured next to us. */
  readonly peers: boolean;
  readonly quick: boolean;
  /** Where the drain's profiles go; null: none are taken. */
  readonly profile: string | null;
}

export class Bench {
  readonly store: TestedStore;
  readonly peers: boolean;
  readonly quick: boolean;
  readonly profile: string | null;
  readonly #root: string;
  readonly #programs = new Set<Program>();
  readonly #startedAt = performance.now();
  #spokeAt = 0;

  static async open(options: BenchOptions): Promise<Bench> {
    const root = mkdtempSync(join(tmpdir(), "outlive-bench-"));
    if (options.store === "sqlite") return new Bench(options, root, new TestedSqlite(root));
    if (options.store === "redis") {
      const { TestedRedis } = await import("./stores/redis.ts");
      return new Bench(options, root, new TestedRedis());
    }
    // Measuring SQLite needs no `pg`.
    const { TestedPostgres } = await import("./stores/postgres.ts");
    return new Bench(options, root, new TestedPostgres());
  }

  private constructor(options: BenchOptions, root: string, store: TestedStore) {
    this.#root = root;
    this.store = store;
    this.quick = options.quick;
    this.profile = options.profile;
    this.peers = options.peers;
    process.once("exit", () => this.#clean());
    for (const [signal, code] of [
      ["SIGINT", 130],
      ["SIGTERM", 143],
      ["SIGHUP", 129],
    ] as const)
      process.once(signal, () => process.exit(code));
  }

  /** The whole count, or the small one of --quick. */
  pick<T>(whole: T, quick: T): T {
    return this.quick ? quick : whole;
  }

  /**
   * Rounds of a metric, `what` being shown. With --quick they end early on a busy machine: after `quickSeconds`, but not before the
   * third, or the first if the whole bench is late. Figures say how many rounds they are of.
   */
  *rounds(what: string, most: number, quickSeconds: number): Generator<number> {
    const from = performance.now();
    for (let round = 1; round <= most; round++) {
      const now = performance.now();
      const least = now - this.#startedAt > QUICK_LATE_MS ? 1 : 3;
      if (this.quick && round > least && now - from > quickSeconds * 1_000) return;
      this.progress(`${what}: round ${round} of ${most}`);
      yield round;
    }
  }

  /** A new, empty folder. */
  folder(): string {
    return mkdtempSync(join(this.#root, "folder-"));
  }

  /** Starts proof/bench/programs/<name>.ts and waits until it is set up. */
  async start(
    name: string,
    data: object,
    execArgv: readonly string[] = [],
    where: "here" | "elsewhere" = "here",
  ): Promise<Program> {
    const program = new Program(
      name,
      data,
      execArgv,
      join(this.#root, "compiled"),
      (ended) => this.#programs.delete(ended),
      where,
    );
    this.#programs.add(program);
    await program.told("ready");
    return program;
  }

  /** Runs programs for the time of `work`, and no longer. */
  async during<T>(programs: readonly Program[], work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } finally {
      await Promise.all(programs.map((program) => program.end()));
    }
  }

  /** Several of the same program; the first is set up before the others start, so that one of them creates what all need. */
  async startAll(count: number, name: string, data: object, execArgv: readonly string[] = []): Promise<Program[]> {
    const first = await this.start(name, data, execArgv);
    const others = Array.from({ length: count - 1 }, () => this.start(name, data, execArgv));
    return [first, ...(await Promise.all(others))];
  }

  /** Whatever a metric that failed left running. */
  async endAll(): Promise<void> {
    await Promise.all([...this.#programs].map((program) => program.kill()));
  }

  /** What is being done: one line that changes in a terminal, a line now and then elsewhere. */
  progress(text: string): void {
    if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text}`);
    else if (performance.now() - this.#spokeAt > SPEAK_EVERY_MS) this.say(text);
  }

  /** A line that stays. */
  say(text: string): void {
    this.#spokeAt = performance.now();
    process.stderr.write(process.stderr.isTTY ? `\r\x1b[K${text}\n` : `${text}\n`);
  }

  #clean(): void {
    for (const program of this.#programs) program.killNow();
    this.store.destroyNow();
    if (process.stderr.isTTY) process.stderr.write("\r\x1b[K");
    rmSync(this.#root, { recursive: true, force: true, maxRetries: 3 });
  }
}

interface Waiting {
  readonly resolve: (value: never) => void;
  readonly reject: (reason: Error) => void;
}

/** In a PID namespace of its own: as on another host, no kernel can prove anything about it to the others. */
const ELSEWHERE = ["--pid", "--fork", "--kill-child"];

/** A child process of the bench and what it is asked. */
export class Program {
  readonly pid: number;
  readonly #name: string;
  readonly #child: ChildProcess;
  readonly #asked = new Map<number, Waiting>();
  readonly #listeners = new Map<string, ((data: never) => void)[]>();
  readonly #exited: Promise<void>;
  #ids = 0;
  #over = false;

  constructor(
    name: string,
    data: object,
    execArgv: readonly string[],
    compiled: string,
    ended: (program: Program) => void,
    where: "here" | "elsewhere",
  ) {
    this.#name = name;
    const options = ["--disable-warning=ExperimentalWarning", ...execArgv];
    this.#child = fork(fileURLToPath(new URL(`programs/${name}.ts`, import.meta.url)), [JSON.stringify(data)], {
      // Without it half of each start is the stripping of types.
      env: { ...process.env, NODE_COMPILE_CACHE: compiled },
      ...(where === "here"
        ? { execArgv: options }
        : { execPath: "unshare", execArgv: [...ELSEWHERE, process.execPath, ...options] }),
      // A program's stdout must not end up in the bench's, whose last line is JSON.
      stdio: ["ignore", 2, 2, "ipc"],
    });
    this.pid = this.#child.pid ?? 0;
    this.#child.on("message", (message: FromProgram) => this.#hear(message));
    this.#child.on("error", () => {});
    this.#exited = new Promise((resolve) => {
      this.#child.once("exit", (code, signal) => {
        this.#over = true;
        ended(this);
        const why = new Error(`${name} (pid ${this.pid}) ended with ${signal ?? `exit code ${code}`}`);
        for (const { reject } of this.#asked.values()) reject(why);
        this.#asked.clear();
        resolve();
      });
    });
  }

  ask<T = void>(name: string, data: unknown = null): Promise<T> {
    const id = ++this.#ids;
    return new Promise<T>((resolve, reject) => {
      if (this.#over) return reject(new Error(`${this.#name} has ended`));
      this.#asked.set(id, { resolve, reject });
      this.#child.send({ id, name, data } satisfies Ask);
    });
  }

  /** Hears everything that the program tells under this name. Returns how to stop hearing. */
  on<T>(name: string, listener: (data: T) => void): () => void {
    const listeners = this.#listeners.get(name) ?? [];
    this.#listeners.set(name, [...listeners, listener]);
    return () =>
      this.#listeners.set(
        name,
        (this.#listeners.get(name) ?? []).filter((other) => other !== listener),
      );
  }

  /** The next message under this name; rejects if the program ends before. */
  told<T = void>(name: string): Promise<T> {
    const id = ++this.#ids;
    return new Promise<T>((resolve, reject) => {
      const unhear = this.on<T>(name, (data) => {
        unhear();
        this.#asked.delete(id);
        resolve(data);
      });
      this.#asked.set(id, { resolve, reject });
    });
  }

  /** The polite end: the program sees that the bench is gone. One that does not end within 10 s is killed. */
  async end(): Promise<void> {
    if (this.#over) return;
    if (this.#child.connected) this.#child.disconnect();
    const timer = setTimeout(() => this.killNow(), 10_000);
    await this.#exited;
    clearTimeout(timer);
  }

  /** SIGKILL, and wait for the kernel to be done with it. */
  async kill(): Promise<void> {
    this.killNow();
    await this.#exited;
  }

  killNow(): void {
    if (!this.#over) this.#child.kill("SIGKILL");
  }

  #hear(message: FromProgram): void {
    if (message.type === "told") {
      for (const listener of this.#listeners.get(message.name) ?? []) listener(message.data as never);
      return;
    }
    const waiting = this.#asked.get(message.id);
    this.#asked.delete(message.id);
    if (message.type === "answer") waiting?.resolve(message.value as never);
    else waiting?.reject(new Error(`${this.#name}: ${message.message}`));
  }
}
