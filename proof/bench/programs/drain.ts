// A worker of ours that drains no-op jobs, a round at a time. A round is filled while the kind is paused, so that every worker
// process of the round begins with the same `resume`.
import { open } from "../../../src/index.ts";
import { given, monoMs, serve, tell } from "../program.ts";
import { inputs, noop } from "./noop.ts";

const { url, concurrency, every } = given<{ url: string; concurrency: number; every: number }>();
let handled = 0;
let marks: number[] = [];
let told = 0;
let peakRss = 0;
noop.handle(() => {
  if (++handled % every === 0) marks.push(monoMs());
});

const engine = await open(url, { jobs: [noop], logger: false });
await engine.pause(noop);
const handle = await engine.start({ concurrency });
setInterval(() => {
  if (handled === told) return;
  peakRss = Math.max(peakRss, process.memoryUsage.rss());
  tell("handled", (told = handled));
}, 20);

serve({
  fill: async ({ count, priority }: { count: number; priority: number }) => {
    await engine.pause(noop);
    await engine.enqueueMany(noop, inputs(count), { each: () => ({ priority }) });
  },
  reset: () => {
    handled = told = peakRss = 0;
    marks = [];
  },
  go: () => engine.resume(noop),
  halt: () => engine.pause(noop),
  marks: () => ({ marks, handled, peakRssMb: peakRss / 2 ** 20 }),
  stop: async () => {
    await handle.stop();
    await engine.close();
  },
});
