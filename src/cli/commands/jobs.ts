// `outlive jobs`: jobs by pages, newest first, filtered.
import type { Engine } from "../../engine/engine.ts";
import type { JobInfo, JobState } from "../../job/job.ts";
import { shellWord } from "../../job/text.ts";
import { humanMs } from "../../job/time.ts";
import type { ListPage } from "../../stores/port.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";
import { watch } from "../live-view.ts";
import { assertKindIsThere, noSuchJob, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { type Cell, type Column, grid, type Ink, jsonText, type Pen, type Terminal } from "../terminal.ts";
import { oneLine } from "../words.ts";
import { heldText, waitingText } from "./job.ts";

interface Flags extends FilterFlags {
  readonly limit: number;
  readonly after?: string;
  readonly parent?: string;
  readonly watch?: boolean;
}

export const jobsCommand: Register = (program, run) => {
  withFilters(program.command("jobs").description("jobs, newest first, by pages"))
    .option("--parent <id>", "only jobs that this job enqueued")
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
  const { parent } = flags;
  const filter = { ...filterOf(flags, Date.now()), ...(parent !== undefined && { parent }) };
  const page = await pageOfJobs(engine, filter, limit, flags.after ?? null);
  if (page.jobs.length > 0) return page;
  await assertKindIsThere(engine, flags.kind);
  if (parent !== undefined && !(await engine.get(parent))) throw noSuchJob(parent);
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
    ["--parent", flags.parent],
    ["--text", flags.text],
    ["--older-than", flags.olderThan === undefined ? undefined : `${flags.olderThan}ms`],
    ["--newer-than", flags.newerThan === undefined ? undefined : `${flags.newerThan}ms`],
    ["--limit", flags.limit === 50 ? undefined : String(flags.limit)],
    ["--after", after],
  ];
  const words = given.flatMap(([flag, value]) => (value === undefined ? [] : [flag, shellWord(value)]));
  return `outlive jobs ${words.join(" ")}`;
}

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

/** A narrower terminal has no room for the number of attempts next to what matters most. */
const ROOM_FOR_ATTEMPTS = 100;

export function jobLines(jobs: readonly JobInfo[], pen: Pen, now: number): string[] {
  const columns: readonly Column[] = [
    { title: "ID", shrinkTo: 22 },
    { title: "KIND", shrinkTo: 8 },
    { title: "STATE" },
    { title: "AGE", align: "right" },
    { title: "ATTEMPTS", align: "right" },
    { title: "", shrinkTo: 10 },
  ];
  const rows = jobs.map((job): Cell[] => [
    job.id,
    job.kind,
    stateCell(job.state),
    humanMs(Math.max(0, now - job.createdAt)),
    job.attempt,
    oneLine(remark(job, now), 200),
  ]);
  const isNarrow = pen.isTty && pen.columns < ROOM_FOR_ATTEMPTS;
  const kept = (_: unknown, i: number): boolean => !isNarrow || columns[i]!.title !== "ATTEMPTS";
  return grid(
    pen,
    columns.filter(kept),
    rows.map((row) => row.filter(kept)),
  );
}

function remark(job: JobInfo, now: number): string {
  const error = job.error ? `${job.error.name}: ${job.error.message}` : "";
  switch (job.state) {
    case "queued":
      if (job.waitsAt !== null && (job.runAt === null || job.runAt > now)) return waitingText(job, job.waitsAt, now);
      if (job.heldBy !== null) return `held by ${heldText(job.heldBy)}`;
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
