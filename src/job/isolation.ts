// Who killed the worker? All jobs in flight at a death are suspects, and run again next to fresh jobs, in ever smaller groups:
//
// - The first crash of a job costs it nothing but time: it runs with any number of others. After a machine has gone down, everything that
//   was in flight on it runs again at once.
// - From its second crash on, `together` of a suspect is half of the suspects that died with it, at least 1. A worker takes suspects while
//   their number stays within the smallest `together` that it holds. So the job that kills its workers among 50 others is alone after six
//   deaths, and thousands of innocents do not run one after the other.
// - Alone means: the only job in the process with an earlier crash. Only a death while alone counts toward quarantine. While at least as
//   many workers die that did not hold the job, something else kills, and a death alone proves nothing, up to a hard limit.
// - A suspect that succeeds has ended, and one that writes a durable step is fresh again.
//
// Nothing is reserved and no worker waits: a suspect that does not fit leaves its slot to other jobs.
//
// Two choices, measured with the simulator (2026-11-17, the storm of `--storm`, seeds 1 to 60 each with 1, 4 and 8 jobs at once per worker,
// about 5,450 deaths per number; innocents that reached their limit of deaths alone, and that only the deaths of others saved from
// quarantine). Every culprit ended in quarantine in all of them:
//
//                                                          1    4    8
//     as it is                                            14   19   28
//     the only job of a worker is blamed, fresh or not    49   36   36
//     the first crash halves, too                         15   25   46
//     both                                                52   37   56, one of them quarantined
//
// - A fresh job that was the only one of its worker is not blamed. Blaming it finds a lone culprit one death sooner (3 instead of 4 with a
//   limit of 3), and accuses every innocent in a worker with one slot at once. Among 50 jobs it makes no difference.
// - The first crash halves nothing. Halving at once finds the culprit among 50 one death sooner (with a limit of 2 after 7 instead of 8),
//   and makes more suspects that run as the only one of their process, which the next kill from outside then blames. And one worker that
//   comes back after a machine went down would run half of what it ran before.
import type { Counters, Limits } from "./job.ts";

/** A loss of contact that may turn out to have been a death makes a job as suspect as a death does. */
export function isSuspect(counters: Pick<Counters, "crashes" | "losses">): boolean {
  return counters.crashes + counters.losses > 0;
}

/** What matters of the jobs that a worker held when it died, fixed once for all of them. */
export interface InFlight {
  /** How many of them had an earlier crash, or an unresolved loss. */
  readonly suspectsAtDeath: number;
}

/** The worker was killed by this job, which had crashed before, or by something outside: nothing else in it was suspect. */
export function ranAlone(before: Pick<Counters, "crashes" | "losses">, { suspectsAtDeath }: InFlight): boolean {
  return suspectsAtDeath === 1 && isSuspect(before);
}

/** With how many suspects, itself included, a job may run after this death; 0: with any number. */
export function togetherAfter(before: Pick<Counters, "crashes" | "losses">, { suspectsAtDeath }: InFlight): number {
  return isSuspect(before) ? Math.max(1, Math.floor(suspectsAtDeath / 2)) : 0;
}

/** What stands for any number where numbers are compared. */
export const ANY_NUMBER = 2_147_483_647;

/** With how many suspects a stored job may run. One that crashed twice before this was kept (`together` is 0) runs as the only suspect. */
export function boundOf({
  together,
  crashes,
  losses,
}: Pick<Counters, "crashes" | "losses"> & { readonly together: number }): number {
  if (together > 0) return together;
  return crashes + losses > 1 ? 1 : ANY_NUMBER;
}

/** The suspects that a worker holds. */
export interface HeldSuspects {
  readonly count: number;
  /** The smallest bound of them; null: it holds none. */
  readonly together: number | null;
  /**
   * Which of those that wait come first within a priority: the oldest, instead of those that may run with the most others. A worker
   * alternates, so that neither a large group nor a single suspect waits forever.
   */
  readonly oldestFirst: boolean;
}

/** A queued suspect. */
export interface WaitingSuspect {
  readonly together: number;
}

/** Whether a worker that holds these may take one more. */
export function hasRoomForSuspects({ count, together }: HeldSuspects): boolean {
  return together === null || count < together;
}

/** Which of the waiting suspects, in their order, a worker takes. One that does not fit hides none behind it. */
export function suspectsToTake<W extends WaitingSuspect>(waiting: readonly W[], held: HeldSuspects): W[] {
  let { count } = held;
  let smallest = held.together ?? Number.POSITIVE_INFINITY;
  return waiting.filter((job) => {
    const together = Math.min(smallest, job.together);
    if (count + 1 > together) return false;
    count++;
    smallest = together;
    return true;
  });
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

/** Whether this death may end the job, so that it matters how many others died. */
export function isOnTrial(before: Pick<Counters, "blamed">, alone: boolean, limits: Limits): boolean {
  return alone && before.blamed + 1 >= limits.crashes;
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
