// The kinds that the tests' child processes run. Effects outside the store go to an append-only file, so that a test can count
// how often each really happened.
import { appendFileSync } from "node:fs";
import { job, open } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";

const effects = process.env["OUTLIVE_EFFECTS"] ?? "/dev/null";
export const effect = (line: string): void => appendFileSync(effects, `${line}\n`);
const retry = { backoff: { base: "1ms", max: "5ms" } } as const;

/** Tells the parent that something is so. */
export function tell(fact: string, data: object = {}): void {
  process.send?.({ fact, ...data });
}

/** Moves one unit into the ledger, exactly once. */
export const transfer = job<{ n: number }>("transfer", { retry });
transfer.handle(async (input, run) => {
  tell("started", { kind: "transfer", id: run.id, attempt: run.attempt });
  await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger (job, n) VALUES (?, ?)", run.id, input.n));
});

/** Two steps, each with an effect. `stopAt` waits forever at that point of the first attempt. */
export const stepped = job<{ stopAt?: "inside" | "between" | "end" }>("stepped", { retry });
stepped.handle(async (input, run) => {
  tell("started", { kind: "stepped", id: run.id, attempt: run.attempt, interrupted: run.interrupted });
  const wait = async (point: string): Promise<void> => {
    if (input.stopAt !== point || run.attempt > 1) return;
    tell("waiting", { point, id: run.id });
    await new Promise(() => setInterval(() => {}, 1_000));
  };
  const first = await run.step("first", async () => {
    effect(`first ${run.id}`);
    await wait("inside");
    return { at: "first" };
  });
  effect(`between ${run.id}`);
  await wait("between");
  await run.step("second", () => {
    effect(`second ${run.id}`);
    return [first.at];
  });
  await wait("end");
  return { done: true };
});

/** Runs until the file's own signal ends it: for takeovers. */
export const slow = job<{ ms: number }>("slow", { retry });
slow.handle(async (input, run) => {
  tell("started", { kind: "slow", id: run.id, attempt: run.attempt, fence: run.fence });
  run.signal.addEventListener("abort", () =>
    tell("aborted", { id: run.id, why: (run.signal.reason as { why: string }).why }),
  );
  await new Promise<void>((resolve) => setTimeout(resolve, input.ms));
  effect(`slow ${run.id} attempt ${run.attempt}`);
});

/** Ends its process whenever it runs. */
export const poison = job<{ how: "SIGKILL" | "exit" | "rejection" | "oom" }>("poison", { retry });
poison.handle(async (input, run) => {
  tell("started", { kind: "poison", id: run.id, attempt: run.attempt });
  effect(`poison ${run.id}`);
  switch (input.how) {
    case "SIGKILL":
      process.kill(process.pid, "SIGKILL");
      break;
    case "exit":
      return process.exit(3);
    case "rejection":
      void Promise.reject(new Error("left behind"));
      break;
    case "oom": {
      const hoard: unknown[] = [];
      while (hoard.length < 1e6) hoard.push(Array.from({ length: 10_000 }, () => ({ a: 1 })));
    }
  }
  await new Promise(() => setInterval(() => {}, 1_000));
});

/** Ends at once, so that its worker claims others ahead. `kills`: the first attempt kills its process. */
export const tick = job<{ n: number; kills?: boolean }>("tick", { retry });
tick.handle(({ kills = false }, run) => {
  effect(`tick ${run.id} attempt ${run.attempt}`);
  if (kills && run.attempt === 1) process.kill(process.pid, "SIGKILL");
});

/** Leaves a function behind that writes until it is refused, long after the handler's end. */
export const loose = job<null>("loose", { retry });
loose.handle((_, run) => {
  const goOn = async (): Promise<never> => {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      await run.progress("still here");
    }
  };
  void goOn();
});

/** Blocks the main loop. */
export const block = job<{ ms: number }>("block", {
  timeout: "1500ms",
  grace: "100ms",
  retry: { ...retry, timeouts: 2 },
});
block.handle((input, run) => {
  tell("started", { kind: "block", id: run.id, attempt: run.attempt });
  const until = performance.now() + input.ms;
  while (performance.now() < until);
  effect(`block ${run.id} attempt ${run.attempt}`);
});

/** As `block`, but allowed to. */
export const compute = job<{ ms: number }>("compute", { retry });
compute.handle((input, run) => {
  tell("started", { kind: "compute", id: run.id, attempt: run.attempt });
  const until = performance.now() + input.ms;
  while (performance.now() < until);
  effect(`compute ${run.id} attempt ${run.attempt}`);
});

/** A child of `family`. */
export const ward = job<{ n: number }, number>("ward", { retry });
ward.handle((input, run) => {
  effect(`ward ${input.n} attempt ${run.attempt}`);
  return input.n * 10;
});

/** Sleeps, enqueues three wards, waits for them and for a signal, and returns all that it got. Each part is a step with an effect. */
export const family = job<null>("family", { retry });
family.handle(async (_, run) => {
  await run.step("begin", () => effect(`begin ${run.id}`));
  await run.sleep("1ms");
  const ids = await run.enqueueMany(ward, [{ n: 1 }, { n: 2 }, { n: 3 }]);
  const results = await run.results(ids);
  await run.step("middle", () => effect(`middle ${run.id} ${results.join("+")}`));
  const word = await run.waitForSignal<string>("word");
  await run.step("end", () => effect(`end ${run.id} ${word}`));
  return { results, word };
});

/** Waits for as many wards as it is asked for. */
export const crowd = job<{ children: number }>("crowd", { retry });
crowd.handle(async ({ children }, run) => {
  const ids = await run.enqueueMany(
    ward,
    Array.from({ length: children }, (_, n) => ({ n })),
  );
  return (await run.wait(ids)).length;
});

/** Tenants take turns. `hangs`: its first attempt never ends. */
export const share = job<{ tenant: string; n: number; hangs?: boolean }>("share", {
  retry,
  fair: ({ tenant }) => tenant,
});
share.handle(async ({ tenant, n, hangs = false }, run) => {
  effect(`share ${tenant} ${n}`);
  tell("started", { kind: "share", id: run.id, attempt: run.attempt });
  if (hangs && run.attempt === 1) await new Promise(() => setInterval(() => {}, 1_000));
});

/** Pauses one tenant of `share`, over a connection of its own. */
export const pauser = job<{ tenant: string }>("pauser", { retry });
pauser.handle(async ({ tenant }) => {
  await using engine = await open(process.argv[2]!, { jobs: [share], logger: false });
  await engine.limits.pause("fair", tenant, { reason: "a test" });
});

export const kinds = {
  transfer,
  stepped,
  slow,
  poison,
  tick,
  loose,
  block,
  compute,
  ward,
  family,
  crowd,
  share,
  pauser,
};
export const jobs = Object.values(kinds);
