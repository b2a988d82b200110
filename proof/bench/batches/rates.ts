// Rows of batches against plain jobs: run and submitted. Each round does both, one after the other, and the ratio is the median of the rounds' own ratios:
// in time, which is what people ask for, and in CPU, which a busy machine changes far less.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tmpdir } from "node:os";
import { CONCURRENCY } from "../drains.ts";
import { median, type Target } from "../figure.ts";
import type { Bench, Metric, Program } from "../harness.ts";

export interface Cost {
  readonly ms: number;
  /** Of the process and of the server. */
  readonly cpuMs: number;
}

/** With the CPU that the server used meanwhile. */
export async function costOf(bench: Bench, work: () => Promise<Cost>): Promise<Cost> {
  const before = (await bench.store.cpuMs()) ?? 0;
  const { ms, cpuMs } = await work();
  return { ms, cpuMs: cpuMs + ((await bench.store.cpuMs()) ?? 0) - before };
}

export interface Pair {
  readonly ours: Cost;
  readonly base: Cost;
}

/** How many times as fast ours is, and how many times as little CPU it needs, for the same number of rows. */
export function ratios(pairs: readonly Pair[]): { readonly time: number; readonly cpu: number } {
  return {
    time: median(pairs.map(({ ours, base }) => base.ms / ours.ms)),
    cpu: median(pairs.map(({ ours, base }) => base.cpuMs / ours.cpuMs)),
  };
}

export function rate(costs: readonly Cost[], rows: number): number {
  return median(costs.map(({ ms }) => (rows * 1_000) / ms));
}

export function cpuEach(costs: readonly Cost[], rows: number): number {
  return median(costs.map(({ cpuMs }) => (cpuMs * 1_000) / rows));
}

/** What is demanded of a store, if anything is. */
function demanded(text: string, value: number, atLeast: number | null): Target[] {
  return atLeast === null ? [] : [{ text: `≥ ${atLeast} x ${text}`, value, atLeast }];
}

async function startOne(bench: Bench, works: boolean): Promise<Program> {
  const program = await bench.start("batches", { url: await bench.store.place(), concurrency: CONCURRENCY, works });
  await program.ask("pause");
  return program;
}

export const batchRows: Metric = {
  names: ["batchRows"],
  async run(bench) {
    const total = bench.pick({ sqlite: 50_000, postgres: 30_000, redis: 30_000 }[bench.store.name], 5_000);
    const least = { sqlite: 3, postgres: 6, redis: null }[bench.store.name];
    const url = await bench.store.place();
    const data = { url, concurrency: CONCURRENCY, works: true };
    const programs = {
      rows: await bench.start("batches", { ...data, serves: "batches" }),
      noop: await bench.start("batches", { ...data, serves: "plain" }),
    };
    // Plain jobs in a process that serves both, in a place of its own.
    const mixed = await startOne(bench, true);
    await programs.rows.ask("pause");
    await programs.noop.ask("pause");
    return bench.during([programs.rows, programs.noop, mixed], async () => {
      const pairs: Pair[] = [];
      const besides: Pair[] = [];
      const drainedBy = async (program: Program, form: string): Promise<Cost> => {
        await program.ask("fill", { form, total });
        return costOf(bench, () => program.ask<Cost>("drain", { form, total }));
      };
      const drained = (form: "rows" | "noop"): Promise<Cost> => drainedBy(programs[form], form);
      for (const form of ["noop", "rows"] as const) await drained(form);
      await drainedBy(mixed, "noop");
      for (const round of bench.rounds(`batchRows, ${total} rows`, bench.pick(7, 3), 10)) {
        const [first, second] = round % 2 === 0 ? (["rows", "noop"] as const) : (["noop", "rows"] as const);
        const costs = { [first]: await drained(first), [second]: await drained(second) } as Record<string, Cost>;
        pairs.push({ ours: costs["rows"]!, base: costs["noop"]! });
        besides.push({ ours: costs["rows"]!, base: await drainedBy(mixed, "noop") });
      }
      const { time, cpu } = ratios(pairs);
      const ofMixed = ratios(besides);
      const [ours, base] = [pairs.map((pair) => pair.ours), pairs.map((pair) => pair.base)];
      return [
        {
          name: "batchRows",
          unit: "rows/s",
          ours: rate(ours, total),
          base: { what: "plain no-op jobs", value: rate(base, total) },
          targets: demanded("plain jobs (CPU)", cpu, least),
          detail: {
            rows: total,
            rounds: pairs.length,
            ofBaseCpu: cpu,
            ofBaseTime: time,
            // Of plain jobs in a process that serves batches, too.
            ofMixedCpu: ofMixed.cpu,
            ofMixedTime: ofMixed.time,
            cpuUsPerRow: cpuEach(ours, total),
            cpuUsPerJob: cpuEach(base, total),
          },
        },
      ];
    });
  },
};

export const batchSubmit: Metric = {
  names: ["batchSubmit"],
  async run(bench) {
    const total = bench.pick({ sqlite: 100_000, postgres: 50_000, redis: 50_000 }[bench.store.name], 5_000);
    const least = { sqlite: 3, postgres: 2, redis: null }[bench.store.name];
    const folder = mkdtempSync(join(tmpdir(), "outlive-bench-csv-"));
    const path = join(folder, "rows.csv");
    writeFileSync(path, csvOf(total));
    const program = await startOne(bench, false);
    try {
      return await bench.during([program], async () => {
        const pairs: Pair[] = [];
        const files: Pair[] = [];
        const filled = (form: string): Promise<Cost> => costOf(bench, () => program.ask<Cost>("fill", { form, total }));
        for (const form of ["noop", "rows"]) await filled(form);
        for (const round of bench.rounds(`batchSubmit, ${total} rows`, bench.pick(7, 3), 10)) {
          const [first, second] = round % 2 === 0 ? (["rows", "noop"] as const) : (["noop", "rows"] as const);
          const costs = { [first]: await filled(first), [second]: await filled(second) } as Record<string, Cost>;
          pairs.push({ ours: costs["rows"]!, base: costs["noop"]! });
          const alone = await program.ask<Cost>("parseCsv", { path });
          files.push({ ours: await program.ask<Cost>("readCsv", { path }), base: alone });
        }
        const submitted = await program.ask<Cost>("submitCsv", { path });
        const { time, cpu } = ratios(pairs);
        const ofCsv = ratios(files);
        const [ours, base] = [pairs.map((pair) => pair.ours), pairs.map((pair) => pair.base)];
        return [
          {
            name: "batchSubmit",
            unit: "rows/s",
            ours: rate(ours, total),
            base: { what: "enqueueMany", value: rate(base, total) },
            targets: [
              ...demanded("enqueueMany (CPU)", cpu, least),
              { text: "csv() ≥ 70 % of csv-parse (CPU)", value: ofCsv.cpu, atLeast: 0.7 },
            ],
            detail: {
              rows: total,
              rounds: pairs.length,
              ofBaseCpu: cpu,
              ofBaseTime: time,
              cpuUsPerRow: cpuEach(ours, total),
              cpuUsPerJob: cpuEach(base, total),
              csvOfParseCpu: ofCsv.cpu,
              csvOfParseTime: ofCsv.time,
              csvSubmittedPerSecond: (total * 1_000) / submitted.ms,
            },
          },
        ];
      });
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

function csvOf(rows: number): string {
  const lines = Array.from(
    { length: rows },
    (_, n) => `DE${String(n).padStart(20, "0")},${n},"Smith, ${n}",2026-11-17`,
  );
  return `iban,cents,name,date\n${lines.join("\n")}\n`;
}
