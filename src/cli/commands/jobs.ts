// `outlive jobs`: jobs by pages, newest first, filtered.
import type { Engine } from "../../engine.ts";
import type { ListPage } from "../../core/store.ts";
import { type FilterFlags, filterOf, wholeNumber, withFilters } from "../flags.ts";
import { assertKindIsThere, pageOfJobs } from "../job-pages.ts";
import { watch } from "../live-view.ts";
import type { Register } from "../main.ts";
import { jsonText, type Terminal } from "../terminal.ts";
import { jobLines } from "../views/jobs.ts";
import { shellWord } from "../words.ts";

interface Flags extends FilterFlags {
  readonly limit: number;
  readonly after?: string;
  readonly watch?: boolean;
}

export const register: Register = (program, run) => {
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
