// How fast one process of ours works off no-op jobs, beside the least that SQLite needs for it.
import { CONCURRENCY, Drainers, floorRound, startFloor } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

export const drain: Metric = {
  names: ["drain"],
  async run(bench) {
    const jobs = bench.pick(100_000, 10_000);
    const most = bench.pick(5, 10);
    let rounds = 0;
    const floor = await startFloor(bench);
    const execArgv = bench.profile === null ? [] : ["--cpu-prof", `--cpu-prof-dir=${bench.profile}`];
    const drainers = await Drainers.start(bench, bench.file(), 1, execArgv);
    return bench.during([floor, ...drainers.programs], async () => {
      const floorRates: number[] = [];
      const ourRates: number[] = [];
      for (const round of bench.rounds(`drain, ${jobs} jobs`, most, 5)) {
        rounds = round;
        floorRates.push(...(await floorRound(floor, jobs)));
        ourRates.push(...(await drainers.round(jobs)).rates);
      }
      await drainers.stop();
      const ours = median(ourRates);
      const least = median(floorRates);
      return [
        {
          name: "drain",
          unit: "jobs/s",
          ours,
          floor: least,
          targets: [{ text: "≥ 60 % of the floor", value: ours / least, atLeast: 0.6 }],
          detail: { jobs, rounds, concurrency: CONCURRENCY },
        },
      ];
    });
  },
};
