// Who killed the worker? All jobs in flight are suspects. The first crash of a job costs it nothing but time; from its second
// crash on it runs alone in its process, and only a death while it ran alone counts toward quarantine. So the job that kills
// its worker is found within a few deaths, and those that happened to run beside it lose nothing. And while workers die that did
// not hold it, at least as many of them, something else kills: then a death alone proves nothing, up to a hard limit.
import type { Counters, Limits } from "./job.ts";

/** From this many crashes on, a job runs alone in its process. */
export const ALONE_FROM_CRASHES = 2;

/** A loss of contact that may turn out to have been a death makes a job as suspect as a death does. */
export function mustRunAlone(counters: Pick<Counters, "crashes" | "losses">): boolean {
  return counters.crashes + counters.losses >= ALONE_FROM_CRASHES;
}

/**
 * Whether a job waits until it is known what happened to the workers that held it. Without this, a job that kills its workers on
 * hosts where no death can be proved would be run again and again.
 */
export function mustWaitForResolution(counters: Pick<Counters, "losses">, limits: Limits): boolean {
  return counters.losses > 0 && counters.losses >= limits.crashes;
}

/** Deaths of others count against the suspicion if they happened since the job's first crash, or within this time before now. */
export const BACKGROUND_MS = 600_000;

/** After this many times its limit of deaths alone a job is quarantined whatever else dies. */
export const HARD_LIMIT = 3;

/** What a worker held when it died, fixed once for all of its jobs. */
export interface InFlight {
  readonly heldAtDeath: number;
}

/** A worker that held a single job when it died was killed by that job or by something outside: the job is blamed. */
export function ranAlone({ heldAtDeath }: InFlight): boolean {
  return heldAtDeath === 1;
}

/** Whether the next death may end the job, so that it matters how many others died. */
export function isOnTrial(counters: Pick<Counters, "blamed">, inFlight: InFlight, limits: Limits): boolean {
  return ranAlone(inFlight) && counters.blamed + 1 >= limits.crashes;
}

/**
 * The counters after a death, and whether the job has now killed as many workers as it may. `deathsElsewhere`: workers that died
 * meanwhile without holding it.
 */
export function blame(
  counters: Counters,
  alone: boolean,
  limits: Limits,
  deathsElsewhere = 0,
): { counters: Counters; guilty: boolean } {
  const after = { ...counters, crashes: counters.crashes + 1, blamed: counters.blamed + (alone ? 1 : 0) };
  const stoodOut = after.blamed > deathsElsewhere || after.blamed >= HARD_LIMIT * limits.crashes;
  return { counters: after, guilty: alone && after.blamed >= limits.crashes && stoodOut };
}
