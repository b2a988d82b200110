// Runs the rows of one block under one attempt. Rows that end are marked durable at least every 200 ms, and whatever ends the attempt writes the
// rest with it, so that a kill repeats at most what no mark has reached. A row that throws is left for the next attempt of the block.
import { type FailedRow, type RowEnds, RowsFailed, type StoredBlock } from "../job/batches.ts";
import { ErrorCode, OutliveError, TerminalError, toStoredError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import { type CallOff, type Clock, durationMs } from "../job/time.ts";
import { RetryLater } from "../job/waits.ts";
import { isThenable } from "../worker/attempt.ts";
import type { BlockAttempt, CommitForm } from "../worker/run.ts";
import type { AnyBatch, BlockRun, Row, RowRun } from "./contract.ts";
import { assertOutput, partsOf } from "./outputs.ts";

/** Rows that have ended wait for their mark no longer than this. */
const MARK_MS = 200;
/** Nor do they if they have written this many characters to output files: what one write of the store brings stays small. */
const WRITTEN_AT_ONCE = 4 << 20;
/** What the rows that end with one `commit` may have written: it can't be cut into several. */
const WRITTEN_PER_COMMIT = 64 << 20;
/** Rows that return at once begin without a look at the clock, so many at a time: reading it for each was a fifth of what a no-op row costs. */
const UNREAD = 7;
/** From this crash on rows run one by one with a mark before each: if the worker dies, it is known which row ran. */
const CRASHES_BEFORE_MARKS = 2;

export interface BlockDeps {
  /** Read for each row: a coarse one. */
  readonly clock: Clock;
  readonly settings: AnyBatch["settings"];
  /** Read once: the contract makes them into an object of its own each time. */
  readonly handlers: AnyBatch["handlers"];
  /** What `setUp` returned. */
  readonly shared: unknown;
  readonly context: unknown;
  /** A stored row through the schema. Throws or rejects if it does not fit. */
  readonly parse: ((input: Json) => unknown) | null;
}

/** Returns at once if every row did: a block of such rows costs its worker no more than a plain job whose handler returns at once. */
export function runBlock(
  deps: BlockDeps,
  { batch, round, lines, rows }: StoredBlock,
  run: BlockAttempt,
): void | Promise<void> {
  const marks = run.job.block?.marks;
  const ends = new Ends(deps.clock, run);
  run.pendingRows = (succeeds) => ends.pending(succeeds);
  const common = new CommonRun(deps, run, ends, { batch, round, rows });
  const left: BlockRow[] = [];
  for (let index = 0; index < rows.length; index++)
    if (marks?.[index] !== "1") left.push(new BlockRow(common, index, lines[index]!, rows[index]));
  const shared = { deps, run, ends, common };
  const parsed = deps.parse ? parsedRows(deps.parse, left, ends) : left;
  if (parsed instanceof Promise) return parsed.then((all) => runRows(shared, all));
  return runRows(shared, parsed);
}

/** Those that fit their schema. */
function parsedRows(
  parse: NonNullable<BlockDeps["parse"]>,
  rows: readonly BlockRow[],
  ends: Ends,
): BlockRow[] | Promise<BlockRow[]> {
  const fit: BlockRow[] = [];
  for (let at = 0; at < rows.length; at++) {
    const row = rows[at]!;
    try {
      const parsed = parse(row.stored);
      if (parsed instanceof Promise) return parsedLater(parse, rows, ends, { fit, at, parsed });
      row.input = parsed;
      fit.push(row);
    } catch (thrown) {
      ends.fail(row, thrown);
    }
  }
  return fit;
}

async function parsedLater(
  parse: NonNullable<BlockDeps["parse"]>,
  rows: readonly BlockRow[],
  ends: Ends,
  { fit, at, parsed }: { readonly fit: BlockRow[]; readonly at: number; readonly parsed: Promise<unknown> },
): Promise<BlockRow[]> {
  for (let next = at; next < rows.length; next++) {
    const row = rows[next]!;
    try {
      row.input = await (next === at ? parsed : parse(row.stored));
      fit.push(row);
    } catch (thrown) {
      ends.fail(row, thrown);
    }
  }
  return fit;
}

interface Shared {
  readonly deps: BlockDeps;
  readonly run: BlockAttempt;
  readonly ends: Ends;
  readonly common: CommonRun;
}

function runRows(shared: Shared, rows: readonly BlockRow[]): void | Promise<void> {
  const { ends, deps } = shared;
  let returned: void | Promise<void> = undefined;
  try {
    returned = deps.handlers.block ? runWhole(shared, rows) : runEach(shared, rows);
  } finally {
    if (!(returned instanceof Promise)) ends.stop();
  }
  return returned instanceof Promise ? returned.finally(() => ends.stop()) : undefined;
}

// ---- row by row

function runEach(shared: Shared, rows: readonly BlockRow[]): void | Promise<void> {
  const { deps, run, ends } = shared;
  const { settings } = deps;
  const handler = deps.handlers.row!;
  const isSuspect = run.job.counters.crashes >= CRASHES_BEFORE_MARKS;
  const marksEach = isSuspect || settings.mark === "row";
  const startedMono = deps.clock.mono();
  const failed: FailedRow[] = [];
  let later: RetryLater | undefined;
  let next = 0;
  let nowMono = startedMono;
  /** How many rows begin until the clock is read again. */
  let unread = 0;
  let unreadNext = 0;
  /** Not while no row has ended: a block whose first rows are slow would never come to the others. */
  const isLongEnough = (): boolean => {
    if (unread > 0) {
      unread--;
      return false;
    }
    const mono = deps.clock.mono();
    // Several rows in one millisecond: the next of them are as fast, nearly always.
    unread = unreadNext = mono === nowMono ? Math.min(UNREAD, 2 * unreadNext + 1) : 0;
    nowMono = mono;
    return ends.count > 0 && nowMono - startedMono >= settings.blockForMs && next < rows.length;
  };
  const note = (row: BlockRow, thrown: Thrown): void => {
    if (thrown === null) ends.succeed(row);
    else if (thrown.error instanceof TerminalError) ends.fail(row, thrown.error);
    else if (thrown.error instanceof RetryLater) later = longest(later, thrown.error);
    else failed.push(failedRow(row, thrown.error));
  };
  const runMarked = async (row: BlockRow): Promise<void> => {
    if (isSuspect) await run.beginRow(row.index);
    note(row, await call(handler, row));
    await ends.flush();
  };
  const runSlowly = async (row: BlockRow, returned: Promise<Thrown>): Promise<void> => {
    ends.arm();
    note(row, await returned);
    ends.arm();
  };
  /** Runs rows until one has to be waited for. Null: no row is left for this lane. */
  const runOn = (waitedMono: number): Promise<void> | null => {
    unread = unreadNext = 0;
    while (!run.isInterrupted && !ends.isStopped) {
      if (ends.written >= WRITTEN_AT_ONCE) return ends.flush();
      if (next >= rows.length || isLongEnough()) return null;
      // Rows that wait for nothing leave no time to the timer that marks those that have ended.
      if (nowMono - waitedMono >= MARK_MS) return ends.flush();
      const row = rows[next++]!;
      if (marksEach) return runMarked(row);
      const returned = call(handler, row);
      // Most rows of a fast handler end here.
      if (returned === null) ends.succeed(row);
      else if (returned instanceof Promise) return runSlowly(row, returned);
      else note(row, returned);
    }
    return null;
  };
  const lane = async (first = runOn(nowMono)): Promise<void> => {
    for (let waits = first; waits !== null; waits = runOn(deps.clock.mono())) await waits;
  };
  const end = (): void => {
    if (run.isInterrupted) throw run.signal.reason;
    if (next < rows.length)
      throw new RetryLater("0ms", `${rows.length - next} rows are left after ${settings.blockForMs} ms`);
    if (failed.length > 0) throw new RowsFailed(failed);
    if (later) throw later;
  };
  const first = runOn(nowMono);
  if (first === null) return end();
  const lanes = [lane(first)];
  while (!isSuspect && lanes.length < settings.atOnce) lanes.push(lane());
  return Promise.all(lanes).then(end);
}

type RowHandler = NonNullable<AnyBatch["handlers"]["row"]>;

/** What a row threw; null: nothing. An own type, because anything may be thrown. */
type Thrown = { readonly error: unknown } | null;

function call(handler: RowHandler, row: BlockRow): Thrown | Promise<Thrown> {
  try {
    const returned = handler(row as never, row as never);
    if (returned === undefined) return null;
    // Not only promises: a query builder runs its query when its `then` is called.
    return isThenable(returned)
      ? Promise.resolve(returned).then(
          () => null,
          (error: unknown) => thrownBy(row, error),
        )
      : null;
  } catch (error) {
    return thrownBy(row, error);
  }
}

function thrownBy(row: BlockRow, error: unknown): Thrown {
  return row.hasEnded ? null : { error };
}

function longest(one: RetryLater | undefined, other: RetryLater): RetryLater {
  const ms = ({ delay }: RetryLater): number => durationMs(delay, "The delay of RetryLater");
  return one === undefined || ms(other) > ms(one) ? other : one;
}

// ---- the block as a whole

async function runWhole({ deps, ends, common }: Shared, rows: readonly BlockRow[]): Promise<void> {
  if (rows.length === 0) return;
  ends.arm();
  await deps.handlers.block!(rows as never, new WholeRun(common, rows, ends) as never);
  for (const row of rows) {
    if (!row.hasEnded) ends.succeed(row);
    if (ends.written >= WRITTEN_AT_ONCE) await ends.flush();
  }
}

// ---- what handlers hold. Classes: an object with a dozen functions for each row cost more than the rest of the row.

class CommonRun {
  readonly batch: string;
  readonly round: number;
  readonly context: unknown;
  readonly shared: unknown;
  readonly attemptOf: BlockAttempt;
  readonly ends: Ends;
  readonly storedRows: readonly Json[];

  constructor(
    { context, shared }: BlockDeps,
    run: BlockAttempt,
    ends: Ends,
    { batch, round, rows }: Pick<StoredBlock, "batch" | "round" | "rows">,
  ) {
    this.batch = batch;
    this.round = round;
    this.storedRows = rows;
    this.context = context;
    this.shared = shared;
    this.attemptOf = run;
    this.ends = ends;
  }
}

abstract class AnyRun {
  readonly #common: CommonRun;

  constructor(common: CommonRun) {
    this.#common = common;
  }

  get #run(): BlockAttempt {
    return this.#common.attemptOf;
  }

  protected get ends(): Ends {
    return this.#common.ends;
  }

  protected get storedRows(): readonly Json[] {
    return this.#common.storedRows;
  }

  get batch(): string {
    return this.#common.batch;
  }

  get round(): number {
    return this.#common.round;
  }

  get context(): unknown {
    return this.#common.context;
  }

  get shared(): unknown {
    return this.#common.shared;
  }

  get id(): string {
    return this.#run.id;
  }

  get attempt(): number {
    return this.#run.attempt;
  }

  get fence(): BlockAttempt["fence"] {
    return this.#run.fence;
  }

  get signal(): AbortSignal {
    return this.#run.signal;
  }

  get interrupted(): BlockAttempt["interrupted"] {
    return this.#run.interrupted;
  }

  get enqueue(): never {
    return this.#run.enqueue as never;
  }

  get enqueueMany(): never {
    return this.#run.enqueueMany as never;
  }

  heartbeat(): Promise<void> {
    return this.#run.heartbeat();
  }

  log(message: string): Promise<void> {
    return this.#run.log(message);
  }

  progress(value: Json): Promise<void> {
    return this.#run.progress(value);
  }
}

class WholeRun extends AnyRun implements BlockRun<unknown, unknown, unknown> {
  readonly #run: BlockAttempt;
  readonly #rows: readonly BlockRow[];
  readonly #ends: Ends;

  constructor(common: CommonRun, rows: readonly BlockRow[], ends: Ends) {
    super(common);
    this.#run = common.attemptOf;
    this.#rows = rows;
    this.#ends = ends;
  }

  key(name: string): string {
    return this.#run.key(name);
  }

  get remaining(): readonly Row<unknown>[] {
    return this.#rows.filter(({ hasEnded }) => !hasEnded);
  }

  fail(row: Row<unknown>, error: unknown): void {
    this.#ends.fail(row as BlockRow, error);
    this.#ends.arm();
  }

  async commit(form: never, body: never): Promise<never> {
    const rows = this.#rows.filter(({ hasEnded }) => !hasEnded);
    const written = writtenBy(rows);
    if (written > WRITTEN_PER_COMMIT)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The rows of block ${this.id} have written ${written} characters, and one commit keeps at most ${WRITTEN_PER_COMMIT}.`,
        "Write less, or use smaller blocks (the option `block`), or `handle` and `row.commit`.",
        { jobId: this.id, written },
      );
    this.#ends.beginCommit(rows);
    try {
      return await this.#run.commit(form, body);
    } catch (thrown) {
      this.#ends.rollBack(rows);
      throw thrown;
    }
  }
}

// ---- rows and their ends

const NO_TEXTS: RowOutput["texts"] = [];
const NO_PARTS: RowEnds["outputs"] = [];

/** What a row has written to output files. */
interface RowOutput {
  readonly texts: { readonly file: string; readonly text: string }[];
  /** How many characters `texts` has. */
  written: number;
}

function writtenBy(rows: readonly BlockRow[]): number {
  return rows.reduce((sum, { written }) => sum + written, 0);
}

/**
 * A row is its own run: both are needed for every row, and a second object for each was a quarter of what a row costs in a process that has run few blocks. So
 * were fields that are defined before the constructor sets them, which `declare` omits. It has what most rows need: there are 50 in a block, and its size is most
 * of what a block leaves to the garbage collector.
 */
class BlockRow extends AnyRun implements Row<unknown>, RowRun<unknown, unknown> {
  declare readonly index: number;
  declare readonly line: number;
  declare input: unknown;
  declare hasEnded: boolean;
  /** Null: it has written nothing. */
  declare output: RowOutput | null;

  constructor(common: CommonRun, index: number, line: number, stored: unknown) {
    super(common);
    this.index = index;
    this.line = line;
    this.input = stored;
    this.hasEnded = false;
    this.output = null;
  }

  /** As it is stored. */
  get stored(): Json {
    return this.storedRows[this.index]!;
  }

  get texts(): RowOutput["texts"] {
    return this.output?.texts ?? NO_TEXTS;
  }

  get written(): number {
    return this.output?.written ?? 0;
  }

  key(name: string): string {
    return `${this.batch}:${this.line}:${name}`;
  }

  write(file: string, text: string): void {
    assertOutput(file, text, this);
    this.output ??= { texts: [], written: 0 };
    this.output.texts.push({ file, text });
    this.output.written += text.length;
  }

  commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    return this.ends.commit(this, form, body);
  }
}

function failedRow({ index, line, stored }: BlockRow, thrown: unknown): FailedRow {
  return { row: index, line, input: JSON.stringify(stored), error: toStoredError(thrown), as: "failed" };
}

/** The rows that ended in this attempt and are not known to be durable. */
class Ends {
  readonly #clock: Clock;
  readonly #run: BlockAttempt;
  /** A write takes the first of them, which stay here until its response has come: marks are OR-ed, so the attempt's end sends them again. */
  #succeeded: BlockRow[] = [];
  #failed: FailedRow[] = [];
  /** They end with the commit that is about to begin. */
  #committing: readonly BlockRow[] = [];
  #timer: CallOff | undefined;
  #flushing: Promise<void> | undefined;
  /** The attempt's end has taken what is left: nothing is written after that. */
  isStopped = false;
  /** How many rows have ended in this attempt. */
  count = 0;
  /** How many characters those of `#succeeded` have written to output files. */
  written = 0;

  constructor(clock: Clock, run: BlockAttempt) {
    this.#clock = clock;
    this.#run = run;
  }

  succeed(row: BlockRow): void {
    if (row.hasEnded) return;
    row.hasEnded = true;
    this.#succeeded.push(row);
    if (row.output !== null) this.written += row.output.written;
    this.count++;
  }

  fail(row: BlockRow, thrown: unknown): void {
    if (row.hasEnded) return;
    row.hasEnded = true;
    this.#failed.push(failedRow(row, thrown));
    this.count++;
  }

  /** These rows end with the block, in the user's transaction: by `pending`, which the commit asks for first. */
  beginCommit(rows: readonly BlockRow[]): void {
    this.#committing = rows;
    for (const row of rows) row.hasEnded = true;
    this.count += rows.length;
  }

  /** They were not committed: a worker that releases the block releases them with it. Those that ended before have ended all the same. */
  rollBack(rows: readonly BlockRow[]): void {
    this.#committing = [];
    for (const row of rows) row.hasEnded = false;
    this.count -= rows.length;
    this.isStopped = false;
  }

  /** What has ended is durable within MARK_MS. Called where other work may follow: rows that end without waiting for anything end with their block. */
  arm(): void {
    if (this.isStopped || this.#timer || this.#isEmpty) return;
    this.#timer = this.#clock.after(MARK_MS, () => void this.flush().catch(() => {}));
  }

  /** Makes durable what has ended: all of it, or the first rows if they have written much. One write at a time. */
  async flush(): Promise<void> {
    while (this.#flushing) await this.#flushing.catch(() => {});
    this.#timer?.();
    this.#timer = undefined;
    if (this.isStopped || this.#isEmpty) return;
    const failed = this.#failed.length;
    let rows = 0;
    for (let written = 0; rows < this.#succeeded.length && written < WRITTEN_AT_ONCE; rows++)
      written += this.#succeeded[rows]!.written;
    this.#flushing = this.#run.endRows(endsOf(this.#succeeded.slice(0, rows), this.#failed.slice(0, failed)));
    try {
      await this.#flushing;
      this.#succeeded = this.#succeeded.slice(rows);
      this.#failed = this.#failed.slice(failed);
      this.written = writtenBy(this.#succeeded);
    } finally {
      this.#flushing = undefined;
    }
  }

  /** Ends one row in the user's transaction. */
  async commit(
    row: BlockRow,
    form: CommitForm<unknown, "sync" | "async">,
    body: (tx: never) => unknown,
  ): Promise<never> {
    const ends = { succeeded: [row.index], failed: [], outputs: partsOf([row]) };
    const value = await this.#run.commitRow(form, body, ends);
    row.hasEnded = true;
    this.count++;
    return value as never;
  }

  /** What ends with the attempt. Null: nothing but what the attempt's own end says. Rows of a commit are in the first answer only, which is the commit's. */
  pending(succeeds = false): RowEnds | null {
    this.isStopped = true;
    const committing = this.#committing;
    this.#committing = [];
    // They succeed with their block.
    if (succeeds && this.#failed.length + committing.length + this.written === 0) return null;
    return this.#isEmpty && committing.length === 0 ? null : endsOf([...this.#succeeded, ...committing], this.#failed);
  }

  stop(): void {
    this.#timer?.();
    this.#timer = undefined;
  }

  get #isEmpty(): boolean {
    return this.#succeeded.length + this.#failed.length === 0;
  }
}

function endsOf(rows: readonly BlockRow[], failed: readonly FailedRow[]): RowEnds {
  return {
    succeeded: rows.map(({ index }) => index),
    failed,
    outputs: rows.some(({ output }) => output !== null && output.written > 0) ? partsOf(rows) : NO_PARTS,
  };
}
