// The fault of a worker that loses its connections and is refused for a while, as behind a sidecar, a balancer or a NAT that forgets. Its
// process lives, so its work may be taken, but no job may be charged for it, unless it stays away for two leases after that.
import { setTimeout as pause } from "node:timers/promises";
import { chargedBeyondDeaths } from "../processes/charges.ts";
import { LEASE_MS } from "../processes/settings.ts";
import type { Fault, FaultContext } from "../processes/fault-schedule.ts";
import { allIncidents } from "../processes/timing.ts";
import { enqueueNaps, heldBy, targetWith } from "./jobs-in-flight.ts";
import { HELD_BACK_MS, type Proxy } from "./proxy.ts";

/** In turn: back in time, and away for up to twice `contact`, which is 3 s by default. */
const REFUSED_MS = [
  { least: 200, most: 2_000 },
  { least: 2_000, most: 6_000 },
] as const;
/** Before this time no worker can have been away for two leases. */
const NOT_AWAY_YET_MS = 2 * LEASE_MS - 500;
/** In flight when the connections are reset. */
const NAPS = 12;
const NAP_MS = 2_500;

/** `proxy`: each worker has the door of its number. */
export function reset(proxy: Proxy): Fault {
  let strikes = 0;
  return {
    key: "reset",
    name: "reset the connections of one worker and refuse it for a while",
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal, context) {
      const wait = async (ms: number): Promise<void> => {
        await pause(ms, undefined, { signal }).catch(() => {});
      };
      const place = await targetWith(context, await enqueueNaps(context, NAPS, NAP_MS), signal);
      const { number: door, pid, workerId } = place;
      const held = await heldBy(context, workerId);
      const { least, most } = REFUSED_MS[strikes++ % REFUSED_MS.length]!;
      const refusedMs = chance.whole(least, most);
      const soonMs = Math.min(refusedMs, NOT_AWAY_YET_MS);
      await proxy.refuse(door, async () => {
        await wait(soonMs);
        if (!context.wasHit(workerId!)) await expectNotCharged(context, workerId!, held, soonMs);
        await wait(refusedMs - soonMs);
      });
      if (place.pid !== pid && !context.wasHit(workerId!))
        context.violation(`worker ${workerId} (pid ${pid}) did not outlive the loss of its connections`);
    },
  };
}

async function expectNotCharged(
  context: FaultContext,
  workerId: string,
  jobs: readonly string[],
  afterMs: number,
): Promise<void> {
  const incidents = (await allIncidents(context.engine)).filter(({ worker }) => worker === workerId);
  const notDeaths = new Set(incidents.map(({ id }) => id));
  for (const job of jobs)
    for (const sentence of await chargedBeyondDeaths(context.engine, job, notDeaths))
      context.violation(`${sentence}; worker ${workerId} had been without its connections for ${afterMs} ms`);
}
