// Jobs as people read them: `outlive job ID`, one job whole; `outlive why ID`, why it is not running; `outlive jobs`, pages of them.
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { type Counters, JOB_STATES, type JobDetails, type JobInfo, type JobState } from "../../job/job.ts";
import { throttleSettings } from "../../job/limits.ts";
import { shownInput } from "../../job/requests.ts";
import { shellWord } from "../../job/text.ts";
import { humanMs, isoInstant } from "../../job/time.ts";
import { awaitedAt } from "../../job/waits.ts";
import { noSuchJob, assertKindIsThere, batchOfJob, pageOfJobs, wholeId } from "../lookup.ts";
import type { Register } from "../main.ts";
import { type Cell, grid, type Ink, type Pen, watch, type Column, jsonText, type Terminal, wrap } from "../terminal.ts";
import { ago, count, oneLine, printable, stamp, timeOfDay } from "../words.ts";
import { batchLines, explainBatch } from "./batches.ts";
import type { Explanation } from "../../engine/why.ts";
import type { ListPage } from "../../stores/port.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";

export const jobCommand: Register = (program, run) => {
  program
    .command("job")
    .argument("<id>", "the job's id, or a unique prefix of it")
    .description("everything about one job: attempts, workers, steps, errors, incidents, log")
    .option("--full", "shorten nothing: input, result, stack and every entry")
    .action(
      run(async ({ terminal, attach }, command) => {
        const { full = false } = command.opts<{ full?: boolean }>();
        const engine = await attach();
        const id = await wholeId(engine, command.args[0]!);
        const job = await engine.get(id);
        if (!job) throw noSuchJob(id);
        const batch = (await batchOfJob(engine, id, job.kind))?.id ?? null;
        const input = full ? job.input : shownInput(job.kind, job.input);
        const whole = { ...job, input, children: await childrenOf(engine, id), batch };
        terminal.answer(whole, () => storyLines(whole, terminal, Date.now(), full).join("\n").trimEnd());
      }),
    );
};

/** The jobs that a job enqueued with `run.enqueue`. */
export interface Children {
  readonly count: number;
  /** There are more than were counted. */
  readonly more: boolean;
  readonly states: Readonly<Partial<Record<JobState, number>>>;
  /** The newest few. */
  readonly ids: readonly string[];
}

/** A job, and what it enqueued. `outlive job --json`. */
export type WholeJob = JobDetails & {
  readonly children: Children;
  /** The batch whose block it is; null: it is not a block. */
  readonly batch: string | null;
};

const CHILDREN_COUNTED = 1_000;
const CHILDREN_SHOWN = 3;

async function childrenOf(engine: Engine, parent: string): Promise<Children> {
  const { jobs, next } = await engine.list({ parent, limit: CHILDREN_COUNTED });
  const byState = Map.groupBy(jobs, ({ state }) => state);
  const states = JOB_STATES.flatMap((state) => (byState.has(state) ? [[state, byState.get(state)!.length]] : []));
  return {
    count: jobs.length,
    more: next !== null,
    states: Object.fromEntries(states) as Children["states"],
    ids: jobs.slice(0, CHILDREN_SHOWN).map(({ id }) => id),
  };
}

// `outlive why ID`: why a job is not running, or how it runs, and what to do next; and why a batch has not ended.

export const whyCommand: Register = (program, run) => {
  program
    .command("why")
    .argument("<id>", "the id of a job or a batch")
    .description("why a job is not running, or why a batch has not ended, and what to do next")
    .action(
      run(async ({ terminal, attach }, command) => {
        const engine = await attach();
        const id = await wholeId(engine, command.args[0]!);
        const explanation = await engine.why(id);
        if (!explanation) {
          const batch = await explainBatch(engine, id);
          if (batch) return terminal.answer(batch, () => batchLines(batch, terminal).join("\n"));
          const hint = "Check the id: outlive jobs, outlive batches";
          throw new OutliveError(ErrorCode.notFound, `There is no job or batch ${id}.`, hint, { jobId: id });
        }
        terminal.answer(explanation, () => whyLines(explanation, terminal).join("\n"));
      }),
    );
};

/** Pure. */
export function whyLines({ jobId, kind, state, because, text, next }: Explanation, pen: Pen): string[] {
  const width = pen.isTty ? pen.columns - 1 : Number.POSITIVE_INFINITY;
  // In these the sentence that follows says it all.
  const cause = because === state || because === "finished" ? "" : `: ${because}`;
  return [
    `${pen.style("bold", `Job ${printable(jobId)}`)} (${kind}) is ${state}${cause}`,
    ...printable(text)
      .split("\n")
      .flatMap((line) => wrap(line, width)),
    ...(next === "" ? [] : [`${pen.style("cyan", "Next:")} ${next}`]),
  ];
}

// The whole story of one job as text: what it is, what it was given, and everything that happened to it in the order in which it
// happened. Pure.

/** Characters of an input, a result or a message, and lines of the story, unless --full is set. */
const SHORT = 200;
const STORY = 40;

export function storyLines(job: WholeJob, pen: Pen, now: number, full = false): string[] {
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
    ...attemptLines(job, pen, full),
    ...timeline(job, pen, full),
    "",
    ...nextOf(job, pen),
  ];
}

function corruptText({ corrupt }: JobDetails): string {
  const names = corrupt.map((name) => printable(name)).join(", ");
  return `corrupt: ${names}. This is not what was stored: the store was damaged. Do not trust it.`;
}

function factsOf(job: WholeJob, now: number, full: boolean): (readonly [string, string])[] {
  const instants: readonly (readonly [string, number | null])[] = [
    ["enqueued", job.createdAt],
    ["due", job.waitsAt === null ? job.runAt : null],
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
    ...(job.batch === null ? [] : [["block of", `batch ${job.batch} (outlive batch ${job.batch})`] as const]),
    ...(job.parent === null
      ? []
      : [["parent", `${printable(job.parent)} (outlive job ${shellWord(job.parent)})`] as const]),
    ...(job.waitsAt === null ? [] : [["waiting", waitingText(job, job.waitsAt, now).replace(/^waits /, "")] as const]),
    ...(job.keys.length === 0 ? [] : [["limits", keysText(job)] as const]),
    ...(job.heldBy === null ? [] : [["held by", heldText(job.heldBy)] as const]),
    ...(job.children.count === 0 ? [] : [["children", childrenText(job.children)] as const]),
    ...(job.worker === null ? [] : [["worker", job.worker] as const]),
    ...(job.cancelRequested ? [["cancel", "requested"] as const] : []),
    ...(job.error
      ? [
          [
            "last error",
            error ? printable(error) : oneLine(`${job.error.name}: ${job.error.message}`, full ? undefined : SHORT),
          ] as const,
        ]
      : []),
    ["input", json(job.input, full)],
    ...(job.progress === null ? [] : [["progress", json(job.progress, full)] as const]),
    ...(job.state === "succeeded" || job.result !== null ? [["result", json(job.result, full)] as const] : []),
  ];
}

/** "sleeps for 3h", "waits for signal approved, for at most 2h". */
export function waitingText({ runAt }: JobInfo, step: string, now: number): string {
  const left = runAt === null ? null : humanMs(Math.max(0, runAt - now));
  const awaited = awaitedAt(step);
  if (awaited.type === "sleep") return `sleeps${left === null ? "" : ` for ${left}`}`;
  const what = awaited.type === "signal" ? `signal ${printable(awaited.name)}` : "jobs";
  return `waits for ${what}${left === null ? "" : `, for at most ${left}`}`;
}

type Key = JobInfo["keys"][number];

/** "limit tenant acme". The key of a limit without keys is "*". */
export function heldText(key: Key & { readonly turn?: true }): string {
  if (key.turn) return `its turn, ${keyText(key)}`;
  return `${throttleSettings(key.limit) === null ? "limit " : ""}${keyText(key)}`;
}

function keysText({ keys }: JobInfo): string {
  return keys.map(keyText).join(", ");
}

function keyText({ limit, key }: Key): string {
  const throttle = throttleSettings(limit);
  if (throttle) return `throttle ${printable(key)}, every ${humanMs(throttle.intervalMs!)}`;
  return key === "*" ? limit : `${limit} ${printable(key)}`;
}

function childrenText({ count: total, more, states, ids }: Children): string {
  const shown = [...ids.map((id) => printable(id)), ...(total > ids.length ? ["..."] : [])];
  const byState = Object.entries(states).map(([state, n]) => `${n} ${state}`);
  return `${more ? "more than " : ""}${total}: ${byState.join(", ")}\n${shown.join("\n")}`;
}

function instantText(at: number, now: number): string {
  return `${stamp(at)}  (${at > now ? `in ${humanMs(at - now)}` : ago(now - at)})`;
}

function attemptsText({ attempt, counters, lastOutcome, state }: JobDetails): string {
  const names: readonly (readonly [keyof Counters, string, string])[] = [
    ["errors", "error", "errors"],
    ["timeouts", "timeout", "timeouts"],
    ["crashes", "crash", "crashes"],
    ["blamed", "crash while alone", "crashes while alone"],
    ["interruptions", "interruption", "interruptions"],
  ];
  const ended = names.flatMap(([name, one, many]) => (counters[name] === 0 ? [] : [count(counters[name], one, many)]));
  const last = lastOutcome === null ? [] : [`${state === "running" ? "previous" : "last"} outcome: ${lastOutcome}`];
  return [String(attempt), ...ended, ...last].join(", ");
}

function json(value: unknown, full: boolean): string {
  const text = JSON.stringify(value, null, full ? 2 : undefined) ?? "undefined";
  return full ? printable(text) : oneLine(text, SHORT);
}

/** How an attempt ended, by the name of the change that ended it. */
const ENDED_BY: Readonly<Partial<Record<string, string>>> = {
  fail: "failed",
  timeOut: "timed out",
  crash: "its worker died",
  lose: "contact lost",
  release: "released at no cost",
  wait: "began to wait",
  endCancelled: "cancelled",
  refuse: "refused",
  quarantine: "quarantined",
};

interface AttemptLine {
  readonly attempt: number;
  readonly startedAt: number | null;
  readonly endedAt: number | null;
  readonly owner: string | null;
  readonly outcome: string;
  readonly ink: Ink;
}

/** One line for each attempt. Successes write no history: the latest attempt is known from the job, an earlier one from its retry by hand. */
function attemptsOf(job: JobDetails): AttemptLine[] {
  const ended = job.history.flatMap(({ event, from, to, at, attempt, startedAt, owner, actor }): AttemptLine[] => {
    const redone = event === "retry" && from === "succeeded";
    if (attempt === 0 || (from !== "running" && !redone) || from === to) return [];
    const outcome = redone ? "succeeded" : (ENDED_BY[event] ?? event);
    const worker = owner ?? (actor.startsWith("worker/") ? actor.slice("worker/".length) : null);
    return [
      {
        attempt,
        startedAt,
        endedAt: redone ? null : at,
        owner: worker,
        outcome: to === "queued" || redone || outcome === to ? outcome : `${outcome}, ${to}`,
        ink: redone ? "green" : to === "queued" ? "yellow" : "red",
      },
    ];
  });
  const { attempt, startedAt, finishedAt, worker: owner, state } = job;
  if (state === "running") ended.push({ attempt, startedAt, endedAt: null, owner, outcome: state, ink: "cyan" });
  if (state === "succeeded")
    ended.push({ attempt, startedAt, endedAt: finishedAt, owner, outcome: state, ink: "green" });
  return [...new Map(ended.map((line) => [line.attempt, line])).values()].sort((a, b) => a.attempt - b.attempt);
}

/** Attempts shown, unless --full is set. */
const ATTEMPTS_SHOWN = 20;

function attemptLines(job: JobDetails, pen: Pen, full: boolean): string[] {
  const all = attemptsOf(job);
  if (all.length === 0) return [];
  const shown = full ? all : all.slice(-ATTEMPTS_SHOWN);
  const day = dayOf(job);
  const instant = (at: number | null): string => (at === null ? "-" : full ? isoInstant(at) : timeOf(at, day));
  const rows = shown.map(({ attempt, startedAt, endedAt, outcome, ink, owner }): Cell[] => [
    attempt,
    instant(startedAt),
    instant(endedAt),
    { text: outcome, ink },
    owner === null ? "-" : printable(owner),
  ]);
  const columns = [
    { title: "ATTEMPT", align: "right" as const },
    { title: full ? "STARTED" : "STARTED (UTC)" },
    { title: "ENDED" },
    { title: "OUTCOME" },
    { title: "WORKER", ...(full ? {} : { shrinkTo: 12 }) },
  ];
  const left = all.length - shown.length;
  return [
    ...(left > 0 ? [pen.style("dim", `… ${count(left, "earlier attempt")}: --full shows all`)] : []),
    ...grid(pen, columns, rows),
    "",
  ];
}

/** The day of all that happened to it; null: it took several days. */
function dayOf(job: JobDetails): string | null {
  const instants = [
    job.createdAt,
    ...[job.startedAt, job.finishedAt].filter((at) => at !== null),
    ...[...job.steps, ...job.log, ...job.history].map(({ at }) => at),
  ];
  const days = new Set(instants.map((at) => stamp(at).slice(0, 10)));
  return days.size === 1 ? [...days][0]! : null;
}

/** The day only where it is not shown above. */
function timeOf(at: number, day: string | null): string {
  return day === null ? `${stamp(at).slice(5, 10)} ${timeOfDay(at)}` : timeOfDay(at);
}

interface Happening {
  readonly at: number;
  readonly attempt: number;
  readonly what: string;
  readonly ink: Ink | null;
  readonly text: string;
}

/** Steps, log and history in one order. */
function timeline(job: JobDetails, pen: Pen, full: boolean): string[] {
  const happening = (at: number, attempt: number, what: string, text: string, ink: Ink | null = null): Happening => ({
    at,
    attempt,
    what,
    text,
    ink,
  });
  const all = [
    happening(job.createdAt, 0, "enqueued", ""),
    ...job.steps.map(({ at, attempt, name, result }) =>
      happening(
        at,
        attempt,
        "step",
        `${name}${result === null ? "" : ` = ${JSON.stringify(result)}`}`,
        job.corrupt.includes(`step ${name}`) ? "red" : "cyan",
      ),
    ),
    ...job.log.map(({ at, attempt, message }) => happening(at, attempt, "log", message)),
    ...job.history.map(({ at, attempt, event, to, actor, reason, incident }) =>
      happening(
        at,
        attempt,
        event,
        `${to}: ${reason} (${actor}${incident === null ? "" : `, incident ${incident}`})`,
        to === "queued" ? "yellow" : "red",
      ),
    ),
  ].sort((a, b) => a.at - b.at);
  const shown = full ? all : all.slice(-STORY);
  const day = dayOf(job);
  const rows = shown.map(({ at, attempt, what, text, ink }): Cell[] => [
    timeOf(at, day),
    attempt === 0 ? "" : attempt,
    ink === null ? what : { text: what, ink },
    oneLine(text, full ? undefined : SHORT),
  ]);
  const columns = [
    { title: day === null ? "UTC" : `${day} UTC` },
    { title: "ATTEMPT", align: "right" as const },
    { title: "WHAT" },
    { title: "", shrinkTo: 20, wraps: true as const },
  ];
  const left = all.length - shown.length;
  return [
    ...(left > 0 ? [pen.style("dim", `… ${count(left, "earlier entry", "earlier entries")}: --full shows all`)] : []),
    ...grid(pen, columns, rows),
  ];
}

function nextOf(job: WholeJob, pen: Pen): string[] {
  const incident = job.history.findLast((entry) => entry.incident !== null)?.incident;
  const awaited = job.waitsAt === null ? null : awaitedAt(job.waitsAt);
  const commands = [
    ...(job.state === "succeeded" ? [] : [`outlive why ${job.id}`]),
    ...(awaited?.type === "signal" ? [`outlive signal ${shellWord(job.id)} ${shellWord(awaited.name)}`] : []),
    ...(job.corrupt.length === 0 ? [] : ["outlive check --integrity"]),
    ...(job.state === "quarantined" && job.corrupt.length === 0 ? [`outlive quarantine release ${job.id}`] : []),
    ...(job.state === "dead" || job.state === "cancelled" ? [`outlive retry ${job.id}`] : []),
    ...(job.state === "queued" || job.state === "running" ? [`outlive cancel ${job.id}`] : []),
    ...(job.children.count === 0 ? [] : [`outlive jobs --parent ${shellWord(job.id)}`]),
    ...(incident === undefined || incident === null ? [] : [`outlive incident ${incident}`]),
  ];
  return commands.map((command, i) => `${i === 0 ? pen.style("cyan", "Next:") : "     "} ${command}`);
}

// `outlive jobs`: jobs by pages, newest first, filtered.

interface JobsFlags extends FilterFlags {
  readonly limit: number;
  readonly after?: string;
  readonly parent?: string;
  readonly watch?: boolean;
}

export const jobsCommand: Register = (program, run) => {
  withFilters(program.command("jobs").description("list jobs, newest first"))
    .option("--parent <id>", "only jobs that this job enqueued")
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <cursor>", "`next` of the previous page")
    .option("--watch", "refresh every second, until q or Ctrl-C")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<JobsFlags>();
        const engine = await attach();
        if (flags.watch !== true) {
          const page = await pageOf(engine, flags, flags.limit);
          terminal.answer(page, () => pageLines(page, flags, terminal).join("\n"));
          return;
        }
        await watch(terminal, async ({ columns, rows }) => {
          const page = await pageOf(engine, flags, Math.max(1, Math.min(flags.limit, rows - 1)));
          return terminal.json ? [jsonText(page)] : tableOf(page, { ...terminal, columns });
        });
      }),
    );
};

async function pageOf(engine: Engine, flags: JobsFlags, limit: number): Promise<ListPage> {
  const { parent } = flags;
  const filter = { ...filterOf(flags, Date.now()), ...(parent !== undefined && { parent }) };
  const page = await pageOfJobs(engine, filter, limit, flags.after ?? null);
  if (page.jobs.length > 0) return page;
  await assertKindIsThere(engine, flags.kind);
  if (parent !== undefined && !(await engine.get(parent))) throw noSuchJob(parent);
  return page;
}

function pageLines(page: ListPage, flags: JobsFlags, terminal: Terminal): string[] {
  const lines = tableOf(page, terminal);
  if (page.next === null) return lines;
  const more = page.jobs.length < flags.limit ? "Not all were searched yet" : "There are more";
  return [...lines, "", terminal.style("dim", `${more}: ${sameAgain(flags, page.next)}`)];
}

function tableOf({ jobs, next }: ListPage, terminal: Terminal): string[] {
  if (jobs.length > 0) return jobLines(jobs, terminal, Date.now());
  return [next === null ? "No such jobs." : "None so far."];
}

function sameAgain(flags: JobsFlags, after: string): string {
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
      return `${overdue}${since}in ${job.worker ?? "?"}${job.cancelRequested ? ", cancel requested" : ""}`;
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
