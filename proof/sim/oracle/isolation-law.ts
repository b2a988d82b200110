// Promise 8 in figures, for histories in which nothing else goes wrong: the job that kills its workers is in quarantine after as many
// deaths as it takes to halve the jobs down to one, and its limit; and no other job is ever blamed.
import type { KindFacts } from "../workloads/workload.ts";
import { STATE } from "./model.ts";
import type { Tally } from "./tally.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** The first crash halves nothing, and the last group of two or three is halved to one: together they cost ceil(log2) deaths, not more. */
export function allowedDeaths(jobs: number, limit: number): number {
  return Math.ceil(Math.log2(jobs)) + limit;
}

export class IsolationLaw {
  readonly #jobs: number;
  readonly #facts: (kind: string) => KindFacts;
  readonly #tally: Tally;

  constructor(jobs: number, facts: (kind: string) => KindFacts, tally: Tally) {
    this.#jobs = jobs;
    this.#facts = facts;
    this.#tally = tally;
  }

  onCrash(is: JobRow): void {
    const { poison, limits } = this.#facts(is.kind);
    if (!poison)
      return demand(
        is.blamed === 0 && is.state !== STATE.quarantined,
        () => `job ${is.id} is blamed ${is.blamed} times, and kills nobody`,
      );
    const allowed = allowedDeaths(this.#jobs, limits.crashes);
    this.#tally.culpritDeaths = Math.max(this.#tally.culpritDeaths, is.crashes);
    demand(
      is.crashes < allowed || (is.crashes === allowed && is.state === STATE.quarantined),
      () => `job ${is.id} has killed ${is.crashes} workers among ${this.#jobs} jobs, ${allowed} are allowed`,
    );
  }
}
