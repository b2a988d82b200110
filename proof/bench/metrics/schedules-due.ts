// How late schedules fire that are due in the same instant, among many that are not, with two workers; and what many schedules cost while none is due.
import { setTimeout as delay } from "node:timers/promises";
import { median, percentile } from "../figure.ts";
import type { Bench, Metric } from "../harness.ts";
import type { FiringCosts, Plan } from "../programs/schedules.ts";

const WORKERS = 2;
const SETTLE_MS = 1_000;

export const schedulesDue: Metric = {
  names: ["schedulesDueMs", "schedulesIdleCpu"],
  async run(bench) {
    const count = bench.pick(100_000, 2_000);
    const dueAtOnce = 1_000;
    const ms = bench.pick(10_000, 2_000);
    const every = await fired(bench, { count, dueAtOnce, timing: "every" }, ms);
    const cron = await fired(bench, { count: dueAtOnce, dueAtOnce, timing: "cron" }, ms);
    const many = await idle(bench, { count, dueAtOnce, timing: "never" }, ms);
    const none = await idle(bench, { count: 0, dueAtOnce, timing: "never" }, ms);
    const p50 = percentile(every.late, 50);
    const p99 = percentile(every.late, 99);
    const max = Math.max(...every.late);
    const cronP99 = percentile(cron.late, 99);
    return [
      {
        name: "schedulesDueMs",
        unit: "ms",
        ours: p99,
        targets: [
          { text: "p99 ≤ 1,000 ms", value: p99, atMost: 1_000 },
          { text: "p99 of patterns ≤ 1,000 ms", value: cronP99, atMost: 1_000 },
        ],
        detail: {
          how: `${count} schedules, ${dueAtOnce} due in the same ms of each second, ${WORKERS} workers that also run the jobs`,
          schedules: count,
          fired: every.late.length,
          p50,
          p99,
          max,
          cpuPercent: every.cpuPercent,
          cronP50: percentile(cron.late, 50),
          cronP99,
          cronFired: cron.late.length,
          cronCpuPercent: cron.cpuPercent,
        },
      },
      {
        name: "schedulesIdleCpu",
        unit: "% of a core",
        ours: many,
        base: { what: "without schedules", value: none },
        targets: [{ text: "≤ 0.1 % of a core more than without", value: many - none, atMost: 0.1 }],
        detail: { how: "median of idle workers, none of the schedules is due", schedules: count, ms },
      },
    ];
  },
};

async function fired(bench: Bench, plan: Plan, ms: number): Promise<{ late: number[]; cpuPercent: number }> {
  return working(bench, plan, async (workers) => {
    await Promise.all(workers.slice(0, 1).map((worker) => worker.ask("caughtUp")));
    bench.progress(`schedulesDueMs: ${plan.count} schedules (${plan.timing}) for ${ms / 1_000} s`);
    const costs = await Promise.all(workers.map((worker) => worker.ask<FiringCosts>("measure", { ms })));
    return { late: costs.flatMap(({ late }) => late), cpuPercent: sum(costs.map(share)) };
  });
}

function idle(bench: Bench, plan: Plan, ms: number): Promise<number> {
  return working(bench, plan, async (workers) => {
    await delay(SETTLE_MS);
    bench.progress(`schedulesIdleCpu: ${plan.count} schedules for ${ms / 1_000} s`);
    return median((await Promise.all(workers.map((worker) => worker.ask<FiringCosts>("measure", { ms })))).map(share));
  });
}

async function working<T>(
  bench: Bench,
  plan: Plan,
  work: (workers: Awaited<ReturnType<Bench["startAll"]>>) => Promise<T>,
): Promise<T> {
  const url = await bench.store.place();
  const filler = await bench.start("schedules", { url });
  await bench.during([filler], async () => {
    bench.progress(`setting ${plan.count} schedules`);
    await filler.ask("fill", plan);
  });
  const workers = await bench.startAll(WORKERS, "schedules", { url });
  return bench.during(workers, async () => {
    for (const worker of workers) await worker.ask("work");
    return work(workers);
  });
}

function share({ cpuMs, wallMs }: FiringCosts): number {
  return (100 * cpuMs) / wallMs;
}

function sum(values: readonly number[]): number {
  return values.reduce((all, one) => all + one, 0);
}
