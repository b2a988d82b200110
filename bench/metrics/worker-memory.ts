// The memory of a worker process that drains, with a million jobs queued: what waits must not be in it.
import { CONCURRENCY, Drainers } from "../drains.ts";
import type { Metric } from "../harness.ts";
import { fill } from "./drain-deep.ts";

export const workerMemory: Metric = {
  names: ["workerMemoryMb"],
  async run(bench) {
    const queued = bench.pick(1_000_000, 100_000);
    const drained = bench.pick(200_000, 80_000);
    const path = await fill(bench, { kind: "noop", priority: 0 }, queued);
    const drainers = await Drainers.start(bench, path, 1);
    const { peakRssMb } = await bench.during(drainers.programs, () => {
      bench.progress(`workerMemoryMb: draining ${drained} of ${queued} jobs`);
      return drainers.round(drained, null);
    });
    bench.remove(path);
    return [
      {
        name: "workerMemoryMb",
        unit: "MB",
        ours: peakRssMb,
        targets: [{ text: "< 150 MB", value: peakRssMb, atMost: 150 }],
        detail: { how: "largest RSS while it drains", queued, drained, concurrency: CONCURRENCY },
      },
    ];
  },
};
