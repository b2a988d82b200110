// The fault of a worker that stands still inside a commit, with its transaction open on a session that the engine can't end: one of the
// user's own pool, or a pooler's. Only the job of that commit may wait for it. Its other jobs must be taken and run meanwhile; woken, it
// must not commit what another attempt has committed, which the ledger shows.
import { standsStill } from "../../../src/torture/audit.ts";
import type { Chance } from "../../../src/torture/killer.ts";
import { type Fault, type FaultContext, NotDone } from "../processes/fault-schedule.ts";
import type { Place } from "../processes/fleet.ts";
import { transfer } from "../processes/jobs.ts";
import { enqueueNaps, heldBy, until } from "./jobs-in-flight.ts";
import { HELD_BACK_MS } from "./proxy.ts";

const NAPS = 16;
const NAP_MS = 3_000;
/** Transfers whose transaction is open long enough to be met. */
const COMMITS = 4;
const COMMIT_MS = 2_000;
/** How often a worker is tried that turns out to hold nothing else. */
const TRIES = 6;
const STILL_WITHIN_MS = 1_000;
/** A lease, and a recovery on a busy machine. */
const TAKEN_WITHIN_MS = 10_000;
const BACK_WITHIN_MS = 10_000;

/** `onForeignSession`: whether a worker's commits are on a session that the engine can't end. */
export function frozenCommit(onForeignSession: (place: Place) => boolean, takenWithinMs = TAKEN_WITHIN_MS): Fault {
  return {
    key: "frozenCommit",
    name: "freeze a worker inside a commit",
    aftermathMs: HELD_BACK_MS,
    async strike(chance, signal, context) {
      await enqueueNaps(context, NAPS, NAP_MS);
      for (let tries = 1; tries <= TRIES && !signal.aborted; tries++) {
        await enqueueCommits(context, chance);
        const met = await context.nextCommit(onForeignSession, COMMIT_MS);
        if (met && (await freezeInside(context, met.place, met.job, takenWithinMs, signal))) return;
      }
      throw new NotDone("no worker was inside a commit and held other jobs");
    },
  };
}

async function enqueueCommits(context: FaultContext, chance: Chance): Promise<void> {
  for (let i = 0; i < COMMITS; i++)
    await context.enqueue(transfer, { amount: chance.whole(1, 1_000), workMs: 0, commitMs: COMMIT_MS });
}

/** False: it held nothing else, or died, and nothing is shown. */
async function freezeInside(
  context: FaultContext,
  place: Place,
  job: string,
  takenWithinMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  const { workerId, pid } = place;
  context.hold(place);
  context.freeze(place);
  try {
    await until(() => standsStill(pid), STILL_WITHIN_MS, signal);
    const held = await heldBy(context, workerId);
    const others = held.filter((id) => id !== job);
    if (!held.includes(job) || others.length === 0) return false;
    const isTaken = async (): Promise<boolean> => {
      const left = new Set(await heldBy(context, workerId));
      return place.state !== "frozen" || !others.some((id) => left.has(id));
    };
    const taken = await until(isTaken, takenWithinMs, signal);
    if (!taken && !signal.aborted)
      context.violation(
        `worker ${workerId} stood still inside the commit of job ${job}, and its other jobs (${others.join(", ")}) were not taken within ${takenWithinMs} ms`,
      );
  } finally {
    context.wake(place);
  }
  await until(() => place.pid !== pid || place.workerId !== workerId, BACK_WITHIN_MS, signal);
  return true;
}
