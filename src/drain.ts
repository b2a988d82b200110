// The end of `engine.drain`: when nothing is left that its worker would run.
import type { WorkOptions } from "./engine/options.ts";
import { type Clock, pause } from "./core/clock.ts";
import type { AnyContract } from "./core/contract.ts";
import type { KindCounts } from "./core/store.ts";

export interface DrainDeps {
  readonly client: { counts(): Promise<readonly KindCounts[]> };
  readonly clock: Clock;
  readonly contracts: ReadonlyMap<string, AnyContract>;
}

/** Answers the counts once nothing runs and nothing is ready that has a handler here. `only`: as of the worker. */
export async function untilDrained(
  { client, clock, contracts }: DrainDeps,
  only: WorkOptions["only"],
): Promise<readonly KindCounts[]> {
  for (;;) {
    const counts = await client.counts();
    const left = counts
      .filter(({ kind }) => !only || only.some(({ name }) => name === kind))
      .some(
        ({ kind, paused, ready, running }) => running > 0 || (ready > 0 && !paused && contracts.get(kind)?.handler),
      );
    if (!left) return counts;
    await pause(clock, 1);
  }
}
