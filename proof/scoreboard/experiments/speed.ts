// How fast: adds a second, no-op jobs a second that have ended in the store at concurrency 50, and the time from the call of add() to the start of the
// handler in another, idle process. Short runs.
import type { Mode } from "../adapter.ts";
import type { Contender } from "../contenders.ts";
import { type Experiment, pause } from "../experiment.ts";
import { type Program, startOf } from "../processes.ts";
import type { Speed } from "../results.ts";
import type { Stage } from "../stage.ts";
import { median } from "../wording.ts";

const CONCURRENCY = 50;
const DRAIN_MS = 4_000;

export const speed: Experiment = {
  name: "speed",
  together: false,
  rounds: { count: 3, merge: (found) => ({ speed: medians(found.flatMap(({ speed: each }) => each ?? [])) }) },
  async run(stage, contender, quick) {
    const place = await stage.place(contender);
    const client = await stage.start(contender, place, "default");
    const ms = quick ? 300 : 1_000;
    const found: Speed = {
      addsOneByOne: await client.ask<number>("addRate", { ms, inFlight: 1 }),
      addsFiftyInFlight: await client.ask<number>("addRate", { ms, inFlight: CONCURRENCY }),
    };
    await client.kill();
    const count = quick ? 2_000 : 20_000;
    return {
      speed: {
        ...found,
        drainDefault: await drain(stage, contender, "default", count),
        drainThroughput: await drain(stage, contender, "throughput", count),
        pickupDefaultMs: await pickup(stage, contender, "default", quick ? 3 : 9),
        pickupFastestMs: await pickup(stage, contender, "fastest", quick ? 3 : 9),
      },
    };
  },
};

function medians(found: readonly Speed[]): Speed {
  const names = [...new Set(found.flatMap((each) => Object.keys(each) as (keyof Speed)[]))];
  return Object.fromEntries(names.map((name) => [name, median(found.flatMap((each) => each[name] ?? []))]));
}

async function drain(stage: Stage, contender: Contender, mode: Mode, count: number): Promise<number> {
  const place = await stage.place(contender);
  const program = await stage.start(contender, place, mode);
  await program.ask("fill", { count });
  const rate = await program.ask<number>("drain", { count, concurrency: CONCURRENCY, withinMs: DRAIN_MS });
  await program.kill();
  return rate;
}

/** The median in ms. */
async function pickup(stage: Stage, contender: Contender, mode: Mode, count: number): Promise<number> {
  const place = await stage.place(contender);
  const worker = await stage.worker(contender, place, mode);
  const client = await stage.start(contender, place, mode);
  const took: number[] = [];
  // The first ones find cold code.
  for (let n = 0; n < count + 3; n++) {
    await pause(100 + Math.random() * 200);
    const ms = await pickedUp(worker, client, n);
    if (n >= 3) took.push(ms);
  }
  await Promise.all([worker.kill(), client.kill()]);
  return median(took);
}

async function pickedUp(worker: Program, client: Program, n: number): Promise<number> {
  const start = startOf([worker], n, 30_000);
  const from = await client.ask<number>("addStamped", { n, act: "noop" });
  const started = await start;
  if (!started) throw new Error("a job was not picked up within 30 s");
  return started.at - from;
}
