// What handlers were given by `run.step`, across all attempts and processes: the first result that came out of a step is the
// only one that may ever come out of it.
import { demand } from "./violation.ts";

export class StepMemory {
  readonly #results = new Map<string, string>();

  came(job: string, step: string, result: string): void {
    const key = `${job}/${step}`;
    const first = this.#results.get(key);
    this.#results.set(key, first ?? result);
    demand(first === undefined || first === result, () => `step ${key} gave ${first} first and ${result} later`);
  }

  /** The rows are older ones: only what is `kept` on the disk, as `job/step`, is still bound to its result. */
  wentBack(kept: ReadonlySet<string>): void {
    for (const key of this.#results.keys()) if (!kept.has(key)) this.#results.delete(key);
  }
}
