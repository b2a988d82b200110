// Whether a drain notices what it does not touch. On SQLite: a million jobs queued behind it, a million delayed, a million in front
// of it of a kind that this worker does not know. On PostgreSQL and Redis: a million queued behind it and five million that have ended, in
// one table. Each is held against the same drain without them, in the same rounds.
import { CONCURRENCY, Drainers } from "../drains.ts";
import { type Figure, median } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";
import type { Filling } from "../stores/tested-store.ts";

/** A filling, and how many millions of it. */
type Deep = Readonly<Record<string, readonly (Filling & { readonly millions: number })[]>>;

export const drainDeepSqlite = drainDeep(100_000, {
  drainDeepQueued: [{ kind: "noop", priority: -1, millions: 1 }],
  drainDeepDelayed: [{ kind: "noop", priority: 0, delay: "30d", millions: 1 }],
  drainDeepUnknown: [{ kind: "unknown", priority: 100, millions: 1 }],
});

export const drainDeepPostgres = drainDeep(20_000, {
  drainDeep: [
    { kind: "noop", priority: 0, finished: true, millions: 5 },
    { kind: "noop", priority: -1, millions: 1 },
  ],
});

export const drainDeepRedis = drainDeep(20_000, {
  drainDeep: [
    { kind: "noop", priority: 0, finished: true, millions: 5 },
    { kind: "noop", priority: -1, millions: 1 },
  ],
});

/** With --quick a million is `quickMillion`. */
function drainDeep(quickMillion: number, deep: Deep): Metric {
  return {
    names: Object.keys(deep),
    async run(bench) {
      const jobs = bench.pick(20_000, 10_000);
      const million = bench.pick(1_000_000, quickMillion);
      const most = bench.pick(7, { sqlite: 4, postgres: 3, redis: 3 }[bench.store.name]);
      let rounds = 0;
      const urls: string[] = [];
      const small = await Drainers.start(bench, await bench.store.place(), 1);
      const drains = new Map<string, Drainers>();
      for (const [name, fillings] of Object.entries(deep)) {
        const counted = fillings.map((filling) => ({ ...filling, count: filling.millions * million }));
        const url = await filled(bench, counted);
        urls.push(url);
        drains.set(name, await Drainers.start(bench, url, 1));
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
          const millions = deep[name]!.reduce((sum, filling) => sum + filling.millions, 0);
          return {
            name,
            unit: "jobs/s",
            ours: median(ours),
            base,
            targets: [
              bench.store.name === "redis"
                ? { text: "≥ 90 % of the small", value: median(ours) / base.value, atLeast: 0.9 }
                : { text: "≥ 85 % of the small", value: median(ours) / base.value, atLeast: 0.85 },
            ],
            detail: { jobs, deep: millions * million, rounds, concurrency: CONCURRENCY },
          };
        });
      });
      for (const url of urls) await bench.store.drop(url);
      return figures;
    },
  };
}

/** A new place with jobs that are already in it. */
export async function filled(
  bench: Bench,
  fillings: readonly (Filling & { readonly count: number })[],
): Promise<string> {
  const url = await bench.store.place();
  for (const { count, ...filling } of fillings) {
    const state = filling.finished ? "finished" : filling.delay === undefined ? "queued" : "delayed";
    bench.progress(`filling ${count} ${state} jobs of the kind ${filling.kind}`);
    await bench.store.fill(bench, url, filling, count);
  }
  return url;
}
