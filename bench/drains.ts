// Draining as the bench sees it: processes that work off a round of jobs together, and the rate at which they did.
import type { Bench, Program } from "./harness.ts";

export const CONCURRENCY = 50;
/** A process notes the time of every 50th job: one batch. */
const EVERY = 50;

export interface Round {
  readonly rate: number;
  /** How many jobs each process did. */
  readonly shares: readonly number[];
  readonly peakRssMb: number;
}

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
    path: string,
    processes: number,
    execArgv: readonly string[] = [],
  ): Promise<Drainers> {
    const programs: Program[] = [];
    for (let i = 0; i < processes; i++)
      programs.push(await bench.start("drain", { path, concurrency: CONCURRENCY, every: EVERY }, execArgv));
    return new Drainers(programs);
  }

  private constructor(programs: readonly Program[]) {
    this.programs = programs;
    this.#first = programs[0]!;
  }

  /** Fills `count` jobs of this priority, drains them, and answers the rate. The first tenth is a warm-up. */
  async round(count: number, priority = 0): Promise<Round> {
    await this.#first.ask("fill", { count, priority });
    for (const program of this.programs) await program.ask("reset");
    const done = this.#whenHandled(count);
    await this.#first.ask("go");
    await done;
    await this.#first.ask("halt");
    const told = await Promise.all(this.programs.map((program) => program.ask<Marks>("marks")));
    return {
      rate: rateOf(
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

/** Jobs per second between the marks at a tenth and at the end of what was marked. */
export function rateOf(marks: readonly number[], count: number): number {
  const sorted = marks.toSorted((a, b) => a - b).slice(0, Math.floor(count / EVERY));
  const from = Math.floor(sorted.length / 10);
  const last = sorted.length - 1;
  return ((last - from) * EVERY * 1_000) / (sorted[last]! - sorted[from]!);
}

/** The floor's rate for the same round. */
export async function floorRound(program: Program, count: number): Promise<number> {
  await program.ask("fill", { count });
  const { marks } = await program.ask<{ marks: number[] }>("go");
  return rateOf(marks, count);
}

export function startFloor(bench: Bench): Promise<Program> {
  return bench.start("drain-floor", { path: bench.file(), batch: CONCURRENCY });
}
