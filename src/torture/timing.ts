// How fast what was killed came back: from each SIGKILL to the proof of the death, and to the last of its jobs running again. The instant
// of the kill is the parent's own, the others are the incident's; one machine, one wall clock.
import type { Engine, IncidentSummary } from "../index.ts";
import type { Kill } from "./crew.ts";

export interface Percentiles {
  readonly p50: number | null;
  readonly p99: number | null;
  readonly max: number | null;
}

export interface Timing {
  readonly detectMs: Percentiles;
  readonly resumeMs: Percentiles;
  /** Jobs that were taken from the dead. */
  readonly takeovers: number;
  /** What recovery left undone, one sentence each. */
  readonly violations: readonly string[];
}

/** Read when everything has ended and nobody works any more. */
export async function timingOf(engine: Engine, kills: readonly Kill[]): Promise<Timing> {
  const incidents = await allIncidents(engine);
  const byWorker = Map.groupBy(incidents, ({ worker }) => worker);
  const detect: number[] = [];
  const resume: number[] = [];
  const violations: string[] = [];
  let takeovers = 0;
  for (const [worker, found] of byWorker)
    if (found.length > 1) violations.push(`the death of worker ${worker} has ${found.length} incidents`);
  const instants = new Map(kills.flatMap(({ workerId, at }) => (workerId === null ? [] : [[workerId, at] as const])));
  for (const { id, worker, jobCount } of incidents) {
    takeovers += jobCount;
    const report = await engine.report(id);
    const killedAt = instants.get(worker);
    if (!report || report.completedAt === null)
      violations.push(`incident ${id} of worker ${worker} was never finished`);
    if (!report) continue;
    const back = report.recoveredJobs.filter(({ decision }) => decision === "retry" || decision === "pending");
    for (const { jobId, resumedAt } of back)
      // On a server the clock is stopped by a statement of its own, which may be lost; what has ended did run again.
      if (resumedAt === null && !(await hasEnded(engine, jobId)))
        violations.push(`job ${jobId} was recovered from worker ${worker} and never ran again`);
    // A worker that had been taken for dead before it was killed (a zombie) was found by its silence.
    if (killedAt === undefined || report.deadWorkers[0]?.how !== "gone") continue;
    detect.push(Date.parse(report.deadWorkers[0].detectedAt) - killedAt);
    const last = back.flatMap(({ resumedAt }) => (resumedAt === null ? [] : [Date.parse(resumedAt)]));
    if (last.length > 0) resume.push(Math.max(...last) - killedAt);
  }
  for (const [worker] of instants)
    if (!byWorker.has(worker) && !(await left(engine, worker)))
      violations.push(`worker ${worker} was killed, and there is no incident of its death`);
  return { detectMs: percentiles(detect), resumeMs: percentiles(resume), takeovers, violations };
}

async function allIncidents(engine: Engine): Promise<IncidentSummary[]> {
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

/** It had stopped in peace before it was killed. */
async function left(engine: Engine, worker: string): Promise<boolean> {
  const rows = await engine.workers({ all: true });
  return rows.some(({ id, state }) => id === worker && state === "stopped");
}

export function percentiles(values: readonly number[]): Percentiles {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number): number | null => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? null;
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? null };
}
