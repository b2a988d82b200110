// A rate of 10 in a second per key under kills: in no window does a key start more than its rate and burst allow, by the observer in the tables. A
// worker that dies after a claim has spent the start, and the next attempt spends another one.
import { audit, NO_FACTS } from "./audit.ts";
import { paced, RATE } from "./kinds.ts";
import { type Scenario, Stage } from "./stage.ts";

const WORKERS = 4;
const KEYS = 2;
/** More than a key may start between two kills, so that it always has jobs to start. */
const JOBS_PER_KILL = 3;

export const pace: Scenario = {
  name: "pace",
  stores: ["sqlite", "postgres", "redis"],

  async run(place, sizes) {
    await using stage = await Stage.set(place, sizes, WORKERS);
    const keys = sizes.keys ?? KEYS;
    let enqueued = 0;
    const add = async (count: number): Promise<void> => {
      const inputs = Array.from({ length: count * keys }, () => ({ key: `pace-${enqueued % keys}`, n: enqueued++ }));
      await stage.engine.enqueueMany(paced, inputs);
    };
    await add(RATE.burst);
    await stage.fleet.start();
    await stage.kill(sizes.kills, () => add(JOBS_PER_KILL));
    const seen = await stage.end(sizes.endedWithinMs);
    const counts = [{ kind: "paced", expected: enqueued, found: await stage.found("paced") }];
    const starts = seen.sightings.filter(({ runs }) => runs).map(({ startedAt }) => startedAt);
    const seconds = (Math.max(...starts) - Math.min(...starts)) / 1_000;
    const figures = {
      starts: starts.length,
      /** Starts of attempts that a kill ended. */
      wastedStarts: starts.length - enqueued,
      startsPerSecondAndKey: Math.round((10 * starts.length) / seconds / keys) / 10,
    };
    return { kills: seen.killedAt.size, enqueued, findings: audit({ ...NO_FACTS, ...seen, counts }), figures };
  },
};
