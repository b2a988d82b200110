// One process of one contender: opens it, works, adds, and does with each job what its input says. It responds to the scoreboard over
// IPC (proof/bench/program.ts) and must run on Node 20 when its types are stripped, for a contender whose add-on is built for that.
import { given, monoMs, serve, tell } from "../bench/program.ts";
import type { Input, Mode, Open, Place, Task } from "./adapter.ts";

const { peer, place, mode } = given<{ peer: string; place: Place; mode: Mode }>();
const { open } = (await import(new URL(peer, import.meta.url).href)) as { open: Open };

const held = new Map<number, (note: string | null) => void>();
let handled = 0;
let firstAt = 0;

const session = await open(place, mode);
if (session.stop) {
  const stop = session.stop;
  process.once("SIGTERM", () => void stop().then(() => process.exit(0)));
}

const acts: Readonly<Record<Input["act"], (task: Task) => Promise<void>>> = {
  noop() {
    if (handled++ === 0) firstAt = monoMs();
    return Promise.resolve();
  },
  /** Waits until the scoreboard says how to end. */
  async held(task) {
    const note = await new Promise<string | null>((resolve) => held.set(task.input.n, resolve));
    const noted = note === null || !task.note ? null : await task.note(note).then(() => "accepted", refusal);
    tell("ending", { n: task.input.n, noted });
  },
  wait: ({ input }) => new Promise((resolve) => setTimeout(resolve, input.ms)),
  /** The event loop stands, as under a long computation, without taking a core from the other contenders. */
  block({ input }) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, input.ms);
    return Promise.resolve();
  },
  poison: ({ input }) => new Promise(() => setTimeout(() => process.kill(process.pid, "SIGKILL"), input.ms)),
};

function refusal(thrown: unknown): string {
  return `refused: ${(thrown instanceof Error ? thrown.message : String(thrown)).slice(0, 200)}`;
}

async function work(concurrency: number): Promise<void> {
  await session.work(concurrency, async (task) => {
    const { act, n } = task.input;
    if (act !== "noop") {
      tell("started", { n, at: monoMs() });
      // The message must have left before a handler blocks the loop.
      if (act === "block") await new Promise((resolve) => setTimeout(resolve, 50));
    } else if (n >= 0) tell("started", { n, at: monoMs() });
    await acts[act](task);
    if (act !== "noop") tell("ended", { n });
  });
}

serve({
  add: (input: Input) => session.add(input),
  work: ({ concurrency }: { concurrency: number }) => work(concurrency),
  find: (id: string) => session.find(id),
  finish: ({ n, note }: { n: number; note: string | null }) => held.get(n)?.(note),
  /** Whether that was done: the page has to say where it was. */
  pretendLeaseIsOver: async () => {
    await session.pretendLeaseIsOver?.();
    return session.pretendLeaseIsOver !== undefined;
  },
  /** Adds no-op jobs that tell nothing, in parts of 1,000. */
  fill: async ({ count }: { count: number }) => {
    for (let from = 0; from < count; from += 1_000) {
      const part = Array.from({ length: Math.min(1_000, count - from) }, (): Input => ({ n: -1, act: "noop" }));
      await session.addMany(part);
    }
  },
  /**
   * Works until this many no-op jobs have ended in the store, or the time is up, and returns how many ended per second since the first one
   * started. A handler that returned is not yet a job that ended: some contenders settle later, and that belongs to the drain. Nor is
   * the worker's own start awaited, which may resolve when its first jobs have long ended.
   */
  drain: async ({ count, concurrency, withinMs }: { count: number; concurrency: number; withinMs: number }) => {
    const from = monoMs();
    const isLate = (): boolean => monoMs() - from > withinMs;
    const working = work(concurrency);
    while (handled < count && !isLate()) await new Promise((resolve) => setTimeout(resolve, 2));
    let left = await session.unfinished();
    while (left > 0 && !isLate()) {
      // A contender that reads its store synchronously must not starve the loop that settles.
      await new Promise((resolve) => setTimeout(resolve, 2));
      left = await session.unfinished();
    }
    const perSecond = ((count - left) * 1_000) / (monoMs() - firstAt);
    await working;
    return perSecond;
  },
  /** How many adds a second, one after the other or `inFlight` at once. */
  addRate: async ({ ms, inFlight }: { ms: number; inFlight: number }) => {
    const from = monoMs();
    let added = 0;
    const one = async (): Promise<void> => {
      while (monoMs() - from < ms) {
        await session.add({ n: -1, act: "noop" });
        // A contender whose add is synchronous must not starve this loop's clock and messages.
        if (++added % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
    };
    await Promise.all(Array.from({ length: inFlight }, one));
    return (added * 1_000) / (monoMs() - from);
  },
  /** Adds until it is killed, and tells each id as soon as the add has resolved. */
  addForEver: async () => {
    for (let n = 0; ; n++) {
      const id = await session.add({ n, act: "held" });
      tell("added", { id });
      await new Promise((resolve) => setImmediate(resolve));
    }
  },
  /** When the add was called, on the clock that all processes of the machine share. */
  addStamped: async (input: Input) => {
    const at = monoMs();
    await session.add(input);
    return at;
  },
});
