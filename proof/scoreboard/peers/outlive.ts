// Outlive as a contender, on each store: nothing here but its public API, of the code as it is published. With the sources each of its threads would
// strip their types first, while a drain is timed.
import type * as outlive from "../../../src/index.ts";
import type { Found, Input, Mode, Open, Place, Session, Task } from "../adapter.ts";
import { load } from "./load.ts";

/** Where `installation.ts` builds it. */
const BUILT = "../node_modules/.outlive/code/index.js";

const TIMES: Readonly<Record<Mode, NonNullable<outlive.EngineOptions["heartbeat"]>>> = {
  default: {},
  fastest: { interval: "500ms", lease: "1500ms", sweep: "1s", probe: "10ms" },
  throughput: {},
};

const STATES: Readonly<Record<string, Found["state"]>> = {
  queued: "waiting",
  running: "running",
  succeeded: "done",
  dead: "failed",
  quarantined: "failed",
  cancelled: "failed",
};

export const open: Open = async ({ address }: Place, mode): Promise<Session> => {
  const { job, open: openEngine } = await load<typeof outlive>(BUILT);
  const task = job<{ n: number; act: Input["act"]; ms: number }>("task");
  let handle: (task: Task) => Promise<void>;
  task.handle((input, run) => handle({ input, note: (word) => run.progress(word) }));
  const engine = await openEngine(storeAt(address), {
    jobs: [task],
    logger: false,
    heartbeat: TIMES[mode],
  });
  let stop: (() => Promise<unknown>) | undefined;
  const stored = ({ n, act, ms = 0 }: Input): { n: number; act: Input["act"]; ms: number } => ({ n, act, ms });
  return {
    add: async (input) => (await engine.enqueue(task, stored(input))).id,
    addMany: (inputs) => engine.enqueueMany(task, inputs.map(stored)),
    async work(concurrency, handler) {
      handle = handler;
      const worker = await engine.start({ concurrency });
      stop = () => worker.stop();
    },
    stop: async () => {
      await stop?.();
      await engine.close();
    },
    async unfinished() {
      const [counts] = await engine.counts();
      return counts ? counts.ready + counts.delayed + counts.held + counts.running : 0;
    },
    async find(id) {
      const found = await engine.get(id);
      if (!found) return { state: "missing", note: null, detail: "no row" };
      const { errors, crashes, timeouts, interruptions } = found.counters;
      return {
        state: STATES[found.state] ?? "failed",
        note: typeof found.progress === "string" ? found.progress : null,
        detail: `${found.state}, ${errors} errors, ${crashes} crashes, ${timeouts} timeouts, ${interruptions} interruptions`,
      };
    },
  };
};

/** A Redis place is a path behind the host, which is the name of a store here. */
function storeAt(address: string): string {
  if (address.startsWith("postgres")) return address;
  if (!address.startsWith("redis")) return `sqlite:${address}`;
  const { origin, host, pathname } = new URL(address);
  return `${origin === "null" ? `redis://${host}` : origin}?store=${pathname.slice(1)}`;
}
