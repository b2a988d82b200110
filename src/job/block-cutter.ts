// Cuts rows into blocks in the order of their source. Each row is checked against the schema of its kind and encoded once; one that does not fit
// fails alone. The cuts depend on the rows and on what the batch keeps (`blockRows`), so that a source that starts again is cut in the same places.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type BatchRow, type BlockDraft, blockId, decodeBlock, encodeBlock, type FailedRow } from "./batches.ts";
import { invalidInput } from "./enqueue.ts";
import { type StoredError, toStoredError } from "./errors.ts";
import { encodeJson } from "./json.ts";
import type { JobKey } from "./limits.ts";

/** A block is cut before it grows beyond this, whatever the number of its rows. */
const BLOCK_CHARACTERS = 256 << 10;

/** A row with its place in its source. One that could not be read fails alone. */
export interface SourceRow<In = unknown> {
  /** Its line, counted from 1. */
  readonly line: number;
  /** The row. */
  readonly input: In;
  /** Why it could not be read; null: it could. */
  readonly error: unknown;
}

/** In place of an error: the row has failed before, with this. It is not run again, and its error is kept as it is. */
export class FailedBefore {
  readonly error: StoredError;

  constructor(error: StoredError) {
    this.error = error;
  }
}

/** What has to be known of a kind of batch to cut its rows. */
export interface CuttableKind {
  /** The kind's name. */
  readonly name: string;
  /** The schema of a row; null if it has none. */
  readonly row: StandardSchemaV1 | null;
  /** @internal */
  readonly kinds: {
    readonly block: {
      readonly keysOf: ((input: never) => readonly JobKey[]) | null;
      readonly fairOf: ((input: never) => JobKey) | null;
    };
  };
}

/** Where a source begins: the number of its first block, and the line before its first row. */
export interface CutFrom {
  readonly number: number;
  readonly line: number;
  /** Blocks below this number are in the store already: they are counted, and not made. */
  readonly there: number;
}

export class BlockCutter {
  readonly #kind: CuttableKind;
  readonly #batch: Pick<BatchRow, "id" | "round" | "priority" | "blockRows">;
  readonly #keys: readonly JobKey[];
  readonly #fair: JobKey;
  readonly #there: number;
  #number: number;
  #line: number;
  #rows: { readonly line: number; readonly input: string }[] = [];
  #rejected: FailedRow[] = [];
  #characters = 0;
  #blocks: BlockDraft[] = [];
  /** Of the blocks that were not taken yet. */
  waitingCharacters = 0;
  /** Rows of blocks that were not made, because they are there. */
  skipped = 0;

  constructor(
    kind: CuttableKind,
    batch: Pick<BatchRow, "id" | "round" | "priority" | "blockRows" | "context">,
    { number, line, there }: CutFrom,
  ) {
    this.#kind = kind;
    this.#batch = batch;
    this.#there = there;
    this.#number = number;
    this.#line = line;
    const { keysOf, fairOf } = kind.kinds.block;
    // Batches of one kind take turns: one of ten rows does not wait for one of a million.
    this.#fair = fairOf!(batch.id as never);
    this.#keys = [...(keysOf?.(JSON.parse(batch.context) as never) ?? []), this.#fair];
  }

  /** How many blocks are cut and were not taken. */
  get waiting(): number {
    return this.#blocks.length;
  }

  /** The next row of a source without lines of its own. */
  next(input: unknown): void | Promise<void> {
    return this.add({ line: this.#line + 1, input, error: null });
  }

  /** A promise only if the schema is asynchronous. */
  add(row: SourceRow): void | Promise<void> {
    this.#line = row.line;
    if (row.error !== null) return this.#reject(row, row.error);
    const { row: schema, name } = this.#kind;
    const checked = schema?.["~standard"].validate(row.input);
    if (checked instanceof Promise)
      return checked.then((result) =>
        result.issues ? this.#reject(row, invalidInput(name, result.issues)) : this.#accept(row),
      );
    return checked?.issues ? this.#reject(row, invalidInput(name, checked.issues)) : this.#accept(row);
  }

  /** The rows that are left become the last block. */
  cut(): void {
    if (this.#size === 0) return;
    const number = this.#number++;
    if (number < this.#there) this.skipped += this.#size;
    else {
      this.#blocks.push(this.#block(number));
      this.waitingCharacters += this.#characters;
    }
    this.#rows = [];
    this.#rejected = [];
    this.#characters = 0;
  }

  /** The blocks that were cut since the last call. */
  take(): BlockDraft[] {
    const blocks = this.#blocks;
    this.#blocks = [];
    this.waitingCharacters = 0;
    return blocks;
  }

  #accept(row: SourceRow): void {
    let input: string;
    try {
      input = encodeJson(row.input === undefined ? null : row.input, `The row of line ${row.line}`);
    } catch (thrown) {
      return this.#reject(row, thrown);
    }
    if (this.#characters + input.length > BLOCK_CHARACTERS) this.cut();
    this.#rows.push({ line: row.line, input });
    this.#characters += input.length;
    this.#cutIfFull();
  }

  /** The row has failed before it began. It is kept with its line, and the others go on. */
  #reject({ line, input }: SourceRow, thrown: unknown): void {
    const text = storable(input);
    const error = thrown instanceof FailedBefore ? thrown.error : toStoredError(thrown);
    this.#rejected.push({ row: -1, line, input: text, error, as: "failed" });
    this.#characters += text.length;
    this.#cutIfFull();
  }

  get #size(): number {
    return this.#rows.length + this.#rejected.length;
  }

  #cutIfFull(): void {
    if (this.#size >= this.#batch.blockRows || this.#characters >= BLOCK_CHARACTERS) this.cut();
  }

  #block(number: number): BlockDraft {
    const { id, round, priority } = this.#batch;
    const job =
      this.#rows.length === 0
        ? null
        : {
            id: blockId(id, round, number),
            kind: this.#kind.name,
            input: encodeBlock(id, round, number, this.#rows),
            priority,
            runAt: null,
            delayMs: 0,
            dedupeKey: null,
            keys: this.#keys,
            fair: this.#fair.id,
          };
    return { number, job, rows: this.#rows.length, rejected: this.#rejected };
  }
}

/** By how much the blocks of a source come later than they were cut for, and the lines of a source that has none of its own. */
export interface Move {
  readonly blocks: number;
  readonly lines: number;
}

export function moveBlock(block: BlockDraft, { blocks, lines }: Move): BlockDraft {
  if (blocks === 0 && lines === 0) return block;
  const number = block.number + blocks;
  const rejected = block.rejected.map((row) => ({ ...row, line: row.line + lines }));
  if (block.job === null) return { ...block, number, rejected };
  const { batch, round, rows } = decodeBlock(block.job.input);
  const moved = rows.map(({ line, input }) => ({ line: line + lines, input: JSON.stringify(input) }));
  const job = { ...block.job, id: blockId(batch, round, number), input: encodeBlock(batch, round, number, moved) };
  return { ...block, number, rejected, job };
}

/** What is kept of a row that is not JSON. */
function storable(input: unknown): string {
  try {
    return encodeJson(input === undefined ? null : input, "The row");
  } catch {
    return JSON.stringify(String(input));
  }
}
