// Fifty callers at once, each waiting for its own job to be durable: group commit must make that many times faster than one.
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

const WIDTH = 50;

export const enqueueInFlight: Metric = {
  names: ["enqueueInFlight"],
  async run(bench) {
    const jobs = bench.pick(20_000, 5_000);
    const single = bench.pick(2_000, 300);
    const most = bench.pick(7, 3);
    let rounds = 0;
    const program = await bench.start("enqueue", { url: await bench.store.place() });
    return bench.during([program], async () => {
      const oneRates: number[] = [];
      const rates: number[] = [];
      for (const round of bench.rounds(`enqueueInFlight, ${jobs} jobs`, most, 3)) {
        rounds = round;
        oneRates.push(await program.ask<number>("one", { count: single }));
        rates.push(await program.ask<number>("inFlight", { count: jobs, width: WIDTH }));
      }
      const ours = median(rates);
      const base = { what: "one by one", value: median(oneRates) };
      return [
        {
          name: "enqueueInFlight",
          unit: "jobs/s",
          ours,
          base,
          targets: [{ text: "≥ 5 x one by one", value: ours / base.value, atLeast: 5 }],
          detail: { jobs, oneByOne: single, rounds, inFlight: WIDTH },
        },
      ];
    });
  },
};
