// `outlive quarantine list|release`: jobs that killed their worker while they ran alone or were damaged in the store, and letting them
// run again.
import type { Engine } from "../../engine.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { JobInfo } from "../../core/job.ts";
import { CORRUPT_HINT } from "../../core/transitions.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../flags.ts";
import { grid } from "../grid.ts";
import { assertKindIsThere, pageOfJobs } from "../job-pages.ts";
import type { Register } from "../main.ts";
import type { ChangeKind } from "../mass-change.ts";
import { noSuchJob } from "../not-found.ts";
import { ago, oneLine, orDash } from "../words.ts";
import { change } from "./retry.ts";

/** A quarantined job, with the incident that put it there. */
interface Quarantined extends JobInfo {
  readonly incident: string | null;
  readonly reason: string | null;
}

const RELEASE: ChangeKind = {
  name: "release",
  done: "released and queued again",
  states: ["quarantined"],
  apply: async (engine, id) => {
    const job = await engine.get(id);
    if (!job) throw noSuchJob(id);
    if (job.state !== "quarantined")
      throw new OutliveError(
        ErrorCode.wrongState,
        `Job ${id} is ${job.state}, not quarantined.`,
        `See it: outlive job ${id}`,
        { jobId: id, state: job.state },
      );
    return engine.retry(id);
  },
};

export const register: Register = (program, run) => {
  const quarantine = program
    .command("quarantine")
    .description("jobs that killed their workers, or were damaged: list, release");
  withFilters(quarantine.command("list"), [])
    .description("the quarantined jobs, with the incident that put each there")
    .option("--limit <number>", "most jobs on the page, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <cursor>", "`next` of the page before")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<FilterFlags & { limit: number; after?: string }>();
        const engine = await attach();
        const filter = { ...filterOf(flags, Date.now()), state: "quarantined" } as const;
        const { jobs, next } = await pageOfJobs(engine, filter, flags.limit, flags.after ?? null);
        if (jobs.length === 0) await assertKindIsThere(engine, flags.kind);
        const told = await Promise.all(jobs.map((job) => withIncident(engine, job)));
        terminal.answer({ jobs: told, next }, () =>
          told.length === 0
            ? "No job is quarantined."
            : [
                ...grid(
                  terminal,
                  [
                    { title: "ID", shrinkTo: 22 },
                    { title: "KIND", shrinkTo: 8 },
                    { title: "SINCE", align: "right" },
                    { title: "INCIDENT" },
                    { title: "REASON", shrinkTo: 10 },
                  ],
                  told.map(({ id, kind, finishedAt, incident, reason }) => [
                    id,
                    kind,
                    finishedAt === null ? "-" : ago(Date.now() - finishedAt),
                    orDash(incident),
                    oneLine(reason ?? "", 200),
                  ]),
                ),
                "",
                ...(next === null ? [] : [terminal.style("dim", `There are more: --after ${next}`)]),
                `When it is safe: ${terminal.style("cyan", "outlive quarantine release ID")}`,
                ...(told.some(({ lastOutcome }) => lastOutcome === "corrupt") ? [`Corrupt ones: ${CORRUPT_HINT}`] : []),
              ].join("\n"),
        );
      }),
    );
  withFilters(quarantine.command("release").argument("[ids...]", "the ids of the jobs"), [])
    .description("queue quarantined jobs again, with their counters at zero")
    .option("--all", "all quarantined jobs")
    .option("--yes", "really do it to all that the filter finds")
    .action(run((context, given) => change(context, given, RELEASE)));
};

async function withIncident(engine: Engine, job: JobInfo): Promise<Quarantined> {
  const last = (await engine.get(job.id))?.history.findLast(({ to }) => to === "quarantined");
  return { ...job, incident: last?.incident ?? null, reason: last?.reason ?? null };
}
