// One death and everything recovery did about it, as stored, and the report made from it: text for people, JSON for
// programs. Pure: a report is built from stored incidents and changes nothing.
import { humanMs, isoInstant } from "../job/time.ts";
import {
  type CheckDepth,
  type Inconsistency,
  NOTHING_CHECKED,
  type Opening,
  parseIntegrity,
  type Repair,
  type StoreFindings,
  type StoreNote,
} from "../stores/store-parts.ts";
import { describeProcess, type HowLost, type ProcessKey } from "../stores/liveness.ts";
import type { RecoveredJob } from "../stores/port.ts";
import type { Resolution } from "./losses.ts";
import type { RecoveryPass } from "./recover.ts";

/** An incident as a list shows it. */
export interface IncidentSummary {
  /** The incident's id. */
  readonly id: string;
  /** The recovery pass this belongs to: deaths found together share one report. */
  readonly recovery: string;
  /** The id of the worker that was lost. */
  readonly worker: string;
  /** How it was lost. */
  readonly how: HowLost;
  /** What became of a worker that lost contact; null: not known yet, or its death was proven at once. */
  readonly resolution: Resolution | null;
  /** When the loss was noticed, in milliseconds since 1970. */
  readonly detectedAt: number;
  /** When the recovery ended, in milliseconds since 1970; null: not yet. */
  readonly completedAt: number | null;
  /** How many jobs the worker held. */
  readonly jobCount: number;
}

/** A recovered job, and when it ran again. */
export interface IncidentJob extends RecoveredJob {
  readonly resumedAt: number | null;
}

export interface Incident extends IncidentSummary {
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly workerStartedAt: number;
  readonly lastHeartbeatAt: number;
  readonly lastSeenAliveAt: number | null;
  readonly loopLagMs: number;
  readonly evidence: string | null;
  readonly startedAt: number;
  /** What ran the recovery: a worker's id, "open" or "recover". */
  readonly by: string;
  readonly integrity: string;
  /**
   * What the store did during the open that this recovery belongs to, as the store words it; null: nothing to report.
   */
  readonly summary: StoreNote | null;
  readonly heldAtDeath: number;
  readonly jobs: readonly IncidentJob[];
}

const PROCESS_IS_GONE = "its process is gone";
const ONLY_GONE = new RegExp(`^${PROCESS_IS_GONE} \\([^()]*\\)$`);

/** The evidence when the kernel no longer knows the process and nothing else is known. */
export function processIsGone(key: Omit<ProcessKey, "bootId">): string {
  return `${PROCESS_IS_GONE} (${describeProcess(key)})`;
}

/**
 * Combines the evidence of a death with the worker's last word. A supervisor may write that word before or after a
 * watcher finds the worker dead. The exit status a parent knows replaces what the kernel alone could report.
 */
export function withLastWord(known: string | null, lastWord: string | null): string | null {
  if (lastWord === null || known?.includes(lastWord)) return known;
  if (known === null || lastWord.includes(known) || ONLY_GONE.test(known)) return lastWord;
  return `${known}; ${lastWord}`;
}

/**
 * How a recovery went, for programs. Instants are in ms since 1970, as everywhere in the API; `--json` on the command
 * line prints them as ISO 8601.
 */
export interface RecoveryReport {
  /** The report's id. */
  readonly id: string;
  /** When the recovery began, in milliseconds since 1970. */
  readonly startedAt: number;
  /** When it ended, in milliseconds since 1970; null: not yet. */
  readonly completedAt: number | null;
  /** How long it took, in milliseconds; null while it runs. */
  readonly durationMs: number | null;
  /** PASSED, REPAIRED, FAILED, UNFINISHED or NOT_CHECKED. */
  readonly integrity: string;
  /**
   * How much the check covered: `quick` does not compare indexes with their tables, `full` does. null: nothing was
   * checked, or it is not known.
   */
  readonly integrityDepth: CheckDepth | null;
  /**
   * What the store did during the open that this recovery belongs to, as the store words it. The same facts are fields
   * of the report.
   */
  readonly remarks: readonly string[];
  /** What the open found out about the store itself; null: only the verdict is known. */
  readonly store: ReportedStore | null;
  /** The id of the worker that recovered. */
  readonly by: string;
  /** The ids of the incidents. */
  readonly incidents: readonly string[];
  /** Every job that was held, with what became of it. */
  readonly recoveredJobs: readonly ReportedJob[];
  /** The workers that were lost. */
  readonly deadWorkers: readonly ReportedWorker[];
  /**
   * Workers whose recovery failed in this pass; the next pass tries again. Jobs that failed individually are in
   * `recoveredJobs`.
   */
  readonly failedRecoveries: readonly {
    /** The worker's id. */
    readonly workerId: string;
    /** What went wrong, in words. */
    readonly error: string;
  }[];
}

/** What an open found out about the store. */
interface ReportedStore {
  /** What the check found wrong. */
  readonly findings: readonly string[];
  /** What was repaired, and what was lost by it; null: nothing needed repair. */
  readonly repair: Repair | null;
  /** When the newest change was made that survived a salvage, in milliseconds since 1970; null: nothing was lost, or nothing is known. */
  readonly recoveryPointAt: number | null;
  /** Rows that contradict each other. */
  readonly inconsistencies: readonly Inconsistency[];
  /**
   * What the store had to correct, or could not correct, as the store words it. The same facts are fields of this
   * object.
   */
  readonly remarks: readonly string[];
  /** Whether to make a backup now, because the disk or the file may not be sound. */
  readonly backupRecommended: boolean;
}

/** A job that a lost worker held. */
interface ReportedJob {
  /** The job's id. */
  readonly jobId: string;
  /** The name of its kind. */
  readonly kind: string;
  /** What recovery decided. */
  readonly decision: string;
  /**
   * Worker deaths while the job was in flight, this one included. Only deaths while the job ran alone count toward
   * quarantine.
   */
  readonly crashes: number;
  /** The kind's limit: `retry.crashes`. */
  readonly maxCrashes: number;
  /** Whether the decision was written. */
  readonly success: boolean;
  /** Why not; null: it was. */
  readonly error: string | null;
  /** Its last kept step; null: none. */
  readonly lastStep: string | null;
  /** When the job ran again, in milliseconds since 1970; null: not yet, or never. */
  readonly resumedAt: number | null;
}

/** A worker that was lost. */
interface ReportedWorker {
  /** The worker's id. */
  readonly workerId: string;
  /** How it was lost. */
  readonly how: HowLost;
  /** What became of a worker that lost contact; null: not known yet, or its death was proven at once. */
  readonly resolution: Resolution | null;
  /** What proves it, in words; null: nothing does. */
  readonly evidence: string | null;
  /** The name of its host. */
  readonly host: string;
  /** Its PID. */
  readonly pid: number;
  /** The version of Outlive that it ran. */
  readonly version: string;
  /** How long it had run, in ms. */
  readonly uptimeMs: number;
  /** When its last heartbeat was written, in milliseconds since 1970. */
  readonly lastHeartbeatAt: number;
  /** When the watcher last saw it alive, in milliseconds since 1970; null: never. */
  readonly lastSeenAliveAt: number | null;
  /** When the loss was noticed, in milliseconds since 1970. */
  readonly detectedAt: number;
  /** When its recovery ended, in milliseconds since 1970; null: not yet. */
  readonly recoveredAt: number | null;
  /** When the last of its continuing jobs ran again, in milliseconds since 1970; null: some do not yet. */
  readonly runningAgainAt: number | null;
  /** How late its event loop was at the last heartbeat, in ms. */
  readonly loopLagMs: number;
  /** The ids of the jobs that it held. */
  readonly jobIds: readonly string[];
}

/**
 * One report of the incidents of one recovery pass (or, with `single`, of one incident). It includes what the open
 * found out about the store if the open was part of the same pass. A later open that found something has its own
 * report. Null if there is nothing to report.
 */
export function recoveryReport(
  incidents: readonly Incident[],
  opening: Opening | null = null,
  single = false,
): RecoveryReport | null {
  const [first] = incidents;
  const same = opening !== null && opening.recovery === first?.recovery;
  if (opening && !same && !single && (!first || opening.startedAt >= first.startedAt)) return openingReport(opening);
  if (!first) return null;
  const startedAt = Math.min(...incidents.map((incident) => incident.startedAt));
  const ends = incidents.map((incident) => incident.completedAt);
  const completedAt = ends.includes(null) ? null : Math.max(...(ends as number[]));
  return {
    id: incidents.length === 1 ? first.id : first.recovery,
    startedAt,
    completedAt,
    durationMs: completedAt === null ? null : completedAt - startedAt,
    ...(same ? checked(opening.findings) : integrityOf(first)),
    ...remarked(first.summary),
    store: same ? reportedStore(opening.findings) : null,
    by: first.by,
    incidents: incidents.map((incident) => incident.id),
    recoveredJobs: incidents.flatMap((incident) => incident.jobs.map(reportedJob)),
    deadWorkers: incidents.map(reportedWorker),
    failedRecoveries: [],
  };
}

/** No worker had died. */
function openingReport({ recovery, startedAt, completedAt, findings }: Opening): RecoveryReport {
  return {
    id: recovery,
    startedAt,
    completedAt,
    durationMs: Math.max(0, completedAt - startedAt),
    ...checked(findings),
    ...remarked(findings.summary),
    store: reportedStore(findings),
    by: "open",
    incidents: [],
    recoveredJobs: [],
    deadWorkers: [],
    failedRecoveries: [],
  };
}

/** A pass that recovered nothing because every recovery failed. None of it is stored. */
export function failedReport({ recovery, startedAt, completedAt, failed }: RecoveryPass, by: string): RecoveryReport {
  const empty = openingReport({ recovery, startedAt, completedAt, findings: NOTHING_CHECKED });
  return withFailures({ ...empty, store: null, by }, failed);
}

/** The report of a pass, plus what failed in it: only the pass knows that, not the store. */
export function withFailures(report: RecoveryReport, failed: RecoveryPass["failed"]): RecoveryReport {
  return { ...report, failedRecoveries: failed.map(({ worker, error }) => ({ workerId: worker, error })) };
}

function checked({ integrity, check }: StoreFindings): Pick<RecoveryReport, "integrity" | "integrityDepth"> {
  return { integrity, integrityDepth: check?.depth ?? null };
}

function integrityOf(incident: Incident): Pick<RecoveryReport, "integrity" | "integrityDepth"> {
  const { integrity, depth } = parseIntegrity(incident.integrity);
  return { integrity, integrityDepth: depth };
}

function reportedStore(findings: StoreFindings): ReportedStore {
  const { integrity, check, repair = null, inconsistencies = [], notice } = findings;
  return {
    findings: check?.findings ?? [],
    repair,
    recoveryPointAt: repair?.salvage?.recoveryPointAt ?? null,
    inconsistencies,
    ...remarked(notice),
    backupRecommended: integrity === "FAILED" || integrity === "REPAIRED",
  };
}

function remarked(note: StoreNote | null | undefined): StoreNote["facts"] & { readonly remarks: readonly string[] } {
  return { ...note?.facts, remarks: note?.lines ?? [] } as never;
}

function reportedJob(job: IncidentJob): ReportedJob {
  return {
    jobId: job.jobId,
    kind: job.kind,
    decision: job.decision,
    crashes: job.counters.crashes,
    maxCrashes: job.limit,
    success: job.success,
    error: job.error,
    lastStep: job.lastStep,
    resumedAt: job.resumedAt,
  };
}

function reportedWorker(incident: Incident): ReportedWorker {
  const goesOn = ["retry", "requeue", "lost", "resend", "unsent", "ask", "unknown"];
  const goingOn = incident.jobs.filter(({ decision }) => goesOn.includes(decision));
  const resumed = goingOn.map((job) => job.resumedAt);
  return {
    workerId: incident.worker,
    how: incident.how,
    resolution: incident.resolution,
    evidence: incident.evidence,
    host: incident.host,
    pid: incident.pid,
    version: incident.version,
    uptimeMs: Math.max(0, incident.lastHeartbeatAt - incident.workerStartedAt),
    lastHeartbeatAt: incident.lastHeartbeatAt,
    lastSeenAliveAt: incident.lastSeenAliveAt,
    detectedAt: incident.detectedAt,
    recoveredAt: incident.completedAt,
    runningAgainAt: resumed.length === 0 || resumed.includes(null) ? null : Math.max(...(resumed as number[])),
    loopLagMs: incident.loopLagMs,
    jobIds: incident.jobs.map((job) => job.jobId),
  };
}

/** The text of a report. It lists at most `maxJobs` jobs and counts the rest. */
export function reportText(report: RecoveryReport, maxJobs = 50): string {
  const lines = [
    "=== Queue Recovery Report ===",
    `Started: ${short(report.startedAt)}`,
    `Duration: ${report.durationMs === null ? "unfinished" : `${(report.durationMs / 1_000).toFixed(1)}s`}`,
    "",
    ...checkLines(report),
    ...requestLines(report.recoveredJobs),
    `Orphaned Jobs Found: ${report.recoveredJobs.length}`,
    ...report.recoveredJobs.slice(0, maxJobs).map((job) => `  - ${job.jobId}: ${verdict(job)}`),
    ...(report.recoveredJobs.length > maxJobs ? [`  ... and ${report.recoveredJobs.length - maxJobs} more`] : []),
    "",
    `Dead Workers: ${report.deadWorkers.length}`,
    ...report.deadWorkers.map((worker) => {
      const ago = humanMs(Math.max(0, report.startedAt - worker.lastHeartbeatAt));
      return `  - ${worker.workerId} (last heartbeat: ${ago} ago${contact(worker)})`;
    }),
    ...failureLines(report.failedRecoveries),
    "",
    report.completedAt === null ? "Recovery Not Complete" : `Recovery Complete: ${short(report.completedAt)}`,
  ];
  return `${lines.join("\n")}\n`;
}

/** A recovery at a start always says what it knows of the store; others check nothing, and have nothing to say. */
function checkLines(report: RecoveryReport): string[] {
  const depth = report.integrityDepth === null ? "" : ` (${report.integrityDepth})`;
  const lines = [
    ...(report.by === "open" || report.integrity !== "NOT_CHECKED"
      ? [`Integrity Check: ${report.integrity.replaceAll("_", " ")}${depth}`, ...report.remarks]
      : []),
    ...(report.store ? storeLines(report.store) : []),
  ];
  return lines.length === 0 ? [] : [...lines, ""];
}

/** What became of requests that were in flight, by kind. */
function requestLines(jobs: readonly ReportedJob[]): string[] {
  const requests = jobs.filter(({ decision, success }) => success && Object.hasOwn(REQUEST_WORDS, decision));
  if (requests.length === 0) return [];
  const kinds = [...Map.groupBy(requests, ({ kind }) => kind)].map(([kind, of]) => {
    const counts = Object.entries(REQUEST_WORDS).flatMap(([decision, words]) => {
      const count = of.filter((job) => job.decision === decision).length;
      return count === 0 ? [] : [`${count} ${words}`];
    });
    return `  - ${kind}: ${counts.join(", ")}`;
  });
  return [`Requests In Flight: ${requests.length}`, ...kinds, ""];
}

const REQUEST_WORDS: Readonly<Record<string, string>> = {
  resend: "sent again",
  unsent: "had not been sent",
  ask: "of unknown outcome: asked",
  unknown: "of unknown outcome: failed",
};

function failureLines(failed: RecoveryReport["failedRecoveries"]): string[] {
  if (failed.length === 0) return [];
  const lines = failed.map(({ workerId, error }) => `  - ${workerId}: ${error}; the next recovery tries again`);
  return ["", `Failed Recoveries: ${failed.length}`, ...lines];
}

function contact({ how, resolution }: ReportedWorker): string {
  if (how === "gone") return "";
  const known = { returned: "it returned", died: "it had died", away: "it stayed away" } as const;
  return `; contact lost, ${resolution === null ? "not resolved yet" : known[resolution]}`;
}

/** At most this many of each kind are listed; the rest are counted. */
const MAX_LISTED = 20;

function storeLines(store: ReportedStore): string[] {
  const { findings, repair, recoveryPointAt, inconsistencies, remarks } = store;
  const salvage = repair?.salvage ?? null;
  return [
    ...remarks,
    ...listed("Damage Found", findings),
    ...listed(
      "Repair",
      repair ? repair.steps.map(({ step, ok, detail }) => `${step}: ${ok ? "ok" : "not enough"} (${detail})`) : [],
    ),
    ...(salvage
      ? [
          `Damaged File Kept As: ${salvage.keptAs}`,
          `Recovery Point: ${recoveryPointAt === null ? "none: no change survived" : short(recoveryPointAt)}`,
          ...listed(
            "Rows Lost",
            salvage.tables
              .filter(({ lost }) => lost !== 0)
              .map(({ table, rows, lost }) => `${table}: ${lost ?? "unknown"} (${rows} saved)`),
          ),
          ...listed("Lost Jobs", salvage.lost),
          ...listed("Partial Jobs", salvage.partial),
        ]
      : []),
    ...listed(
      "Inconsistencies",
      inconsistencies.map(({ detail, names }) => (names.length === 0 ? detail : `${detail} (${names.join(", ")})`)),
    ),
    ...(store.backupRecommended
      ? ["Recommended: make a backup now (outlive backup FILE), and find out what damaged the file"]
      : []),
  ];
}

function listed(title: string, items: readonly string[]): string[] {
  if (items.length === 0) return [];
  const more = items.length > MAX_LISTED ? [`  ... and ${items.length - MAX_LISTED} more`] : [];
  return [`${title}: ${items.length}`, ...items.slice(0, MAX_LISTED).map((item) => `  - ${item}`), ...more];
}

function verdict(job: ReportedJob): string {
  if (!job.success) return `not recovered (${job.error ?? "unknown error"})`;
  switch (job.decision) {
    case "retry":
      // Deaths in company are counted too, but only deaths while alone lead to quarantine. Never show more than the
      // limit.
      return `retry (attempt ${Math.min(job.crashes, job.maxCrashes)}/${job.maxCrashes})`;
    case "requeue":
      return "requeue (not counted)";
    case "resend":
      return "request sent again";
    case "unsent":
      return "request had not been sent, sent now";
    case "ask":
      return "request of unknown outcome: asked";
    case "unknown":
      return "request of unknown outcome: failed";
    case "lost":
      return "queued again (contact lost, not counted)";
    case "cancel":
      return "cancelled (as requested)";
    case "quarantine":
      return "quarantined (max attempts exceeded)";
    case "quarantine-row":
      return "requeue (the row that killed its workers was quarantined)";
    default:
      return 'failed (onCrash is "fail")';
  }
}

/** Seconds are enough for people. */
function short(at: number): string {
  return isoInstant(at).replace(/\.\d+Z$/, "Z");
}
