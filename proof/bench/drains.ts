// Draining as the bench sees it: processes that work off a round of jobs together, and the rate at which they did.
import type { Bench, Program } from "./harness.ts";
import type { Peer } from "./peers.ts";

export const CONCURRENCY = 50;
/** A process notes the time of every 50th job: one batch. */
const EVERY = 50;

/**
 * A shared machine stalls for moments, so the rate of a drain is the median of windows this long. Long enough for what SQLite does
 * now and then (a checkpoint comes every 1,000 pages), for the floor as for us. A shorter round has shorter ones.
 */
const WINDOW = 4_400;

export interface Round {
  /** Jobs per second in each window of the round, after the first tenth, which is a warm-up. */
  readonly rates: readonly number[];
  /** How many jobs each process did. */
  readonly shares: readonly number[];
  readonly peakRssMb: number;
}

/**
 * What is drained: plain jobs, jobs with a key, jobs with the same inputs and no key, the children of one parent, the same jobs by the same workers without a parent, plain jobs of a thousand kinds, of one of a thousand kinds, jobs that take 5 ms, jobs that are not
 * claimed ahead, or plain jobs next to a purge that begins soon.
 */
export type DrainForm =
  | "plain"
  | "keyed"
  | "unkeyed"
  | "children"
  | "parentless"
  | "kinds"
  | "oneOfKinds"
  | "slow"
  | "notAhead"
  | "purging";

interface Marks {
  readonly marks: readonly number[];
  readonly handled: number;
  readonly peakRssMb: number;
}

export class Drainers {
  readonly programs: readonly Program[];
  readonly #first: Program;

  static async start(
    bench: Bench,
    url: string,
    processes: number,
    execArgv: readonly string[] = [],
    form: DrainForm = "plain",
  ): Promise<Drainers> {
    const data = { url, concurrency: CONCURRENCY, every: EVERY, form };
    return new Drainers(await bench.startAll(processes, "drain", data, execArgv));
  }

  private constructor(programs: readonly Program[]) {
    this.programs = programs;
    this.#first = programs[0]!;
  }

  /** Fills `count` jobs of this priority (null: takes what is there), drains as many, and returns the rates. */
  async round(count: number, priority: number | null = 0): Promise<Round> {
    if (priority !== null) await this.#first.ask("fill", { count, priority });
    for (const program of this.programs) await program.ask("reset");
    const done = this.#whenHandled(count);
    await this.#first.ask("go");
    await done;
    await this.#first.ask("halt");
    const told = await Promise.all(this.programs.map((program) => program.ask<Marks>("marks")));
    return {
      rates: ratesOf(
        told.flatMap(({ marks }) => marks),
        count,
      ),
      shares: told.map(({ handled }) => handled),
      peakRssMb: Math.max(...told.map(({ peakRssMb }) => peakRssMb)),
    };
  }

  async stop(): Promise<void> {
    for (const program of this.programs) await program.ask("stop");
  }

  #whenHandled(count: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const handled = new Map<Program, number>();
      const unhear = this.programs.map((program) =>
        program.on<number>("handled", (so) => {
          handled.set(program, so);
          // What a process has done since its last full batch bears no mark.
          const marked = [...handled.values()].reduce((sum, each) => sum + Math.floor(each / EVERY) * EVERY, 0);
          if (marked >= count - EVERY * this.programs.length) end(resolve);
        }),
      );
      const timer = setTimeout(
        () => end(() => reject(new Error(`${count} jobs were not drained in 5 minutes`))),
        300_000,
      );
      const end = (then: () => void): void => {
        clearTimeout(timer);
        for (const each of unhear) each();
        then();
      };
    });
  }
}

/** Jobs per second in each window of the first `count` jobs. */
export function ratesOf(marks: readonly number[], count: number): number[] {
  const sorted = marks.toSorted((a, b) => a - b).slice(0, Math.floor(count / EVERY));
  const step = Math.floor(Math.min(WINDOW, 0.44 * count) / EVERY);
  const rates: number[] = [];
  for (let from = Math.floor(sorted.length / 10); from + step < sorted.length; from += step)
    rates.push((step * EVERY * 1_000) / (sorted[from + step]! - sorted[from]!));
  return rates;
}

/** The rates of the floor or of a peer for the same round. */
export async function roundOf(program: Program, count: number): Promise<number[]> {
  await program.ask("fill", { count });
  const { marks, endedMs } = await program.ask<{ marks: number[]; endedMs?: number }>("go");
  return endedMs === undefined ? ratesOf(marks, count) : [untilEnded(marks, count, endedMs)];
}

/** Of a peer whose marks are those of its handlers, which run ahead of its store: jobs per second after the first tenth until nothing is left. */
export function untilEnded(marks: readonly number[], count: number, endedMs: number): number {
  const sorted = marks.toSorted((a, b) => a - b);
  const tenth = Math.floor(sorted.length / 10);
  return ((count - (tenth + 1) * EVERY) * 1_000) / (endedMs - sorted[tenth]!);
}

export async function startFloor(bench: Bench): Promise<Program> {
  const { store } = bench;
  return bench.start(store.floors.drain, { url: await store.place(), batch: store.floorBatch, every: EVERY });
}

export async function startPeer(bench: Bench, peer: Peer): Promise<Program> {
  return bench.start(peer.program, { url: await bench.store.place(), settings: peer.settings, every: EVERY });
}
