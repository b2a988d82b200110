// The readable account of a recovery: text for people in the manner that operators of the first queue knew, JSON for programs.
// Pure: it is made of stored incidents and changes nothing.
import { humanMs } from "./duration.ts";
import type { Incident, IncidentJob } from "./incident.ts";

/** How a recovery went, for programs. Instants are ISO 8601 texts. */
export interface RecoveryReport {
  readonly id: string;
  readonly startedAt: string;
  /** null: it is not finished yet. */
  readonly completedAt: string | null;
  readonly durationMs: number | null;
  /** PASSED, FAILED, UNFINISHED or NOT_CHECKED. */
  readonly integrity: string;
  readonly walFramesCheckpointed: number;
  readonly by: string;
  readonly incidents: readonly string[];
  readonly recoveredJobs: readonly ReportedJob[];
  readonly deadWorkers: readonly ReportedWorker[];
}

export interface ReportedJob {
  readonly jobId: string;
  readonly kind: string;
  readonly decision: string;
  /** Crashes so far, this one included. */
  readonly attempts: number;
  readonly maxAttempts: number;
  readonly success: boolean;
  readonly error: string | null;
  readonly lastStep: string | null;
  /** When the job ran again; null: not yet, or never. */
  readonly resumedAt: string | null;
}

export interface ReportedWorker {
  readonly workerId: string;
  readonly how: "gone" | "silent";
  readonly evidence: string | null;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly uptimeMs: number;
  readonly lastHeartbeatAt: string;
  readonly lastSeenAliveAt: string | null;
  readonly detectedAt: string;
  readonly recoveredAt: string | null;
  /** When the last of its jobs that go on was running again; null: not all are yet. */
  readonly runningAgainAt: string | null;
  readonly loopLagMs: number;
  readonly jobIds: readonly string[];
}

/** One report of the incidents of one recovery pass (or of a single incident). Null if there are none. */
export function recoveryReport(incidents: readonly Incident[]): RecoveryReport | null {
  const [first] = incidents;
  if (!first) return null;
  const startedAt = Math.min(...incidents.map((incident) => incident.startedAt));
  const ends = incidents.map((incident) => incident.completedAt);
  const completedAt = ends.includes(null) ? null : Math.max(...(ends as number[]));
  return {
    id: incidents.length === 1 ? first.id : first.recovery,
    startedAt: iso(startedAt),
    completedAt: completedAt === null ? null : iso(completedAt),
    durationMs: completedAt === null ? null : completedAt - startedAt,
    integrity: first.integrity,
    walFramesCheckpointed: first.walFrames,
    by: first.by,
    incidents: incidents.map((incident) => incident.id),
    recoveredJobs: incidents.flatMap((incident) => incident.jobs.map(reportedJob)),
    deadWorkers: incidents.map(reportedWorker),
  };
}

function reportedJob(job: IncidentJob): ReportedJob {
  return {
    jobId: job.jobId,
    kind: job.kind,
    decision: job.decision,
    attempts: job.counters.crashes,
    maxAttempts: job.limit,
    success: job.success,
    error: job.error,
    lastStep: job.lastStep,
    resumedAt: job.resumedAt === null ? null : iso(job.resumedAt),
  };
}

function reportedWorker(incident: Incident): ReportedWorker {
  const goingOn = incident.jobs.filter((job) => job.decision === "retry" || job.decision === "pending");
  const resumed = goingOn.map((job) => job.resumedAt);
  return {
    workerId: incident.worker,
    how: incident.how,
    evidence: incident.evidence,
    host: incident.host,
    pid: incident.pid,
    version: incident.version,
    uptimeMs: Math.max(0, incident.lastHeartbeatAt - incident.workerStartedAt),
    lastHeartbeatAt: iso(incident.lastHeartbeatAt),
    lastSeenAliveAt: incident.lastSeenAliveAt === null ? null : iso(incident.lastSeenAliveAt),
    detectedAt: iso(incident.detectedAt),
    recoveredAt: incident.completedAt === null ? null : iso(incident.completedAt),
    runningAgainAt: resumed.length === 0 || resumed.includes(null) ? null : iso(Math.max(...(resumed as number[]))),
    loopLagMs: incident.loopLagMs,
    jobIds: incident.jobs.map((job) => job.jobId),
  };
}

/** The text of a report. `most` jobs are listed, the rest counted. */
export function reportText(report: RecoveryReport, most = 50): string {
  const started = Date.parse(report.startedAt);
  const lines = [
    "=== Queue Recovery Report ===",
    `Started: ${short(report.startedAt)}`,
    `Duration: ${report.durationMs === null ? "unfinished" : `${(report.durationMs / 1_000).toFixed(1)}s`}`,
    "",
    `Integrity Check: ${report.integrity.replaceAll("_", " ")}`,
    `WAL Checkpointed: ${report.walFramesCheckpointed} frames`,
    "",
    `Orphaned Jobs Found: ${report.recoveredJobs.length}`,
    ...report.recoveredJobs.slice(0, most).map((job) => `  - ${job.jobId}: ${verdict(job)}`),
    ...(report.recoveredJobs.length > most ? [`  ... and ${report.recoveredJobs.length - most} more`] : []),
    "",
    `Dead Workers: ${report.deadWorkers.length}`,
    ...report.deadWorkers.map((worker) => {
      const ago = humanMs(Math.max(0, started - Date.parse(worker.lastHeartbeatAt)));
      return `  - ${worker.workerId} (last heartbeat: ${ago} ago)`;
    }),
    "",
    report.completedAt === null ? "Recovery Not Complete" : `Recovery Complete: ${short(report.completedAt)}`,
  ];
  return `${lines.join("\n")}\n`;
}

function verdict(job: ReportedJob): string {
  if (!job.success) return `not recovered (${job.error ?? "unknown error"})`;
  switch (job.decision) {
    case "retry":
      // Deaths in company are counted too, but only those while alone lead to quarantine: never show more than the limit.
      return `retry (attempt ${Math.min(job.attempts, job.maxAttempts)}/${job.maxAttempts})`;
    case "pending":
      return "pending (not counted)";
    case "cancel":
      return "cancelled (as was asked)";
    case "quarantine":
      return "failed (max attempts exceeded)";
    default:
      return "failed (its kind says so)";
  }
}

function iso(at: number): string {
  return new Date(at).toISOString();
}

/** Seconds are enough for people. */
function short(text: string): string {
  return text.replace(/\.\d+Z$/, "Z");
}
