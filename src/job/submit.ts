// From a call of `submit` to drafts: the options checked, the context through its schema, and, inside a transaction, all rows as blocks. Nothing is
// written here.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type BatchDraft, type BatchRow, type BlockDraft, FIRST_ROUND, type Tolerance } from "./batches.ts";
import { BlockCutter, type CuttableKind } from "./block-cutter.ts";
import { assertKey } from "./enqueue.ts";
import { ErrorCode, OutliveError } from "./errors.ts";
import { encodeJson, type Json } from "./json.ts";

/** The options of `tx.submit`. */
export interface SubmittedWith<Context = Json> {
  /** The same for all rows; each handler gets it as `run.context`. Default: null. */
  readonly context?: Context;
  /** Unique among the batches of the kind. A submission with a key that was killed is started again with the same source and the same key, and adds only what is missing. 1 to 255 characters. Default: none. */
  readonly key?: string;
  /** Higher runs first. Default 0, from -1000 to 1000. */
  readonly priority?: number;
}

/** The outcome of a submission. */
export interface Submitted {
  /** The batch's id. */
  readonly id: string;
  /** Rows of the batch, all together. */
  readonly rows: number;
  /** Rows that this call did not add: they were in the store before, or another submission with the same key added them meanwhile. */
  readonly alreadyThere: number;
  /** False: there was a batch with this key. */
  readonly created: boolean;
}

/** A kind of batch as `batch()` makes it, as far as a submission has to know it. */
export interface SubmittableBatch<In = unknown, Context = unknown> extends CuttableKind {
  /** How its rows are cut into blocks, and how many of them may fail. */
  readonly settings: {
    /** The maximum number of rows in a block. */
    readonly blockRows: number;
    /** How many rows may fail. */
    readonly tolerance: Tolerance;
  };
  /** The schema of a row; null if it has none. */
  readonly row: StandardSchemaV1<In, unknown> | null;
  /** The schema of the context; null if it has none. */
  readonly context: StandardSchemaV1<unknown, Context> | null;
}

/** Rows that one `tx.submit` takes. They are in memory together, and on SQLite no other process writes meanwhile: 10,000 small rows take about 0.1 s. */
export const MAX_ROWS_IN_TRANSACTION = 10_000;

/** A promise only if the schema of the context is asynchronous. */
export function batchDraft(
  kind: SubmittableBatch,
  { context = null, key, priority = 0, hold = false }: SubmittedWith<unknown> & { readonly hold?: boolean },
  newId: () => string,
): BatchDraft | Promise<BatchDraft> {
  const { name } = kind;
  if (key !== undefined) assertKey(key, `The key of a ${name} batch`);
  const draft = (issues: readonly { readonly message: string }[] | undefined): BatchDraft => {
    if (issues) throw contextInvalid(name, issues);
    return {
      id: newId(),
      kind: name,
      key: key ?? null,
      context: encodeJson(context, `The context of a ${name} batch`),
      priority,
      blockRows: kind.settings.blockRows,
      tolerance: kind.settings.tolerance,
      held: hold,
    };
  };
  const checked = kind.context?.["~standard"].validate(context);
  return checked instanceof Promise ? checked.then(({ issues }) => draft(issues)) : draft(checked?.issues);
}

/** The rows of one `tx.submit`, in memory. */
export function rowsInTransaction(kind: SubmittableBatch, rows: Iterable<unknown>): unknown[] {
  const inputs: unknown[] = [];
  for (const input of rows) {
    if (inputs.length === MAX_ROWS_IN_TRANSACTION) throw tooManyRows(kind.name);
    inputs.push(input);
  }
  return inputs;
}

/** All blocks of these rows, from the one numbered `there`. A promise only if the schema of the rows is asynchronous. */
export function blocksOfRows(
  kind: SubmittableBatch,
  batch: Pick<BatchRow, "id" | "priority" | "blockRows" | "context">,
  inputs: readonly unknown[],
  there = 0,
): BlockDraft[] | Promise<BlockDraft[]> {
  const cutter = new BlockCutter(kind, { ...batch, round: FIRST_ROUND }, { number: 0, line: 0, there });
  const cutFrom = (first: number): BlockDraft[] | Promise<BlockDraft[]> => {
    for (let at = first; at < inputs.length; at++) {
      const adding = cutter.next(inputs[at]);
      if (adding) return adding.then(() => cutFrom(at + 1));
    }
    cutter.cut();
    return cutter.take();
  };
  return cutFrom(0);
}

/** The value, inside a synchronous transaction. Refused if a schema is asynchronous. */
export function nowOf<T>(value: T | Promise<T>, kind: string): T {
  if (!(value instanceof Promise)) return value;
  value.catch(() => {});
  throw new OutliveError(
    ErrorCode.inputInvalid,
    `A schema of ${kind} is asynchronous and can't run inside a synchronous transaction.`,
    "Nothing was submitted. Use schemas without asynchronous checks, or submit outside the transaction.",
    { kind },
  );
}

function contextInvalid(kind: string, issues: readonly { readonly message: string }[]): OutliveError {
  const found = issues.slice(0, 5).map(({ message }) => message);
  return new OutliveError(
    ErrorCode.inputInvalid,
    `The context does not fit the schema of ${kind}: ${found.join("; ")}.`,
    "Nothing was submitted. Correct the context or the schema.",
    { kind, issues: found },
  );
}

function tooManyRows(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.inputInvalid,
    `A transaction submits more than ${MAX_ROWS_IN_TRANSACTION} rows of ${kind} at once.`,
    "Nothing was submitted. Store where the rows come from in your transaction, and submit them by a job or by engine.submit with a `key`.",
    { kind, limit: MAX_ROWS_IN_TRANSACTION },
  );
}
