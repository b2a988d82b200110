// The memory of a worker process that drains, with a million jobs queued: what waits must not be in it.
import { CONCURRENCY, Drainers } from "../drains.ts";
import type { Metric } from "../harness.ts";
import { filled } from "./drain-deep.ts";

export const workerMemory: Metric = {
  names: ["workerMemoryMb"],
  async run(bench) {
    const queued = bench.pick(1_000_000, { sqlite: 100_000, postgres: 50_000, redis: 50_000 }[bench.store.name]);
    const drained = bench.pick(200_000, { sqlite: 80_000, postgres: 20_000, redis: 20_000 }[bench.store.name]);
    const url = await filled(bench, [{ kind: "noop", priority: 0, count: queued }]);
    const drainers = await Drainers.start(bench, url, 1);
    const { peakRssMb } = await bench.during(drainers.programs, () => {
      bench.progress(`workerMemoryMb: draining ${drained} of ${queued} jobs`);
      return drainers.round(drained, null);
    });
    await bench.store.drop(url);
    return [
      {
        name: "workerMemoryMb",
        unit: "MB",
        ours: peakRssMb,
        // There is no target for PostgreSQL, whose driver is loaded twice: the maintenance has its own.
        targets: bench.store.name === "sqlite" ? [{ text: "< 150 MB", value: peakRssMb, atMost: 150 }] : [],
        detail: { how: "largest RSS while it drains", queued, drained, concurrency: CONCURRENCY },
      },
    ];
  },
};
