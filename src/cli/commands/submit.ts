// `outlive submit KIND FILE`: the rows of a file as a batch, made as a program makes it. The contract comes from the modules of the
// configuration: without it no row could be checked. What can be known to be wrong is known before a batch is opened.
import { createReadStream, type ReadStream, statSync } from "node:fs";
import { Option } from "commander";
import { isBatch } from "../../engine/batch.ts";
import { connect } from "../../engine/connect.ts";
import type { Engine } from "../../engine/engine.ts";
import type { BatchInfo, Submitted } from "../../index.ts";
import { doneDraft } from "../../job/batches.ts";
import { MAX_PRIORITY } from "../../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { isTerminal, type JobState } from "../../job/job.ts";
import { humanMs } from "../../job/time.ts";
import { byOf, jsonArgument, wholeNumber, withBy } from "../context.ts";
import type { Register } from "../main.ts";
import { allJobs } from "../supervisor/job-modules.ts";
import type { JobGlobs } from "../supervisor/child.ts";
import { ExitCode, progressLine, type Terminal, watch } from "../terminal.ts";
import { bar, count, thousands } from "../words.ts";
import { story } from "./batches.ts";

interface Flags {
  readonly format: "csv" | "ndjson";
  readonly key?: string;
  readonly context?: string;
  readonly priority?: number;
  readonly hold?: boolean;
  readonly wait?: boolean;
}

export const submitCommand: Register = (program, run) => {
  const command = program
    .command("submit")
    .argument("<kind>", "the kind of the batch, which a module of `jobs` exports")
    .argument("<file>", "its rows, or - to read them from stdin")
    .description("submit the rows of a file as a batch, and print its id")
    .addOption(new Option("--format <format>", "what the file is").choices(["csv", "ndjson"]).default("csv"))
    .option("--key <key>", "your own key: a killed submission continues with the same file and key")
    .option("--context <json>", "the same for all rows, as JSON (default: null)")
    .option("--priority <number>", "higher runs first (default 0)", wholeNumber(-MAX_PRIORITY, MAX_PRIORITY))
    .option("--hold", "start no row before the whole file is stored")
    .option("--wait", "wait until it has ended; exit code 1 if it failed or was aborted");
  withBy(command).action(
    run(async ({ terminal, attach, config, mayChange }, command) => {
      const [kind, file] = command.args as [string, string];
      const { format, context, wait = false, key, priority, hold } = command.opts<Flags>();
      const flags = {
        ...(key !== undefined && { key }),
        ...(priority !== undefined && { priority }),
        ...(hold !== undefined && { hold }),
      };
      mayChange("submit a batch");
      const given = context === undefined ? {} : { context: await jsonArgument(context, "The context", EXAMPLE) };
      const { jobs, store, engine: settings } = await config();
      const batch = await batchOf({ base: process.cwd(), patterns: jobs }, kind);
      const source = openSource(file);
      const rows = await begun((await import("../../files.ts"))[format](source.bytes));
      const startedAt = performance.now();
      const shown = shownProgress(terminal, source, startedAt);
      await using client = await connect(store, { ...settings, jobs: [batch] });
      const submitted = await client
        .submit(batch, rows as never, { ...flags, ...byOf(command), ...given, onProgress: shown.rows })
        .finally(shown.end);
      terminal.remark(summary(submitted, performance.now() - startedAt));
      if (!wait) return terminal.answer(submitted, () => submitted.id);
      terminal.line(submitted.id);
      const { batch: ended, done } = await followed(terminal, await attach(), submitted.id);
      if (terminal.json) terminal.answer({ ...submitted, batch: ended, done }, () => "");
      if (done !== "succeeded" && !terminal.json)
        terminal.remark(`Its done job is ${done}: outlive job ${doneDraft({ ...ended, priority: 0 }).id}`);
      return ended.state === "completed" && done === "succeeded" ? ExitCode.ok : ExitCode.failure;
    }),
  );
};

const EXAMPLE = `outlive submit KIND FILE --context '{"bank":"acme"}'`;

/** The batch of this name in the modules, by its own contract. */
async function batchOf(globs: JobGlobs, kind: string): Promise<never> {
  const all = await allJobs(globs);
  const found = all.find(({ name }) => name === kind);
  if (found && isBatch(found)) return found as never;
  const batches = all.filter(isBatch).map(({ name }) => name);
  const known = batches.length === 0 ? "They export no batch." : `They export the batches ${batches.join(", ")}.`;
  throw found
    ? new OutliveError(
        ErrorCode.optionInvalid,
        `${kind} is a job, not a batch.`,
        `Nothing was submitted. Use outlive enqueue ${kind} JSON for one job. ${known}`,
        { kind, batches },
      )
    : new OutliveError(
        ErrorCode.kindUnknown,
        `No module of ${globs.patterns.join(", ")} exports a batch named ${JSON.stringify(kind)}.`,
        `Nothing was submitted. ${known} Name the modules in \`jobs\` of the configuration, or in OUTLIVE_JOBS.`,
        { kind, batches, globs: globs.patterns },
      );
}

interface Source {
  readonly bytes: NodeJS.ReadStream | ReadStream;
  /** Null: not known, as of a pipe. */
  readonly size: number | null;
}

function openSource(file: string): Source {
  if (file === "-") return { bytes: process.stdin, size: null };
  const stat = statSync(file, { throwIfNoEntry: false });
  if (stat && !stat.isDirectory()) return { bytes: createReadStream(file), size: stat.isFile() ? stat.size : null };
  throw new OutliveError(
    ErrorCode.fileUnreadable,
    stat ? `${file} is a folder, not a file of rows.` : `There is no file ${file}.`,
    "Nothing was submitted. Check the path; - reads from stdin.",
    { file },
  );
}

interface Chunks {
  readonly name: string;
  chunks(): AsyncIterable<readonly object[]>;
}

/** The same rows, of which the first were read: a package that is missing, or a file that can't be read, opens no batch. */
async function begun(rows: Chunks): Promise<Chunks> {
  const reading = rows.chunks()[Symbol.asyncIterator]();
  const first = await reading.next();
  return Object.assign(Object.create(rows) as Chunks, {
    name: rows.name,
    async *chunks() {
      if (first.done) return;
      yield first.value;
      yield* { [Symbol.asyncIterator]: () => reading };
    },
  });
}

/** On a terminal a bar, redrawn in place; without one a line a second. */
function shownProgress(
  terminal: Terminal,
  { bytes, size }: Source,
  startedAt: number,
): { readonly rows: (rows: number) => void; readonly end: () => void } {
  const line = progressLine(terminal);
  return {
    rows: (rows) =>
      line.show(() => {
        const rate = Math.round((rows * 1_000) / Math.max(1, performance.now() - startedAt));
        const read = "bytesRead" in bytes && size ? `${bar(Math.min(1, bytes.bytesRead / size))} ` : "";
        return `${read}${count(rows, "row")} in, ${thousands(rate)} rows/s`;
      }),
    end: () => line.end(),
  };
}

function summary({ rows, alreadyThere, created }: Submitted, tookMs: number): string {
  const there = created ? "" : `; a batch with this key existed, with ${count(alreadyThere, "row")}`;
  return `${count(rows, "row")} in ${humanMs(tookMs)}${there}.`;
}

/** Until the batch has ended and what follows its end has, too: only then its files are known. */
async function followed(
  terminal: Terminal,
  engine: Engine,
  id: string,
): Promise<{ readonly batch: BatchInfo; readonly done: JobState }> {
  let last: { readonly batch: BatchInfo; readonly done: JobState } | undefined;
  await watch(
    terminal,
    async (_size, end) => {
      const batch = (await engine.batch(id))!;
      const done = batch.endedAt === null ? null : await engine.get(doneDraft({ ...batch, priority: 0 }).id);
      last = { batch, done: done?.state ?? "queued" };
      if (done && isTerminal(done.state)) end();
      return terminal.json ? [] : story(terminal, batch);
    },
    { onlyLast: !terminal.isTty },
  );
  return last!;
}
