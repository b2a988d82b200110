// `outlive jobs`: jobs by pages, newest first, filtered. `outlive job ID` and `outlive why ID`: one job whole, and why it is not running.
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Counters, JobDetails, JobInfo, JobState } from "../../job/job.ts";
import { humanMs } from "../../job/time.ts";
import type { ListPage } from "../../stores/port.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";
import { watch } from "../live-view.ts";
import { assertKindIsThere, noSuchJob, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { type Cell, grid, type Ink, jsonText, type Pen, type Terminal } from "../terminal.ts";
import { ago, count, oneLine, printable, shellWord, stamp, timeOfDay } from "../words.ts";

interface Flags extends FilterFlags {
  readonly limit: number;
  readonly after?: string;
  readonly watch?: boolean;
}

export const jobsCommand: Register = (program, run) => {
  withFilters(program.command("jobs").description("jobs, newest first, by pages"))
    .option("--limit <number>", "most jobs on the page, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <cursor>", "`next` of the page before")
    .option("--watch", "look again every second, until q or Ctrl-C")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<Flags>();
        const engine = await attach();
        if (flags.watch !== true) {
          const page = await look(engine, flags, flags.limit);
          terminal.answer(page, () => pageLines(page, flags, terminal).join("\n"));
          return;
        }
        await watch(terminal, async ({ columns, rows }) => {
          const page = await look(engine, flags, Math.max(1, Math.min(flags.limit, rows - 1)));
          return terminal.json ? [jsonText(page)] : tableOf(page, { ...terminal, columns });
        });
      }),
    );
};

async function look(engine: Engine, flags: Flags, limit: number): Promise<ListPage> {
  const page = await pageOfJobs(engine, filterOf(flags, Date.now()), limit, flags.after ?? null);
  if (page.jobs.length === 0) await assertKindIsThere(engine, flags.kind);
  return page;
}

function pageLines(page: ListPage, flags: Flags, terminal: Terminal): string[] {
  const lines = tableOf(page, terminal);
  if (page.next === null) return lines;
  const more = page.jobs.length < flags.limit ? "Not all were looked through yet" : "There are more";
  return [...lines, "", terminal.style("dim", `${more}: ${sameAgain(flags, page.next)}`)];
}

function tableOf({ jobs, next }: ListPage, terminal: Terminal): string[] {
  if (jobs.length > 0) return jobLines(jobs, terminal, Date.now());
  return [next === null ? "No such jobs." : "None so far."];
}

function sameAgain(flags: Flags, after: string): string {
  const given: readonly (readonly [string, string | undefined])[] = [
    ["--state", flags.state],
    ["--kind", flags.kind],
    ["--text", flags.text],
    ["--older-than", flags.olderThan === undefined ? undefined : `${flags.olderThan}ms`],
    ["--newer-than", flags.newerThan === undefined ? undefined : `${flags.newerThan}ms`],
    ["--limit", flags.limit === 50 ? undefined : String(flags.limit)],
    ["--after", after],
  ];
  const words = given.flatMap(([flag, value]) => (value === undefined ? [] : [flag, shellWord(value)]));
  return `outlive jobs ${words.join(" ")}`;
}

// `outlive job ID`: the whole story of one job.

export const jobCommand: Register = (program, run) => {
  program
    .command("job")
    .argument("<id>", "the job's id")
    .description("the whole story of one job: attempts, owners, steps, errors, incidents, log")
    .option("--full", "nothing shortened: input, result, stack and every entry")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const { full = false } = command.opts<{ full?: boolean }>();
        const job = await (await attach()).get(id);
        if (!job) throw noSuchJob(id);
        terminal.answer(job, () => storyLines(job, terminal, Date.now(), full).join("\n").trimEnd());
      }),
    );
};

// `outlive why ID`: why a job is not running, or how it runs, and what to do next.

export const whyCommand: Register = (program, run) => {
  program
    .command("why")
    .argument("<id>", "the job's id")
    .description("why a job is not running, or how it runs, and what to do next")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const explanation = await (await attach()).why(id);
        if (!explanation)
          throw new OutliveError(ErrorCode.notFound, `There is no job ${id}.`, "Check the id: outlive jobs", {
            jobId: id,
          });
        terminal.answer(explanation, () =>
          [
            `${terminal.style("bold", `Job ${explanation.jobId}`)} (${explanation.kind}) is ${explanation.state}: ${explanation.because}`,
            printable(explanation.text),
            ...(explanation.next === "" ? [] : [`${terminal.style("cyan", "Next:")} ${explanation.next}`]),
          ].join("\n"),
        );
      }),
    );
};

// A page of jobs as a table: one line each, with the one thing that matters most in its state. Pure.

const INK_OF_STATE: Readonly<Record<JobState, Ink>> = {
  queued: "cyan",
  running: "green",
  succeeded: "dim",
  dead: "yellow",
  cancelled: "dim",
  quarantined: "red",
};

function stateCell(state: JobState): Cell {
  return { text: state, ink: INK_OF_STATE[state] };
}

function jobLines(jobs: readonly JobInfo[], pen: Pen, now: number): string[] {
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

function storyLines(job: JobDetails, pen: Pen, now: number, full = false): string[] {
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
