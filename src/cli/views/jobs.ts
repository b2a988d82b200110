// A page of jobs as a table: one line each, with the one thing that matters most in its state. Pure.
import { humanMs } from "../../core/duration.ts";
import type { JobInfo, JobState } from "../../core/job.ts";
import { type Cell, grid, type Ink, type Pen } from "../grid.ts";
import { ago, oneLine } from "../words.ts";

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
      job.fence,
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
