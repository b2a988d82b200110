// `outlive batches`, `batch ID` and `abort ID`: what becomes of batches of rows.
import { Option } from "commander";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { BATCH_STATES, type BatchState, isFilling, roundId } from "../../job/batches.ts";
import type { Engine } from "../../engine/engine.ts";
import type { Explanation } from "../../engine/why.ts";
import type { BatchInfo } from "../../index.ts";
import type { JobInfo } from "../../job/job.ts";
import { FAIR } from "../../job/limits.ts";
import { pageOfJobs } from "../lookup.ts";
import { humanBytes } from "../../job/text.ts";
import { humanMs } from "../../job/time.ts";
import { byOf, wholeNumber, withBy } from "../context.ts";
import type { Register } from "../main.ts";
import { grid, type Ink, type Pen, type Terminal, watch } from "../terminal.ts";
import { ago, bar, count, oneLine, orDash, printable, stamp, thousands } from "../words.ts";

export const batchesCommand: Register = (program, run) => {
  program
    .command("batches")
    .description("batches of rows, newest first")
    .option("--kind <kind>", "only of this kind")
    .addOption(new Option("--state <state>", "only in this state").choices(BATCH_STATES))
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <id>", "the last id of the previous page")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ kind?: string; state?: BatchState; limit: number; after?: string }>();
        const batches = await (await attach()).batches(flags);
        terminal.answer({ batches }, () => (batches.length === 0 ? "There are no batches." : table(terminal, batches)));
      }),
    );
  program
    .command("batch")
    .argument("<id>", "the batch's id")
    .description("one batch: its rows, its speed, its files, and why it has not ended")
    .option("--failures", "print the failed rows as CSV: line, state, error, input")
    .option("--watch", "print it again every second until it has ended")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const { failures, watch: again } = command.opts<{ failures?: boolean; watch?: boolean }>();
        const engine = await attach();
        const read = async (): Promise<BatchInfo> => {
          const batch = await engine.batch(id);
          if (batch) return batch;
          throw noSuchBatch(id);
        };
        const batch = await read();
        if (failures === true) {
          if (terminal.json) {
            const rows = [];
            for await (const row of engine.batchRows(id, { failed: true })) rows.push(row);
            return terminal.answer({ batch: id, rows }, () => "");
          }
          terminal.line("line,state,error,input");
          for await (const { line, state, error, input } of engine.batchRows(id, { failed: true }))
            terminal.line([line, state, csvField(error?.message ?? ""), csvField(JSON.stringify(input))].join(","));
          return;
        }
        if (again === true && !terminal.json)
          return watch(terminal, async (_size, end) => {
            const now = await read();
            if (now.endedAt !== null) end();
            return story(terminal, now);
          });
        terminal.answer(batch, () => story(terminal, batch).join("\n"));
      }),
    );
  withBy(program.command("abort").argument("<id>", "the batch's id"))
    .description("end a batch: abort the rows that have not begun, keep those that have ended")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const state = await (await attach()).abortBatch(id, byOf(command));
        terminal.answer({ batch: id, state }, () =>
          state === "aborting"
            ? `Batch ${id} is being aborted: running blocks were asked to end. See it: outlive batch ${id}`
            : `Batch ${id} is ${state}.`,
        );
      }),
    );
};

export function noSuchBatch(id: string): OutliveError {
  return new OutliveError(ErrorCode.notFound, `There is no batch ${id}.`, "Check the id: outlive batches", {
    batch: id,
  });
}

const INKS: Readonly<Record<BatchState, Ink>> = {
  open: "cyan",
  sealed: "cyan",
  aborting: "yellow",
  completed: "green",
  failed: "red",
  aborted: "yellow",
};

function table(terminal: Terminal, batches: readonly BatchInfo[]): string {
  const columns = [
    { title: "ID" },
    { title: "KIND", shrinkTo: 8 },
    { title: "STATE" },
    { title: "ROWS", align: "right" as const },
    { title: "LEFT", align: "right" as const },
    { title: "FAILED", align: "right" as const },
    { title: "OPENED", align: "right" as const },
  ];
  const rows = batches.map(({ id, kind, state, rows: { total, left, failed, quarantined }, createdAt }) => [
    id,
    kind,
    { text: state, ink: INKS[state] },
    thousands(total),
    thousands(left),
    thousands(failed + quarantined),
    ago(Date.now() - createdAt),
  ]);
  return grid(terminal, columns, rows).join("\n");
}

export function story(terminal: Terminal, batch: BatchInfo): string[] {
  const { id, kind, key, state, round, rows, rate, endsInMs, outputs, createdAt, endedAt, why } = batch;
  const ended = rows.total - rows.left;
  const share = rows.total === 0 ? 1 : ended / rows.total;
  const speed =
    rate === null ? "" : `, ${thousands(rate)} rows/s${endsInMs === null ? "" : `, ${humanMs(endsInMs)} left`}`;
  return [
    `${terminal.style("bold", `Batch ${id}`)} (${kind}) is ${terminal.style(INKS[state], state)}`,
    `  ${bar(share)} ${Math.floor(share * 100)} % of ${count(rows.total, "row")}${speed}`,
    `  succeeded ${thousands(rows.succeeded)}, failed ${thousands(rows.failed)}, quarantined ${thousands(rows.quarantined)}, aborted ${thousands(rows.aborted)}, left ${thousands(rows.left)}`,
    `  key ${orDash(key)}, round ${round}, opened ${stamp(createdAt)}${endedAt === null ? "" : `, ended ${stamp(endedAt)}`}`,
    ...Object.entries(outputs).map(([file, { blob, bytes: size }]) => `  ${file}: ${humanBytes(size)} in ${blob}`),
    ...(why === null ? [] : [`  ${oneLine(why)}`]),
    ...(rows.failed + rows.quarantined > 0
      ? [`${terminal.style("cyan", "Next:")} outlive batch ${id} --failures; then outlive retry --batch ${id}`]
      : []),
  ];
}

/** A field that a spreadsheet reads as text: one that begins like a formula is quoted, too. */
function csvField(text: string): string {
  return `"${text.replaceAll('"', '""').replace(/^[=+\-@]/, "'$&")}"`;
}

// Why a batch has not ended: what its blocks wait for.

/** Why a batch has not ended. `outlive why --json`. */
interface BatchExplanation {
  readonly batch: string;
  readonly kind: string;
  readonly state: BatchInfo["state"];
  readonly text: string;
  /** What its unfinished blocks wait for, and how many of them. At least: a long list is not read to its end. */
  readonly blocks: readonly { readonly what: string; readonly count: number }[];
  readonly blocksAreAll: boolean;
  /** Why one of them, the oldest, does not run, or how it runs; null: there is none. */
  readonly first: Explanation | null;
  readonly next: string;
}

const BLOCKS_COUNTED = 1_000;

/** Null: there is no such batch. */
export async function explainBatch(engine: Engine, id: string): Promise<BatchExplanation | null> {
  const info = await engine.batch(id).catch(() => null);
  if (!info) return null;
  const { kind, state, why, rows } = info;
  const pages =
    why === null
      ? []
      : await Promise.all(
          (["running", "queued"] as const).map((of) =>
            pageOfJobs(engine, { kind, state: of, text: `${id}:` }, BLOCKS_COUNTED, null),
          ),
        );
  const blocks = pages.flatMap(({ jobs }) => jobs);
  const groups = Map.groupBy(blocks, (block) => blockWaitsFor(block, Date.now()));
  const oldest = blocks.filter((block) => block.state === "queued").at(-1) ?? blocks.at(-1);
  const first = oldest ? await engine.why(oldest.id) : null;
  const failed = rows.failed + rows.quarantined;
  return {
    batch: id,
    kind,
    state,
    text: why === null ? "It has ended." : `It has not ended: ${why}.`,
    blocks: [...groups].map(([what, of]) => ({ what, count: of.length })),
    blocksAreAll: pages.every(({ next }) => next === null),
    first,
    next:
      why === null
        ? failed > 0
          ? `outlive batch ${id} --failures; outlive retry --batch ${id}`
          : ""
        : isFilling(info)
          ? `See why that job has not ended: outlive why ${roundId(id, info.round)}. To leave the rows failed: outlive abort ${id}`
          : state === "open"
            ? "Append and seal it, submit its source again with the same key, or abort it: outlive abort " + id
            : (first?.next ?? ""),
  };
}

/** Far beyond any retry: the block of a batch that is held until it is sealed. */
const HELD_MS = 3_650 * 86_400_000;

function blockWaitsFor({ state, heldBy, runAt }: JobInfo, now: number): string {
  if (state === "running") return "run";
  // Blocks of one kind take turns: that they wait for theirs is not the reason.
  if (heldBy !== null && heldBy.limit !== FAIR) return `wait for room in the limit ${printable(heldBy.limit)}`;
  if (runAt === null || runAt <= now) return "wait for a worker";
  return runAt - now > HELD_MS ? "are held until the batch is sealed" : "wait for the time of their retry";
}

export function batchLines(
  { batch, kind, state, text, blocks, blocksAreAll, first, next }: BatchExplanation,
  pen: Pen,
): string[] {
  const atLeast = blocksAreAll ? "" : "at least ";
  return [
    `${pen.style("bold", `Batch ${batch}`)} (${kind}) is ${state}. ${text}`,
    ...blocks.map(
      ({ what, count: many }) => `  ${atLeast}${count(many, "block")} ${many === 1 ? singular(what) : what}`,
    ),
    ...(first
      ? [`  ${first.state === "running" ? "The oldest that runs" : "The next"}, ${first.jobId}: ${oneLine(first.text)}`]
      : []),
    ...(next === "" ? [] : [`${pen.style("cyan", "Next:")} ${next}`]),
  ];
}

function singular(what: string): string {
  return what.replace(/^(run|wait)\b/, "$1s").replace(/^are/, "is");
}
