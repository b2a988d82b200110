// From a source of rows to a sealed batch: rows are cut into blocks (block-cutter.ts) and appended in the order of the source, in constant memory.
// Blocks are numbered, so a submission that was killed starts its source again and adds nothing twice: what is there is skipped.
import type { BatchRow, BatchState, BlockDraft } from "../job/batches.ts";
import { BlockCutter, type Move, moveBlock, type SourceRow } from "../job/block-cutter.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { AppendAnswer, Batches } from "../stores/batches.ts";
import type { AnyBatch } from "./contract.ts";

export type { SourceRow } from "../job/block-cutter.ts";

/** What one transaction appends. */
const BLOCKS_PER_APPEND = 40;
const CHARACTERS_PER_APPEND = 4 << 20;

/** The rows of a file with their lines, as `outlive/files` makes them. */
export interface FileRows<In> {
  /** For messages: the path or address, or what it is. */
  readonly name: string;
  /** The rows, in arrays of at least one. */
  chunks(): AsyncIterable<readonly (SourceRow<In> | SourceRow<string>)[]>;
}

/** Where rows come from. A value of an iterable is a row, and its line is its number. What is in a file only its schema can say. */
export type RowsOf<In> = Iterable<In> | AsyncIterable<In> | FileRows<unknown>;

/** By which the rows of `outlive/files` are known, also if it is another copy of the package. */
const FILE_ROWS = Symbol.for("outlive.rows");

function isFileRows(source: object): source is FileRows<unknown> {
  return FILE_ROWS in source;
}

export interface Appended {
  /** Rows that this call added. */
  readonly rows: number;
  /** Rows of blocks that were there already, also those that another submission with the same key added meanwhile. */
  readonly skipped: number;
}

/** Appends rows to one round of a batch, from the block that comes next. Does not seal it. */
export class Submission {
  readonly #batches: Batches;
  readonly #batch: BatchRow;
  readonly #cutter: BlockCutter;
  readonly #onProgress: ((rows: number) => void) | undefined;
  readonly #resumes: boolean;
  #repeated = 0;
  /** By how much other submitters moved the blocks and lines of this one. */
  #moved: Move = { blocks: 0, lines: 0 };
  #hasLines = false;
  /** Rows that this submission added so far. */
  added = 0;
  /** The state in which the batch was when it refused rows; null: it did not. */
  refused: BatchState | "missing" | null = null;
  #appending: Promise<void> = Promise.resolve();

  /** `resumes`: the source is the same as before and starts again; otherwise what it brings is new. */
  constructor(
    batches: Batches,
    batch: BatchRow,
    contract: AnyBatch,
    options: { readonly resumes: boolean; readonly onProgress?: ((rows: number) => void) | undefined },
  ) {
    this.#batches = batches;
    this.#batch = batch;
    this.#onProgress = options.onProgress;
    this.#resumes = options.resumes;
    const { blocks, rows } = batch;
    this.#cutter = new BlockCutter(contract, batch, {
      number: options.resumes ? 0 : blocks,
      line: options.resumes ? 0 : rows,
      there: blocks,
    });
  }

  async all(source: RowsOf<unknown>): Promise<Appended> {
    if (isFileRows(source)) return this.rows(source.chunks());
    return this.#read(async () => {
      if (Symbol.asyncIterator in source)
        for await (const input of source) await this.#appended(this.#cutter.next(input));
      else
        for (const input of source as Iterable<unknown>) {
          const adding = this.#appended(this.#cutter.next(input));
          if (adding) await adding;
        }
    });
  }

  /** Rows that have lines of their own. */
  async rows(chunks: AsyncIterable<readonly SourceRow[]>): Promise<Appended> {
    this.#hasLines = true;
    return this.#read(async () => {
      for await (const chunk of chunks)
        for (const row of chunk) {
          const adding = this.#appended(this.#cutter.add(row));
          if (adding) await adding;
        }
    });
  }

  async #read(source: () => Promise<void>): Promise<Appended> {
    try {
      await source();
      this.#cutter.cut();
    } catch (thrown) {
      // What came before is kept. Of a source that starts again only whole blocks are: it is cut in the same places then, and a part of a block
      // would stand for the whole.
      if (!this.#resumes) this.#cutter.cut();
      throw thrown;
    } finally {
      if (this.#cutter.waiting > 0) this.#append();
      await this.#appending;
    }
    return { rows: this.added, skipped: this.#cutter.skipped + this.#repeated };
  }

  /** A row is being added to the cutter. Appends what is cut, if that is enough. */
  #appended(adding: void | Promise<void>): void | Promise<void> {
    if (adding) return adding.then(() => this.#appended());
    const { waiting, waitingCharacters } = this.#cutter;
    if (waiting < BLOCKS_PER_APPEND && waitingCharacters < CHARACTERS_PER_APPEND) return;
    // One append is on its way while the next is prepared.
    return this.#appending.then(() => this.#append());
  }

  #append(): void {
    const cut = this.#cutter.take();
    const { id } = this.#batch;
    const asked = rowsOf(cut);
    this.#appending = this.#appending.then(async () => {
      const addedBefore = this.added;
      const answer = await this.#place(cut);
      if (answer.is !== "appended") {
        this.refused = answer.is === "missing" ? "missing" : answer.state;
        throw notOpen(id, this.refused);
      }
      this.added += answer.rows;
      this.#repeated += asked - (this.added - addedBefore);
      this.#onProgress?.(this.added + this.#repeated + this.#cutter.skipped);
    });
    // Heard by the next append and by the end of `all`.
    this.#appending.catch(() => {});
  }

  /** Blocks of a source that starts again keep their numbers. Others come after those of other submitters, which may be quicker. */
  async #place(all: readonly BlockDraft[]): Promise<Exclude<AppendAnswer, { readonly is: "moved" }>> {
    const { id, round, rows } = this.#batch;
    for (let cut = all; ;) {
      const blocks = cut.map((block) => moveBlock(block, this.#moved));
      const answer = await this.#batches.append(id, round, blocks, !this.#resumes);
      if (answer.is !== "moved") return answer;
      this.added += rowsOf(cut.slice(0, answer.added));
      cut = cut.slice(answer.added);
      this.#moved = {
        blocks: answer.blocks - cut[0]!.number,
        lines: this.#hasLines ? 0 : answer.rows - rows - this.added,
      };
    }
  }
}

function rowsOf(blocks: readonly BlockDraft[]): number {
  return blocks.reduce((sum, { rows, rejected }) => sum + rows + rejected.length, 0);
}

export function noBatch(batch: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no batch ${batch}.`,
    "Check the id; ended batches are kept for the retention time only.",
    { batch },
  );
}

export function notOpen(batch: string, state: string): OutliveError {
  if (state === "missing") return noBatch(batch);
  return new OutliveError(
    ErrorCode.wrongState,
    `Batch ${batch} is ${state}, so nothing can be appended to it.`,
    "Nothing was added by this call. Submit another batch, or append before `seal`.",
    { batch, state },
  );
}
