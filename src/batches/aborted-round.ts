// A later round that is aborted while the failed rows of the round before are added to it: the rest of them is added as failed, with the errors that they
// have, and the round is sealed. So a row that failed is in every later round, and the sums of the batch say what became of it.
import { type BatchRow, isFilling } from "../job/batches.ts";
import { BlockCutter, type CuttableKind, FailedBefore } from "../job/block-cutter.ts";
import { FAIR, jobKey } from "../job/limits.ts";
import type { Batches } from "../stores/batches.ts";
import { failedRowsOf } from "./rows.ts";

/** What one transaction appends. Each row comes with its error, of up to 24,000 characters. */
const BLOCKS_PER_APPEND = 40;
const ROWS_PER_APPEND = 2_000;

/** A row of which nothing more is known has failed all the same. */
const UNKNOWN = { name: "Error", message: "the row failed; why is not known" };

/** Cuts rows that have failed: what a kind says about rows that run does not matter. */
const NOT_RUN: CuttableKind = {
  name: "",
  row: null,
  kinds: { block: { keysOf: null, fairOf: (batch: string) => jobKey(FAIR, batch) } },
};

/** Any process may call it, several at once, and again: each goes on where the batch is. */
export async function failRest(batches: Batches, id: string): Promise<void> {
  for (;;) {
    const [batch] = await batches.get([id]);
    if (!batch || batch.state !== "aborting" || !isFilling(batch)) return;
    if (await appendRest(batches, batch)) await batches.seal(id, batch.round);
  }
}

/** Returns false if another process was quicker. The rows that are there are the first ones that failed: they are added in their order. */
async function appendRest(batches: Batches, batch: BatchRow): Promise<boolean> {
  const { id, round, rows, blocks } = batch;
  const cutter = new BlockCutter(NOT_RUN, batch, { number: blocks, line: 0, there: 0 });
  const append = async (): Promise<boolean> =>
    cutter.waiting === 0 || (await batches.append(id, round, cutter.take(), true)).is === "appended";
  const atOnce = Math.max(1, Math.min(BLOCKS_PER_APPEND, Math.floor(ROWS_PER_APPEND / batch.blockRows)));
  let place = 0;
  for await (const { line, input, error } of failedRowsOf(batches, id, round - 1)) {
    if (place++ < rows) continue;
    // Without a schema it returns at once.
    void cutter.add({ line, input, error: new FailedBefore(error ?? UNKNOWN) });
    if (cutter.waiting >= atOnce && !(await append())) return false;
  }
  cutter.cut();
  return append();
}
