// A job that kills its worker, at concurrency 20 next to 19 innocents that take longer than it needs to kill. The worker is started
// again each time, as a supervisor would, until all twenty have ended or it is clear that they never will.
import type { Found } from "../adapter.ts";
import { type Experiment, pause } from "../experiment.ts";

const INNOCENTS = 19;
const KILLS_AFTER_MS = 1_500;
const INNOCENT_MS = 4_000;
/** graphile-worker gives a job 25 attempts. */
const MOST_DEATHS = 30;
const LIMIT_MS = 160_000;

export const poison: Experiment = {
  name: "poison",
  together: true,
  async run(stage, contender, quick) {
    const place = await stage.place(contender);
    // The first to open makes the queue: it must be the one with the fastest settings.
    await (await stage.start(contender, place, "fastest")).kill();
    const observer = await stage.start(contender, place, "default");
    const ids = [await observer.ask<string>("add", { n: 0, act: "poison", ms: KILLS_AFTER_MS })];
    for (let n = 1; n <= INNOCENTS; n++)
      ids.push(await observer.ask<string>("add", { n, act: "wait", ms: INNOCENT_MS }));

    const from = performance.now();
    const mostDeaths = quick ? 4 : MOST_DEATHS;
    let deaths = 0;
    let found: readonly Found[] = [];
    let stopped = false;
    let pretended = false;
    while (!stopped && deaths < mostDeaths && performance.now() - from < LIMIT_MS) {
      const worker = await stage.start(contender, place, "fastest");
      // Not awaited: on a slow machine it is dead before it has said that it works.
      void worker.ask("work", { concurrency: INNOCENTS + 1 });
      while (!worker.over && !stopped && performance.now() - from < LIMIT_MS) {
        await Promise.race([worker.exited, pause(500)]);
        found = await Promise.all(ids.map((id) => observer.ask<Found>("find", id)));
        stopped = found.every(({ state }) => state === "done" || state === "failed");
      }
      if (worker.over) deaths++;
      await worker.kill();
      pretended = await observer.ask<boolean>("pretendLeaseIsOver");
    }
    await observer.kill();
    const [poisonous, ...innocents] = found;
    const count = (...states: Found["state"][]): number =>
      innocents.filter(({ state }) => states.includes(state)).length;
    return {
      poison: {
        deaths,
        innocents: { done: count("done"), failed: count("failed"), open: count("waiting", "running", "missing") },
        poison: poisonous?.detail ?? "not found",
        stopped,
        pretended,
        tookMs: performance.now() - from,
      },
    };
  },
};
