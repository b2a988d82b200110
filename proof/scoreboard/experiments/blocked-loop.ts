// A handler that blocks its event loop for 40 s, with another worker idle next to it. Is the job taken away from it and run twice?
import { type Found, type Mode } from "../adapter.ts";
import type { Contender } from "../contenders.ts";
import { type Experiment, pause, until } from "../experiment.ts";
import type { Started } from "../processes.ts";
import type { Blocked } from "../results.ts";
import type { Stage } from "../stage.ts";

const TAIL_MS = 30_000;

export const blockedLoop: Experiment = {
  name: "blocked-loop",
  together: true,
  async run(stage, contender, quick) {
    const blockMs = quick ? 5_000 : 40_000;
    const [byDefault, fastest] = await Promise.all([
      played(stage, contender, "default", blockMs),
      played(stage, contender, "fastest", blockMs),
    ]);
    return { blocked: { default: byDefault, fastest } };
  },
};

async function played(stage: Stage, contender: Contender, mode: Mode, blockMs: number): Promise<Blocked> {
  const place = await stage.place(contender);
  const blocked = await stage.worker(contender, place, mode);
  const observer = await stage.start(contender, place, "default");
  const starts: number[] = [];
  const hear = ({ at }: Started): void => void starts.push(at);
  blocked.on("started", hear);
  const id = await observer.ask<string>("add", { n: 1, act: "block", ms: blockMs });
  if (!(await until(30_000, () => starts.length > 0))) throw new Error("the job did not start");
  const idle = await stage.worker(contender, place, mode);
  idle.on("started", hear);
  await pause(blockMs + TAIL_MS);
  const { detail } = await observer.ask<Found>("find", id);
  await Promise.all([blocked.kill(), idle.kill(), observer.kill()]);
  const [first, second] = starts;
  return {
    blockMs,
    starts: starts.length,
    secondAfterMs: second === undefined ? null : second - first!,
    end: detail,
  };
}
