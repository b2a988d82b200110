// `enqueueMany` next to raw inserts in transactions of the same size, and jobs whose dedupe keys are held next to new ones.
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
      const share = bench.store.name === "sqlite" ? 0.65 : 0.6;
      return [
        {
          name: "enqueueBulk",
          unit: "jobs/s",
          ours: rate,
          floor: least,
          targets:
            bench.store.name === "redis"
              ? [{ text: "≥ 80,000 jobs/s", value: rate, atLeast: 80_000 }]
              : [{ text: `≥ ${share * 100} % of raw inserts`, value: rate / least, atLeast: share }],
          detail: { jobs, rounds, batch: BATCH },
        },
      ];
    });
  },
};

/** Jobs with a dedupe key each, and then the same again while the first ones are unfinished. */
export const enqueueDuplicates: Metric = {
  names: ["enqueueDuplicates"],
  async run(bench) {
    const jobs = bench.pick(50_000, 10_000);
    let rounds = 0;
    const ours = await bench.start("enqueue", { url: await bench.store.place() });
    return bench.during([ours], async () => {
      const rates: { fresh: number; duplicates: number }[] = [];
      for (const round of bench.rounds(`enqueueDuplicates, ${jobs} jobs`, bench.pick(5, 3), 3)) {
        rounds = round;
        rates.push(await ours.ask("duplicates", { count: jobs, round }));
      }
      const value = median(rates.map(({ duplicates }) => duplicates));
      const base = median(rates.map(({ fresh }) => fresh));
      return [
        {
          name: "enqueueDuplicates",
          unit: "jobs/s",
          ours: value,
          base: { what: "new jobs", value: base },
          targets: [{ text: "≥ 50 % of new jobs", value: value / base, atLeast: 0.5 }],
          detail: { jobs, rounds, batch: BATCH },
        },
      ];
    });
  },
};
