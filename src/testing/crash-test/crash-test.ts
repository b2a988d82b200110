// `crashTest`: the user's own job, request, batch or collection, killed at every boundary of a step, a wait, a sending, the end of rows or a part and before its settlement, each time on a
// fresh store, then run to its end by another process. The report says which effects outside the store happened more often than in an undisturbed run.
import { type ChildProcess, fork } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { NamedKind } from "../../job/contract.ts";
import { encodeJson, type Json } from "../../job/json.ts";
import { programFile } from "../../platform/program-file.ts";
import type { Order, Message } from "./child.ts";
import { type Effect, environment, readEffects, type Repeated, repeated } from "./effects.ts";

/** Options of `crashTest`. */
export interface CrashTestOptions<In> {
  /** The module that exports the job with its handler: `new URL("./jobs.ts", import.meta.url)`. */
  readonly module: string | URL;
  /** The job's input; the rows of a batch. */
  readonly input: In;
  /** The parts of a collection, by series, from the first; they are put by `put`, and what it publishes is an effect with its message id as the key. Default: none. */
  readonly parts?: Readonly<Record<string, readonly string[]>>;
  /** The context of a batch. Default: null. */
  readonly context?: Json;
  /** What the job gets when it waits for a signal, by the signal's name. Default: no signal comes, and such a wait ends by its timeout. */
  readonly signals?: Readonly<Record<string, Json>>;
  /** What was done outside the store, one text each, if neither `effect` nor an HTTP request shows it: read after each run. Default: nothing. */
  readonly effects?: () => readonly string[] | Promise<readonly string[]>;
  /** Called before each run, to set the outside world back. Default: nothing. */
  readonly reset?: () => void | Promise<void>;
  /** At which points it is killed, by their names in the report. Default: at all of them. */
  readonly points?: (point: string) => boolean;
  /** How long one process may take, in ms. Default 30000, from 100. */
  readonly limitMs?: number;
}

/** One run: killed at `point`, then finished by another process. */
export interface CrashRun extends Repeated {
  /** The write before or after which the process was killed. */
  readonly point: string;
  /** Why no process was killed at the point; null: its process was. */
  readonly notReached: string | null;
  /** The state in which the job, the batch or what follows the collection ended; "never": it did not in `limitMs`; "different": a batch has other rows or files, or a collection other parts, than without a kill; "unknown": a request has failed because it must not be sent twice, as it says. */
  readonly ended: string;
  /** What went wrong in this run; null if nothing did. */
  readonly error: string | null;
}

/** What `crashTest` found. */
export interface CrashReport {
  /** The kind of the job under test. */
  readonly kind: string;
  /** One run for each point at which the process was killed. */
  readonly runs: readonly CrashRun[];
  /** True if in every run the point was reached, the job succeeded and no effect happened twice without a key. */
  readonly ok: boolean;
  /** The same for people. */
  readonly text: string;
}

const JOB_ID = "crash-test";
const NOTE = "reached";

/** Kills the job's process at every point at which something may happen twice, and says what did. */
export async function crashTest<In>(job: NamedKind, options: CrashTestOptions<In>): Promise<CrashReport> {
  const bench = new Bench(job.name, options);
  const undisturbed = await bench.toItsEnd();
  const runs: CrashRun[] = [];
  const isChosen = options.points ?? (() => true);
  for (const [at, point] of undisturbed.points.entries())
    if (isChosen(point)) runs.push(await bench.killedAt(at, undisturbed));
  const ok = runs.every(isHarmless);
  return { kind: job.name, runs, ok, text: textOf(job.name, runs) };
}

/** The undisturbed run: the points at which the others are killed, and how often each effect happens if nothing happens twice. */
interface UndisturbedRun {
  readonly points: readonly string[];
  /** What a batch has left behind; undefined: it is a job. */
  readonly left: string | undefined;
  readonly effects: readonly Effect[];
}

class Bench<In> {
  readonly #kind: string;
  readonly #options: CrashTestOptions<In>;

  constructor(kind: string, options: CrashTestOptions<In>) {
    this.#kind = kind;
    this.#options = options;
  }

  async toItsEnd(): Promise<UndisturbedRun> {
    return this.#onFreshStore(async (folder) => {
      const { said } = await this.#run(folder, true, null);
      const last = said.at(-1);
      if (!last || !("ended" in last) || last.ended !== "succeeded")
        throw new Error(
          `The job ${this.#kind} does not succeed even in an undisturbed run: ${JSON.stringify(last ?? "it never ended")}.`,
        );
      return {
        left: last.left,
        points: said.flatMap((one) => ("point" in one ? [one.point] : [])),
        effects: await this.#effectsIn(folder),
      };
    });
  }

  async killedAt(at: number, { points, effects, left }: UndisturbedRun): Promise<CrashRun> {
    const point = points[at]!;
    return this.#onFreshStore(async (folder) => {
      const killed = await this.#run(folder, true, at);
      const notReached = this.#whyNot(killed, noteIn(folder), point);
      if (notReached !== null) return { point, notReached, ...endOf(killed.said), twice: [], twiceUnderOneKey: [] };
      const { said } = await this.#run(folder, false, null);
      const end = sameEndOf(said, left);
      const done = await this.#effectsIn(folder);
      return {
        point,
        notReached,
        ...end,
        ...repeated(end.ended === "unknown" ? otherWay(effects, done) : effects, done),
      };
    });
  }

  async #effectsIn(folder: string): Promise<readonly Effect[]> {
    const own = ((await this.#options.effects?.()) ?? []).map((what): Effect => ({ what, key: null }));
    return [...readEffects(join(folder, "effects.jsonl")), ...own];
  }

  #whyNot({ said, tooLate }: ChildOutput, killedAt: string | null, point: string): string | null {
    if (killedAt === point) return null;
    const why =
      killedAt !== null
        ? `it was killed ${killedAt}`
        : tooLate
          ? `it had not ended after ${this.#limitMs} ms (limitMs)`
          : `its process ended on its own, the job ${endOf(said).ended}`;
    return `${why}: this run took another way than the undisturbed one before it. A job under crashTest has to do the same in every run (\`reset\`).`;
  }

  get #limitMs(): number {
    return this.#options.limitMs ?? 30_000;
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

  #run(folder: string, first: boolean, killAt: number | null): Promise<ChildOutput> {
    const { module, input, signals = {}, context = null, parts = {} } = this.#options;
    const order: Order = {
      url: `sqlite:${join(folder, "jobs.db")}`,
      module: typeof module === "string" && !module.startsWith("file:") ? module : fileURLToPath(module),
      kind: this.#kind,
      jobId: JOB_ID,
      input:
        first || Array.isArray(input) || this.#options.parts !== undefined
          ? { json: encodeJson(input, "The input of the crash test") }
          : null,
      context: encodeJson(context, "The context of the crash test"),
      parts,
      blobs: join(folder, "blobs"),
      signals,
      killAt,
      note: join(folder, NOTE),
    };
    const child = fork(programFile("testing/crash-test/child"), [JSON.stringify(order)], {
      execArgv: process.execArgv.filter((argument) => !/^--(inspect|watch|test)/.test(argument)),
      stdio: ["ignore", "inherit", "pipe", "ipc"],
      env: { ...process.env, ...environment(join(folder, "effects.jsonl")) },
    });
    return heard(child, killAt !== null, this.#limitMs);
  }
}

interface ChildOutput {
  readonly said: readonly Message[];
  /** It was ended because its time was up. */
  readonly tooLate: boolean;
}

/** Everything that the child printed, when it has ended as it should, or its time was up. */
function heard(child: ChildProcess, mayBeKilled: boolean, limitMs: number): Promise<ChildOutput> {
  return new Promise((resolve, reject) => {
    const said: Message[] = [];
    let words = "";
    let tooLate = false;
    const timer = setTimeout(() => {
      tooLate = true;
      child.kill("SIGKILL");
    }, limitMs);
    child.on("message", (message) => said.push(message as Message));
    child.stderr!.on("data", (text: Buffer) => (words += text.toString()));
    child.on("error", reject);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      if (code === 0 || ((mayBeKilled || tooLate) && signal === "SIGKILL")) resolve({ said, tooLate });
      else
        reject(new Error(`The process of the crash test ended by ${signal ?? `exit code ${code}`}: ${words.trim()}`));
    });
  });
}

function endOf(said: readonly Message[]): Pick<CrashRun, "ended" | "error"> {
  const last = said.findLast((one) => "ended" in one);
  return { ended: last?.ended ?? "never", error: last?.error ?? null };
}

/** A batch also has to leave the same rows and the same files behind as in the undisturbed run. */
function sameEndOf(said: readonly Message[], left: string | undefined): Pick<CrashRun, "ended" | "error"> {
  const end = endOf(said);
  const last = said.findLast((one) => "ended" in one);
  if (end.ended !== "succeeded" || last?.left === left) return end;
  return { ended: "different", error: `${last?.left} instead of ${left}` };
}

/** A request that fails as it says takes another way than in the undisturbed run: what it does there, it may do once. */
function otherWay(undisturbed: readonly Effect[], done: readonly Effect[]): readonly Effect[] {
  const known = new Set(undisturbed.map(({ what }) => what));
  return [
    ...undisturbed,
    ...new Map(done.filter(({ what }) => !known.has(what)).map((one) => [one.what, one])).values(),
  ];
}

/** The point at which the process killed itself. */
function noteIn(folder: string): string | null {
  const note = join(folder, NOTE);
  return existsSync(note) ? readFileSync(note, "utf8") : null;
}

function isHarmless({ notReached, ended, twice }: CrashRun): boolean {
  return notReached === null && (ended === "succeeded" || ended === "unknown") && twice.length === 0;
}

function textOf(kind: string, runs: readonly CrashRun[]): string {
  const missed = runs.filter(({ notReached }) => notReached !== null).length;
  const bad = runs.filter((run) => !isHarmless(run)).length - missed;
  const kills = runs.length - missed;
  return [
    `${kind} was killed at ${kills} of ${runs.length} points and finished by another process each time:`,
    ...runs.map(lineOf),
    ...(missed === 0 ? [] : [`${missed} of ${runs.length} points were not reached: nothing is known of them.`]),
    ...(bad === 0
      ? kills === 0
        ? []
        : ["Nothing happened twice that its receiver could not know to be the same."]
      : [
          `${bad} of ${kills} kills do harm. Put each effect into a step of its own with an idempotency key (run.key), or into run.commit.`,
        ]),
  ].join("\n");
}

const IDEMPOTENT = /^(GET|HEAD|OPTIONS|PUT|DELETE|QUERY) /;

function lineOf(run: CrashRun): string {
  const { point, notReached, ended, error, twice, twiceUnderOneKey } = run;
  if (notReached !== null) return `  BAD  not reached: ${point}\n         ${notReached}`;
  const all = [
    ...(ended === "succeeded" ? [] : [`it ended ${ended}${error === null ? "" : ` (${error})`}`]),
    ...twice.map((what) => `happened twice: ${what}`),
    ...twiceUnderOneKey.map((what) =>
      IDEMPOTENT.test(what)
        ? `sent again, by a method that is idempotent: ${what}`
        : `sent again under the same idempotency key: ${what}`,
    ),
  ];
  return `  ${isHarmless(run) ? "ok  " : "BAD "} killed ${[point, ...all].join("\n         ")}`;
}
