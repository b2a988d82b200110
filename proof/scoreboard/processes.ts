// The processes of the contenders as the scoreboard sees them: started, asked, heard, stopped, killed. Whatever is left is killed by
// its pid when the scoreboard ends, however it ends.
import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { Ask, FromProgram } from "../bench/program.ts";
import type { Mode, Place } from "./adapter.ts";
import type { Contender } from "./contenders.ts";

export interface Runtime {
  readonly execPath: string;
  /** The program: the TypeScript itself, or what was made of it for an older Node. */
  readonly program: string;
}

export const ownRuntime: Runtime = {
  execPath: process.execPath,
  program: fileURLToPath(new URL("program.ts", import.meta.url)),
};

const all = new Set<Program>();
process.once("exit", () => {
  for (const program of all) program.signal("SIGKILL");
});

export interface Started {
  readonly n: number;
  readonly at: number;
}

export class Program {
  readonly exited: Promise<void>;
  over = false;
  readonly #child: ChildProcess;
  readonly #asked = new Map<number, { resolve: (value: never) => void; reject: (reason: Error) => void }>();
  readonly #listeners = new Map<string, Set<(data: never) => void>>();
  #ids = 0;

  static async start(contender: Contender, runtime: Runtime, place: Place, mode: Mode): Promise<Program> {
    const program = new Program(contender, runtime, place, mode);
    await program.#ready;
    return program;
  }

  readonly #ready: Promise<void>;

  private constructor({ adapter, name }: Contender, { execPath, program }: Runtime, place: Place, mode: Mode) {
    const typescript = program.endsWith(".ts");
    const peer = typescript ? adapter : adapter.replace(/\.ts$/, ".mjs");
    this.#child = fork(program, [JSON.stringify({ peer, place, mode })], {
      execPath,
      execArgv: typescript ? ["--disable-warning=ExperimentalWarning"] : [],
      stdio: ["ignore", 2, 2, "ipc"],
    });
    all.add(this);
    this.#child.on("message", (message: FromProgram) => this.#hear(message));
    this.#child.on("error", () => {});
    this.#ready = new Promise((resolve, reject) => {
      this.#asked.set(0, { resolve, reject });
      this.on("ready", () => resolve());
    });
    this.exited = new Promise((resolve) => {
      this.#child.once("exit", (code, signal) => {
        this.over = true;
        all.delete(this);
        const why = new Error(`a process of ${name} ended with ${signal ?? `exit code ${code}`}`);
        for (const { reject } of this.#asked.values()) reject(why);
        resolve();
      });
    });
  }

  ask<T = void>(name: string, data: unknown = null): Promise<T> {
    const id = ++this.#ids;
    const answer = new Promise<T>((resolve, reject) => {
      if (this.over) return reject(new Error("the process has ended"));
      this.#asked.set(id, { resolve, reject });
      this.#child.send({ id, name, data } satisfies Ask);
    });
    // Some are not awaited: their process is to be killed meanwhile.
    answer.catch(() => {});
    return answer;
  }

  on<T>(name: string, listener: (data: T) => void): () => void {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  signal(name: NodeJS.Signals): void {
    if (!this.over) this.#child.kill(name);
  }

  async kill(): Promise<void> {
    this.signal("SIGKILL");
    await this.exited;
  }

  #hear(message: FromProgram): void {
    if (message.type === "told") {
      for (const listener of this.#listeners.get(message.name) ?? []) listener(message.data as never);
      return;
    }
    const waiting = this.#asked.get(message.id);
    this.#asked.delete(message.id);
    if (message.type === "answer") waiting?.resolve(message.value as never);
    else waiting?.reject(new Error(message.message));
  }
}

/** The first of these processes that starts job `n`, and when; null after `withinMs`. */
export function startOf(
  programs: readonly Program[],
  n: number,
  withinMs: number,
): Promise<{ program: Program; at: number } | null> {
  return new Promise((resolve) => {
    const end = (found: { program: Program; at: number } | null): void => {
      clearTimeout(timer);
      for (const each of unhear) each();
      resolve(found);
    };
    const unhear = programs.map((program) =>
      program.on<Started>("started", (started) => {
        if (started.n === n) end({ program, at: started.at });
      }),
    );
    const timer = setTimeout(() => end(null), withinMs);
  });
}
