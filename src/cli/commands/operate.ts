// `outlive retry`, `cancel`, `promote`, `remove`, `quarantine` and `pause`: of jobs by their ids, or of all that a filter finds. Named jobs are changed at once;
// a filter first prints how many it would change and requires --yes. One job that can't be changed stops no other. Every change is in `outlive audit`.
import { type Command, Option } from "commander";
import { type AuditOptions, BULK_STATES, type BulkChange } from "../../engine/changes.ts";
import type { Engine } from "../../engine/engine.ts";
import { AUDIT_ACTIONS, type By } from "../../job/audit.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { JobInfo, JobState } from "../../job/job.ts";
import { shellWord } from "../../job/text.ts";
import { CORRUPT_HINT } from "../../job/transitions.ts";
import type { JobFilter } from "../../stores/port.ts";
import {
  byOf,
  type Context,
  duration,
  type FilterFlags,
  filterOf,
  instant,
  jsonArgument,
  wholeNumber,
  withBy,
  withFilters,
} from "../context.ts";
import { progress, ExitCode, exitCodeOf, grid, type Terminal } from "../terminal.ts";
import { allPages, assertKindIsThere, noSuchJob, noSuchKind, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { ago, count, oneLine, orDash } from "../words.ts";

const RETRY: ChangeKind = {
  name: "retry",
  done: "queued again",
  bulk: "retry",
  apply: (engine, id, by) => engine.retry(id, by),
};

const CANCEL: ChangeKind = {
  name: "cancel",
  done: "cancelled",
  bulk: "cancel",
  apply: (engine, id, by) => engine.cancel(id, by),
};

const CANCEL_FAMILIES: ChangeKind = {
  ...CANCEL,
  children: true,
  apply: (engine, id, by) => engine.cancel(id, { ...by, children: true }),
  note: "Workers will cancel their children that have not begun: outlive jobs --parent ID",
};

const PROMOTE: ChangeKind = {
  name: "promote",
  done: "made ready",
  bulk: "promote",
  apply: (engine, id, by) => engine.promote(id, by),
};

const REMOVE: ChangeKind = {
  name: "remove",
  done: "removed",
  bulk: "remove",
  apply: async (engine, id, by) => {
    await engine.remove(id, by);
    return "removed";
  },
};

export const retryCommand: Register = (program, run) => {
  command(program, "retry", ["dead", "cancelled", "quarantined", "succeeded"])
    .description("queue finished jobs again, with their counters at zero and their steps kept")
    .option("--all", "all dead jobs, or all in the state given by --state")
    .option("--batch <id>", "the failed rows of a batch that has ended, as a new round")
    .option("--input <json>", "one job with another input, and without its kept steps; - reads it from stdin")
    .action(
      run(async (context, given) => {
        const { batch, input } = given.opts<{ batch?: string; input?: string }>();
        if (input !== undefined) return retryWith(context, given, input);
        return batch === undefined ? change(context, given, RETRY) : retryBatch(context, given, batch);
      }),
    );
  command(program, "cancel", ["queued", "running"])
    .description("cancel queued jobs now, and ask running ones to end")
    .option("--all", "all queued and running jobs")
    .option("--children", "also their children that have not begun; those that have begun continue")
    .action(
      run((context, given) =>
        change(context, given, given.opts<{ children?: boolean }>().children === true ? CANCEL_FAMILIES : CANCEL),
      ),
    );
  command(program, "promote", ["queued"])
    .description("make delayed jobs ready now")
    .option("--all", "all delayed jobs")
    .action(run((context, given) => change(context, given, PROMOTE)));
  command(program, "remove", ["queued", "dead", "cancelled", "quarantined", "succeeded"])
    .description("delete jobs and everything that they stored; not running ones")
    .option("--all", "all finished jobs, or all in the state given by --state")
    .action(run((context, given) => change(context, given, REMOVE)));
};

/** The kind's schema is asked if the configuration names the modules of the jobs; a kind that is not known here is refused. */
async function retryWith({ terminal, attach }: Context, given: Command, text: string): Promise<number> {
  const [id, ...more] = given.args;
  if (id === undefined || more.length > 0)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `--input was given with ${given.args.length} ids.`,
      "Nothing was changed. Give the id of one job.",
    );
  const input = await jsonArgument(text, "The input", `outlive retry ${shellWord(id)} --input - < input.json`);
  const state = await (await attach()).operator.retryWith(id, input, byOf(given));
  terminal.answer({ change: "retry", changed: 1, failed: 0, jobs: [{ id, state }] }, () => `1 job ${RETRY.done}.`);
  return ExitCode.ok;
}

async function retryBatch({ terminal, attach }: Context, given: Command, id: string): Promise<number> {
  if (given.args.length > 0)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      "Ids of jobs and --batch were given together.",
      "Nothing was changed. Give one of them.",
    );
  const { round, rows } = await (await attach()).retryBatch(id, byOf(given));
  terminal.answer(
    { batch: id, round, rows },
    () => `${count(rows, "row")} of batch ${id} run again, as round ${round}.`,
  );
  return ExitCode.ok;
}

function command(program: Command, name: string, states: readonly JobState[]): Command {
  const made = program.command(name).argument("[ids...]", "the ids of the jobs");
  return withBy(withFilters(made, states)).option("--yes", "really do it to all that the filter finds");
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
      filtered ? "Ids and a filter were given together." : `No jobs to ${kind.name} were given.`,
      `Give ids, or a filter (--kind, --text, ...), or --all.`,
    );
  const engine = await attach();
  const by = byOf(command);
  return filtered
    ? changeFound(terminal, engine, kind, filter, flags.yes === true, by)
    : changeNamed(terminal, engine, kind, ids, by);
}

// `outlive quarantine list|release`: jobs that killed their worker while they ran alone or were damaged in the store, and letting them
// run again.

/** A quarantined job, with the incident that put it there. */
interface QuarantinedJob extends JobInfo {
  readonly incident: string | null;
  readonly reason: string | null;
}

const RELEASE: ChangeKind = {
  name: "release",
  done: "released and queued again",
  bulk: "retry",
  states: ["quarantined"],
  apply: async (engine, id, by) => {
    const job = await engine.get(id);
    if (!job) throw noSuchJob(id);
    if (job.state !== "quarantined")
      throw new OutliveError(
        ErrorCode.wrongState,
        `Job ${id} is ${job.state}, not quarantined.`,
        `See it: outlive job ${id}`,
        { jobId: id, state: job.state },
      );
    return engine.retry(id, by);
  },
};

export const quarantineCommand: Register = (program, run) => {
  const quarantine = program
    .command("quarantine")
    .description("jobs that killed their workers, or were damaged: list, release");
  withFilters(quarantine.command("list"), [])
    .description("list the quarantined jobs, each with its incident")
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
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
  withBy(withFilters(quarantine.command("release").argument("[ids...]", "the ids of the jobs"), []))
    .description("queue quarantined jobs again, with their counters at zero")
    .option("--all", "all quarantined jobs")
    .option("--yes", "really do it to all that the filter finds")
    .action(run((context, given) => change(context, given, RELEASE)));
};

async function withIncident(engine: Engine, job: JobInfo): Promise<QuarantinedJob> {
  const last = (await engine.get(job.id))?.history.findLast(({ to }) => to === "quarantined");
  return { ...job, incident: last?.incident ?? null, reason: last?.reason ?? null };
}

// `outlive pause KIND` and `outlive resume KIND`.

export const pauseCommand: Register = (program, run) => {
  withBy(program.command("pause").argument("<kind>", "the kind"))
    .description("claim no jobs of this kind until it is resumed; running jobs continue")
    .option("--until <when>", 'when it ends: "2h", or an instant such as "2026-12-31T23:00:00Z" (default: resume)', end)
    .action(run((context, command) => setPaused(context, command, true)));
  withBy(program.command("resume").argument("<kind>", "the kind"))
    .description("claim jobs of this kind again")
    .action(run((context, command) => setPaused(context, command, false)));
};

/** "2h" or an instant. */
function end(text: string): Date | `${number}ms` {
  return /^\d{4}-/.test(text) ? instant(text) : (`${duration(text)}ms` as const);
}

async function setPaused({ terminal, attach }: Context, command: Command, paused: boolean): Promise<void> {
  const [kind] = command.args as [string];
  const { until } = command.opts<{ until?: ReturnType<typeof end> }>();
  const engine = await attach();
  const by = byOf(command);
  try {
    await (paused ? engine.pause(kind, { ...by, ...(until !== undefined && { until }) }) : engine.resume(kind, by));
  } catch (thrown) {
    if (!(thrown instanceof OutliveError) || thrown.code !== ErrorCode.notFound) throw thrown;
    const kinds = (await engine.counts()).map((counts) => counts.kind);
    throw noSuchKind(kind, kinds);
  }
  const { pause = null } = (await engine.counts()).find((counts) => counts.kind === kind) ?? {};
  const ends = pause?.until ? `until ${new Date(pause.until).toISOString()}` : "until it is resumed";
  terminal.answer({ kind, paused, pause }, () =>
    paused
      ? `${kind} is paused ${ends}: no worker claims its jobs; running jobs continue. Resume it: outlive resume ${shellWord(kind)}`
      : `${kind} is resumed: workers claim its jobs again.`,
  );
}

// `outlive audit`: what people changed.

export const auditCommand: Register = (program, run) => {
  program
    .command("audit")
    .description("changes by people, newest first: who, what, why, how many")
    .option("--actor <name>", "only changes of this actor")
    .addOption(new Option("--action <action>", "only this action").choices([...AUDIT_ACTIONS]))
    .option("--job <id>", "only changes of this job alone")
    .option("--target <text>", 'only changes of this, as OF shows it: "schedule nightly", "batch ID", "kind mail"')
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <id>", "`next` of the page before")
    .action(
      run(async ({ terminal, attach }, command) => {
        const { limit, ...query } = command.opts<AuditOptions & { limit: number }>();
        const entries = await (await attach()).audit({ ...query, limit });
        const next = entries.length === limit ? entries.at(-1)!.id : null;
        terminal.answer({ entries, next }, () =>
          entries.length === 0
            ? "The audit has no such changes."
            : [
                ...grid(
                  terminal,
                  [
                    { title: "WHEN" },
                    { title: "WHO", shrinkTo: 12 },
                    { title: "WHAT" },
                    { title: "COUNT", align: "right" },
                    { title: "OF", shrinkTo: 20 },
                    { title: "WHY", shrinkTo: 10 },
                  ],
                  entries.map(({ at, actor, action, count: many, target, reason }) => [
                    new Date(at).toISOString(),
                    oneLine(actor, 60),
                    action,
                    String(many),
                    oneLine(target, 200),
                    oneLine(reason ?? "-", 200),
                  ]),
                ),
                ...(next === null ? [] : ["", terminal.style("dim", `There are more: --after ${next}`)]),
              ].join("\n"),
        );
      }),
    );
};

// Retry, cancel and release, of named jobs or of all that a filter finds.

interface ChangeKind {
  /** "retry", "cancel", "release". */
  readonly name: string;
  /** "queued again", "cancelled". */
  readonly done: string;
  /** How all that a filter finds are changed. */
  readonly bulk: BulkChange;
  readonly children?: boolean;
  /** The states that a filter without a state covers. Omitted: those of the bulk change. */
  readonly states?: readonly JobState[];
  readonly apply: (engine: Engine, id: string, by: By) => Promise<JobState | "removed">;
  /** A sentence for people after jobs were changed. Omitted: none. */
  readonly note?: string;
}

type ChangedJob =
  | {
      readonly id: string;
      readonly state: JobState | "removed";
      /** What is damaged of a job that was queued again: it will be quarantined again. Omitted: no damage was found, or it was not checked. */
      readonly corrupt?: readonly string[];
    }
  | { readonly id: string; readonly error: { readonly code: string; readonly message: string } };

/** `--json` of retry, cancel and quarantine release. */
interface ChangeResult {
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
  by: By,
): Promise<number> {
  const { jobs, code } = await applyAll(engine, change, [...new Set(ids)], by);
  const changed = jobs.filter((job) => "state" in job).length;
  const requested = change.name === "cancel" && jobs.some((job) => "state" in job && job.state === "running");
  tell(terminal, change, { changed, failed: jobs.length - changed, requested }, jobs);
  return code;
}

export async function changeFound(
  terminal: Terminal,
  engine: Engine,
  change: ChangeKind,
  filter: JobFilter,
  yes: boolean,
  by: By = {},
  now?: () => number,
): Promise<number> {
  const onJobs = progress(terminal.remark, yes ? change.name : "counting", now);
  if (!yes) throw await unconfirmed(engine, change, filter, onJobs);
  const sums = { changed: 0, failed: 0, requested: false };
  const listed: ChangedJob[] = [];
  for (const state of statesOf(change, filter)) {
    const queued: string[] = [];
    const result = await engine.bulk(
      change.bulk,
      { ...filter, state },
      {
        ...by,
        ...(change.children && { children: true }),
        onProgress: ({ changed, failed }, ids) => {
          onJobs(sums.changed + sums.failed + changed + failed);
          if (state === "quarantined" && change.bulk === "retry") queued.push(...ids);
        },
      },
    );
    sums.changed += result.changed;
    sums.failed += result.failed;
    sums.requested ||= result.requested > 0;
    listed.push(...result.failures.map(({ id, code, message }) => ({ id, error: { code, message } })));
    for (const id of queued) {
      const corrupt = (await engine.get(id))?.corrupt ?? [];
      if (corrupt.length > 0) listed.push({ id, state: "queued", corrupt });
    }
  }
  if (sums.changed + sums.failed === 0) await assertKindIsThere(engine, filter.kind);
  tell(terminal, change, sums, listed.slice(0, MAX_LISTED));
  const first = listed.find((job) => "error" in job);
  return first && "error" in first
    ? exitCodeOf(new OutliveError(first.error.code as ErrorCode, first.error.message, ""))
    : ExitCode.ok;
}

function statesOf(change: ChangeKind, filter: JobFilter): readonly JobState[] {
  return filter.state === undefined ? (change.states ?? BULK_STATES[change.bulk]) : [filter.state];
}

/** Together, so that they share transactions. Also checks whether what was queued again can run at all. */
async function applyAll(
  engine: Engine,
  change: ChangeKind,
  ids: readonly string[],
  by: By,
): Promise<{ jobs: ChangedJob[]; code: number }> {
  let code: number = ExitCode.ok;
  const jobs = await Promise.all(
    ids.map(async (id): Promise<ChangedJob> => {
      try {
        const state = await change.apply(engine, id, by);
        const corrupt = (state === "queued" && (await engine.get(id))?.corrupt) || [];
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

function tell(
  terminal: Terminal,
  change: ChangeKind,
  { changed, failed, requested }: { readonly changed: number; readonly failed: number; readonly requested: boolean },
  listed: readonly ChangedJob[],
): void {
  const answer: ChangeResult = { change: change.name, changed, failed, jobs: listed };
  terminal.answer(answer, () =>
    [
      changed + failed === 0 ? "No jobs match; nothing was changed." : `${count(changed, "job")} ${change.done}.`,
      ...(failed === 0 ? [] : [`${count(failed, "job")} could not be changed:`]),
      ...listed.flatMap((job) => ("error" in job ? [`  ${job.error.message}`] : [])),
      ...listed.flatMap((job) =>
        "state" in job && job.corrupt
          ? [
              `Job ${job.id}: the stored ${job.corrupt.join(" and ")} ${job.corrupt.length === 1 ? "does" : "do"} not match, so it will be quarantined again. ${CORRUPT_HINT}`,
            ]
          : [],
      ),
      ...(requested
        ? ["The signals of running jobs were aborted; these jobs end within the grace of their kind."]
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
  if (change.bulk === "promote") {
    const { found } = await engine.bulk("promote", filter, { dryRun: true, onProgress: (sums) => onJobs(sums.found) });
    return { found, more: false };
  }
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
