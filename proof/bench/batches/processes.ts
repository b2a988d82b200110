// Eight processes on one batch, against the same blocks as plain jobs. The short batch is judged: each process runs 250 blocks of it, in a quarter of a second.
// The long one shows what the rate is when that goes on: what a process pays once, a read of the batch and rows that V8 has not compiled yet, is a smaller part
// of it.
import { CONCURRENCY } from "../drains.ts";
import type { Bench, Metric, Program } from "../harness.ts";
import { type Cost, costOf, cpuEach, type Pair, rate, ratios } from "./rates.ts";

const PROCESSES = 8;
type Form = "rows" | "plainBlock";

export const batchProcesses: Metric = {
  names: ["batchProcesses"],
  async run(bench) {
    const short = bench.pick(100_000, 10_000);
    const long = bench.pick(400_000, 20_000);
    const url = await bench.store.place();
    const programs = await bench.startAll(PROCESSES, "batches", { url, concurrency: CONCURRENCY / 5, works: true });
    await programs[0]!.ask("pause");
    return bench.during(programs, async () => {
      const pairs = await pairsOf(bench, programs, short);
      const ofLong = ratios(await pairsOf(bench, programs, long));
      const { time, cpu } = ratios(pairs);
      const [ours, base] = [pairs.map((pair) => pair.ours), pairs.map((pair) => pair.base)];
      return [
        {
          name: "batchProcesses",
          unit: "rows/s",
          ours: rate(ours, short),
          base: { what: "the same blocks as plain jobs", value: rate(base, short) },
          targets: [{ text: "≥ 0.9 of plain jobs (time)", value: time, atLeast: 0.9 }],
          detail: {
            rows: short,
            rounds: pairs.length,
            processes: PROCESSES,
            ofBaseTime: time,
            ofBaseCpu: cpu,
            cpuUsPerRow: cpuEach(ours, short),
            cpuUsPerRowOfBase: cpuEach(base, short),
            longRows: long,
            ofBaseTimeLong: ofLong.time,
            ofBaseCpuLong: ofLong.cpu,
          },
        },
      ];
    });
  },
};

async function pairsOf(bench: Bench, programs: readonly Program[], total: number): Promise<Pair[]> {
  const pairs: Pair[] = [];
  for (const form of ["plainBlock", "rows"] as const) await drained(bench, programs, form, total);
  for (const round of bench.rounds(`batchProcesses, ${total} rows`, bench.pick(5, 3), 10)) {
    const order = round % 2 === 0 ? (["rows", "plainBlock"] as const) : (["plainBlock", "rows"] as const);
    const costs: Partial<Record<Form, Cost>> = {};
    for (const form of order) costs[form] = await drained(bench, programs, form, total);
    pairs.push({ ours: costs.rows!, base: costs.plainBlock! });
  }
  return pairs;
}

/** Until all rows are handled. */
async function drained(bench: Bench, programs: readonly Program[], form: Form, total: number): Promise<Cost> {
  const first = programs[0]!;
  await first.ask("fill", { form, total });
  for (const program of programs) await program.ask("reset");
  const sumOf = async <T>(question: string, value: (answer: T) => number): Promise<number> =>
    (await Promise.all(programs.map((program) => program.ask<T>(question)))).reduce((sum, one) => sum + value(one), 0);
  const cpuNow = (): Promise<number> => sumOf<{ cpuMs: number }>("state", ({ cpuMs }) => cpuMs);
  return costOf(bench, async () => {
    const before = await cpuNow();
    const from = performance.now();
    await first.ask("resume", { form });
    while ((await sumOf<number>("counted", (count) => count)) < total)
      await new Promise((resolve) => setTimeout(resolve, 10));
    const ms = performance.now() - from;
    const cpuMs = (await cpuNow()) - before;
    await first.ask("pause");
    return { ms, cpuMs };
  });
}
