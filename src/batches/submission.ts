// From a source of rows to a sealed batch: rows are checked, cut into blocks and appended in the order of the source, in constant memory. Blocks
// are numbered, so a submission that was killed starts its source again and adds nothing twice: what is there is skipped.
import { type BatchRow, type BlockDraft, blockId, encodeBlock, type FailedRow } from "../job/batches.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import type { JobKey } from "../job/limits.ts";
import { encodeJson } from "../job/json.ts";
import type { Batches } from "../stores/batches.ts";
import type { AnyBatch } from "./contract.ts";

/** A block is cut before it grows beyond this, whatever the number of its rows. */
const BLOCK_CHARACTERS = 256 << 10;
/** What one transaction appends. */
const BLOCKS_PER_APPEND = 40;
const CHARACTERS_PER_APPEND = 4 << 20;

/** A row with its place in its source. `error`: it could not be read, and fails alone. */
export interface SourceRow<In = unknown> {
  readonly line: number;
  readonly input: In;
  readonly error: unknown;
}

/** The rows of a file with their lines, as `outlive/files` makes them. */
export interface FileRows<In> {
  readonly name: string;
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
  /** Rows that were there already, or that another submission of the same source added at the same time. */
  readonly skipped: number;
}

/** What a block is made of before its place in the batch is certain. */
interface CutBlock {
  readonly number: number;
  readonly rows: readonly { readonly line: number; readonly input: string }[];
  readonly rejected: readonly FailedRow[];
}

/** Appends rows to one round of a batch, from the block that comes next. Does not seal it. */
export class Submission {
  readonly #batches: Batches;
  readonly #batch: BatchRow;
  readonly #contract: AnyBatch;
  readonly #keys: readonly JobKey[];
  readonly #fair: JobKey;
  readonly #onProgress: ((rows: number) => void) | undefined;
  readonly #resumes: boolean;
  /** Blocks below this number are there already. */
  readonly #there: number;
  #number: number;
  #line = 0;
  #rows: { readonly line: number; readonly input: string }[] = [];
  #rejected: FailedRow[] = [];
  #characters = 0;
  #blocks: CutBlock[] = [];
  #waitingCharacters = 0;
  #seen = 0;
  #added = 0;
  /** By how much other submitters moved the blocks and lines of this one. */
  #moved = { blocks: 0, lines: 0 };
  #ownLines = false;
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
    this.#contract = contract;
    this.#onProgress = options.onProgress;
    this.#resumes = options.resumes;
    this.#there = batch.blocks;
    this.#number = options.resumes ? 0 : batch.blocks;
    this.#line = options.resumes ? 0 : batch.rows;
    const { keysOf, fairOf } = contract.kinds.block;
    // Batches of one kind take turns: one of ten rows does not wait for one of a million.
    this.#fair = fairOf!(batch.id as never);
    this.#keys = [...(keysOf?.(JSON.parse(batch.context) as never) ?? []), this.#fair];
  }

  async all(source: RowsOf<unknown>): Promise<Appended> {
    if (isFileRows(source)) return this.rows(source.chunks());
    this.#ownLines = false;
    const numbered = (input: unknown): void | Promise<void> => this.#add({ line: this.#line + 1, input, error: null });
    return this.#read(async () => {
      if (Symbol.asyncIterator in source) for await (const input of source) await numbered(input);
      else
        for (const input of source as Iterable<unknown>) {
          const adding = numbered(input);
          if (adding) await adding;
        }
    });
  }

  /** Rows that have lines of their own. */
  async rows(chunks: AsyncIterable<readonly SourceRow[]>): Promise<Appended> {
    this.#ownLines = true;
    return this.#read(async () => {
      for await (const chunk of chunks)
        for (const row of chunk) {
          const adding = this.#add(row);
          if (adding) await adding;
        }
    });
  }

  async #read(source: () => Promise<void>): Promise<Appended> {
    try {
      await source();
      this.#cut();
    } catch (thrown) {
      // What came before is kept. Of a source that starts again only whole blocks are: it is cut in the same places then, and a part of a block
      // would stand for the whole.
      if (!this.#resumes) this.#cut();
      throw thrown;
    } finally {
      if (this.#blocks.length > 0) this.#append();
      await this.#appending;
    }
    return { rows: this.#added, skipped: this.#seen - this.#added };
  }

  #add(row: SourceRow): void | Promise<void> {
    this.#line = row.line;
    if (row.error !== null) return this.#reject(row, row.error);
    const { row: schema, name } = this.#contract;
    const checked = schema?.["~standard"].validate(row.input);
    if (checked instanceof Promise)
      return checked.then((result) =>
        result.issues ? this.#reject(row, invalidInput(name, result.issues)) : this.#accept(row),
      );
    return checked?.issues ? this.#reject(row, invalidInput(name, checked.issues)) : this.#accept(row);
  }

  #accept(row: SourceRow): void | Promise<void> {
    let input: string;
    try {
      input = encodeJson(row.input === undefined ? null : row.input, `The row of line ${row.line}`);
    } catch (thrown) {
      return this.#reject(row, thrown);
    }
    if (this.#characters + input.length > BLOCK_CHARACTERS && this.#size > 0) this.#cut();
    this.#rows.push({ line: row.line, input });
    this.#characters += input.length;
    return this.#cutIfFull();
  }

  /** The row has failed before it began. It is kept with its line, and the others go on. */
  #reject({ line, input }: SourceRow, thrown: unknown): void | Promise<void> {
    const text = storable(input);
    this.#rejected.push({ row: -1, line, input: text, error: toStoredError(thrown), as: "failed" });
    this.#characters += text.length;
    return this.#cutIfFull();
  }

  get #size(): number {
    return this.#rows.length + this.#rejected.length;
  }

  #cutIfFull(): void | Promise<void> {
    if (this.#size < this.#batch.blockRows && this.#characters < BLOCK_CHARACTERS) return;
    this.#cut();
    if (this.#blocks.length < BLOCKS_PER_APPEND && this.#waitingCharacters < CHARACTERS_PER_APPEND) return;
    // One append is on its way while the next is prepared.
    return this.#appending.then(() => this.#append());
  }

  #cut(): void {
    if (this.#size === 0) return;
    const number = this.#number++;
    this.#seen += this.#size;
    if (number >= this.#there) {
      this.#blocks.push({ number, rows: this.#rows, rejected: this.#rejected });
      this.#waitingCharacters += this.#characters;
    }
    this.#rows = [];
    this.#rejected = [];
    this.#characters = 0;
  }

  #block(cut: CutBlock): BlockDraft {
    const { id, round, priority } = this.#batch;
    const number = cut.number + this.#moved.blocks;
    const lines = this.#ownLines ? 0 : this.#moved.lines;
    const placed = <Row extends { readonly line: number }>(rows: readonly Row[]): readonly Row[] =>
      lines === 0 ? rows : rows.map((row) => ({ ...row, line: row.line + lines }));
    const job =
      cut.rows.length === 0
        ? null
        : {
            id: blockId(id, round, number),
            kind: this.#contract.name,
            input: encodeBlock(id, round, number, placed(cut.rows)),
            priority,
            runAt: null,
            delayMs: 0,
            dedupeKey: null,
            keys: this.#keys,
            fair: this.#fair.id,
          };
    return { number, job, rows: cut.rows.length, rejected: placed(cut.rejected) };
  }

  #append(): void {
    const cut = this.#blocks;
    // Made here, so that it happens while the append before is on its way. Nearly always nothing has moved by the time of this one.
    const moved = this.#moved;
    const made = cut.map((block) => this.#block(block));
    const seen = this.#seen;
    this.#blocks = [];
    this.#waitingCharacters = 0;
    this.#appending = this.#appending.then(async () => {
      this.#added += await this.#appended(cut, moved === this.#moved ? made : null);
      this.#onProgress?.(seen);
    });
    // Heard by the next append and by the end of `all`.
    this.#appending.catch(() => {});
  }

  /** Returns how many rows were added. Blocks of a source that starts again keep their numbers; others come after those of other submitters. */
  async #appended(cut: readonly CutBlock[], made: readonly BlockDraft[] | null): Promise<number> {
    const { id, round } = this.#batch;
    for (;;) {
      const blocks = made ?? cut.map((block) => this.#block(block));
      const answer = await this.#batches.append(id, round, blocks, !this.#resumes);
      if (answer.is === "appended") return answer.rows;
      if (answer.is !== "moved") throw notOpen(id, answer.is === "missing" ? "missing" : answer.state);
      this.#moved = {
        blocks: answer.blocks - cut[0]!.number,
        lines: answer.rows - this.#batch.rows - this.#added,
      };
      made = null;
    }
  }
}

/** What is kept of a row that is not JSON. */
function storable(input: unknown): string {
  try {
    return encodeJson(input === undefined ? null : input, "The row");
  } catch {
    return JSON.stringify(String(input));
  }
}

export function notOpen(batch: string, state: string): OutliveError {
  if (state === "missing")
    return new OutliveError(
      ErrorCode.notFound,
      `There is no batch ${batch}.`,
      "Check the id; ended batches are kept for the retention time only.",
      { batch },
    );
  return new OutliveError(
    ErrorCode.wrongState,
    `Batch ${batch} is ${state}, so nothing can be appended to it.`,
    "Nothing was added by this call. Submit another batch, or append before `seal`.",
    { batch, state },
  );
}
