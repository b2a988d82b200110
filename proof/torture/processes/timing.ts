// How fast what was killed came back: from each SIGKILL to the proof of the death, and to the last of its jobs running again. The instant
// of the kill is the parent's own, the others are the incident's; one machine, one wall clock. Kills that the engine could not
// answer at once are told apart, never left out: the store was broken on purpose, or no process was left alive to see it.
import type { Engine, IncidentSummary, RecoveryReport } from "../../../src/index.ts";
import type { Kill } from "./fleet.ts";

export interface Percentiles {
  readonly p50: number | null;
  readonly p99: number | null;
  readonly max: number | null;
}

/** With the number of kills behind them. */
export interface Timed extends Percentiles {
  readonly timed: number;
}

export interface Timing {
  /** Of workers that held jobs, or not, and were killed on a well store, with others alive. */
  readonly detectMs: Percentiles;
  /** Of those among them whose jobs were to run again. */
  readonly resumeMs: Percentiles;
  /** How many kills `resumeMs` is made of. */
  readonly timed: number;
  /** Between the kill and the last of its jobs, a strike or its aftermath. */
  readonly resumeMsDuringFaults: Timed;
  /** A process that recovered, it or another, was killed in that time: if it was its own recoverer, another one had to find both. */
  readonly resumeMsRecovererKilled: Timed;
  /** Killed with everybody else: the start of a process, and the store's check of itself, are in it. */
  readonly resumeMsNobodyLeft: Timed;
  /** All of these together. */
  readonly resumeMsOfAll: Timed;
  /** The slowest of each, a sentence each. */
  readonly slowest: readonly string[];
  /** Jobs that were taken from the dead. */
  readonly takeovers: number;
  /** What recovery left undone, one sentence each. */
  readonly violations: readonly string[];
}

/** One kill whose jobs are all back. */
interface Comeback {
  readonly ms: number;
  readonly story: string;
}

const MOST_TOLD = 5;

/** Read when everything has ended and no process works any more. `strikesDuring`: what was broken on purpose in that time. */
export async function timingOf(
  engine: Engine,
  kills: readonly Kill[],
  strikesDuring: (from: number, to: number) => readonly string[],
): Promise<Timing> {
  const incidents = await allIncidents(engine);
  const killOf = new Map(kills.flatMap((kill) => (kill.workerId === null ? [] : [[kill.workerId, kill] as const])));
  const violations = [...manifold(incidents), ...(await unnoticed(engine, incidents, killOf))];
  const began = Math.min(...kills.map(({ at }) => at));
  const detect: number[] = [];
  const groups = {
    well: [] as Comeback[],
    faults: [] as Comeback[],
    recovererKilled: [] as Comeback[],
    nobodyLeft: [] as Comeback[],
  };
  for (const { id, worker } of incidents) {
    const report = await engine.report(id);
    violations.push(...(await undone(engine, id, worker, report)));
    const kill = killOf.get(worker);
    if (!kill || !report) continue;
    const detectedAt = report.deadWorkers[0]!.detectedAt;
    // A zombie that was killed before it knew: it had been taken for dead by its silence.
    if (detectedAt < kill.at) continue;
    const { ms, job } = lastBack(report, kill.at);
    const until = ms === null ? detectedAt : kill.at + ms;
    const struck = strikesDuring(kill.at, until);
    const ambushed = kills.some((other) => other.recovering && other.at > kill.at && other.at < until);
    const group = kill.nobodyLeft ? "nobodyLeft" : struck.length > 0 ? "faults" : ambushed ? "recovererKilled" : "well";
    if (group === "well") detect.push(detectedAt - kill.at);
    // Before the kill: the wall clock of the process that resumed it was behind, on purpose.
    if (ms === null || ms < 0) continue;
    const circumstances =
      [kill.nobodyLeft ? "nobody was left" : "", ...struck, ambushed ? "a recoverer was killed" : ""]
        .filter(Boolean)
        .join(", ") || "store well";
    groups[group].push({
      ms,
      story: `${story(report, kill, began)}, running again after ${ms} ms: ${job} (${circumstances})`,
    });
  }
  const resumeMs = timed(groups.well);
  return {
    detectMs: percentiles(detect),
    resumeMs: { p50: resumeMs.p50, p99: resumeMs.p99, max: resumeMs.max },
    timed: resumeMs.timed,
    resumeMsDuringFaults: timed(groups.faults),
    resumeMsRecovererKilled: timed(groups.recovererKilled),
    resumeMsNobodyLeft: timed(groups.nobodyLeft),
    resumeMsOfAll: timed(Object.values(groups).flat()),
    slowest: Object.values(groups).flatMap(slowestOf),
    takeovers: incidents.reduce((sum, { jobCount }) => sum + jobCount, 0),
    violations,
  };
}

function manifold(incidents: readonly IncidentSummary[]): string[] {
  return [...Map.groupBy(incidents, ({ worker }) => worker)]
    .filter(([, found]) => found.length > 1)
    .map(([worker, found]) => `the death of worker ${worker} has ${found.length} incidents`);
}

async function unnoticed(
  engine: Engine,
  incidents: readonly IncidentSummary[],
  killOf: ReadonlyMap<string, Kill>,
): Promise<string[]> {
  const found = new Set(incidents.map(({ worker }) => worker));
  // A process that had stopped in peace before it was killed has no incident.
  const rows = await engine.workers({ which: "all" });
  const stopped = new Set(rows.filter(({ state }) => state === "stopped").map(({ id }) => id));
  // After a restart of the server a process works on under another id, and it may be killed before the rig hears of that: its death is that of its latest life.
  const nextLife = new Map(
    rows.flatMap(({ id, predecessor }) => (predecessor === null ? [] : [[predecessor, id] as const])),
  );
  const isNoticed = (worker: string): boolean => {
    if (found.has(worker) || stopped.has(worker)) return true;
    const next = nextLife.get(worker);
    return next !== undefined && isNoticed(next);
  };
  return [...killOf.keys()]
    .filter((worker) => !isNoticed(worker))
    .map((worker) => `worker ${worker} was killed, and there is no incident of its death`);
}

async function undone(engine: Engine, id: string, worker: string, report: RecoveryReport | null): Promise<string[]> {
  if (!report || report.completedAt === null) return [`incident ${id} of worker ${worker} was never finished`];
  const never: string[] = [];
  for (const { jobId, resumedAt } of goesOn(report))
    // On a server the clock is stopped by a statement of its own, which may be lost; what has ended did run again.
    if (resumedAt === null && !(await hasEnded(engine, jobId)))
      never.push(`job ${jobId} was recovered from worker ${worker} and never ran again`);
  return never;
}

function goesOn({ recoveredJobs }: RecoveryReport): RecoveryReport["recoveredJobs"] {
  return recoveredJobs.filter(({ decision }) => ["retry", "requeue", "lost"].includes(decision));
}

/** The last of its jobs to run again, and what is known of it. Null: it held none. */
function lastBack(report: RecoveryReport, killedAt: number): { readonly ms: number | null; readonly job: string } {
  const back = goesOn(report).flatMap(({ jobId, kind, crashes, resumedAt }) =>
    resumedAt === null ? [] : [{ at: resumedAt, job: `${kind} ${jobId}, crash ${crashes}` }],
  );
  const last = back.reduce<(typeof back)[number] | null>((a, b) => (a && a.at >= b.at ? a : b), null);
  return last ? { ms: last.at - killedAt, job: `the last of ${back.length}, ${last.job}` } : { ms: null, job: "" };
}

function story(report: RecoveryReport, kill: Kill, began: number): string {
  const { workerId, detectedAt, recoveredAt } = report.deadWorkers[0]!;
  const after = (instant: number | null): string => (instant === null ? "never" : `after ${instant - kill.at} ms`);
  const at = `${((kill.at - began) / 1_000).toFixed(1)} s`;
  return `worker ${workerId} at ${at}, ${kill.missing} missing then: found ${after(detectedAt)}, recovered ${after(recoveredAt)}`;
}

/** The latest first. */
export async function allIncidents(engine: Engine): Promise<IncidentSummary[]> {
  const all: IncidentSummary[] = [];
  for (let after: string | undefined; ;) {
    const page = await engine.incidents({ limit: 1_000, ...(after === undefined ? {} : { after }) });
    all.push(...page);
    if (page.length < 1_000) return all;
    after = page.at(-1)!.id;
  }
}

async function hasEnded(engine: Engine, jobId: string): Promise<boolean> {
  const state = (await engine.get(jobId))?.state;
  return state !== undefined && state !== "queued" && state !== "running";
}

function slowestOf(group: readonly Comeback[]): string[] {
  return group
    .toSorted((a, b) => b.ms - a.ms)
    .slice(0, MOST_TOLD)
    .map(({ story: sentence }) => sentence);
}

function timed(group: readonly Comeback[]): Timed {
  return { timed: group.length, ...percentiles(group.map(({ ms }) => ms)) };
}

export function percentiles(values: readonly number[]): Percentiles {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number): number | null => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? null;
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? null };
}
