// The contract of a batch: its name, the schemas of its rows and its context, and its settings, safe to import anywhere. The handlers are
// attached where workers run. Made by `batch()` (engine/batch.ts), which checks the options.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { EnqueueChildren, Enqueue } from "../job/enqueue.ts";
import type { BatchState, IngestedFile, RowTotals, Tolerance } from "../job/batches.ts";
import type { JobContract, TypedRun } from "../job/contract.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import type { ScheduledTarget } from "../job/schedules.ts";
import type { CommitForm, NoPromise, Run } from "../worker/run.ts";

/** One row of a batch, as a handler sees it. */
export interface Row<In = Json> {
  /** Its line in the file, or its number in another source, from 1. */
  readonly line: number;
  /** The row. */
  readonly input: In;
  /** Appends to an output file, at this row's place. Kept only if the row succeeds. */
  write(file: string, text: string): void;
  /** Ends the row in the same database transaction as your own writes: exactly once. On SQLite and PostgreSQL. */
  commit<Tx, T>(form: CommitForm<Tx, "sync">, body: (tx: Tx) => NoPromise<T>): Promise<T>;
  commit<Tx, T>(form: CommitForm<Tx, "async">, body: (tx: Tx) => Promise<T>): Promise<T>;
}

/** What the handlers of a batch have in common. */
interface CommonRun<Context, Shared> extends Pick<
  Run,
  "attempt" | "fence" | "signal" | "interrupted" | "heartbeat" | "log" | "progress"
> {
  /** The id of the block's job. */
  readonly id: string;
  /** The id of the batch. */
  readonly batch: string;
  /** 1, or more if failed rows were retried. */
  readonly round: number;
  /** What was passed to `submit` for all rows. */
  readonly context: Context;
  /** What `setUp` returned. */
  readonly shared: Shared;
  /** Enqueues a job under the block's fence. Pass your own id: the row may run again. */
  readonly enqueue: Enqueue;
  /** Enqueues many jobs of one kind. Pass your own ids, as for `enqueue`. */
  readonly enqueueMany: EnqueueChildren;
}

/** The second argument of `handle`. */
export interface RowRun<Context = Json, Shared = undefined> extends CommonRun<Context, Shared> {
  /** An idempotency key: the same in every attempt and round of this row, different for every row and name. */
  key(name: string): string;
  /** Appends to an output file, at this row's place. Kept only if the row succeeds. */
  write(file: string, text: string): void;
}

/** The second argument of `handleBlock`. */
export interface BlockRun<In = Json, Context = Json, Shared = undefined> extends CommonRun<Context, Shared> {
  /** An idempotency key: the same in every attempt of this block, different for every name. */
  key(name: string): string;
  /** The rows for which `fail` was not called. */
  readonly remaining: readonly Row<In>[];
  /** Ends one row as failed. */
  fail(row: Row<In>, error: unknown): void;
  /** Ends the block, with all remaining rows succeeded, in the same database transaction as your own writes. */
  commit<Tx, T>(form: CommitForm<Tx, "sync">, body: (tx: Tx) => NoPromise<T>): Promise<T>;
  commit<Tx, T>(form: CommitForm<Tx, "async">, body: (tx: Tx) => Promise<T>): Promise<T>;
}

/** How a batch ended: the first argument of `done`. */
export interface BatchEnded<Context = Json> {
  /** The batch's id. */
  readonly id: string;
  /** The key under which it was submitted; null if it has none. */
  readonly key: string | null;
  /** How it ended. */
  readonly state: Extract<BatchState, "completed" | "failed" | "aborted">;
  /** Which round ended: the first has the number 1, each retry one more. */
  readonly round: number;
  /** How many rows ended in which way. */
  readonly rows: RowTotals;
  /** What its rows share. */
  readonly context: Context;
  /** Its output files by name. */
  readonly outputs: Readonly<Record<string, OutputFile>>;
}

/** An output file, assembled in the order of the lines. */
export interface OutputFile {
  /** Its name in the blob store. */
  readonly blob: string;
  /** Its size in bytes. */
  readonly bytes: number;
  /** The SHA-256 of its bytes, in hexadecimal. */
  readonly sha256: string;
}

/** What `batch()` decides about how rows are cut and run. */
export interface BatchSettings {
  /** The maximum number of rows in a block. */
  readonly blockRows: number;
  /** How many rows of a block run at once. */
  readonly atOnce: number;
  /** When the end of a row is durable. */
  readonly mark: "time" | "row";
  /** How long a worker keeps a block, in ms. */
  readonly blockForMs: number;
  /** How many rows may fail. */
  readonly tolerance: Tolerance;
}

/** Makes what all rows in a process share. */
type SetUp<Shared> = () => Shared | Promise<Shared>;
type RowHandler = (row: Row<never>, run: RowRun<never, never>) => unknown;
type BlockHandler = (rows: readonly Row<never>[], run: BlockRun<never, never, never>) => unknown;
type DoneHandler = (end: BatchEnded<never>, run: Run) => unknown;

/** By which a batch is known, also if the program's copy of outlive is not the command line's. */
const BATCH = Symbol.for("outlive.batch");

/** A kind of batch, made by `batch()`. */
export class BatchContract<In = unknown, Out = In, Context = Json, Shared = undefined> {
  readonly [BATCH] = true;
  /** For the compiler only: the input of a schedule of it. */
  declare readonly scheduledWith?: ScheduledFile<Context>;
  /** The kind's name. */
  readonly name: string;
  /** Its options, checked and with their defaults. */
  readonly settings: BatchSettings;
  /** The schema of a row; null if it has none. */
  readonly row: StandardSchemaV1<In, Out> | null;
  /** The schema of the context; null if it has none. */
  readonly context: StandardSchemaV1<unknown, Context> | null;
  /** @internal The kinds of its jobs: its blocks, what follows its end, what begins a new round, and what reads a file. */
  readonly kinds: {
    readonly block: JobContract<never, never, unknown>;
    readonly done: JobContract<never, never, unknown>;
    readonly round: JobContract<never, never, unknown>;
    readonly ingest: JobContract<never, never, unknown>;
  };
  #setUp: SetUp<unknown> | null = null;
  #handlers: { readonly row: RowHandler | null; readonly block: BlockHandler | null } = { row: null, block: null };
  #done: DoneHandler | null = null;

  /** @internal */
  constructor(
    name: string,
    settings: BatchSettings,
    row: StandardSchemaV1<In, Out> | null,
    context: StandardSchemaV1<unknown, Context> | null,
    kinds: BatchContract["kinds"],
  ) {
    this.name = name;
    this.settings = settings;
    this.row = row;
    this.context = context;
    this.kinds = kinds;
  }

  /** Runs once in each worker process, before its first block. What it returns is `run.shared`; if that has [Symbol.asyncDispose], it is called when the engine closes. */
  setUp<NewShared>(make: SetUp<NewShared>): BatchContract<In, Out, Context, NewShared> {
    this.#assertFirst(this.#setUp, "setUp");
    this.#setUp = make;
    return this as unknown as BatchContract<In, Out, Context, NewShared>;
  }

  /** Attaches the handler of single rows. A row that throws is tried again with its block; one that throws `TerminalError` has failed. */
  handle(handler: (row: Row<Out>, run: RowRun<Context, Shared>) => void | Promise<void>): this {
    this.#assertFirst(this.#handlers.row ?? this.#handlers.block, "handle");
    this.#handlers = { row: handler, block: null };
    return this;
  }

  /** Attaches the handler of whole blocks, in place of `handle`. If it throws, all rows that have not ended are tried again. */
  handleBlock(handler: (rows: readonly Row<Out>[], run: BlockRun<Out, Context, Shared>) => void | Promise<void>): this {
    this.#assertFirst(this.#handlers.row ?? this.#handlers.block, "handleBlock");
    this.#handlers = { row: null, block: handler };
    return this;
  }

  /** Attaches what follows the end of a batch. It runs as a separate job, once for each round. */
  done(handler: (end: BatchEnded<Context>, run: TypedRun) => void | Promise<void>): this {
    this.#assertFirst(this.#done, "done");
    this.#done = handler as unknown as DoneHandler;
    return this;
  }

  /** What a schedule of it enqueues: the job that reads a file into a batch. */
  get scheduled(): ScheduledTarget {
    return { contract: this.kinds.ingest, inputOf: (source) => ingestedFile(this.name, source) };
  }

  /** @internal What workers run. */
  get handlers(): {
    readonly setUp: SetUp<unknown> | null;
    readonly row: RowHandler | null;
    readonly block: BlockHandler | null;
    readonly done: DoneHandler | null;
  } {
    return { setUp: this.#setUp, ...this.#handlers, done: this.#done };
  }

  #assertFirst(attached: unknown, method: string): void {
    if (attached === null) return;
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The batch ${this.name} has a handler already.`,
      `Call ${method}() once per batch, and either handle() or handleBlock().`,
      { kind: this.name },
    );
  }
}

/** What a schedule of a batch reads at each occurrence: a file or a blob. */
export type ScheduledFile<Context = Json> = ScheduledRows<Context> &
  (
    | {
        /** A path that every worker can read. */
        readonly file: string;
        readonly blob?: undefined;
      }
    | {
        /** The key of a blob. */
        readonly blob: string;
        readonly file?: undefined;
      }
  );

/** How the rows of a scheduled file become a batch. */
interface ScheduledRows<Context> {
  /** What the file is. Default "csv". */
  readonly format?: "csv" | "ndjson";
  /** The context of the batch. Default null. */
  readonly context?: Context;
  /** The priority of its blocks. Default 0, from -1000 to 1000. */
  readonly priority?: number;
  /** Keeps the rows back until the last one is stored. Default false. */
  readonly hold?: boolean;
}

function ingestedFile(kind: string, given: unknown): IngestedFile {
  const {
    file,
    blob,
    format = "csv",
    context = null,
    priority = 0,
    hold = false,
  } = (given ?? {}) as Partial<ScheduledFile>;
  const name = file ?? blob;
  if (typeof name !== "string" || name === "" || (file === undefined) === (blob === undefined))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The schedule of the batch ${kind} says ${JSON.stringify(given)}, which is not a file.`,
      'Pass the input { file: "rows.csv" } or { blob: "key" }, or a function of the occurrence that returns one.',
      { kind },
    );
  if (format !== "csv" && format !== "ndjson")
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The schedule of the batch ${kind} has the format ${JSON.stringify(format)}.`,
      'Use "csv" or "ndjson".',
      { kind, format },
    );
  const from = file === undefined ? "blob" : "path";
  return { file: name, from, format, key: null, context, priority, hold };
}

export function isBatch(value: unknown): value is AnyBatch {
  return typeof value === "object" && value !== null && BATCH in value;
}

export type AnyBatch = BatchContract<never, never, never, never>;
