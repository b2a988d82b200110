// `outlive torture`: kills workers on a scratch store next to the user's own, then audits it. Whatever happens, it
// ends, leaves no process behind, and reports with its exit code whether every promise held: 0 yes, 1 no. If one did
// not, the store is kept.
import type { Percentiles } from "./audit.ts";
import type { Fleet } from "./fleet.ts";
import { cleanUpInEveryCase, type Outcome, run, type Timed } from "./run.ts";
import { scratchStore } from "./scratch-store.ts";
import { HEARTBEAT, LEASE } from "./tables.ts";

export interface TortureOptions {
  /** The address of the user's store; the scratch store is created next to it. */
  readonly store: string;
  readonly kills: number;
  readonly workers: number;
  readonly seed: number;
  readonly keep: boolean;
  readonly json: boolean;
}

/** What only the test rig in the repository does. */
const NOT_RUN = [
  "kills of producers and supervisors, jobs that block or take all memory, a full disk, a failing server or network, power loss: " +
    "only from the repository, by npm run torture",
];
/** One worker is frozen past its lease for every this many kills. */
const KILLS_PER_FREEZE = 10;
const KILL_EVERY_MS = 500;
const WORK_MS = 200;
/** The time limits: for each kill with everything that follows from it, and for the rest of the run. */
const MS_PER_KILL = 3_000;
const DRAIN_MS = 300_000;
/** Violations beyond this many add nothing new. */
const MAX_PRINTED = 50;

/** Runs once in this process, takes over its signals and its exit, and returns the exit code. */
export async function torture({ store, kills, workers, seed, keep, json }: TortureOptions): Promise<number> {
  cleanUpInEveryCase();
  const where = await scratchStore(store, { purpose: "torture", keep });
  const toBeExamined = (): void => {
    // Omits the store, whose address may contain a password.
    const again = `outlive torture --kills ${kills} --workers ${workers} --seed ${seed}`;
    process.stderr.write(`The same plan again, at the pace of the machine: ${again}\n`);
    where.scratch.keep();
  };
  const progress = progressLine(kills);
  try {
    const outcome = await run(
      {
        where,
        workers,
        seed,
        end: { afterKills: kills },
        freezes: Math.ceil(kills / KILLS_PER_FREEZE),
        killEveryMs: KILL_EVERY_MS,
        workMs: WORK_MS,
        transfers: null,
        timeLimitMs: kills * MS_PER_KILL + DRAIN_MS,
      },
      {
        began: (_, fleet) => progress.start(fleet),
        killed: () => {},
        heard: () => {},
        poisoned: () => {},
        ended: async () => progress.end(),
      },
    );
    if (json) {
      for (const sentence of outcome.violations.slice(0, MAX_PRINTED)) process.stderr.write(`violation: ${sentence}\n`);
      process.stdout.write(`${jsonLine(outcome)}\n`);
    } else process.stdout.write(`${text(outcome)}\n`);
    if (outcome.violations.length === 0) return 0;
    toBeExamined();
    return 1;
  } catch (thrown) {
    toBeExamined();
    throw thrown;
  } finally {
    progress.end();
    await where.remove();
  }
}

function progressLine(kills: number): { start(fleet: Fleet): void; end(): void } {
  const { stderr } = process;
  const began = performance.now();
  let timer: NodeJS.Timeout | undefined;
  return {
    start(fleet) {
      let printed = 0;
      timer = setInterval(() => {
        const ms = performance.now() - began;
        const line = `${Math.round(ms / 1_000)} s: ${fleet.kills.length} of ${kills} kills`;
        if (stderr.isTTY) stderr.write(`\r\x1b[K${line}`);
        else if (ms - printed >= 10_000) {
          printed = ms;
          stderr.write(`${line}\n`);
        }
      }, 1_000);
    },
    end() {
      clearInterval(timer);
      if (timer && stderr.isTTY) stderr.write("\r\x1b[K");
      timer = undefined;
    },
  };
}

function jsonLine({ store, seed, kills, audit, recoveredJobs, detectMs, resumeMs }: Outcome): string {
  const { timed, p50, p99, max } = resumeMs.othersAlive;
  return JSON.stringify({
    store,
    seed,
    kills,
    zombies: audit.zombies,
    takeovers: recoveredJobs,
    staleWritesRejected: audit.staleWritesRejected,
    enqueued: audit.enqueued,
    lost: audit.lost,
    committedTwice: audit.committedTwice,
    quarantined: audit.quarantined,
    quarantinedInnocents: audit.quarantinedInnocents,
    poison: audit.poison,
    detectMs,
    resumeMs: { p50, p99, max },
    timed,
    resumeMsNobodyLeft: resumeMs.nobodyLeft,
    resumeMsOfAll: resumeMs.ofAll,
    notRun: NOT_RUN,
  });
}

function text({
  store,
  seed,
  kills,
  elapsedMs,
  audit,
  recoveredJobs,
  detectMs,
  resumeMs,
  violations,
}: Outcome): string {
  const figure = (value: number, what: string): string => `${String(value).padStart(7)}  ${what}`;
  return [
    `${store}: heartbeat ${HEARTBEAT}, lease ${LEASE}, --seed ${seed}, ${Math.round(elapsedMs / 1_000)} s`,
    figure(kills, `workers killed with SIGKILL, ${audit.zombies} zombies woken`),
    figure(recoveredJobs, `jobs taken over, ${audit.staleWritesRejected} stale writes refused`),
    figure(audit.enqueued, `jobs enqueued: ${audit.lost} lost, ${audit.committedTwice} committed twice`),
    figure(audit.quarantined, `in quarantine, of ${audit.poison} that kill their workers`),
    `         from the kill to its proof ${range(detectMs)}`,
    `         from the kill to the last job running again ${timedRange(resumeMs.othersAlive)}`,
    `         the same when all were killed at once, with the start of a process ${timedRange(resumeMs.nobodyLeft)}`,
    ...NOT_RUN.map((what) => `not run: ${what}`),
    ...violations.slice(0, MAX_PRINTED).map((sentence) => `violation: ${sentence}`),
    violations.length === 0
      ? "Every promise held."
      : `${violations.length} ${violations.length === 1 ? "thing" : "things"} went wrong.`,
  ].join("\n");
}

function range({ p50, p99, max }: Percentiles): string {
  return p50 === null ? "not measured" : `${p50} / ${p99} / ${max} ms (median, p99, worst)`;
}

function timedRange(of: Timed): string {
  return of.timed === 0 ? "not measured" : `${range(of)}, of ${of.timed} kills`;
}
