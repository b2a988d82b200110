// One worker process as its supervisor sees it: started, instructed, monitored, measured, stopped or killed. It
// restarts nothing and decides nothing.
import { type ChildProcess, fork } from "node:child_process";
import { readFileSync } from "node:fs";
import { getCompileCacheDir } from "node:module";
import { join } from "node:path";
import type { EngineOptions } from "../../engine/options.ts";
import type { Share } from "../../engine/work.ts";
import type { Events } from "../../job/events.ts";
import type { MetricsSnapshot } from "../../metrics.ts";
import { programFile } from "../../platform/program-file.ts";
import { evidenceText } from "../../telemetry/log.ts";

/** How much of its stderr is kept: V8's final heap message takes about 3 KB. */
const LAST_WORDS = 8_192;
/** After the exit, how long the rest of stderr may take: another process may have inherited it. */
const CLOSE_MS = 200;
/** A blocked main loop does not respond; its latest snapshot is used instead. */
const METRICS_MS = 1_000;

interface ChildEvents {
  /** `sent`: the kinds of requests that it left to separate processes. */
  readonly ready: (child: Child, kinds: readonly string[], sent: readonly string[]) => void;
  readonly loaded: (files: readonly string[]) => void;
  /** What it wrote to stderr, whole lines. */
  readonly wrote: (lines: string) => void;
}

export interface Exit extends Ending {
  readonly upMs: number;
  /** When it ended, on the supervisor's monotonic clock. */
  readonly endedMono: number;
}

export class Child {
  readonly place: number;
  /**
   * Its workers, the newest last: one that was considered dead registers again under a new id. Of failed tries to
   * register only the latest is kept.
   */
  readonly workers: RegisteringWorker[] = [];
  #isRegistering = false;
  /** When it last had a live worker, on the supervisor's monotonic clock. */
  livedMono = performance.now();
  /** It reported that it works. */
  ready = false;
  /** Why it could not start. */
  failed: { readonly message: string; readonly exitCode: number; readonly isFinal: boolean } | null = null;
  /** It drained: its end is not a death. */
  drained = false;
  latest: MetricsSnapshot | null = null;
  readonly exited: Promise<Exit>;
  readonly #process: ChildProcess;
  readonly #events: ChildEvents;
  readonly #answers = new Map<number, (snapshot: MetricsSnapshot) => void>();
  readonly #oomKills = oomKillCount();
  readonly #bornMono = performance.now();
  #asks = 0;
  #killedBecause: string | null = null;
  #lastWords = "";
  #unfinishedLine = "";

  constructor(order: WorkOrder, execArgv: readonly string[], events: ChildEvents) {
    this.place = order.place;
    this.#events = events;
    this.#process = fork(programFile("cli/supervisor/worker-main"), [], {
      execArgv: [...execArgv],
      stdio: ["ignore", "inherit", "pipe", "ipc"],
      env: {
        // Code that was compiled once is not compiled again by each process that takes a dead one's place.
        NODE_COMPILE_CACHE: getCompileCacheDir(),
        ...process.env,
        // Its log lines are coloured like ours, although it writes to a pipe.
        ...(order.colours ? { FORCE_COLOR: "1" } : {}),
      },
    });
    this.#process.on("message", (message) => {
      if (isFromChild(message)) this.#hear(message);
    });
    this.#process.stderr!.setEncoding("utf8").on("data", (text: string) => this.#wrote(text));
    this.exited = this.#watchExit();
    this.tell({ outlive: "work", order });
  }

  /** 0 if it could not even be started. */
  get pid(): number {
    return this.#process.pid ?? 0;
  }

  /** Asks it to drain. */
  stop(graceMs: number): void {
    this.tell({ outlive: "stop", graceMs });
  }

  kill(because: string): void {
    this.#killedBecause ??= because;
    this.#process.kill("SIGKILL");
  }

  /** Its metrics now, or the latest that are known. */
  async metrics(): Promise<MetricsSnapshot | null> {
    if (!this.ready || !this.#process.connected) return this.latest;
    const ask = ++this.#asks;
    const { promise, resolve } = Promise.withResolvers<MetricsSnapshot | null>();
    this.#answers.set(ask, resolve);
    const timer = setTimeout(() => resolve(this.latest), METRICS_MS);
    this.tell({ outlive: "metrics", ask });
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      this.#answers.delete(ask);
    }
  }

  /** A message to a process that is gone is lost; its exit reports that. */
  tell(message: ToChild): void {
    if (this.#process.connected) this.#process.send(message, undefined, undefined, () => {});
  }

  #hear(message: FromChild): void {
    switch (message.outlive) {
      case "registering": {
        const { worker, pid, namespace, startTicks } = message;
        if (this.#isRegistering) this.workers.pop();
        this.#isRegistering = true;
        this.workers.push({ worker, pid, namespace, startTicks });
        return;
      }
      case "registered":
        this.#isRegistering = false;
        return;
      case "ready":
        this.ready = true;
        this.livedMono = performance.now();
        return this.#events.ready(this, message.kinds, message.sent);
      case "failed":
        this.failed = message;
        return;
      case "loaded":
        return this.#events.loaded(message.files);
      case "metrics":
        this.latest = message.snapshot;
        this.#answers.get(message.ask)?.(message.snapshot);
        return;
      case "stopped":
        this.drained = true;
        this.latest = message.snapshot ?? this.latest;
    }
  }

  #wrote(text: string): void {
    this.#lastWords = (this.#lastWords + text).slice(-LAST_WORDS);
    const whole = this.#unfinishedLine + text;
    const end = whole.lastIndexOf("\n") + 1;
    this.#unfinishedLine = whole.slice(end);
    if (end > 0) this.#events.wrote(whole.slice(0, end));
  }

  #watchExit(): Promise<Exit> {
    const { promise, resolve } = Promise.withResolvers<Exit>();
    let ended = false;
    const end = (code: number | null, signal: NodeJS.Signals | null): void => {
      if (ended) return;
      ended = true;
      const endedMono = performance.now();
      const upMs = endedMono - this.#bornMono;
      const after = oomKillCount();
      const done = (): void => {
        clearTimeout(timer);
        if (this.#unfinishedLine !== "") this.#events.wrote(`${this.#unfinishedLine}\n`);
        this.#unfinishedLine = "";
        const oomKills = this.#oomKills === null || after === null ? null : { before: this.#oomKills, after };
        const { lastWords, killedBecause } = { lastWords: this.#lastWords, killedBecause: this.#killedBecause };
        resolve({ code, signal, upMs, endedMono, lastWords, oomKills, killedBecause });
      };
      const timer = setTimeout(done, CLOSE_MS);
      this.#process.once("close", done);
    };
    this.#process.on("exit", end);
    // It could not be started, or a message could not be sent: only the first means it ended.
    this.#process.on("error", (thrown) => {
      if (this.#process.pid !== undefined) return;
      this.failed = { message: `A worker process can't be started: ${thrown.message}`, exitCode: 1, isFinal: false };
      end(1, null);
    });
    return promise;
  }
}

// How a worker process died, worded for the report: its signal or exit code, and any evidence of a lack of memory.

export interface Ending {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** The last of what it wrote to stderr. */
  readonly lastWords: string;
  /** How often the kernel's OOM killer had struck in this cgroup when it started and when it ended; null: not known. */
  readonly oomKills: { readonly before: number; readonly after: number } | null;
  /** Why the supervisor killed it; null: it did not. */
  readonly killedBecause: string | null;
}

export function evidenceOf({ code, signal, lastWords, oomKills, killedBecause }: Ending): string {
  const end = signal === null ? `exited with code ${code}` : `killed by ${signal}`;
  if (killedBecause !== null) return `${end} from its supervisor: ${killedBecause}`;
  if (/Reached heap limit|JavaScript heap out of memory|Allocation failed - /.test(lastWords))
    return `${end}, out of memory: V8 reached its heap limit`;
  if (signal === "SIGKILL" && oomKills !== null && oomKills.after > oomKills.before)
    return `${end}, out of memory: the kernel killed in this cgroup (oom_kill ${oomKills.before} -> ${oomKills.after})`;
  const error = signal === null ? lastError(lastWords) : null;
  return error === null ? end : `${end}: ${error}`;
}

/** The line in which Node names an uncaught error. */
function lastError(lastWords: string): string | null {
  const lines = lastWords.split("\n").filter((line) => /^(?:Uncaught )?[\w$.]*(?:Error|Exception)\b.*/.test(line));
  const last = lines.at(-1);
  return last === undefined ? null : evidenceText(last, 300);
}

/** The counter of the cgroup (v2) that this process and its children are in. */
function oomKillCount(): number | null {
  try {
    const path = /^0::(.*)$/m.exec(readFileSync("/proc/self/cgroup", "utf8"))?.[1];
    if (path === undefined) return null;
    const events = readFileSync(join("/sys/fs/cgroup", path, "memory.events"), "utf8");
    const count = /^oom_kill (\d+)$/m.exec(events)?.[1];
    return count === undefined ? null : Number(count);
  } catch {
    return null;
  }
}

// What the supervisor and a worker process send each other. Every message has `outlive`, so that messages from a user's
// handler over the same channel are never mistaken for one.

/** Patterns and the folder they are relative to. */
export interface JobGlobs {
  readonly base: string;
  readonly patterns: readonly string[];
}

export type LogForm = "json" | "pretty";

/** What a worker process has to do. Sent over the channel, because every user of the machine can see arguments. */
export interface WorkOrder {
  /** Which of the supervisor's places it fills: 1, 2, ... */
  readonly place: number;
  readonly store: string;
  readonly engine: Omit<EngineOptions, "jobs" | "logger" | "onEvent" | "middleware" | "blobs" | "broker"> & {
    readonly blobs?: string;
    readonly broker?: string;
  };
  /** The configuration file that makes the blob store or the broker, if they are not addresses: what code made can't be sent. */
  readonly madeBy: string | null;
  readonly globs: JobGlobs;
  /** The modules of the middleware, from the outermost to the innermost. */
  readonly middleware: JobGlobs;
  readonly only: readonly string[] | null;
  /** Which kinds are its, if the program has requests and anything else that is run. */
  readonly share: Share;
  readonly concurrency: number | Readonly<Record<string, number>> | null;
  /** How long running jobs may finish when no supervisor is left to say so. */
  readonly graceMs: number;
  readonly log: LogForm;
  readonly colours: boolean;
  readonly metrics: boolean;
  /** Report which files were loaded. */
  readonly watch: boolean;
}

/** A worker and the process that runs it, as that process knows itself. */
type RegisteringWorker = Events["worker.registering"];

export type ToChild =
  | { readonly outlive: "work"; readonly order: WorkOrder }
  | { readonly outlive: "stop"; readonly graceMs: number }
  | { readonly outlive: "metrics"; readonly ask: number };

export type FromChild =
  /** It is about to register this worker. */
  | ({ readonly outlive: "registering" } & RegisteringWorker)
  /** The worker that it was about to register is running. */
  | { readonly outlive: "registered" }
  | {
      readonly outlive: "ready";
      readonly worker: string;
      readonly kinds: readonly string[];
      readonly sent: readonly string[];
    }
  /**
   * It could not start, or can't continue; it exits now. `isFinal`: no other process of this supervisor would do better.
   */
  | { readonly outlive: "failed"; readonly message: string; readonly exitCode: number; readonly isFinal: boolean }
  | { readonly outlive: "loaded"; readonly files: readonly string[] }
  | { readonly outlive: "metrics"; readonly ask: number; readonly snapshot: MetricsSnapshot }
  /** It has drained and exits now; nothing was lost. */
  | { readonly outlive: "stopped"; readonly snapshot: MetricsSnapshot | null };

function isFromChild(message: unknown): message is FromChild {
  return typeof message === "object" && message !== null && typeof (message as FromChild).outlive === "string";
}
