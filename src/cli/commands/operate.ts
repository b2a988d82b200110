// `outlive retry` and `outlive cancel`: of jobs by their ids, or of all that a filter finds.
import type { Command } from "commander";
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobInfo, JobState } from "../../job/job.ts";
import { CORRUPT_HINT } from "../../job/transitions.ts";
import { type Context, type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";
import { grid } from "../grid.ts";
import { assertKindIsThere, noSuchJob, noSuchKind, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { changeFound, type ChangeKind, changeNamed } from "../mass-change.ts";
import { ago, oneLine, orDash, shellWord } from "../words.ts";

const RETRY: ChangeKind = {
  name: "retry",
  done: "queued again",
  states: ["dead"],
  apply: (engine, id) => engine.retry(id),
};

const CANCEL: ChangeKind = {
  name: "cancel",
  done: "cancelled",
  states: ["queued", "running"],
  apply: (engine, id) => engine.cancel(id),
};

export const retryCommand: Register = (program, run) => {
  command(program, "retry", ["dead", "cancelled", "quarantined", "succeeded"])
    .description("queue finished jobs again, with their counters at zero and their steps kept")
    .option("--all", "all dead jobs, or all in the state given by --state")
    .action(run((context, given) => change(context, given, RETRY)));
  command(program, "cancel", ["queued", "running"])
    .description("cancel queued jobs now, and ask running ones to end")
    .option("--all", "all queued and running jobs")
    .action(run((context, given) => change(context, given, CANCEL)));
};

function command(program: Command, name: string, states: readonly JobState[]): Command {
  const made = program.command(name).argument("[ids...]", "the ids of the jobs");
  return withFilters(made, states).option("--yes", "really do it to all that the filter finds");
}

/** Ids or a filter, never both: somebody who gives both means something that this does not do. */
export async function change({ terminal, attach }: Context, command: Command, kind: ChangeKind): Promise<number> {
  const flags = command.opts<FilterFlags & { all?: boolean; yes?: boolean }>();
  const filter = filterOf(flags, Date.now());
  const filtered = flags.all === true || Object.keys(filter).length > 0;
  const ids = command.args;
  if (ids.length > 0 === filtered)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      filtered ? "Ids and a filter were given together." : `Nothing says which jobs to ${kind.name}.`,
      `Give ids, or a filter (--kind, --text, ...), or --all.`,
    );
  const engine = await attach();
  return filtered
    ? changeFound(terminal, engine, kind, filter, flags.yes === true)
    : changeNamed(terminal, engine, kind, ids);
}

// `outlive quarantine list|release`: jobs that killed their worker while they ran alone or were damaged in the store, and letting them
// run again.

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

export const quarantineCommand: Register = (program, run) => {
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

// `outlive pause KIND` and `outlive resume KIND`.

export const pauseCommand: Register = (program, run) => {
  program
    .command("pause")
    .argument("<kind>", "the kind")
    .description("nobody claims jobs of this kind until it is resumed; what runs goes on")
    .action(run((context, { args }) => setPaused(context, args[0]!, true)));
  program
    .command("resume")
    .argument("<kind>", "the kind")
    .description("jobs of this kind are claimed again")
    .action(run((context, { args }) => setPaused(context, args[0]!, false)));
};

async function setPaused({ terminal, attach }: Context, kind: string, paused: boolean): Promise<void> {
  const engine = await attach();
  try {
    await (paused ? engine.pause(kind) : engine.resume(kind));
  } catch (thrown) {
    if (!(thrown instanceof OutliveError) || thrown.code !== ErrorCode.notFound) throw thrown;
    const kinds = (await engine.counts()).map((counts) => counts.kind);
    throw noSuchKind(kind, kinds);
  }
  terminal.answer({ kind, paused }, () =>
    paused
      ? `${kind} is paused: nobody claims it; what runs goes on. Later: outlive resume ${shellWord(kind)}`
      : `${kind} is claimed again.`,
  );
}
