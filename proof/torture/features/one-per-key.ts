// A limit of 1 with 200 keys, eight workers, one of which is killed every 200 ms: no key ever has two, and none is left without its turn.
import { audit, NO_FACTS } from "./audit.ts";
import { limited } from "./kinds.ts";
import { type Scenario, Stage } from "./stage.ts";

const WORKERS = 8;
const KEYS = 200;
/** Enqueued before each kill, so that most keys have one that runs and one that is held. */
const JOBS_PER_KILL = 20;

export const onePerKey: Scenario = {
  name: "one-per-key",
  stores: ["sqlite", "postgres", "redis"],

  async run(place, sizes) {
    await using stage = await Stage.set(place, sizes, WORKERS);
    const keys = sizes.keys ?? KEYS;
    let enqueued = 0;
    const add = async (count: number): Promise<void> => {
      const inputs = Array.from({ length: count }, () => ({
        key: `key-${enqueued % keys}`,
        n: Math.floor(enqueued++ / keys),
      }));
      await stage.engine.enqueueMany(limited, inputs);
    };
    await add(3 * keys);
    await stage.fleet.start();
    await stage.kill(sizes.kills, () => add(JOBS_PER_KILL));
    const seen = await stage.end(sizes.endedWithinMs);
    const counts = [{ kind: "limited", expected: enqueued, found: await stage.found("limited") }];
    return { kills: seen.killedAt.size, enqueued, findings: audit({ ...NO_FACTS, ...seen, counts }) };
  },
};
