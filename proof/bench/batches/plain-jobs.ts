// What batches cost those who do not use them: CPU per plain job of this tree against the last commit without batches, in interleaved rounds.
import { measureAgainst } from "../against/run.ts";
import type { Metric } from "../harness.ts";

/** The last commit of main without batches. */
const BEFORE = "121ca56";
const LIMIT = 1.05;
const ROUNDS = 9;

export const plainJobs: Metric = {
  names: ["plainJobs"],
  async run(bench) {
    const { comparisons } = await measureAgainst({
      revision: BEFORE,
      rounds: bench.pick(ROUNDS, 1),
      limit: LIMIT,
      stores: [bench.store.name],
      names: ["drain"],
      json: true,
      quick: bench.quick,
      strict: false,
    });
    const { ratio, low, high, ...cost } = comparisons[0]!;
    return [
      {
        name: "plainJobs",
        unit: "µs of CPU",
        ours: cost.new,
        base: { what: `a job of ${BEFORE}`, value: cost.old },
        targets: [{ text: `≤ ${LIMIT} of before`, value: ratio, atMost: LIMIT }],
        detail: { ratio, low, high, rounds: bench.pick(ROUNDS, 1) },
      },
    ];
  },
};
