// `outlive batches`, `batch ID`, `submit KIND FILE` and `abort ID`: what becomes of batches of rows.
import { Option } from "commander";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { BATCH_STATES, type BatchState } from "../../job/batches.ts";
import type { BatchInfo } from "../../index.ts";
import { humanMs } from "../../job/time.ts";
import { wholeNumber } from "../context.ts";
import type { Register } from "../main.ts";
import { grid, type Ink, type Terminal, watch } from "../terminal.ts";
import { ago, bytes, count, oneLine, orDash, stamp, thousands } from "../words.ts";

export const batchesCommand: Register = (program, run) => {
  program
    .command("batches")
    .description("batches of rows, the newest first")
    .option("--kind <kind>", "only of this kind")
    .addOption(new Option("--state <state>", "only in this state").choices(BATCH_STATES))
    .option("--limit <number>", "at most this many, 1 to 1000", wholeNumber(1, 1_000), 50)
    .option("--after <id>", "the last id of the page before")
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
        if (again === true && !terminal.json) return watch(terminal, async () => story(terminal, await read()));
        terminal.answer(batch, () => story(terminal, batch).join("\n"));
      }),
    );
  program
    .command("abort")
    .argument("<id>", "the batch's id")
    .description("end a batch: rows that have not begun are aborted, what has ended stays")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const state = await (await attach()).abortBatch(id);
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

const BAR = 30;

function story(terminal: Terminal, batch: BatchInfo): string[] {
  const { id, kind, key, state, round, rows, rate, endsInMs, outputs, createdAt, endedAt, why } = batch;
  const ended = rows.total - rows.left;
  const share = rows.total === 0 ? 1 : ended / rows.total;
  const bar = "█".repeat(Math.round(share * BAR)).padEnd(BAR, "░");
  const speed =
    rate === null ? "" : `, ${thousands(rate)} rows/s${endsInMs === null ? "" : `, ${humanMs(endsInMs)} left`}`;
  return [
    `${terminal.style("bold", `Batch ${id}`)} (${kind}) is ${terminal.style(INKS[state], state)}`,
    `  ${bar} ${Math.floor(share * 100)} % of ${count(rows.total, "row")}${speed}`,
    `  succeeded ${thousands(rows.succeeded)}, failed ${thousands(rows.failed)}, quarantined ${thousands(rows.quarantined)}, aborted ${thousands(rows.aborted)}, left ${thousands(rows.left)}`,
    `  key ${orDash(key)}, round ${round}, opened ${stamp(createdAt)}${endedAt === null ? "" : `, ended ${stamp(endedAt)}`}`,
    ...Object.entries(outputs).map(([file, { blob, bytes: size }]) => `  ${file}: ${bytes(size)} in ${blob}`),
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
