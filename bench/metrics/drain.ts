// How fast one process of ours works off no-op jobs, beside the least that SQLite needs for it.
import { CONCURRENCY, Drainers, floorRound, startFloor } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

export const drain: Metric = {
  names: ["drain"],
  async run(bench) {
    const jobs = bench.pick(100_000, 20_000);
    const rounds = 5;
    const floor = await startFloor(bench);
    const execArgv = bench.profile === null ? [] : ["--cpu-prof", `--cpu-prof-dir=${bench.profile}`];
    const drainers = await Drainers.start(bench, bench.file(), 1, execArgv);
    return bench.during([floor, ...drainers.programs], async () => {
      const floorRates: number[] = [];
      const ourRates: number[] = [];
      for (let round = 1; round <= rounds; round++) {
        bench.progress(`drain: round ${round} of ${rounds}, ${jobs} jobs`);
        floorRates.push(await floorRound(floor, jobs));
        ourRates.push((await drainers.round(jobs)).rate);
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
