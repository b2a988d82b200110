// The promises of batches-law.ts as far as they can be read out of the records of the atomic store: a mark stays, a row whose end is durable does not run
// again, the sums of a batch are those of its rows, a batch ends when all of its rows have, and its `done` is added with that end. What a failover took
// counts no more: the submitter sends it again.
import { type BatchRow, decodeBlock, endedRows, hasEnded } from "../../../src/job/batches.ts";
import { isTerminal } from "../../../src/job/job.ts";
import { marksOf } from "../stores/blocks.ts";
import type { BatchRecord, BlockRecord, Data } from "../stores/records.ts";
import type { Plan, RowIn } from "../workloads/batches.ts";
import { demand } from "./violation.ts";

export class AtomicBatchesLaw {
  readonly #marks = new Map<string, string>();
  /** Lines whose handlers said that they succeeded, in any attempt: no loss takes that back. */
  readonly #succeeded = new Set<string>();

  // ---- reported by handlers

  began(data: Data, { id, fence }: RowIn, line: number): void {
    const job = data.jobById(id);
    const block = job && data.blockOf(job.row);
    if (!job || !block || job.state !== "running") return;
    // One that lost its block runs on until it hears of it; what it does counts for nothing.
    if (job.epoch !== fence.epoch || job.fence !== fence.number) return;
    const at = linesOf(data, block).indexOf(line);
    demand(marksOf(block)[at] === "0", () => `row twice: line ${line} of ${id} runs again, and its end was durable`);
  }

  ended({ batch }: RowIn, line: number, how: "succeeded" | "failed"): void {
    if (how === "succeeded") this.#succeeded.add(`${batch} ${line}`);
  }

  // ---- read from the records

  onLook(data: Data): void {
    for (const batch of data.batches()) {
      for (let round = 1; round <= batch.round; round++)
        for (const block of data.blocks(batch.seq, round)) this.#marked(block);
      this.#addsUp(data, batch);
      if (hasEnded(batch.state))
        demand(
          data.jobById(`${batch.id}:done:${batch.round}`) !== null,
          () => `done missing: batch ${batch.id} has ended, and its done was not enqueued with that`,
        );
    }
  }

  #marked(block: BlockRecord): void {
    const name = `${block.batch}:${block.round}:${block.number}`;
    const [before, now] = [this.#marks.get(name), marksOf(block)];
    this.#marks.set(name, now);
    if (before === undefined) return;
    for (let at = 0; at < now.length; at++)
      demand(before[at] !== "1" || now[at] === "1", () => `mark taken away: row ${at} of ${name} had ended`);
  }

  #addsUp(data: Data, batch: BatchRecord): void {
    let rows = 0;
    let ended = 0;
    for (const block of data.blocks(batch.seq, batch.round)) {
      const job = block.job === null ? null : data.job(block.job);
      const rejected = rejectedOf(block);
      rows += block.rows + rejected;
      ended += rejected + (job && isTerminal(job.state) ? block.rows : marksOf(block).replaceAll("0", "").length);
    }
    demand(
      rows === batch.rows && endedRows(batch.sums) === ended,
      () =>
        `sums differ: batch ${batch.id} says ${endedRows(batch.sums)} of ${batch.rows} rows, and its blocks ${ended} of ${rows}`,
    );
  }

  /** The server lost scripts: marks that are older ones are not taken away. */
  lost(): void {
    this.#marks.clear();
  }

  // ---- at the end

  audit(data: Data, plans: readonly Plan[]): void {
    for (const plan of plans) {
      const batch = data.batchByKey(plan.kind, plan.key);
      demand(batch !== null, () => `batch lost: ${plan.key} was acknowledged after the last loss, and is gone`);
      demand(hasEnded(batch.state), () => `batch ${batch.id} is ${batch.state}`);
      demand(
        batch.rows === plan.rows.length || batch.round > 1 || plan.abortAfterMs !== null,
        () => `batch ${batch.id} has ${batch.rows} of ${plan.rows.length} rows`,
      );
      for (let round = 1; round <= batch.round; round++) {
        this.#dones(data, batch, round);
        if (round > 1) this.#follows(data, batch, round);
      }
      this.#rows(data, plan, batch);
    }
  }

  #dones(data: Data, { id }: BatchRow, round: number): void {
    const done = data.jobById(`${id}:done:${round}`);
    demand(
      done?.state === "succeeded",
      () => `round ${round} of batch ${id} has ended, and its done is ${done?.state}`,
    );
  }

  /** The rows of a later round are those that failed in the round before. */
  #follows(data: Data, { id, seq }: BatchRecord, round: number): void {
    const failed = data.blocks(seq, round - 1).reduce((sum, block) => {
      const state = block.job === null ? null : data.job(block.job)!.state;
      const shared = state === "dead" || state === "quarantined" ? marksOf(block).replaceAll("1", "").length : 0;
      return sum + block.failed.length + shared;
    }, 0);
    const rows = data.blocks(seq, round).reduce((sum, block) => sum + block.rows + rejectedOf(block), 0);
    demand(rows === failed, () => `round ${round} of batch ${id} has ${rows} rows, and ${failed} had failed before`);
  }

  /** Of the latest round: what counts as succeeded has run, and what does not fit or kills has not succeeded. */
  #rows(data: Data, plan: Plan, { seq, id, round, sums }: BatchRecord): void {
    let succeeded = 0;
    for (const block of data.blocks(seq, round)) {
      const failed = new Set(block.failed.map(({ line }) => line));
      const state = block.job === null ? "dead" : data.job(block.job)!.state;
      const marks = marksOf(block);
      for (const [at, line] of linesOf(data, block).entries()) {
        if (failed.has(line) || (marks[at] === "0" && state !== "succeeded")) continue;
        succeeded++;
        const { way } = plan.rows[line - 1]!;
        demand(way !== "kills" && way !== "misfit", () => `line ${line} of ${id} ${way}, and has succeeded`);
        demand(
          this.#succeeded.has(`${id} ${line}`),
          () => `row lost: line ${line} of ${id} counts as succeeded, and no handler said so`,
        );
      }
    }
    demand(sums.succeeded === succeeded, () => `batch ${id} says ${sums.succeeded} succeeded, and ${succeeded} have`);
  }
}

function rejectedOf({ failed }: BlockRecord): number {
  return failed.filter(({ row }) => row < 0).length;
}

function linesOf(data: Data, { job }: BlockRecord): readonly number[] {
  const found = job === null ? null : data.job(job);
  return found === null ? [] : decodeBlock(found.input).rows.map(({ line }) => line);
}
