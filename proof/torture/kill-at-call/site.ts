// The fixture of a kill: a scenario played up to its last act, whose process is killed as its main thread enters a call that was named; then
// the judge.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisedBy } from "../scenarios/promised.ts";
import type { Scenario } from "../scenarios/scenario.ts";
import { parseWords, sayInto, WORDS_FILE } from "../scenarios/word.ts";
import { assertPlayed, play, type Play } from "../strace.ts";
import { isBroken, judge, type Verdict } from "../verdict.ts";

/** Not `write`: it carries only the words and the wake-ups between threads. */
export const CALLS: readonly string[] = ["pwrite64", "fsync", "fdatasync", "ftruncate", "unlink"];

/** The n-th call of that name: strace counts each name separately. */
export interface Point {
  readonly call: string;
  readonly nth: number;
}

export interface Kill {
  readonly scenario: string;
  /** The calls that were not made, one for each process that died. */
  readonly points: readonly Point[];
  readonly promises: number;
  readonly verdict: Verdict;
  /** The fixture as the kill left it, if it is broken. */
  readonly left: string | null;
}

/** A control: an answer that the engine never gave. */
export type Plant = "forged-answer";

export interface SiteOptions {
  /** A folder that makes later starts cheaper. */
  readonly codeCache: string;
  /** Where scenes that are broken are left, as the kill left them: the judge goes on with them. */
  readonly broken: string;
  readonly plant?: Plant | undefined;
}

/** One scenario in a folder of its own: its file before, and a fresh copy of it, a fixture, for every kill. */
export class Site {
  readonly #scenario: Scenario;
  readonly #folder: string;
  readonly #base: string;
  readonly #codeCache: string;
  readonly #options: SiteOptions;

  constructor(scenario: Scenario, folder: string, options: SiteOptions) {
    this.#scenario = scenario;
    this.#folder = folder;
    this.#base = join(folder, "base");
    this.#codeCache = options.codeCache;
    this.#options = options;
  }

  async prepare(): Promise<void> {
    mkdirSync(this.#base, { recursive: true });
    for (const act of this.#scenario.before) {
      const given = { act, folder: this.#base, durability: "full" } as const;
      assertPlayed(given, await play(given, undefined, this.#codeCache));
    }
  }

  /** Every call of the main thread, in their order. */
  async points(): Promise<Point[]> {
    const trace = join(this.#folder, "trace");
    await this.#inFixture(async (given) =>
      assertPlayed(given, await play(given, ["-e", `trace=${CALLS.join(",")}`, "-xx", "-o", trace], this.#codeCache)),
    );
    const counts = new Map<string, number>();
    const points = readFileSync(trace, "latin1")
      .matchAll(/^(\w+)\(/gm)
      .map(([, call]) => {
        const nth = (counts.get(call!) ?? 0) + 1;
        counts.set(call!, nth);
        return { call: call!, nth };
      });
    const all = [...points];
    if (all.length === 0) throw new Error(`${this.#scenario.name} makes no call that could be its last`);
    return all;
  }

  /** Killed at each of these in turn, the next process on what the one before left. Null: one ended on its own before it. */
  killAt(...points: readonly Point[]): Promise<Kill | null> {
    return this.#inFixture(async (given) => {
      for (const { call, nth } of points) {
        // Not with --seccomp-bpf: strace 6.1 then injects nothing. Not with -f: each thread would have a count of its own, and
        // whichever came to it first would be the one that dies.
        const killing = ["-e", `trace=${call}`, "-e", `inject=${call}:signal=SIGKILL:when=${nth}`, "-o", "/dev/null"];
        const end = await play(given, killing, this.#codeCache);
        if (end.code === 0) return null;
        if (end.signal !== "SIGKILL" && end.code !== 137)
          throw new Error(
            `${this.#scenario.name}, killed at ${call} ${nth}, ended with ${end.signal ?? end.code}:\n${end.stderr}`,
          );
      }
      if (this.#options.plant === "forged-answer") sayInto(given.folder)({ said: "enqueued", ids: ["forged"] });
      const promised = promisedBy(parseWords(readFileSync(join(given.folder, WORDS_FILE), "utf8")));
      const asLeft = `${given.folder}-as-left`;
      cpSync(given.folder, asLeft, { recursive: true });
      const verdict = await judge(given.folder, promised, { rebooted: false });
      const left = isBroken(verdict) ? this.#keep(asLeft, points) : null;
      rmSync(asLeft, { recursive: true, force: true });
      return { scenario: this.#scenario.name, points, promises: promised.count, verdict, left };
    });
  }

  #keep(fixture: string, points: readonly Point[]): string {
    const kept = join(
      this.#options.broken,
      [this.#scenario.name, ...points.map(({ call, nth }) => `${call}-${nth}`)].join("-"),
    );
    cpSync(fixture, kept, { recursive: true });
    return kept;
  }

  /**
   * Sets a fixture up to the last act, for as long as `body` takes. Acts before the last are played again: in a copy of the folder no
   * lock is the one that its worker held.
   */
  async #inFixture<T>(body: (last: Play) => Promise<T>): Promise<T> {
    const folder = mkdtempSync(join(this.#folder, "fixture-"));
    try {
      cpSync(this.#base, folder, { recursive: true });
      const given = this.#scenario.watched.map((act) => ({ act, folder, durability: "full" }) as const);
      for (const before of given.slice(0, -1)) assertPlayed(before, await play(before, undefined, this.#codeCache));
      return await body(given.at(-1)!);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }
}
