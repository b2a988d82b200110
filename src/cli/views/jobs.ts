// A page of jobs as a table: one line each, with the one thing that matters most in its state. Pure.
import type { Counters, JobDetails, JobInfo, JobState } from "../../job/job.ts";
import { humanMs } from "../../job/time.ts";
import { type Cell, grid, type Ink, type Pen } from "../grid.ts";
import { printable } from "../terminal.ts";
import { ago, count, oneLine, stamp, timeOfDay } from "../words.ts";

const INK_OF_STATE: Readonly<Record<JobState, Ink>> = {
  queued: "cyan",
  running: "green",
  succeeded: "dim",
  dead: "yellow",
  cancelled: "dim",
  quarantined: "red",
};

export function stateCell(state: JobState): Cell {
  return { text: state, ink: INK_OF_STATE[state] };
}

export function jobLines(jobs: readonly JobInfo[], pen: Pen, now: number): string[] {
  return grid(
    pen,
    [
      { title: "ID", shrinkTo: 22 },
      { title: "KIND", shrinkTo: 8 },
      { title: "STATE" },
      { title: "ENQUEUED", align: "right" },
      { title: "ATTEMPTS", align: "right" },
      { title: "", shrinkTo: 10 },
    ],
    jobs.map((job) => [
      job.id,
      job.kind,
      stateCell(job.state),
      ago(now - job.createdAt),
      job.attempt,
      oneLine(remark(job, now), 200),
    ]),
  );
}

function remark(job: JobInfo, now: number): string {
  const error = job.error ? `${job.error.name}: ${job.error.message}` : "";
  switch (job.state) {
    case "queued":
      if (job.runAt !== null && job.runAt > now)
        return `due in ${humanMs(job.runAt - now)}${error === "" ? "" : `; ${error}`}`;
      return error;
    case "running": {
      const since = job.startedAt === null ? "" : `for ${humanMs(Math.max(0, now - job.startedAt))} `;
      const overdue = job.deadlineAt !== null && job.deadlineAt < now ? "overdue, " : "";
      return `${overdue}${since}in ${job.worker ?? "?"}${job.cancelRequested ? ", cancel asked for" : ""}`;
    }
    case "succeeded":
      return took(job);
    default:
      return error;
  }
}

function took({ startedAt, finishedAt }: JobInfo): string {
  return startedAt === null || finishedAt === null ? "" : `in ${humanMs(Math.max(0, finishedAt - startedAt))}`;
}

// The whole story of one job as text: what it is, what it was given, and everything that happened to it in the order in which it
// happened. Pure.

/** Characters of an input, a result or a message, and lines of the story, unless the whole is asked for. */
const SHORT = 200;
const STORY = 40;

export function storyLines(job: JobDetails, pen: Pen, now: number, full = false): string[] {
  const facts = factsOf(job, now, full);
  const width = Math.max(...facts.map(([name]) => name.length));
  return [
    `${pen.style("bold", `Job ${printable(job.id)}`)}  ${job.kind}  ${job.state}`,
    ...(job.corrupt.length === 0 ? [] : [pen.style("red", corruptText(job))]),
    "",
    ...facts.map(([name, text]) => {
      const indented = text.replaceAll("\n", `\n${" ".repeat(width + 2)}`);
      return `${pen.style("dim", name.padEnd(width))}  ${job.corrupt.includes(name) ? pen.style("red", indented) : indented}`;
    }),
    "",
    ...timeline(job, pen, full),
    "",
    ...nextOf(job, pen),
  ];
}

function corruptText({ corrupt }: JobDetails): string {
  const names = corrupt.map((name) => printable(name)).join(", ");
  return `corrupt: ${names}. This is not what was stored: the store was damaged. Do not trust it.`;
}

function factsOf(job: JobDetails, now: number, full: boolean): (readonly [string, string])[] {
  const instants: readonly (readonly [string, number | null])[] = [
    ["enqueued", job.createdAt],
    ["due", job.runAt],
    ["started", job.startedAt],
    ["deadline", job.state === "running" ? job.deadlineAt : null],
    ["finished", job.finishedAt],
  ];
  const error = job.error && (full ? (job.error.stack ?? "") : "");
  return [
    ...instants.flatMap(([name, at]) => (at === null ? [] : [[name, instantText(at, now)] as const])),
    ["attempts", attemptsText(job)],
    ...(job.priority === 0 ? [] : [["priority", String(job.priority)] as const]),
    ...(job.dedupeKey === null ? [] : [["dedupe key", printable(job.dedupeKey)] as const]),
    ...(job.worker === null ? [] : [["worker", job.worker] as const]),
    ...(job.cancelRequested ? [["cancel", "was asked for"] as const] : []),
    ...(job.error
      ? [
          [
            "error",
            error ? printable(error) : oneLine(`${job.error.name}: ${job.error.message}`, full ? undefined : SHORT),
          ] as const,
        ]
      : []),
    ["input", json(job.input, full)],
    ...(job.progress === null ? [] : [["progress", json(job.progress, full)] as const]),
    ...(job.state === "succeeded" || job.result !== null ? [["result", json(job.result, full)] as const] : []),
  ];
}

function instantText(at: number, now: number): string {
  return `${stamp(at)}  (${at > now ? `in ${humanMs(at - now)}` : ago(now - at)})`;
}

function attemptsText({ attempt, counters, lastOutcome }: JobDetails): string {
  const names: readonly (readonly [keyof Counters, string, string])[] = [
    ["errors", "error", "errors"],
    ["timeouts", "timeout", "timeouts"],
    ["crashes", "crash", "crashes"],
    ["blamed", "crash while alone", "crashes while alone"],
    ["interruptions", "interruption", "interruptions"],
  ];
  const ended = names.flatMap(([name, one, many]) => (counters[name] === 0 ? [] : [count(counters[name], one, many)]));
  const last = lastOutcome === null ? [] : [`the last ${lastOutcome}`];
  return [String(attempt), ...ended, ...last].join(", ");
}

function json(value: unknown, full: boolean): string {
  const text = JSON.stringify(value, null, full ? 2 : undefined) ?? "undefined";
  return full ? printable(text) : oneLine(text, SHORT);
}

interface Happening {
  readonly at: number;
  readonly attempt: number;
  readonly what: string;
  readonly ink: Ink | null;
  readonly text: string;
}

/** Steps, log and history in one order. A success writes no history, so the ends of the latest attempt are added. */
function timeline(job: JobDetails, pen: Pen, full: boolean): string[] {
  const told = (at: number, attempt: number, what: string, text: string, ink: Ink | null = null): Happening => ({
    at,
    attempt,
    what,
    text,
    ink,
  });
  const all = [
    told(job.createdAt, 0, "enqueued", ""),
    ...(job.startedAt === null ? [] : [told(job.startedAt, job.attempt, "started", `in ${job.worker ?? "?"}`)]),
    ...job.steps.map(({ at, attempt, name, result }) =>
      told(
        at,
        attempt,
        "step",
        `${name}${result === null ? "" : ` = ${JSON.stringify(result)}`}`,
        job.corrupt.includes(`step ${name}`) ? "red" : "cyan",
      ),
    ),
    ...job.log.map(({ at, attempt, message }) => told(at, attempt, "log", message)),
    ...job.history.map(({ at, attempt, event, to, actor, reason, incident }) =>
      told(
        at,
        attempt,
        event,
        `${to}: ${reason} (${actor}${incident === null ? "" : `, incident ${incident}`})`,
        to === "queued" ? "yellow" : "red",
      ),
    ),
    ...(job.state === "succeeded" && job.finishedAt !== null
      ? [told(job.finishedAt, job.attempt, "succeeded", "", "green")]
      : []),
  ].sort((a, b) => a.at - b.at);
  const shown = full ? all : all.slice(-STORY);
  const rows = shown.map(({ at, attempt, what, text, ink }): Cell[] => [
    timeOfDay(at),
    attempt === 0 ? "" : attempt,
    ink === null ? what : { text: what, ink },
    oneLine(text, full ? undefined : SHORT),
  ]);
  const columns = [
    { title: stamp(shown[0]!.at).slice(0, 10) },
    { title: "ATTEMPT", align: "right" as const },
    { title: "WHAT" },
    { title: "", ...(full ? {} : { shrinkTo: 20 }) },
  ];
  const left = all.length - shown.length;
  return [
    ...(left > 0 ? [pen.style("dim", `… ${count(left, "earlier entry", "earlier entries")}: --full shows all`)] : []),
    ...grid(pen, columns, rows),
  ];
}

function nextOf(job: JobDetails, pen: Pen): string[] {
  const incident = job.history.findLast((entry) => entry.incident !== null)?.incident;
  const commands = [
    ...(job.state === "succeeded" ? [] : [`outlive why ${job.id}`]),
    ...(job.corrupt.length === 0 ? [] : ["outlive check --integrity"]),
    ...(job.state === "quarantined" && job.corrupt.length === 0 ? [`outlive quarantine release ${job.id}`] : []),
    ...(job.state === "dead" || job.state === "cancelled" ? [`outlive retry ${job.id}`] : []),
    ...(job.state === "queued" || job.state === "running" ? [`outlive cancel ${job.id}`] : []),
    ...(incident === undefined || incident === null ? [] : [`outlive incident ${incident}`]),
  ];
  return commands.map((command) => pen.style("cyan", command));
}
