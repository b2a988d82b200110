// `enqueueMany` next to raw inserts in transactions of the same size.
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

/** What one transaction of `enqueueMany` holds. */
const BATCH = 1_000;

export const enqueueBulk: Metric = {
  names: ["enqueueBulk"],
  async run(bench) {
    const jobs = bench.pick(100_000, { sqlite: 20_000, postgres: 10_000, redis: 10_000 }[bench.store.name]);
    const most = 5;
    let rounds = 0;
    const floor = await bench.start(bench.store.floors.enqueue, { url: await bench.store.place() });
    const ours = await bench.start("enqueue", { url: await bench.store.place() });
    return bench.during([floor, ours], async () => {
      const floorRates: number[] = [];
      const ourRates: number[] = [];
      for (const round of bench.rounds(`enqueueBulk, ${jobs} jobs`, most, 3)) {
        rounds = round;
        floorRates.push(await floor.ask<number>("insert", { count: jobs, batch: BATCH }));
        ourRates.push(await ours.ask<number>("bulk", { count: jobs }));
      }
      const rate = median(ourRates);
      const least = median(floorRates);
      return [
        {
          name: "enqueueBulk",
          unit: "jobs/s",
          ours: rate,
          floor: least,
          // There is no target for PostgreSQL.
          targets:
            bench.store.name === "sqlite"
              ? [{ text: "≥ 60 % of raw inserts", value: rate / least, atLeast: 0.6 }]
              : bench.store.name === "redis"
                ? [{ text: "≥ 80,000 jobs/s", value: rate, atLeast: 80_000 }]
                : [],
          detail: { jobs, rounds, batch: BATCH },
        },
      ];
    });
  },
};
