// Four worker processes on one file next to one that claims nothing ahead: SQLite has one writer, so more processes must cost nothing and share the work.
import { CONCURRENCY, Drainers } from "../drains.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

const PROCESSES = 4;

export const drainFourProcesses: Metric = {
  names: ["drainFourProcesses"],
  async run(bench) {
    const jobs = bench.pick(100_000, 40_000);
    const most = bench.pick(5, 8);
    let rounds = 0;
    const one = await Drainers.start(bench, await bench.store.place(), 1, [], "notAhead");
    const four = await Drainers.start(bench, await bench.store.place(), PROCESSES);
    return bench.during([...one.programs, ...four.programs], async () => {
      const oneRates: number[] = [];
      const fourRates: number[] = [];
      const totals = Array.from({ length: PROCESSES }, () => 0);
      for (const round of bench.rounds(`drainFourProcesses, ${jobs} jobs`, most, 5)) {
        rounds = round;
        oneRates.push(...(await one.round(jobs)).rates);
        const { rates, shares } = await four.round(jobs);
        fourRates.push(...rates);
        shares.forEach((share, i) => (totals[i] = totals[i]! + share));
      }
      const ours = median(fourRates);
      const single = median(oneRates);
      const smallestShare = Math.min(...totals) / totals.reduce((sum, each) => sum + each, 0);
      return [
        {
          name: "drainFourProcesses",
          unit: "jobs/s",
          ours,
          base: { what: "one process, nothing claimed ahead", value: single },
          targets: [
            { text: "≥ 100 % of one", value: ours / single, atLeast: 1 },
            { text: "smallest share ≥ 10 %", value: smallestShare, atLeast: 0.1 },
          ],
          detail: { jobs, rounds, processes: PROCESSES, concurrency: CONCURRENCY, smallestShare },
        },
      ];
    });
  },
};
