// Draining jobs with keys, children of one parent, jobs of a thousand kinds and of one of a thousand, and plain jobs next to a million that sleep: each held against the same drain of plain jobs
// in the same run.
import { CONCURRENCY, type DrainForm, Drainers } from "../drains.ts";
import { median } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";

interface Feature {
  readonly name: string;
  readonly form: DrainForm;
  readonly processes: number;
  /** At least this share of the plain drain. */
  readonly atLeast: (bench: Bench) => number;
  /** Jobs that sleep meanwhile, or that are of other kinds. */
  readonly sleepers?: number;
  /** What the base drains. Default: plain jobs. */
  readonly base?: string;
  readonly baseForm?: DrainForm;
}

export const drainKeyed = featureDrain({
  name: "drainKeyed",
  form: "keyed",
  processes: 1,
  atLeast: ({ store }) => ({ sqlite: 0.5, postgres: 0.4, redis: 0.4 })[store.name],
  base: "the same without keys",
  baseForm: "unkeyed",
});

export const parentChildren = featureDrain({
  name: "parentChildren",
  form: "children",
  processes: 4,
  atLeast: () => 0.7,
  // By workers of the same two kinds: what those of one kind save has nothing to do with a parent.
  base: "the same jobs without a parent",
  baseForm: "parentless",
});

export const drainBesideSleepers = featureDrain({
  name: "drainBesideSleepers",
  form: "plain",
  processes: 1,
  atLeast: () => 0.95,
  sleepers: 1_000_000,
});

export const drainManyKinds = featureDrain({
  name: "drainManyKinds",
  form: "kinds",
  processes: 1,
  atLeast: () => 0.5,
  base: "one kind",
});

export const drainOneOfManyKinds = featureDrain({
  name: "drainOneOfManyKinds",
  form: "oneOfKinds",
  processes: 1,
  atLeast: () => 0.5,
  sleepers: 100_000,
  base: "one kind",
});

function featureDrain(feature: Feature): Metric {
  const { name, form, processes, atLeast, sleepers = 0, base: what = "plain jobs", baseForm = "plain" } = feature;
  return {
    names: [name],
    async run(bench) {
      const jobs = bench.pick(100_000, { sqlite: 20_000, postgres: 10_000, redis: 10_000 }[bench.store.name]);
      const asleep = bench.pick(sleepers, sleepers / 10);
      let rounds = 0;
      const plain = await Drainers.start(bench, await bench.store.place(), processes, [], baseForm);
      const ours = await Drainers.start(bench, await bench.store.place(), processes, [], form);
      return bench.during([...plain.programs, ...ours.programs], async () => {
        if (asleep > 0) await ours.programs[0]!.ask("sleepers", { count: asleep });
        const plainRates: number[] = [];
        const ourRates: number[] = [];
        for (const round of bench.rounds(`${name}, ${jobs} jobs`, bench.pick(5, 3), 10)) {
          rounds = round;
          plainRates.push(...(await plain.round(jobs)).rates);
          ourRates.push(...(await ours.round(jobs)).rates);
        }
        await plain.stop();
        await ours.stop();
        const base = median(plainRates);
        const value = median(ourRates);
        const share = atLeast(bench);
        return [
          {
            name,
            unit: "jobs/s",
            ours: value,
            base: { what, value: base },
            targets: [{ text: `≥ ${share * 100} % of ${what}`, value: value / base, atLeast: share }],
            detail: { jobs, rounds, processes, concurrency: CONCURRENCY, ...(asleep > 0 && { sleepers: asleep }) },
          },
        ];
      });
    },
  };
}
