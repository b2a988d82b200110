// `outlive jobs`: jobs by pages, newest first, filtered.
import type { Engine } from "../../engine/engine.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { ListPage } from "../../stores/port.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../context.ts";
import { watch } from "../live-view.ts";
import { assertKindIsThere, noSuchJob, pageOfJobs } from "../lookup.ts";
import type { Register } from "../main.ts";
import { jsonText, printable, type Terminal } from "../terminal.ts";
import { jobLines, storyLines } from "../views/jobs.ts";
import { shellWord } from "../words.ts";

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
