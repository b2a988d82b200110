// A million rows: what submitter and worker hold in memory, how fast the output file is put together, how long one read of the batch takes meanwhile,
// and an abort of all of them.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CONCURRENCY } from "../drains.ts";
import { median, percentile } from "../figure.ts";
import type { Metric } from "../harness.ts";

interface State {
  readonly handled: number;
  readonly peakRssMb: number;
}

/**
 * What docs/batches.md says about memory. The live heap of a worker is 14 to 18 MB, measured with 200,000 rows; without this V8 gives its young generation
 * three times 32 MB, and RSS is 270 MB after 400,000 rows on a busy machine instead of 203.
 */
const SMALL_YOUNG = ["--max-semi-space-size=8"];

export const batchOutput: Metric = {
  names: ["batchOutput", "workerMemoryMb", "batchReadMs"],
  async run(bench) {
    const total = bench.pick(1_000_000, 20_000);
    const url = await bench.store.place();
    const blobs = mkdtempSync(join(tmpdir(), "outlive-bench-blobs-"));
    const data = { url, blobs, concurrency: CONCURRENCY };
    // The compiler that strips types takes 35 MB of a process, and no published program has it: one that ends before leaves compiled files to these.
    await (await bench.start("batches", { ...data, works: true }, SMALL_YOUNG)).end();
    const submitter = await bench.start("batches", { ...data, works: false }, SMALL_YOUNG);
    const worker = await bench.start("batches", { ...data, works: true }, SMALL_YOUNG);
    try {
      return await bench.during([submitter, worker], async () => {
        const ended = Promise.race([
          worker.told<{ endedAt: number }>("ended"),
          submitter.told<{ endedAt: number }>("ended"),
        ]);
        const done = worker.told<{ doneAt: number; bytes: number }>("done");
        const progress = setInterval(() => bench.progress(`batchOutput: ${total} rows run`), 5_000);
        const from = performance.now();
        await submitter.ask("fill", { form: "writing", total });
        const submittedMs = performance.now() - from;
        const { peakRssMb: submitterMb } = await submitter.ask<State>("state");
        const id = await submitter.ask<string>("latest");
        const reads = submitter.ask<number[]>("reads", { id });
        const { endedAt } = await ended;
        const ranMs = performance.now() - from;
        const { doneAt, bytes } = await done;
        clearInterval(progress);
        const { peakRssMb: workerMb } = await worker.ask<State>("state");
        const mbPerSecond = bytes / 1e6 / ((doneAt - endedAt) / 1_000);
        const took = await reads;
        return [
          {
            name: "batchOutput",
            unit: "MB/s",
            ours: mbPerSecond,
            targets: [{ text: "≥ 100 MB/s", value: mbPerSecond, atLeast: 100 }],
            detail: {
              how: "from the end of the batch to `done`",
              rows: total,
              megabytes: bytes / 1e6,
              assembledMs: doneAt - endedAt,
              submittedMs,
              ranMs,
            },
          },
          {
            name: "workerMemoryMb",
            unit: "MB",
            ours: Math.max(workerMb, submitterMb),
            targets: [{ text: "≤ 200 MB each", value: Math.max(workerMb, submitterMb), atMost: 200 }],
            detail: { how: `largest RSS, with ${SMALL_YOUNG.join(" ")}`, rows: total, workerMb, submitterMb },
          },
          {
            name: "batchReadMs",
            unit: "ms",
            ours: percentile(took, 99),
            targets: [{ text: "≤ 10 ms (p99)", value: percentile(took, 99), atMost: 10 }],
            detail: { how: "engine.batch(id) while it runs", reads: took.length, p50: median(took) },
          },
        ];
      });
    } finally {
      await bench.store.drop(url);
      rmSync(blobs, { recursive: true, force: true });
    }
  },
};

export const batchAbort: Metric = {
  names: ["batchAbortMs"],
  async run(bench) {
    const total = bench.pick(1_000_000, 20_000);
    const url = await bench.store.place();
    const submitter = await bench.start("batches", { url, concurrency: 1, works: false });
    const worker = await bench.start("batches", { url, concurrency: 1, works: true });
    return bench.during([submitter, worker], async () => {
      await submitter.ask("pause");
      bench.progress(`batchAbortMs: ${total} rows`);
      await submitter.ask("fill", { form: "rows", total });
      const id = await submitter.ask<string>("latest");
      await submitter.ask("resume", { form: "rows" });
      const { ms, endedMs } = await submitter.ask<{ ms: number; endedMs: number }>("abort", { id });
      const { handled } = await worker.ask<State>("state");
      return [
        {
          name: "batchAbortMs",
          unit: "ms",
          ours: endedMs,
          targets: [{ text: "all ended in 10 s", value: endedMs, atMost: 10_000 }],
          detail: { rows: total, callMs: ms, ranMeanwhile: handled },
        },
      ];
    });
  },
};
