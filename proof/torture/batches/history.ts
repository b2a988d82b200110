// What the processes of the rig for batches say of themselves, each in an append-only file of its own: a line is there before anything follows from
// it, whatever kills the process next. Instants are of the monotonic clock that all processes of a machine share.
import { openSync, readdirSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";

export type Line =
  /** A submitter is about to submit this batch, or to go on with it. */
  | { readonly what: "ask"; readonly key: string }
  | { readonly what: "ack"; readonly key: string; readonly id: string; readonly rows: number }
  /** A row begins. */
  | { readonly what: "run"; readonly key: string; readonly n: number; readonly attempt: string }
  /** What a row or the end of a batch did outside of its store, where that has no transactions. */
  | { readonly what: "paid"; readonly key: string; readonly n: number }
  | { readonly what: "done"; readonly id: string; readonly round: number }
  /** The engine of a process says that it has ended this batch. */
  | { readonly what: "ended"; readonly id: string; readonly round: number };

export function instant(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000;
}

const folder = process.env["OUTLIVE_BATCH_HISTORIES"];
let file: number | undefined;

/** In the file of this process; nothing where the rig has named no folder. */
export function say(line: Line): void {
  if (folder === undefined) return;
  file ??= openSync(join(folder, `${process.pid}-${instant()}.jsonl`), "a");
  writeSync(file, `${JSON.stringify(line)}\n`);
}

/** All lines. The last line of a process that was killed may be cut off. */
export function readHistories(from: string): Line[] {
  return readdirSync(from)
    .filter((name) => name.endsWith(".jsonl"))
    .flatMap((name) => readFileSync(join(from, name), "utf8").split("\n"))
    .filter((line) => line.endsWith("}"))
    .map((line) => JSON.parse(line) as Line);
}
