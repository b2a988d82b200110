// A process of ours that submits, enqueues and runs: rows of batches, and plain jobs that hold the same. What is filled waits until it is measured,
// because its kind is paused; CPU is that of this process with its threads.
import { createReadStream } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { batch, job, open } from "../../../src/index.ts";
import { csv } from "../../../src/files.ts";
import { given, monoMs, serve, tell } from "../program.ts";

/**
 * `mortal`: it dies when the last row that it ran is settled. `serves`: plain jobs or batches only. On Redis a worker that serves batches claims nothing
 * ahead, so that plain jobs are measured at their best only in a process without them. `timed`: it says when its latest row was handled.
 */
const { url, blobs, concurrency, works, mortal, serves, timed } = given<{
  url: string;
  blobs?: string;
  concurrency: number;
  works: boolean;
  mortal?: boolean;
  serves?: "plain" | "batches";
  timed?: boolean;
}>();
const BLOCK = 50;
const LINE = "x".repeat(99);

let handled = 0;
let wanted = Infinity;
let reached = (): void => {};
let rowAt = 0;
function count(rows = 1): void {
  handled += rows;
  if (handled >= wanted) reached();
}

const noop = job<{ n: number }>("noop").handle(() => count());
/** A block as a plain job: its input has the same form and size. */
interface PlainBlock {
  readonly batch: string;
  readonly round: number;
  readonly number: number;
  readonly lines: readonly number[];
  readonly rows: readonly { readonly n: number }[];
}
const plainBlock = job<PlainBlock>("plain-block").handle(({ rows }) => count(rows.length));
/** A look at the clock costs a tenth of what a no-op row does. */
const noopRow = (): void => count();
const timedRow = (): void => {
  rowAt = monoMs();
  count();
};
const rows = batch("rows", { block: BLOCK })
  .handle(timed ? timedRow : noopRow)
  .done(() => tell("done", { doneAt: monoMs(), rowAt }));
const writing = batch("writing", { block: BLOCK })
  .handle((row) => {
    row.write("out.txt", `${LINE}\n`);
    count();
  })
  .done(({ outputs }) => tell("done", { doneAt: monoMs(), bytes: outputs["out.txt"]!.bytes }));
const kinds = { noop, plainBlock, rows, writing };
type Form = keyof typeof kinds;

const served = serves === "plain" ? [noop, plainBlock] : serves === "batches" ? [rows, writing] : Object.values(kinds);

const engine = await open(url, {
  jobs: served,
  logger: false,
  ...(blobs !== undefined && { blobs }),
});
engine.on("batch.ended", () => tell("ended", { endedAt: monoMs() }));
if (mortal)
  engine.on("job.succeeded", ({ kind }) => {
    if (kind !== "rows") return;
    tell("settled", { settledAt: monoMs() });
    process.kill(process.pid, "SIGKILL");
  });
if (works) await engine.start({ concurrency });

function* inputs(total: number): Generator<{ n: number }> {
  for (let n = 0; n < total; n++) yield { n };
}

function* blocks(total: number): Generator<PlainBlock> {
  for (let from = 0; from < total; from += BLOCK) {
    const numbers = Array.from({ length: Math.min(BLOCK, total - from) }, (_, at) => from + at);
    yield {
      batch: "0".repeat(22),
      round: 1,
      number: from / BLOCK,
      lines: numbers.map((n) => n + 1),
      rows: numbers.map((n) => ({ n })),
    };
  }
}

async function measured(work: () => Promise<unknown>): Promise<{ ms: number; cpuMs: number }> {
  const before = process.cpuUsage();
  const from = performance.now();
  await work();
  const { user, system } = process.cpuUsage(before);
  return { ms: performance.now() - from, cpuMs: (user + system) / 1_000 };
}

let latest = "";

async function fill(form: Form, total: number): Promise<void> {
  if (form === "rows" || form === "writing") latest = (await engine.submit(kinds[form], inputs(total))).id;
  else if (form === "noop") await engine.enqueueMany(noop, inputs(total));
  else await engine.enqueueMany(plainBlock, blocks(total));
}

serve({
  pause: async () => {
    for (const kind of served) await engine.pause(kind);
  },
  resume: ({ form }: { form: Form }) => engine.resume(kinds[form]),
  fill: ({ form, total }: { form: Form; total: number }) => measured(() => fill(form, total)),
  submitCsv: ({ path }: { path: string }) => measured(() => engine.submit(rows, csv(path))),
  readCsv: ({ path }: { path: string }) =>
    measured(async () => {
      for await (const { line } of csv(path)) if (line < 0) throw new Error("a line below 0");
    }),
  parseCsv: async ({ path }: { path: string }) => {
    const { parse } = await import("csv-parse");
    return measured(async () => {
      for await (const record of createReadStream(path).pipe(parse({ columns: true, bom: true })))
        if (record === null) throw new Error("no record");
    });
  },
  /** Until `total` rows or jobs have been handled by this process, and none runs any more. */
  drain: ({ form, total }: { form: Form; total: number }) =>
    measured(async () => {
      const all = new Promise<void>((resolve) => (reached = resolve));
      handled = 0;
      wanted = total;
      await engine.resume(kinds[form]);
      await all;
      const running = { kind: kinds[form].name, state: "running", limit: 1 } as const;
      while ((await engine.list(running)).jobs.length > 0) await delay(2);
      await engine.pause(kinds[form]);
    }),
  reset: () => {
    handled = 0;
    wanted = Infinity;
  },
  // The kernel's own peak, in KiB: no sample is missed, and none is paid for.
  state: () => ({ handled, peakRssMb: process.resourceUsage().maxRSS / 2 ** 10, ...cpu() }),
  latest: () => latest,
  /** How long one read of the batch takes, in ms, again and again until it has ended. */
  reads: async ({ id }: { id: string }) => {
    const took: number[] = [];
    for (;;) {
      const from = performance.now();
      const info = await engine.batch(id);
      took.push(performance.now() - from);
      if (info?.endedAt !== null) return took;
      await delay(20);
    }
  },
  abort: async ({ id }: { id: string }) => {
    const from = performance.now();
    await engine.abortBatch(id);
    const ms = performance.now() - from;
    while ((await engine.batch(id))!.endedAt === null) await delay(5);
    return { ms, endedMs: performance.now() - from };
  },
  counted: () => handled,
});

function cpu(): { cpuMs: number } {
  const { user, system } = process.cpuUsage();
  return { cpuMs: (user + system) / 1_000 };
}
