// From the call of `enqueue` in one process to the start of the handler in another, whose worker is idle. The commit is in it.
import { setTimeout as delay } from "node:timers/promises";
import { percentile } from "../figure.ts";
import type { Metric, Program } from "../harness.ts";

const TARGETS = {
  sqlite: { text: "p50 < 10 ms", atMost: 10 },
  postgres: { text: "p50 ≤ 5 ms", atMost: 5 },
  redis: { text: "p50 ≤ 3 ms", atMost: 3 },
} as const;

export const pickupOther: Metric = {
  names: ["pickupOtherMs"],
  async run(bench) {
    const jobs = bench.pick(1_000, 100);
    const url = await bench.store.place();
    const worker = await bench.start("pickup", { url });
    const client = await bench.start("pickup-client", { url });
    return bench.during([worker, client], async () => {
      bench.progress(`pickupOtherMs: ${jobs} jobs`);
      await pickups(client, worker, jobs / 10); // a warm-up
      const waited = await pickups(client, worker, jobs);
      const p50 = percentile(waited, 50);
      return [
        {
          name: "pickupOtherMs",
          unit: "ms",
          ours: p50,
          targets: [{ ...TARGETS[bench.store.name], value: p50 }],
          detail: { p50, p99: percentile(waited, 99), max: Math.max(...waited), jobs },
        },
      ];
    });
  },
};

async function pickups(client: Program, worker: Program, count: number): Promise<number[]> {
  await client.ask("other", { count });
  const waited: number[] = [];
  while (waited.length < count) {
    await delay(5);
    waited.push(...(await worker.ask<number[]>("waited")));
  }
  return waited;
}
