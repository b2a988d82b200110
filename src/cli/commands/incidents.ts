// `outlive incidents`: deaths, newest first. `outlive incident ID`: who died and how, what it held, and what became of each job.
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { humanMs } from "../../job/time.ts";
import type { IncidentSummary, RecoveryReport } from "../../recovery/incident.ts";
import { wholeNumber } from "../context.ts";
import { MIN_PREFIX, noSuchIncident, severalBegin } from "../lookup.ts";
import type { Register } from "../main.ts";
import { type Cell, grid, type Pen, wrap } from "../terminal.ts";
import { ago, count, oneLine, orDash, printable, stamp, thousands } from "../words.ts";
import { withoutText } from "./recover.ts";

export const incidentsCommand: Register = (program, run) => {
  program
    .command("incidents")
    .argument("[id]", "show this incident, as `outlive incident` does")
    .description("deaths and what was done about them, newest first")
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 20)
    .option("--after <id>", "`next` of the previous page")
    .action(
      run(async ({ terminal, attach }, command) => {
        const engine = await attach();
        if (command.args[0] !== undefined) {
          const report = await reportOf(engine, command.args[0]);
          return terminal.answer(withoutText(report), () => incidentText(report, terminal, Date.now()));
        }
        const { limit, after } = command.opts<{ limit: number; after?: string }>();
        const found = await engine.incidents({ limit: limit + 1, ...(after !== undefined && { after }) });
        const incidents = found.slice(0, limit);
        const next = found.length > limit ? incidents.at(-1)!.id : null;
        terminal.answer({ incidents, next }, () =>
          incidents.length === 0
            ? "No worker has died."
            : [
                ...incidentLines(incidents, terminal, Date.now()),
                ...(next === null
                  ? []
                  : ["", terminal.style("dim", `There are more: outlive incidents --after ${next}`)]),
              ].join("\n"),
        );
      }),
    );
  program
    .command("incident")
    .argument("<id>", "the incident's id, or a unique prefix of it")
    .description("one death: who, how, what it held, what became of each job")
    .action(
      run(async ({ terminal, attach }, command) => {
        const report = await reportOf(await attach(), command.args[0]!);
        terminal.answer(withoutText(report), () => incidentText(report, terminal, Date.now()));
      }),
    );
};

const INCIDENTS_SEARCHED = 1_000;

async function reportOf(engine: Engine, given: string): Promise<RecoveryReport & { readonly text: string }> {
  const report = await engine.report(given);
  if (report) return report;
  if (given.length < MIN_PREFIX) throw noSuchIncident(given);
  const found = (await engine.incidents({ limit: INCIDENTS_SEARCHED })).filter(({ id }) => id.startsWith(given));
  if (found.length > 1)
    throw severalBegin(
      "incident",
      given,
      found.map(({ id }) => id),
    );
  const whole = found[0] && (await engine.report(found[0].id));
  if (!whole) throw noSuchIncident(given);
  return whole;
}

function incidentLines(incidents: readonly IncidentSummary[], pen: Pen, now: number): string[] {
  return grid(
    pen,
    [
      { title: "INCIDENT" },
      { title: "WHEN", align: "right" },
      { title: "WORKER", shrinkTo: 12 },
      { title: "HOW" },
      { title: "JOBS", align: "right" },
      { title: "RECOVERED", align: "right" },
    ],
    incidents.map(({ id, worker, how, detectedAt, completedAt, jobCount }) => [
      id,
      ago(now - detectedAt),
      worker,
      how,
      thousands(jobCount),
      completedAt === null ? { text: "not finished", ink: "yellow" } : `in ${humanMs(completedAt - detectedAt)}`,
    ]),
  );
}

type ReportedWorker = RecoveryReport["deadWorkers"][number];
type ReportedJob = RecoveryReport["recoveredJobs"][number];

const JOBS_SHOWN = 50;
const HOW = { gone: "its process is gone", lost: "contact was lost", silent: "no heartbeat for one lease" } as const;
const RESOLVED = {
  returned: "; the worker returned later",
  died: "; its death was proved later",
  away: "; it did not return",
} as const;

/** One incident as text. What a check of the store found is in the report of the start-up (`outlive recovery report`). */
export function incidentText(report: RecoveryReport, pen: Pen, now: number): string {
  const [worker] = report.deadWorkers;
  if (!worker) throw new OutliveError(ErrorCode.notFound, `Incident ${report.id} has no worker.`, "", {});
  const width = pen.isTty ? pen.columns - 1 : Number.POSITIVE_INFINITY;
  const facts: readonly (readonly [string, string])[] = [
    ["worker", `${printable(worker.workerId)} (pid ${worker.pid} on ${printable(worker.host)}, ${worker.version})`],
    ["how", howText(worker)],
    ["found", `${stamp(worker.detectedAt)} (${ago(now - worker.detectedAt)})`],
    ["heartbeat", `${humanMs(Math.max(0, worker.detectedAt - worker.lastHeartbeatAt))} before that`],
    ...(worker.loopLagMs >= LAG_SHOWN_MS ? [["loop lag", humanMs(worker.loopLagMs)] as const] : []),
    ["recovered", recoveredText(worker, BY[report.by] ?? printable(report.by))],
    ["held", count(report.recoveredJobs.length, "job")],
  ];
  const indent = Math.max(...facts.map(([name]) => name.length)) + 2;
  const shown = report.recoveredJobs.slice(0, JOBS_SHOWN);
  const left = report.recoveredJobs.length - shown.length;
  const [first] = shown;
  return [
    pen.style("bold", `Incident ${report.id}`),
    "",
    ...facts.flatMap(([name, text]) =>
      wrap(text, Math.max(20, width - indent)).map(
        (line, n) => `${n === 0 ? pen.style("dim", name.padEnd(indent)) : " ".repeat(indent)}${line}`,
      ),
    ),
    ...(first === undefined ? [] : ["", ...jobLines(shown, worker, pen)]),
    ...(left > 0 ? [pen.style("dim", `… and ${count(left, "more job")}: --json lists all`)] : []),
    ...(first === undefined ? [] : ["", `${pen.style("cyan", "Next:")} outlive job ${first.jobId}`]),
  ].join("\n");
}

/** A shorter lag is ordinary work. */
const LAG_SHOWN_MS = 1_000;

function howText({ how, evidence, resolution }: ReportedWorker): string {
  const known = evidence === null ? HOW[how] : oneLine(evidence);
  return `${how === "gone" ? "" : `${HOW[how]}: `}${known}${resolution === null ? "" : RESOLVED[resolution]}`;
}

/** Who recovered; anything else is the id of a worker. */
const BY: Readonly<Record<string, string>> = {
  open: "a program that opened the store",
  supervisor: "the supervisor",
  recover: "outlive recover",
  restored: "outlive recover --restored",
};

function recoveredText({ recoveredAt, detectedAt, runningAgainAt }: ReportedWorker, by: string): string {
  if (recoveredAt === null) return `begun by ${by}, and not finished`;
  const again = runningAgainAt === null ? "" : `; its jobs ran again after ${humanMs(runningAgainAt - detectedAt)}`;
  return `in ${humanMs(recoveredAt - detectedAt)} by ${by}${again}`;
}

function jobLines(jobs: readonly ReportedJob[], { detectedAt }: ReportedWorker, pen: Pen): string[] {
  return grid(
    pen,
    [
      { title: "JOB" },
      { title: "KIND", shrinkTo: 8 },
      { title: "LAST STEP", shrinkTo: 9 },
      { title: "DECISION", shrinkTo: 12 },
      { title: "RUNNING AGAIN", align: "right" },
    ],
    jobs.map((job): Cell[] => [
      printable(job.jobId),
      job.kind,
      orDash(job.lastStep === null ? null : oneLine(job.lastStep)),
      decisionText(job),
      job.resumedAt !== null
        ? `after ${humanMs(Math.max(0, job.resumedAt - detectedAt))}`
        : goesOn(job)
          ? { text: "not yet", ink: "yellow" }
          : "-",
    ]),
  );
}

/** Of requests, too: what is asked about, or failed as unknown, is decided by the next attempt. */
const GOES_ON: readonly string[] = ["retry", "requeue", "lost", "quarantine-row", "resend", "unsent", "ask", "unknown"];

function goesOn({ success, decision }: ReportedJob): boolean {
  return success && GOES_ON.includes(decision);
}

function decisionText({ success, error, decision, crashes }: ReportedJob): Cell {
  if (!success) return { text: `not recovered: ${oneLine(error ?? "unknown error")}`, ink: "red" };
  switch (decision) {
    case "retry":
      return `runs again (crash ${crashes})`;
    case "requeue":
      return "runs again (not counted)";
    case "lost":
      return "runs again (contact lost, not counted)";
    case "resend":
      return "sent again";
    case "unsent":
      return "sent now: it had not been sent";
    case "ask":
      return { text: "was sent: onUnknown decides", ink: "yellow" };
    case "unknown":
      return { text: "was sent: fails, outcome unknown", ink: "yellow" };
    case "cancel":
      return "cancelled, as requested";
    case "quarantine":
      return { text: `quarantined after ${count(crashes, "crash", "crashes")}`, ink: "red" };
    case "quarantine-row":
      return { text: "runs again without the row that killed its workers", ink: "yellow" };
    default:
      return { text: 'dead: onCrash is "fail"', ink: "red" };
  }
}
