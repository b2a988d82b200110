// The end of a run, for people and for programs.
import type { Outcome } from "./rig.ts";
import { HEARTBEAT, LEASE } from "./settings.ts";
import type { Percentiles, Timed } from "./timing.ts";

/** The last line of `--json`. */
export function jsonLine(outcome: Outcome): string {
  const { store, seed, kills, zombies, takeovers, staleWritesRejected, enqueued, lost, committedTwice } = outcome;
  const {
    quarantined,
    quarantinedInnocents,
    poison,
    blamedWithoutDeath,
    faults,
    detectMs,
    resumeMs,
    timed,
    resumeMsDuringFaults,
    notRun,
  } = outcome;
  const { resumeMsRecovererKilled, resumeMsNobodyLeft, resumeMsOfAll } = outcome;
  return JSON.stringify({
    store,
    seed,
    kills,
    zombies,
    takeovers,
    staleWritesRejected,
    enqueued,
    lost,
    committedTwice,
    quarantined,
    quarantinedInnocents,
    poison,
    blamedWithoutDeath,
    faults,
    detectMs,
    resumeMs,
    timed,
    resumeMsDuringFaults,
    resumeMsRecovererKilled,
    resumeMsNobodyLeft,
    resumeMsOfAll,
    notRun,
  });
}

export function text(outcome: Outcome): string {
  const { store, seed, kills, zombies, takeovers, enqueued, lost, committedTwice, quarantined, poison } = outcome;
  return [
    `${store}: heartbeat ${HEARTBEAT}, lease ${LEASE}, --seed ${seed}, ${Math.round(outcome.elapsedMs / 1_000)} s`,
    ...[...outcome.acts].map(([name, times]) => `${String(times).padStart(7)}  ${name}`),
    `${String(kills).padStart(7)}  processes killed with SIGKILL, ${zombies} zombies woken`,
    `${String(takeovers).padStart(7)}  jobs taken over, ${outcome.staleWritesRejected} stale writes refused`,
    `${String(enqueued).padStart(7)}  jobs enqueued: ${lost} lost, ${committedTwice} committed twice`,
    `${String(quarantined).padStart(7)}  in quarantine, of ${poison} that kill their workers`,
    `${String(outcome.blamedWithoutDeath).padStart(7)}  charged with a crash although no process had died`,
    `         from the kill to its proof ${range(outcome.detectMs)}`,
    `         from the kill to the last job running again ${range(outcome.resumeMs)}, of ${outcome.timed} kills`,
    `         the same while the store was broken on purpose ${timedRange(outcome.resumeMsDuringFaults)}`,
    `         the same when a process that recovered was killed in that time ${timedRange(outcome.resumeMsRecovererKilled)}`,
    `         the same when everybody was killed, with the start of a process ${timedRange(outcome.resumeMsNobodyLeft)}`,
    `         the same of all these together ${timedRange(outcome.resumeMsOfAll)}`,
    ...outcome.notRun.map((what) => `not run: ${what}`),
    ...outcome.violations.slice(0, 50).map((sentence) => `violation: ${sentence}`),
    outcome.violations.length === 0
      ? "Every promise held."
      : `${outcome.violations.length} ${outcome.violations.length === 1 ? "thing" : "things"} went wrong.`,
  ].join("\n");
}

function range({ p50, p99, max }: Percentiles): string {
  return p50 === null ? "not measured" : `${p50} / ${p99} / ${max} ms (median, p99, worst)`;
}

function timedRange(of: Timed): string {
  return of.timed === 0 ? "not measured" : `${range(of)}, of ${of.timed} kills`;
}
