// A worker that holds many jobs, and its heartbeats.
import { job, open } from "../../../src/index.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { processIdentity } from "../../../src/platform/identity.ts";
import { storeAt } from "../../../src/stores/registry.ts";
import { given, serve } from "../program.ts";

const { url } = given<{ url: string }>();
const WORKER = "holder";
/** Another one, which holds nothing. */
const IDLE = "idle";
const noop = job("noop").handle(() => undefined);
const engine = await open(url, { jobs: [noop], logger: false });
const store = await storeAt(url).client(url, {}).open({
  clock: systemClock,
  random: systemRandom,
});

export interface Beat {
  readonly tookMs: number;
  /** What is sent and what comes back. */
  readonly bytes: number;
  readonly held: number;
}

serve({
  hold: async ({ count }: { count: number }): Promise<number> => {
    for (let n = 0; n < count; n += 1_000)
      await engine.enqueueMany(
        noop,
        Array.from({ length: 1_000 }, () => ({ text: "x".repeat(100) })),
      );
    await store.declare([noop.settings]);
    const row = { ...processIdentity(), predecessor: null, version: "bench", leaseMs: 600_000, concurrency: count };
    for (const id of [WORKER, IDLE])
      await store.register({ ...row, id, kinds: ["noop"], lock: { name: null, identity: null } });
    let held = 0;
    while (held < count) {
      const { claimed } = await store.turn(WORKER, [], { total: 1_000, kinds: [{ kind: "noop", room: 1_000 }] });
      held += claimed.length;
    }
    return held;
  },
  beat: () => beat(WORKER),
  beatIdle: () => beat(IDLE),
});

async function beat(worker: string): Promise<Beat> {
  const sent = { loopLagMs: 1 };
  const from = performance.now();
  const answer = await store.beat(worker, sent);
  const tookMs = performance.now() - from;
  return { tookMs, bytes: JSON.stringify([worker, sent, answer]).length, held: answer.held.count };
}
