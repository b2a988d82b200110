// `outlive retry`, `cancel`, `quarantine` and `pause`: of jobs by their ids, or of all that a filter finds. Named jobs are changed at once;
// a filter first prints how many it would change and requires --yes. One job that can't be changed stops no other.
import type { Command } from "commander";
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobInfo, JobState } from "../../job/job.ts";
import { shellWord } from "../../job/text.ts";
import { CORRUPT_HINT } from "../../job/transitions.ts";
import type { JobFilter } from "../../stores/port.ts";
import { type Context, type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";
import { progress, ExitCode, exitCodeOf, grid, type Terminal } from "../terminal.ts";
import { allPages, assertKindIsThere, noSuchJob, noSuchKind, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { ago, count, oneLine, orDash } from "../words.ts";

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

const CANCEL_FAMILIES: ChangeKind = {
  ...CANCEL,
  apply: (engine, id) => engine.cancel(id, { children: true }),
  note: "Their children that have not begun are cancelled by the next turns of any workers: outlive jobs --parent ID",
};

export const retryCommand: Register = (program, run) => {
  command(program, "retry", ["dead", "cancelled", "quarantined", "succeeded"])
    .description("queue finished jobs again, with their counters at zero and their steps kept")
    .option("--all", "all dead jobs, or all in the state given by --state")
    .option("--batch <id>", "the failed rows of a batch that has ended, as a new round")
    .action(
      run(async (context, given) => {
        const { batch } = given.opts<{ batch?: string }>();
        return batch === undefined ? change(context, given, RETRY) : retryBatch(context, given, batch);
      }),
    );
  command(program, "cancel", ["queued", "running"])
    .description("cancel queued jobs now, and ask running ones to end")
    .option("--all", "all queued and running jobs")
    .option("--children", "also their children that have not begun; those that have begun go on")
    .action(
      run((context, given) =>
        change(context, given, given.opts<{ children?: boolean }>().children === true ? CANCEL_FAMILIES : CANCEL),
      ),
    );
};

async function retryBatch({ terminal, attach }: Context, given: Command, id: string): Promise<number> {
  if (given.args.length > 0)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      "Ids of jobs and --batch were given together.",
      "Nothing was changed. Give one of them.",
    );
  const { round, rows } = await (await attach()).retryBatch(id);
  terminal.answer(
    { batch: id, round, rows },
    () => `${count(rows, "row")} of batch ${id} run again, as round ${round}.`,
  );
  return ExitCode.ok;
}

function command(program: Command, name: string, states: readonly JobState[]): Command {
  const made = program.command(name).argument("[ids...]", "the ids of the jobs");
  return withFilters(made, states).option("--yes", "really do it to all that the filter finds");
}

/** Ids or a filter, never both: a call with both means something that this does not do. */
async function change({ terminal, attach }: Context, command: Command, kind: ChangeKind): Promise<number> {
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
        const shown = await Promise.all(jobs.map((job) => withIncident(engine, job)));
        terminal.answer({ jobs: shown, next }, () =>
          shown.length === 0
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
                  shown.map(({ id, kind, finishedAt, incident, reason }) => [
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
                ...(shown.some(({ lastOutcome }) => lastOutcome === "corrupt")
                  ? [`Corrupt ones: ${CORRUPT_HINT}`]
                  : []),
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
    .description("no worker claims jobs of this kind until it is resumed; running jobs go on")
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
      ? `${kind} is paused: no worker claims it; running jobs go on. Later: outlive resume ${shellWord(kind)}`
      : `${kind} is claimed again.`,
  );
}

// Retry, cancel and release, of named jobs or of all that a filter finds.

interface ChangeKind {
  /** "retry", "cancel", "release". */
  readonly name: string;
  /** "queued again", "cancelled". */
  readonly done: string;
  /** The states that a filter without a state covers. */
  readonly states: readonly JobState[];
  readonly apply: (engine: Engine, id: string) => Promise<JobState>;
  /** A sentence for people after jobs were changed. Omitted: none. */
  readonly note?: string;
}

type ChangedJob =
  | {
      readonly id: string;
      readonly state: JobState;
      /** What is damaged of a job that was queued again: it will be quarantined again. Omitted: no damage was found, or it was not checked. */
      readonly corrupt?: readonly string[];
    }
  | { readonly id: string; readonly error: { readonly code: string; readonly message: string } };

/** `--json` of retry, cancel and quarantine release. */
interface Changed {
  readonly change: string;
  readonly changed: number;
  readonly failed: number;
  /** All that were named; of those that a filter found, the ones that failed, at most 100. */
  readonly jobs: readonly ChangedJob[];
}

const MAX_LISTED = 100;
/** A search for the number is given up here: "more than". */
const MAX_COUNTED = 100_000;

async function changeNamed(
  terminal: Terminal,
  engine: Engine,
  change: ChangeKind,
  ids: readonly string[],
): Promise<number> {
  const { jobs, code } = await applyAll(engine, change, [...new Set(ids)], true);
  tell(terminal, change, jobs, jobs);
  return code;
}

export async function changeFound(
  terminal: Terminal,
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  yes: boolean,
  now?: () => number,
): Promise<number> {
  const onJobs = progress(terminal.remark, yes ? change.name : "counting", now);
  if (!yes) throw await unconfirmed(engine, change, filter, onJobs);
  const all: ChangedJob[] = [];
  let code: number = ExitCode.ok;
  for (const state of statesOf(change, filter)) {
    for await (const page of allPages(engine, { ...filter, state })) {
      const applied = await applyAll(
        engine,
        change,
        page.map(({ id }) => id),
        state === "quarantined",
      );
      all.push(...applied.jobs);
      if (code === ExitCode.ok) code = applied.code;
      onJobs(all.length);
    }
  }
  if (all.length === 0) await assertKindIsThere(engine, filter.kind);
  tell(terminal, change, all, all.filter((job) => "error" in job).slice(0, MAX_LISTED));
  return code;
}

function statesOf(change: ChangeKind, filter: JobFilter): readonly JobState[] {
  return filter.state === undefined ? change.states : [filter.state];
}

/** Together, so that they share transactions. `checked`: also checks whether what was queued again can run at all. */
async function applyAll(
  engine: Engine,
  change: ChangeKind,
  ids: readonly string[],
  checked: boolean,
): Promise<{ jobs: ChangedJob[]; code: number }> {
  let code: number = ExitCode.ok;
  const jobs = await Promise.all(
    ids.map(async (id): Promise<ChangedJob> => {
      try {
        const state = await change.apply(engine, id);
        const corrupt = (checked && state === "queued" && (await engine.get(id))?.corrupt) || [];
        return corrupt.length === 0 ? { id, state } : { id, state, corrupt };
      } catch (thrown) {
        if (!(thrown instanceof OutliveError) || exitCodeOf(thrown) === ExitCode.failure) throw thrown;
        if (code === ExitCode.ok) code = exitCodeOf(thrown);
        return { id, error: { code: thrown.code, message: thrown.message } };
      }
    }),
  );
  return { jobs, code };
}

function tell(terminal: Terminal, change: ChangeKind, all: readonly ChangedJob[], listed: readonly ChangedJob[]): void {
  const failed = all.filter((job) => "error" in job).length;
  const changed = all.length - failed;
  const answer: Changed = { change: change.name, changed, failed, jobs: listed };
  terminal.answer(answer, () =>
    [
      all.length === 0 ? "No such jobs; nothing was changed." : `${count(changed, "job")} ${change.done}.`,
      ...(failed === 0 ? [] : [`${count(failed, "job")} could not be changed:`]),
      ...listed.flatMap((job) => ("error" in job ? [`  ${job.error.message}`] : [])),
      ...all.flatMap((job) =>
        "state" in job && job.corrupt
          ? [
              `Job ${job.id}: the stored ${job.corrupt.join(" and ")} ${job.corrupt.length === 1 ? "does" : "do"} not match, so it will be quarantined again. ${CORRUPT_HINT}`,
            ]
          : [],
      ),
      ...(change.name === "cancel" && all.some((job) => "state" in job && job.state === "running")
        ? ["Running ones were aborted through their signal; they end within the grace of their kind."]
        : []),
      ...(change.note !== undefined && changed > 0 ? [change.note] : []),
    ].join("\n"),
  );
}

async function unconfirmed(
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  onJobs: (jobs: number) => void,
): Promise<OutliveError> {
  const { found, more } = await howMany(engine, change, filter, onJobs);
  if (found === 0) await assertKindIsThere(engine, filter.kind);
  const text = `${more ? "more than " : ""}${count(found, "job")}`;
  return new OutliveError(
    ErrorCode.optionInvalid,
    `This would ${change.name} ${text}; nothing was changed.`,
    found === 0 ? "Widen the filter." : "Add --yes to do it.",
    { change: change.name, found, more },
  );
}

/** The counts know states and kinds; any other filter needs a scan. */
async function howMany(
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  onJobs: (jobs: number) => void,
): Promise<{ found: number; more: boolean }> {
  const states = statesOf(change, filter);
  if (filter.text === undefined && filter.createdAfter === undefined && filter.createdBefore === undefined) {
    const kinds = (await engine.counts()).filter(({ kind }) => filter.kind === undefined || kind === filter.kind);
    const inState = (kind: (typeof kinds)[number], state: JobState): number =>
      state === "queued" ? kind.ready + kind.delayed + kind.held : kind[state];
    return {
      found: kinds.reduce((sum, kind) => sum + states.reduce((n, one) => n + inState(kind, one), 0), 0),
      more: false,
    };
  }
  let found = 0;
  for (const state of states) {
    for await (const page of allPages(engine, { ...filter, state })) {
      found += page.length;
      onJobs(found);
      if (found >= MAX_COUNTED) return { found, more: true };
    }
  }
  return { found, more: false };
}
