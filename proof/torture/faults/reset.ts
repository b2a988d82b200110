// The fault of a worker that loses its connections and is refused for a while, as behind a sidecar, a balancer or a NAT that forgets. Its
// process lives, so its work may be taken, but no job may be charged for it, unless it stays away for two leases after that.
import { setTimeout as pause } from "node:timers/promises";
import type { IncidentSummary } from "../../../src/index.ts";
import { cameBack, chargedBeyondDeaths } from "../processes/charges.ts";
import { LEASE_MS } from "../processes/settings.ts";
import type { Fault, FaultContext } from "../processes/fault-schedule.ts";
import { allIncidents } from "../processes/timing.ts";
import { enqueueNaps, heldBy, targetWith, until } from "./jobs-in-flight.ts";
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

/** A worker elsewhere is refused until its session has been missing throughout `contact`, and is back before it is counted as dead. */
const ELSEWHERE_MS = { least: 1_200, most: 1_800 } as const;
const RESOLVED_WITHIN_MS = 15_000;

/**
 * `proxy`: each worker has the door of its number. `elsewhere`: the number of the worker of which no kernel can prove anything to the
 * others; every second strike is at it. Null: there is none, and the work of a worker is taken for its silence only.
 */
export function reset(proxy: Proxy, elsewhere: number | null = null): Fault {
  let strikes = 0;
  return {
    key: "reset",
    name: "reset the connections of one worker and refuse it for a while",
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal, context) {
      const wait = async (ms: number): Promise<void> => {
        await pause(ms, undefined, { signal }).catch(() => {});
      };
      const isElsewhere = elsewhere !== null && strikes % 2 === 1;
      const naps = await enqueueNaps(context, NAPS, NAP_MS);
      const place = await targetWith(context, naps, signal, ({ number }) => !isElsewhere || number === elsewhere);
      const { number: door, pid, workerId } = place;
      const held = await heldBy(context, workerId);
      const died = async (): Promise<boolean> => context.wasHit(workerId!) || (await context.endedByItsJob(pid));
      const { least, most } = isElsewhere ? ELSEWHERE_MS : REFUSED_MS[strikes % REFUSED_MS.length]!;
      strikes++;
      const refusedMs = chance.whole(least, most);
      const soonMs = Math.min(refusedMs, NOT_AWAY_YET_MS);
      await proxy.refuse(door, async () => {
        await wait(soonMs);
        if (!(await died())) await expectNotCharged(context, workerId!, held, soonMs, died);
        await wait(refusedMs - soonMs);
      });
      if (place.pid !== pid && !(await died()))
        context.violation(`worker ${workerId} (pid ${pid}) did not outlive the loss of its connections`);
      if (isElsewhere && !(await died())) await expectReturned(context, workerId!, refusedMs, signal);
    },
  };
}

/** Contact with it was lost, its work was taken, and its return resolved the loss, unless a busy machine made it too late. */
async function expectReturned(
  context: FaultContext,
  workerId: string,
  refusedMs: number,
  signal: AbortSignal,
): Promise<void> {
  const found = async (): Promise<IncidentSummary | undefined> =>
    (await allIncidents(context.engine)).find(({ worker }) => worker === workerId);
  await until(async () => ((await found())?.resolution ?? null) !== null, RESOLVED_WITHIN_MS, signal);
  if (signal.aborted) return;
  const incident = await found();
  const lost = `worker ${workerId} was elsewhere and without its connections for ${refusedMs} ms`;
  if (!incident) context.violation(`${lost}, and its work was not taken`);
  else if (incident.resolution === "returned") return;
  else if (incident.resolution === null || cameBack(incident, await context.engine.workers({ which: "all" })))
    context.violation(`${lost}, it came back, and the loss is ${incident.resolution ?? "not resolved"}`);
}

async function expectNotCharged(
  context: FaultContext,
  workerId: string,
  jobs: readonly string[],
  afterMs: number,
  died: () => Promise<boolean>,
): Promise<void> {
  const incidents = (await allIncidents(context.engine)).filter(({ worker }) => worker === workerId);
  const notDeaths = new Set(incidents.map(({ id }) => id));
  const sentences: string[] = [];
  for (const job of jobs) sentences.push(...(await chargedBeyondDeaths(context.engine, job, notDeaths)));
  // It may have died since then, and been charged before this was read.
  if (sentences.length === 0 || (await died())) return;
  for (const sentence of sentences)
    context.violation(`${sentence}; worker ${workerId} had been without its connections for ${afterMs} ms`);
}
