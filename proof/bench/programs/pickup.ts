// An idle worker that notes how long ago each job was asked for when its handler starts.
import { setTimeout as delay } from "node:timers/promises";
import { job, open } from "../../../src/index.ts";
import { given, monoMs, serve } from "../program.ts";

const { url } = given<{ url: string }>();
const timed = job<{ at: number }>("timed");
let waited: number[] = [];
timed.handle(({ at }) => {
  waited.push(monoMs() - at);
});
const engine = await open(url, { jobs: [timed], logger: false });
await engine.start();

serve({
  /** Enqueues here, one at a time, with pauses in which the worker goes idle. */
  same: async ({ count }: { count: number }) => {
    for (let n = 0; n < count; n++) {
      await delay(2 + Math.random() * 10);
      await engine.enqueue(timed, { at: monoMs() });
    }
    while (waited.length < count) await delay(5);
  },
  waited: () => {
    const all = waited;
    waited = [];
    return all;
  },
});
