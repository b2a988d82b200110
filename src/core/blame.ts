// Who killed the worker? All jobs in flight are suspects. The first crash of a job costs it nothing but time; from its second
// crash on it runs alone in its process, and only a death while it ran alone counts toward quarantine. So the job that kills
// its worker is found within a few deaths, and those that happened to run beside it lose nothing.
import type { Counters, Limits } from "./job.ts";

/** From this many crashes on, a job runs alone in its process. */
export const ALONE_FROM_CRASHES = 2;

export function mustRunAlone(counters: Pick<Counters, "crashes">): boolean {
  return counters.crashes >= ALONE_FROM_CRASHES;
}

/** A worker that held a single job when it died was killed by that job or by something outside: the job is blamed. */
export function ranAlone(heldAtDeath: number): boolean {
  return heldAtDeath === 1;
}

/** The counters after a death, and whether the job has now killed as many workers as it may. */
export function blame(counters: Counters, alone: boolean, limits: Limits): { counters: Counters; guilty: boolean } {
  const after = { ...counters, crashes: counters.crashes + 1, blamed: counters.blamed + (alone ? 1 : 0) };
  return { counters: after, guilty: alone && after.blamed >= limits.crashes };
}
