// `crashTest`: the user's own job, killed at every step boundary and before its settlement, each time on a fresh store, then run to its end
// by another process. The report says which effects outside the store happened twice.
import { type ChildProcess, fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { encodeJson } from "../../core/json.ts";
import type { Order, Said } from "./child.ts";
import { type Effect, environment, readEffects } from "./effects.ts";

export interface CrashTestOptions<In> {
  /** The module that exports the job with its handler: `new URL("./jobs.ts", import.meta.url)`. */
  readonly module: string | URL;
  /** The job's input. */
  readonly input: In;
  /** What was done outside the store, one text each, if neither `effect` nor an HTTP request tells: read after each run. Default: nothing. */
  readonly effects?: () => readonly string[] | Promise<readonly string[]>;
  /** Called before each run, to set the outside world back. Default: nothing. */
  readonly reset?: () => void | Promise<void>;
  /** How long one process may take, in ms. Default 30000, from 100. */
  readonly limitMs?: number;
}

/** One run: killed at `point`, then finished by another process. */
export interface CrashRun {
  readonly point: string;
  /** The state in which the job ended. */
  readonly ended: string;
  readonly error: string | null;
  /** Effects that happened more than once, though nothing told their receiver that they were the same. */
  readonly twice: readonly string[];
  /** Effects that happened more than once under one idempotency key: one, to a receiver that honours it. */
  readonly twiceUnderOneKey: readonly string[];
}

export interface CrashReport {
  readonly kind: string;
  readonly runs: readonly CrashRun[];
  /** True if the job succeeded in every run and no effect happened twice without a key. */
  readonly ok: boolean;
  /** The same for people. */
  readonly text: string;
}

const CHILD = fileURLToPath(new URL(`./child${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url));
const JOB_ID = "crash-test";

/** Kills the job's process at every point at which something may happen twice, and says what did. */
export async function crashTest<In>(
  job: { readonly name: string },
  options: CrashTestOptions<In>,
): Promise<CrashReport> {
  const bench = new Bench(job.name, options);
  const { points } = await bench.toItsEnd();
  const runs: CrashRun[] = [];
  for (const [at, point] of points.entries()) runs.push(await bench.killedAt(at, point));
  const ok = runs.every(({ ended, twice }) => ended === "succeeded" && twice.length === 0);
  return { kind: job.name, runs, ok, text: textOf(job.name, runs) };
}

class Bench<In> {
  readonly #kind: string;
  readonly #options: CrashTestOptions<In>;

  constructor(kind: string, options: CrashTestOptions<In>) {
    this.#kind = kind;
    this.#options = options;
  }

  /** One undisturbed run, for the list of points. */
  async toItsEnd(): Promise<{ readonly points: readonly string[] }> {
    return this.#onFreshStore(async (folder) => {
      const said = await this.#run(folder, true, null);
      const last = said.at(-1);
      if (!last || !("ended" in last) || last.ended !== "succeeded")
        throw new Error(
          `The job ${this.#kind} does not succeed even when nobody kills it: ${JSON.stringify(last ?? "it never ended")}.`,
        );
      return { points: said.flatMap((one) => ("point" in one ? [one.point] : [])) };
    });
  }

  async killedAt(at: number, point: string): Promise<CrashRun> {
    return this.#onFreshStore(async (folder) => {
      await this.#run(folder, true, at);
      const said = await this.#run(folder, false, null);
      const last = said.findLast((one) => "ended" in one);
      const own = ((await this.#options.effects?.()) ?? []).map((what): Effect => ({ what, key: null }));
      return {
        point,
        ended: last?.ended ?? "never",
        error: last?.error ?? null,
        ...repeated([...readEffects(join(folder, "effects.jsonl")), ...own]),
      };
    });
  }

  async #onFreshStore<T>(use: (folder: string) => Promise<T>): Promise<T> {
    await this.#options.reset?.();
    const folder = mkdtempSync(join(tmpdir(), "outlive-crash-test-"));
    try {
      return await use(folder);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  #run(folder: string, first: boolean, killAt: number | null): Promise<Said[]> {
    const { module, input, limitMs = 30_000 } = this.#options;
    const order: Order = {
      url: `sqlite:${join(folder, "jobs.db")}`,
      module: typeof module === "string" && !module.startsWith("file:") ? module : fileURLToPath(module),
      kind: this.#kind,
      jobId: JOB_ID,
      input: first ? { json: encodeJson(input, "The input of the crash test") } : null,
      killAt,
    };
    const child = fork(CHILD, [JSON.stringify(order)], {
      execArgv: process.execArgv.filter((argument) => !/^--(inspect|watch|test)/.test(argument)),
      stdio: ["ignore", "inherit", "pipe", "ipc"],
      env: { ...process.env, ...environment(join(folder, "effects.jsonl")) },
    });
    return heard(child, killAt !== null, limitMs);
  }
}

/** All that the child said, when it has ended as it should. */
function heard(child: ChildProcess, mayBeKilled: boolean, limitMs: number): Promise<Said[]> {
  return new Promise((resolve, reject) => {
    const said: Said[] = [];
    let words = "";
    const timer = setTimeout(() => child.kill("SIGKILL"), limitMs);
    child.on("message", (message) => said.push(message as Said));
    child.stderr!.on("data", (text: Buffer) => (words += text.toString()));
    child.on("error", reject);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      if (code === 0 || (mayBeKilled && signal === "SIGKILL")) resolve(said);
      else
        reject(new Error(`The process of the crash test ended by ${signal ?? `exit code ${code}`}: ${words.trim()}`));
    });
  });
}

function repeated(effects: readonly Effect[]): Pick<CrashRun, "twice" | "twiceUnderOneKey"> {
  const byWhat = Map.groupBy(effects, ({ what }) => what);
  const twice: string[] = [];
  const twiceUnderOneKey: string[] = [];
  for (const [what, times] of byWhat) {
    if (times.length < 2) continue;
    const keys = new Set(times.map(({ key }) => key));
    if (keys.size === 1 && !keys.has(null)) twiceUnderOneKey.push(what);
    else if (keys.has(null) || keys.size < times.length) twice.push(what);
  }
  return { twice, twiceUnderOneKey };
}

function textOf(kind: string, runs: readonly CrashRun[]): string {
  const bad = runs.filter(({ ended, twice }) => ended !== "succeeded" || twice.length > 0).length;
  return [
    `${kind} was killed at ${runs.length} points and finished by another process each time:`,
    ...runs.map(({ point, ended, error, twice, twiceUnderOneKey }) => {
      const trouble = [
        ...(ended === "succeeded" ? [] : [`it ended ${ended}${error === null ? "" : ` (${error})`}`]),
        ...twice.map((what) => `happened twice: ${what}`),
      ];
      const keyed = twiceUnderOneKey.map((what) => `sent again under the same idempotency key: ${what}`);
      const all = [...trouble, ...keyed];
      return `  ${trouble.length === 0 ? "ok  " : "BAD "} killed ${point}${all.length === 0 ? "" : `\n         ${all.join("\n         ")}`}`;
    }),
    bad === 0
      ? "Nothing happened twice that its receiver could not know to be the same."
      : `${bad} of ${runs.length} kills do harm. Put each effect into a step of its own with an idempotency key (run.key), or into run.commit.`,
  ].join("\n");
}
