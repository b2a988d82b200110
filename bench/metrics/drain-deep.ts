// Whether a drain notices what it does not touch: a million jobs queued behind it, a million delayed, a million in front of it of
// a kind that this worker does not know. Each is held against the same drain without them, in the same rounds.
import { CONCURRENCY, Drainers } from "../drains.ts";
import { type Figure, median } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";

type Filling = { readonly kind: "noop" | "unknown"; readonly priority: number; readonly delay?: string };

const DEEP = {
  drainDeepQueued: { kind: "noop", priority: -1 },
  drainDeepDelayed: { kind: "noop", priority: 0, delay: "30d" },
  drainDeepUnknown: { kind: "unknown", priority: 100 },
} as const satisfies Record<string, Filling>;

export const drainDeep: Metric = {
  names: Object.keys(DEEP),
  async run(bench) {
    const jobs = bench.pick(20_000, 10_000);
    const deep = bench.pick(1_000_000, 100_000);
    const most = bench.pick(7, 4);
    let rounds = 0;
    const files: string[] = [];
    const small = await Drainers.start(bench, bench.file(), 1);
    const drains = new Map<string, Drainers>();
    for (const [name, filling] of Object.entries(DEEP)) {
      const file = await fill(bench, filling, deep);
      files.push(file);
      drains.set(name, await Drainers.start(bench, file, 1));
    }
    const all = [small, ...drains.values()].flatMap(({ programs }) => programs);
    const figures = await bench.during(all, async () => {
      const smallRates: number[] = [];
      const rates = new Map<string, number[]>([...drains.keys()].map((name) => [name, []]));
      for (const round of bench.rounds(`drainDeep, ${jobs} jobs`, most, 5)) {
        rounds = round;
        smallRates.push(...(await small.round(jobs)).rates);
        for (const [name, drainers] of drains) rates.get(name)!.push(...(await drainers.round(jobs)).rates);
      }
      return [...rates].map(([name, ours]): Figure => {
        const base = { what: "small drain", value: median(smallRates) };
        return {
          name,
          unit: "jobs/s",
          ours: median(ours),
          base,
          targets: [{ text: "≥ 85 % of the small", value: median(ours) / base.value, atLeast: 0.85 }],
          detail: { jobs, deep, rounds, concurrency: CONCURRENCY },
        };
      });
    });
    for (const file of files) bench.remove(file);
    return figures;
  },
};

/** A new file with `count` jobs that are already in it. */
export async function fill(bench: Bench, filling: Filling, count: number): Promise<string> {
  bench.progress(
    `filling ${count} ${filling.delay === undefined ? "queued" : "delayed"} jobs of the kind ${filling.kind}`,
  );
  const path = bench.file();
  const program = await bench.start("fill", { path });
  await bench.during([program], () => program.ask("fill", { ...filling, count }));
  return path;
}
