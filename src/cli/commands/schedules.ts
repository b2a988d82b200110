// `outlive schedules`: what is planned, and what people do about it: preview, pause, resume, run, backfill, remove, prune.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Timing } from "../../job/schedules.ts";
import { humanMs } from "../../job/time.ts";
import type { Engine, ScheduleClient, ScheduleInfo } from "../../index.ts";
import type { By } from "../../job/audit.ts";
import { byOf, duration, wholeNumber, withBy } from "../context.ts";
import type { Register } from "../main.ts";
import { type Column, grid, type Pen } from "../terminal.ts";
import { oneLine, thousands } from "../words.ts";

interface Flags {
  readonly count?: number;
  readonly until?: number;
  readonly from?: string;
  readonly to?: string;
  readonly dryRun?: boolean;
}

/** What one action prints: a document, and its text. */
interface Output {
  readonly document: object;
  readonly text: string;
}

interface Call {
  readonly schedules: ScheduleClient;
  readonly name: string;
  readonly flags: Flags;
  readonly by: By;
  readonly pen: Pen;
}

export const schedulesCommand: Register = (program, run) => {
  const schedules = program
    .command("schedules")
    .argument("[action]", `list (default), prune, or with a name: ${NAMED.join(", ")}`)
    .argument("[name]", "the name of the schedule");
  withBy(schedules)
    .description("list, preview, pause, resume, run, backfill or remove schedules")
    .option("--count <number>", "preview: how many occurrences (default 5)", wholeNumber(1, 1_000))
    .option("--until <duration>", "pause: for how long (default: until it is resumed)", duration)
    .option("--from <instant>", "backfill: from this instant on, in ISO 8601")
    .option("--to <instant>", "backfill: up to this instant, in ISO 8601")
    .option("--dry-run", "prune: only list what would be removed")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [action = "list", name] = command.args as [string?, string?];
        const act = ACTIONS[action];
        if (!act || (NAMED.includes(action) && name === undefined))
          throw new OutliveError(
            ErrorCode.optionInvalid,
            act
              ? `outlive schedules ${action} needs the name of a schedule.`
              : `There is no action ${JSON.stringify(action)} of schedules.`,
            `Use list, prune, or ${NAMED.join(", ")} with a name: outlive schedules show nightly.`,
            { action },
          );
        const engine: Engine = await attach();
        const call = {
          schedules: engine.schedules,
          name: name ?? "",
          flags: command.opts<Flags>(),
          by: byOf(command),
          pen: terminal,
        };
        const { document, text } = await act(call);
        terminal.answer(document, () => text);
      }),
    );
};

const NAMED: readonly string[] = ["show", "preview", "pause", "resume", "run", "backfill", "remove"];

const ACTIONS: Readonly<Record<string, (call: Call) => Promise<Output>>> = {
  async list({ schedules, pen }) {
    const all = await schedules.list();
    return { document: { schedules: all }, text: scheduleLines(all, pen, Date.now()) };
  },

  async show({ schedules, name, pen }) {
    const found = await known(schedules, name);
    const jobs = await schedules.jobs(name, { limit: 10 });
    const lines = jobs.map(({ job, at, caughtUp }) => `  ${iso(at)}  ${job}${caughtUp ? "  caught up" : ""}`);
    const text = [scheduleLines([found], pen, Date.now()), ...policyLines(found), "", "Latest jobs:", ...lines];
    return { document: { schedule: found, jobs }, text: text.join("\n") };
  },

  async preview({ schedules, name, flags }) {
    const occurrences = await schedules.preview(name, flags.count ?? 5);
    const lines = occurrences.map(({ at, offset }) => `${iso(at)}  ${localTime(at, offset)} ${offset}`);
    return { document: { schedule: name, occurrences }, text: lines.join("\n") || "It has no further occurrence." };
  },

  async pause({ schedules, name, flags: { until }, by }) {
    await schedules.pause(name, { ...by, ...(until !== undefined && { until: `${until}ms` as const }) });
    const schedule = await known(schedules, name);
    const how = schedule.paused?.until ? `until ${iso(schedule.paused.until)}` : "until it is resumed";
    return { document: { schedule }, text: `The schedule ${name} is paused ${how}.` };
  },

  async resume({ schedules, name, by }) {
    await schedules.resume(name, by);
    return { document: { schedule: await known(schedules, name) }, text: `The schedule ${name} is resumed.` };
  },

  async run({ schedules, name, by }) {
    const { id } = await schedules.run(name, by);
    return { document: { schedule: name, job: id }, text: `Enqueued job ${id} of the schedule ${name}.` };
  },

  async backfill({ schedules, name, flags, by }) {
    const [from, to] = [instant(flags.from, "from"), instant(flags.to, "to")];
    const { count, created } = await schedules.backfill(name, from, to, by);
    const text = `${thousands(created)} of ${thousands(count)} occurrences were enqueued; the others had a job already.`;
    return { document: { schedule: name, count, created }, text };
  },

  async remove({ schedules, name, by }) {
    const removed = await schedules.remove(name, by);
    const text = removed ? `The schedule ${name} was removed. Its jobs stay.` : `There is no schedule ${name}.`;
    return { document: { schedule: name, removed }, text };
  },

  async prune({ schedules, flags: { dryRun = false }, by }) {
    const names = await schedules.prune({ dryRun, ...by });
    const would = dryRun ? "would be removed" : "were removed";
    const text = names.length === 0 ? "Every schedule is declared by a live worker, or was set at run time." : "";
    return { document: { removed: names, dryRun }, text: text || `${names.join(", ")} ${would}.` };
  },
};

async function known(schedules: ScheduleClient, name: string): Promise<ScheduleInfo> {
  const found = await schedules.get(name);
  if (found) return found;
  throw new OutliveError(
    ErrorCode.notFound,
    `There is no schedule ${JSON.stringify(name)}.`,
    "Check the name: outlive schedules lists them.",
    { schedule: name },
  );
}

/** One line for each schedule. */
export function scheduleLines(all: readonly ScheduleInfo[], pen: Pen, now: number): string {
  if (all.length === 0) return "There are no schedules.";
  const columns: readonly Column[] = [
    { title: "SCHEDULE", shrinkTo: 16 },
    { title: "KIND", shrinkTo: 12 },
    { title: "WHEN", shrinkTo: 16 },
    { title: "NEXT", align: "right" },
    { title: "FIRED", align: "right" },
    { title: "SKIPPED", align: "right" },
    { title: "STATE", shrinkTo: 20 },
  ];
  const rows = all.map((one) => [
    oneLine(one.name),
    oneLine(one.kind),
    timingText(one.timing),
    one.nextAt === null ? "-" : nextText(one.nextAt - now),
    thousands(one.fired),
    thousands(one.skipped.missed + one.skipped["too-old"] + one.skipped.overlap),
    stateText(one),
  ]);
  return grid(pen, columns, rows).join("\n");
}

function nextText(inMs: number): string {
  return inMs < 0 ? `due ${humanMs(-inMs)} ago` : `in ${humanMs(inMs)}`;
}

function stateText({ paused, declared, computed }: ScheduleInfo): string {
  if (paused)
    return `paused${paused.until ? ` until ${iso(paused.until)}` : ""}${paused.reason === "" ? "" : `: ${oneLine(paused.reason)}`}`;
  if (!declared) return computed ? "no live worker declares it: it does not fire" : "no live worker declares it";
  return "active";
}

export function timingText(timing: Timing): string {
  if ("cron" in timing) return `${timing.cron} ${timing.zone}`;
  return `every ${humanMs(timing.everyMs)}${timing.fromMs === 0 ? "" : ` + ${humanMs(timing.fromMs)}`}`;
}

function policyLines({ missed, withinMs, overlap, jitterMs, skipped }: ScheduleInfo): string[] {
  return [
    "",
    `missed: ${missed}, within ${humanMs(withinMs)}; overlap: ${overlap}; jitter: ${humanMs(jitterMs)}`,
    `skipped: ${skipped.missed} missed, ${skipped["too-old"]} too old, ${skipped.overlap} because the previous job had not ended`,
  ];
}

function instant(text: string | undefined, option: string): Date {
  const date = new Date(text ?? "");
  if (text !== undefined && !Number.isNaN(date.getTime())) return date;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `--${option} is ${text === undefined ? "missing" : JSON.stringify(text)}.`,
    "Use an ISO 8601 instant: 2026-03-28T00:00:00Z.",
    { option },
  );
}

function localTime(at: number, offset: string): string {
  const [, sign, hours, minutes] = /^([+-])(\d\d):?(\d\d)/.exec(offset) ?? [null, "+", "0", "0"];
  const shiftMs = (sign === "-" ? -1 : 1) * (Number(hours) * 60 + Number(minutes)) * 60_000;
  return new Date(at + shiftMs).toISOString().slice(0, 16).replace("T", " ");
}

function iso(at: number): string {
  return new Date(at).toISOString();
}
