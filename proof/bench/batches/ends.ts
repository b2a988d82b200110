// From the end of the last row to the start of `done`: undisturbed, and with the worker killed that settled the row, before it looked for the end.
import { median, percentile } from "../figure.ts";
import type { Metric, Program } from "../harness.ts";

interface Done {
  readonly doneAt: number;
  readonly rowAt: number;
}

export const batchEnd: Metric = {
  names: ["batchEndMs"],
  async run(bench) {
    const batches = bench.pick(300, 30);
    const data = { url: await bench.store.place(), concurrency: 10, works: true, timed: true };
    const program = await bench.start("batches", data);
    return bench.during([program], async () => {
      const took: number[] = [];
      for (let n = 0; n < batches; n++) {
        bench.progress(`batchEndMs: ${n} of ${batches} batches`);
        const done = program.told<Done>("done");
        await program.ask("fill", { form: "rows", total: 1 });
        const { doneAt, rowAt } = await done;
        took.push(doneAt - rowAt);
      }
      const p99 = percentile(took, 99);
      return [
        {
          name: "batchEndMs",
          unit: "ms",
          ours: p99,
          targets: [{ text: "≤ 100 ms (p99)", value: p99, atMost: 100 }],
          detail: { how: "from the handler of the last row to that of `done`", batches, p50: median(took) },
        },
      ];
    });
  },
};

export const batchEndKilled: Metric = {
  names: ["batchEndKilledMs"],
  async run(bench) {
    const kills = bench.pick(40, 5);
    const url = await bench.store.place();
    // Two at a time: whichever runs the row dies when the row is settled, and the other finds the end.
    const start = (): Promise<Program> => bench.start("batches", { url, concurrency: 1, works: true, mortal: true });
    const submitter = await bench.start("batches", { url, concurrency: 1, works: false });
    let alive = [await start(), await start()];
    const took: number[] = [];
    for (let n = 0; n < kills; n++) {
      bench.progress(`batchEndKilledMs: ${n} of ${kills} kills`);
      took.push(await oneKill(submitter, alive));
      const left: Program[] = [];
      for (const program of alive) if (await isAlive(program)) left.push(program);
      alive = [...left, ...(await Promise.all(Array.from({ length: 2 - left.length }, start)))];
    }
    await Promise.all([...alive, submitter].map((program) => program.end()));
    const p99 = percentile(took, 99);
    return [
      {
        name: "batchEndKilledMs",
        unit: "ms",
        ours: p99,
        targets: [{ text: "≤ 1,500 ms (p99)", value: p99, atMost: 1_500 }],
        detail: {
          how: "from the kill after the last row was settled to the handler of `done`",
          kills,
          p50: median(took),
        },
      },
    ];
  },
};

async function oneKill(submitter: Program, alive: readonly Program[]): Promise<number> {
  let settledAt: number | null = null;
  const done = new Promise<number>((resolve) => {
    for (const program of alive) {
      const stop = [
        program.on<{ settledAt: number }>("settled", (told) => (settledAt = told.settledAt)),
        program.on<Done>("done", ({ doneAt }) => {
          for (const each of stop) each();
          resolve(doneAt);
        }),
      ];
    }
  });
  await submitter.ask("fill", { form: "rows", total: 1 });
  const doneAt = await done;
  if (settledAt === null) throw new Error("nobody was killed");
  return doneAt - settledAt;
}

async function isAlive(program: Program): Promise<boolean> {
  return program.ask("counted").then(
    () => true,
    () => false,
  );
}
