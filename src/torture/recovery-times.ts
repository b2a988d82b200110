// How fast the work of the dead came back: for each SIGKILL the time until the last job that the worker held was running again, or was
// finished with. The instant of the kill is the parent's own, the others are the incident's; one machine, one wall clock.
import type { Engine, IncidentSummary, Report } from "../index.ts";
import type { Kill } from "./fleet.ts";

export interface Recovery {
  readonly kill: Kill;
  /** Ids. None: it was killed before it had registered, or it is not found yet. A death has one, and the audit holds that. */
  readonly incidents: readonly string[];
  readonly jobs: number;
  /** From the kill to the proof of the death. */
  readonly detectedMs: number | null;
  /** Null: it held nothing, or not all of it is back yet. */
  readonly backMs: number | null;
  /** Jobs that were requeued and have not run since. */
  readonly waiting: readonly string[];
}

export interface Percentiles {
  readonly p50: number | null;
  readonly p99: number | null;
  readonly max: number | null;
}

/** An incident that is complete may still be joined by another one of the same death for this long. */
const SETTLED_MS = 2_000;

export class RecoveryTimes {
  readonly #engine: Engine;
  readonly #done = new Map<Kill, Recovery>();

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** Of every kill so far. What is complete is not read again. */
  async of(kills: readonly Kill[]): Promise<readonly Recovery[]> {
    if (kills.every((kill) => this.#done.has(kill))) return kills.map((kill) => this.#done.get(kill)!);
    const incidents = await this.#engine.incidents({ limit: 1_000 });
    return Promise.all(kills.map(async (kill) => this.#done.get(kill) ?? this.#read(kill, incidents)));
  }

  async #read(kill: Kill, all: readonly IncidentSummary[]): Promise<Recovery> {
    const incidents = all.filter((incident) => isOf(kill, incident)).map(({ id }) => id);
    const found = await Promise.all(incidents.map((id) => this.#engine.report(id)));
    const reports = found.filter((report): report is Report => report !== null);
    const jobs = reports.flatMap((report) =>
      report.recoveredJobs.map(({ jobId, decision, resumedAt }) => ({
        jobId,
        endAt: decision === "retry" || decision === "requeue" ? resumedAt : report.completedAt,
      })),
    );
    const waiting = jobs.filter(({ endAt }) => endAt === null).map(({ jobId }) => jobId);
    const complete = reports.length > 0 && reports.every(({ completedAt }) => completedAt !== null);
    const detected = reports.map(({ deadWorkers }) => deadWorkers[0]!.detectedAt - kill.at);
    const back = complete && waiting.length === 0;
    const recovery: Recovery = {
      kill,
      incidents,
      jobs: jobs.length,
      detectedMs: detected.length === 0 ? null : Math.min(...detected),
      backMs: back && jobs.length > 0 ? Math.max(...jobs.map(({ endAt }) => endAt!)) - kill.at : null,
      waiting,
    };
    if (back && Date.now() - kill.at > SETTLED_MS) this.#done.set(kill, recovery);
    return recovery;
  }
}

/** By the worker's id, or, if it had registered without the parent having heard of it, by its pid. */
function isOf(kill: Kill, { worker, detectedAt }: IncidentSummary): boolean {
  return kill.workerId === null ? detectedAt >= kill.at && worker.includes(`-${kill.pid}-`) : worker === kill.workerId;
}

/** Of those that are known. */
export function percentiles(times: readonly (number | null)[]): Percentiles {
  const sorted = times.filter((ms) => ms !== null).toSorted((a, b) => a - b);
  const at = (share: number): number | null => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? null;
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? null };
}
