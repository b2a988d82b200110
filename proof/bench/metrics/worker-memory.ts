// The memory of a worker process that drains, with a million jobs queued: what waits must not be in it.
import { SETTINGS } from "../../../src/engine/settings.ts";
import { CONCURRENCY, Drainers } from "../drains.ts";
import type { Bench, Metric } from "../harness.ts";
import { filled } from "./drain-deep.ts";

/** What the bench itself puts into Redis is listed and counted, and can't be claimed: it has no checksums. */
async function filledToDrain(bench: Bench, count: number): Promise<string> {
  const filling = { kind: "noop", priority: 0, count } as const;
  if (bench.store.name !== "redis") return filled(bench, [filling]);
  const url = await bench.store.place();
  const program = await bench.start("fill", { url });
  await bench.during([program], () => program.ask("fill", filling));
  return url;
}

export const workerMemory: Metric = {
  names: ["workerMemoryMb"],
  async run(bench) {
    const queued = bench.pick(1_000_000, { sqlite: 100_000, postgres: 50_000, redis: 50_000 }[bench.store.name]);
    const drained = bench.pick(200_000, { sqlite: 80_000, postgres: 20_000, redis: 20_000 }[bench.store.name]);
    const url = await filledToDrain(bench, queued);
    const drainers = await Drainers.start(bench, url, 1, [
      `--max-semi-space-size=${SETTINGS["work.semiSpace"].default}`,
    ]);
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
        targets: bench.store.name === "redis" ? [] : [{ text: "< 150 MB", value: peakRssMb, atMost: 150 }],
        detail: {
          how: "largest RSS while it drains, with the semi-spaces of `outlive work`",
          queued,
          drained,
          concurrency: CONCURRENCY,
        },
      },
    ];
  },
};
