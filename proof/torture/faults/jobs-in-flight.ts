// Jobs that a strike brings along, so that it never hits a worker with empty hands.
import { setTimeout as pause } from "node:timers/promises";
import type { Place } from "../processes/fleet.ts";
import { nap } from "../processes/jobs.ts";
import { NotDone, type FaultContext } from "../processes/fault-schedule.ts";

const CHECK_EVERY_MS = 60;
const IN_FLIGHT_WITHIN_MS = 20_000;

/** Enqueues this many jobs, each of which lasts this long. */
export function enqueueNaps(context: FaultContext, count: number, ms: number): Promise<string[]> {
  return Promise.all(Array.from({ length: count }, () => context.enqueue(nap, { ms })));
}

export async function napsEnded({ engine }: FaultContext): Promise<boolean> {
  const counts = (await engine.counts()).filter(({ kind }) => kind === nap.name);
  return counts.every(({ ready, delayed, running }) => ready + delayed + running === 0);
}

/** The ids of the jobs that this worker runs, as the store has it. */
export async function heldBy({ engine }: FaultContext, workerId: string | null): Promise<string[]> {
  const { jobs } = await engine.list({ state: "running", limit: 1_000 });
  return jobs.filter(({ worker }) => worker !== null && worker === workerId).map(({ id }) => id);
}

/** A target that runs one of these jobs, held for the strike. Throws `NotDone` if no target takes one in time. */
export async function targetWith(
  context: FaultContext,
  ids: readonly string[],
  signal: AbortSignal,
  may: (place: Place) => boolean = () => true,
): Promise<Place> {
  const deadline = performance.now() + IN_FLIGHT_WITHIN_MS;
  while (performance.now() < deadline && !signal.aborted) {
    const { jobs } = await context.engine.list({ state: "running", limit: 1_000 });
    const owners = new Set(jobs.filter(({ id }) => ids.includes(id)).map(({ worker }) => worker));
    const place = context
      .targets()
      .find((target) => target.workerId !== null && owners.has(target.workerId) && may(target));
    if (place) {
      context.hold(place);
      return place;
    }
    await pause(CHECK_EVERY_MS);
  }
  throw new NotDone("no worker that may be struck took one of its jobs");
}

/** False: not within this time, or the run has ended. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  withinMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  const deadline = performance.now() + withinMs;
  while (!(await holds())) {
    if (performance.now() > deadline || signal.aborted) return false;
    await pause(CHECK_EVERY_MS);
  }
  return true;
}
