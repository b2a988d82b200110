// A worker and an enqueuer in one process: jobs at a steady rate, with how long each waited for its handler and how long the worker's turns took; and bursts.
// A second worker, of a kind that has no jobs, has nothing to do but to show that it lives and to poll.
import { setTimeout as delay } from "node:timers/promises";
import { job, open } from "../../../src/index.ts";
import { given, monoMs, serve } from "../program.ts";

const { url, concurrency } = given<{ url: string; concurrency: number }>();
const timed = job<{ at: number }>("timed");
let waited: number[] = [];
let turns: number[] = [];
timed.handle(({ at }) => void waited.push(monoMs() - at));
const engine = await open(url, { jobs: [timed], logger: false });
let ended = 0;
engine.on("job.succeeded", () => void ended++);
engine.on("store.called", ({ verb, durationMs }) => {
  if (verb === "turn") turns.push(durationMs);
});
await engine.start({ concurrency });
const never = job("never");
never.handle(() => {});
const idler = await open(url, { jobs: [never], logger: false, heartbeat: { interval: "1s", lease: "30s" } });
let failedBeats = 0;
idler.on("heartbeat.failed", () => void failedBeats++);
await idler.start({ concurrency: 1 });
const PIECE_MS = 10;

serve({
  offer: async ({ ms, perSecond }: { ms: number; perSecond: number }) => {
    waited = [];
    turns = [];
    ended = 0;
    const fromMs = monoMs();
    let sent = 0;
    const under: Promise<unknown>[] = [];
    for (let nowMs = fromMs; nowMs < fromMs + ms; nowMs = monoMs()) {
      const due = Math.floor(((nowMs - fromMs) * perSecond) / 1_000);
      for (; sent < due; sent++) under.push(engine.enqueue(timed, { at: monoMs() }));
      await delay(PIECE_MS);
    }
    await Promise.all(under);
    while (ended < sent) await delay(5);
    return { turns, waited, failedBeats };
  },
  /** Jobs per second, from the first enqueue to the last durable end. */
  burst: async ({ count }: { count: number }) => {
    ended = 0;
    const fromMs = monoMs();
    const inputs = Array.from({ length: count }, () => ({ at: fromMs }));
    await engine.enqueueMany(timed, inputs);
    while (ended < count) await delay(2);
    return (count * 1_000) / (monoMs() - fromMs);
  },
});
