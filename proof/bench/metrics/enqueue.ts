// One job after the other, each durable before the next: what one fsync allows.
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

export const enqueue: Metric = {
  names: ["enqueue"],
  async run(bench) {
    const jobs = bench.pick(2_000, 300);
    const most = bench.pick(7, { sqlite: 5, postgres: 3, redis: 3 }[bench.store.name]);
    let rounds = 0;
    const floor = await bench.start(bench.store.floors.enqueue, { url: await bench.store.place() });
    const ours = await bench.start("enqueue", { url: await bench.store.place() });
    return bench.during([floor, ours], async () => {
      const floorRates: number[] = [];
      const ourRates: number[] = [];
      for (const round of bench.rounds(`enqueue, ${jobs} jobs`, most, 3)) {
        rounds = round;
        floorRates.push(await floor.ask<number>("insert", { count: jobs, batch: 1 }));
        ourRates.push(await ours.ask<number>("one", { count: jobs }));
      }
      return [
        {
          name: "enqueue",
          unit: "jobs/s",
          ours: median(ourRates),
          floor: median(floorRates),
          targets: [],
          detail: { jobs, rounds },
        },
      ];
    });
  },
};
