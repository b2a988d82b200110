// A worker of ours that drains no-op jobs, a round at a time. A round is filled while the kind is paused, so that every worker
// process of the round begins with the same `resume`.
import { job, open } from "../../../src/index.ts";
import type { DrainForm } from "../drains.ts";
import { given, monoMs, serve, tell } from "../program.ts";
import { inputs, noop } from "./noop.ts";

const {
  url,
  concurrency,
  every,
  form = "plain",
} = given<{ url: string; concurrency: number; every: number; form?: DrainForm }>();
/** With a key, of which two may run at once. */
const keyed = job<{ key: string; text: string }>("keyed", {
  limits: [{ name: "tenant", key: ({ key }) => key, running: 2 }],
});
const KEYS = 1_000;
/** Enqueues no-op jobs and waits for them. */
const parent = job<{ count: number }>("parent", { timeout: "none" });
parent.handle(async ({ count }, run) => {
  await run.wait(await run.enqueueMany(noop, inputs(count)));
});
let handled = 0;
let marks: number[] = [];
let told = 0;
let peakRss = 0;
const done = (): void => {
  if (++handled % every === 0) marks.push(monoMs());
};
noop.handle(done);
keyed.handle(done);

const drained = form === "keyed" ? keyed : noop;
const engine = await open(url, { jobs: [noop, keyed, parent], logger: false });
await engine.pause(drained);
const handle = await engine.start({ concurrency });
setInterval(() => {
  if (handled === told) return;
  peakRss = Math.max(peakRss, process.memoryUsage.rss());
  tell("handled", (told = handled));
}, 20);

serve({
  fill: async ({ count, priority, inputBytes = 0 }: { count: number; priority: number; inputBytes?: number }) => {
    await engine.pause(drained);
    // An input of exactly so many bytes, the braces and the name included.
    if (inputBytes > 0) return void (await engine.enqueueMany(noop, texts(count, inputBytes)));
    if (form === "keyed") await engine.enqueueMany(keyed, keyedInputs(count));
    else if (form === "plain") await engine.enqueueMany(noop, inputs(count), { each: () => ({ priority }) });
    else await fillFamily(count);
  },
  /** Jobs that sleep while others are drained. */
  sleepers: ({ count }: { count: number }) =>
    engine.enqueueMany(noop, inputs(count), { each: () => ({ delay: "30d" }) }),
  reset: () => {
    handled = told = peakRss = 0;
    marks = [];
  },
  go: () => engine.resume(drained),
  halt: () => engine.pause(drained),
  marks: () => ({ marks, handled, peakRssMb: peakRss / 2 ** 20 }),
  stop: async () => {
    await handle.stop();
    await engine.close();
  },
});

function* texts(count: number, bytes: number): Generator<{ n: number }> {
  const text = "x".repeat(bytes - '{"n":"","t":""}'.length - 8);
  for (let n = 0; n < count; n++) yield { n: String(10_000_000 + n), t: text } as unknown as { n: number };
}

function* keyedInputs(count: number): Generator<{ key: string; text: string }> {
  let n = 0;
  for (const input of inputs(count)) yield { key: `key-${n++ % KEYS}`, text: JSON.stringify(input) };
}

/** Resolves when the parent waits for all of them. */
async function fillFamily(count: number): Promise<void> {
  const { id } = await engine.enqueue(parent, { count });
  while ((await engine.get(id))?.waitsAt === null) await new Promise((resolve) => setTimeout(resolve, 20));
}
