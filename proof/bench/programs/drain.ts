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
/** The same without a limit. */
const unkeyed = job<{ key: string; text: string }>("unkeyed");
/** Enqueues no-op jobs and waits for them. */
const parent = job<{ count: number }>("parent", { timeout: "none" });
parent.handle(async ({ count }, run) => {
  await run.wait(await run.enqueueMany(noop, inputs(count)));
});
/** A kind that ends on a crash is never claimed ahead. */
const notAhead = job<{ n: number }>("not-ahead", { onCrash: "fail" });
const slow = job<{ n: number }>("slow");
const SLOW_MS = 5;
let handled = 0;
let marks: number[] = [];
let told = 0;
let peakRss = 0;
const done = (): void => {
  if (++handled % every === 0) marks.push(monoMs());
};
// A job counts when its end is durable, which is what the event says.
const nothing = (): void => {};
const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, SLOW_MS));
noop.handle(nothing);
keyed.handle(nothing);
unkeyed.handle(nothing);
notAhead.handle(nothing);
slow.handle(pause);

/** A thousand kinds, each with its share of the jobs, and one worker of all of them, or of the first one. */
const ofAll = form === "kinds";
const kinds =
  ofAll || form === "oneOfKinds" ? Array.from({ length: 1_000 }, (_, n) => job<{ n: number }>(`kind-${n}`)) : [];
for (const kind of kinds) kind.handle(nothing);

const plain = { slow, notAhead, oneOfKinds: kinds[0] }[form as string] ?? noop;
const drained = form === "keyed" ? keyed : form === "unkeyed" ? unkeyed : plain;
// Only what is drained, and the parent: a kind that may not be claimed ahead would hold up the others.
const servesParents = form === "children" || form === "parentless";
const jobs = kinds.length > 0 ? kinds : servesParents ? [noop, parent] : [drained];
const engine = await open(url, { jobs, logger: false, ...(form === "purging" && { heartbeat: { sweep: "1s" } }) });
engine.on("job.succeeded", ({ kind }) => {
  if (kind !== parent.name) done();
});
if (!ofAll) await engine.pause(drained);
const start = (): ReturnType<typeof engine.start> =>
  engine.start({ concurrency, ...(form === "oneOfKinds" && { only: [plain] }) });
let handle = ofAll ? null : await start();
setInterval(() => {
  if (handled === told) return;
  peakRss = Math.max(peakRss, process.memoryUsage.rss());
  tell("handled", (told = handled));
}, 20);

serve({
  fill: async ({ count, priority, inputBytes = 0 }: { count: number; priority: number; inputBytes?: number }) => {
    if (ofAll) return fillKinds(kinds, count, priority);
    await engine.pause(drained);
    // An input of exactly this many bytes, the braces and the name included.
    if (inputBytes > 0) return void (await engine.enqueueMany(noop, texts(count, inputBytes)));
    if (form === "keyed" || form === "unkeyed")
      await engine.enqueueMany(form === "keyed" ? keyed : unkeyed, keyedInputs(count));
    else if (form !== "children") await engine.enqueueMany(plain, inputs(count), { each: () => ({ priority }) });
    else await fillFamily(count);
  },
  /** Jobs that sleep while others are drained, or that are of other kinds. */
  sleepers: ({ count }: { count: number }) =>
    form === "oneOfKinds"
      ? fillKinds(kinds.slice(1), count, 0)
      : engine.enqueueMany(noop, inputs(count), { each: () => ({ delay: "30d" }) }),
  reset: () => {
    handled = told = peakRss = 0;
    marks = [];
  },
  // To resume a thousand kinds takes about as long as the drain. Its first tenth, which is not counted, has the start in it.
  go: async () => {
    if (ofAll) handle = await start();
    else await engine.resume(drained);
  },
  halt: async () => {
    if (ofAll) await handle?.stop();
    else await engine.pause(drained);
  },
  marks: () => ({ marks, handled, peakRssMb: peakRss / 2 ** 20 }),
  /** The same timers, as many at once, without a store. */
  timers: async ({ count }: { count: number }) => {
    const own: number[] = [];
    let ended = 0;
    const lane = async (): Promise<void> => {
      for (let n = 0; n < count / concurrency; n++) {
        await pause();
        if (++ended % every === 0) own.push(monoMs());
      }
    };
    await Promise.all(Array.from({ length: concurrency }, lane));
    return { marks: own };
  },
  stop: async () => {
    await handle?.stop();
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

/** In turn: job by job another kind. */
async function fillKinds(of: typeof kinds, count: number, priority: number): Promise<void> {
  const each = Math.ceil(count / of.length / 10);
  for (let round = 0; round < 10; round++)
    await Promise.all(of.map((kind) => engine.enqueueMany(kind, inputs(each), { each: () => ({ priority }) })));
}

/** Resolves when the parent waits for all of them. */
async function fillFamily(count: number): Promise<void> {
  const { id } = await engine.enqueue(parent, { count });
  while ((await engine.get(id))?.waitsAt === null) await new Promise((resolve) => setTimeout(resolve, 20));
}
