// Jobs that take 5 ms, next to as many timers of 5 ms at once without a store: how well a worker keeps its slots filled.
import { CONCURRENCY, Drainers, ratesOf } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

const AT_LEAST = 0.85;

export const drainSlowHandlers: Metric = {
  names: ["drainSlowHandlers"],
  async run(bench) {
    const jobs = bench.pick(50_000, 10_000);
    let rounds = 0;
    const drainers = await Drainers.start(bench, await bench.store.place(), 1, [], "slow");
    return bench.during(drainers.programs, async () => {
      const ourRates: number[] = [];
      const timerRates: number[] = [];
      for (const round of bench.rounds(`drainSlowHandlers, ${jobs} jobs`, bench.pick(5, 3), 8)) {
        rounds = round;
        const { marks } = await drainers.programs[0]!.ask<{ marks: number[] }>("timers", { count: jobs });
        timerRates.push(...ratesOf(marks, jobs));
        ourRates.push(...(await drainers.round(jobs)).rates);
      }
      await drainers.stop();
      const ours = median(ourRates);
      const timers = median(timerRates);
      return [
        {
          name: "drainSlowHandlers",
          unit: "jobs/s",
          ours,
          base: { what: "the same timers without a store", value: timers },
          targets: [{ text: `≥ ${AT_LEAST * 100} % of the timers`, value: ours / timers, atLeast: AT_LEAST }],
          detail: { jobs, rounds, concurrency: CONCURRENCY, handlerMs: 5 },
        },
      ];
    });
  },
};
