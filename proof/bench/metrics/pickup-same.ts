// From the call of `enqueue` to the start of the handler, in the process of an idle worker. The commit is in it.
import { percentile } from "../figure.ts";
import type { Metric } from "../harness.ts";

const TARGETS = {
  sqlite: { text: "p50 < 2 ms", atMost: 2 },
  postgres: { text: "p50 ≤ 5 ms", atMost: 5 },
  redis: { text: "p50 ≤ 3 ms", atMost: 3 },
} as const;

export const pickupSame: Metric = {
  names: ["pickupSameMs"],
  async run(bench) {
    const jobs = bench.pick(1_000, 100);
    const worker = await bench.start("pickup", { url: await bench.store.place() });
    return bench.during([worker], async () => {
      bench.progress(`pickupSameMs: ${jobs} jobs`);
      await worker.ask("same", { count: jobs / 10 });
      await worker.ask("waited"); // the warm-up
      await worker.ask("same", { count: jobs });
      const waited = await worker.ask<number[]>("waited");
      const p50 = percentile(waited, 50);
      return [
        {
          name: "pickupSameMs",
          unit: "ms",
          ours: p50,
          targets: [{ ...TARGETS[bench.store.name], value: p50 }],
          detail: { p50, p99: percentile(waited, 99), jobs },
        },
      ];
    });
  },
};
