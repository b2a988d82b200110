// Runs the rows of one block under one attempt. Rows that end are marked durable at least every 200 ms, and whatever ends the attempt writes the
// rest with it, so that a kill repeats at most what no mark has reached. A row that throws is left for the next attempt of the block.
import { bothEnds, type FailedRow, type RowEnds, RowsFailed, type StoredBlock } from "../job/batches.ts";
import { TerminalError, toStoredError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import { type CallOff, type Clock, durationMs } from "../job/time.ts";
import { RetryLater } from "../job/waits.ts";
import type { BlockAttempt, CommitForm } from "../worker/run.ts";
import type { AnyBatch, BlockRun, Row, RowRun } from "./contract.ts";
import { assertOutput, partsOf } from "./outputs.ts";

/** Rows that have ended wait for their mark no longer than this. */
const MARK_MS = 200;
/** From this crash on rows run one by one with a mark before each: if the worker dies, it is known which row ran. */
const CRASHES_BEFORE_MARKS = 2;

export interface BlockDeps {
  readonly clock: Clock;
  readonly contract: AnyBatch;
  /** What `setUp` returned. */
  readonly shared: unknown;
  readonly context: unknown;
  /** A stored row through the schema. Throws or rejects if it does not fit. */
  readonly parse: ((input: Json) => unknown) | null;
}

export async function runBlock(
  deps: BlockDeps,
  { batch, round, lines, rows }: StoredBlock,
  run: BlockAttempt,
): Promise<void> {
  const marks = run.job.block?.marks;
  const ends = new Ends(deps.clock, run);
  run.pendingRows = () => ends.pending();
  const left: BlockRow[] = [];
  for (let index = 0; index < rows.length; index++) {
    if (marks?.[index] === "1") continue;
    const input = rows[index]!;
    const row = new BlockRow(ends, index, lines[index]!, input);
    try {
      const parsed = deps.parse ? deps.parse(input) : input;
      row.input = parsed instanceof Promise ? await parsed : parsed;
      left.push(row);
    } catch (thrown) {
      ends.fail(row, thrown);
    }
  }
  const shared = { deps, run, ends, batch, common: new CommonRun(deps, run, batch, round) };
  try {
    await (deps.contract.handlers.block ? runWhole(shared, left) : runEach(shared, left));
  } finally {
    ends.stop();
  }
}

interface Shared {
  readonly deps: BlockDeps;
  readonly run: BlockAttempt;
  readonly ends: Ends;
  readonly batch: string;
  readonly common: CommonRun;
}

// ---- row by row

async function runEach(shared: Shared, rows: readonly BlockRow[]): Promise<void> {
  const { deps, run, ends } = shared;
  const { settings, handlers } = deps.contract;
  const each: EachRow = { common: shared.common, handler: handlers.row! };
  const isSuspect = run.job.counters.crashes >= CRASHES_BEFORE_MARKS;
  const marksEach = isSuspect || settings.mark === "row";
  const startedMono = deps.clock.mono();
  const failed: FailedRow[] = [];
  let later: RetryLater | undefined;
  let next = 0;
  let nowMono = startedMono;
  /** Not while no row has ended: a block whose first rows are slow would never come to the others. */
  const isLongEnough = (): boolean => {
    if (ends.count > 0) nowMono = deps.clock.mono();
    return nowMono - startedMono >= settings.blockForMs && next < rows.length;
  };
  const note = (row: BlockRow, thrown: Thrown): void => {
    if (thrown === null) ends.succeed(row);
    else if (thrown.error instanceof TerminalError) ends.fail(row, thrown.error);
    else if (thrown.error instanceof RetryLater) later = longest(later, thrown.error);
    else failed.push(failedRow(row, thrown.error));
  };
  const runMarked = async (row: BlockRow): Promise<void> => {
    if (isSuspect) await run.beginRow(row.index);
    note(row, await call(each, row));
    await ends.flush();
  };
  const runSlowly = async (row: BlockRow, returned: Promise<Thrown>): Promise<void> => {
    ends.arm();
    note(row, await returned);
    ends.arm();
  };
  const lane = async (): Promise<void> => {
    let waitedMono = nowMono;
    while (next < rows.length && !run.isInterrupted && !isLongEnough()) {
      // Rows that wait for nothing leave no time to the timer that marks those that have ended.
      if (nowMono - waitedMono >= MARK_MS) {
        await ends.flush();
        waitedMono = deps.clock.mono();
        continue;
      }
      const row = rows[next++]!;
      if (marksEach) {
        await runMarked(row);
        continue;
      }
      const returned = call(each, row);
      // Most rows of a fast handler end here.
      if (returned === null) ends.succeed(row);
      else if (returned instanceof Promise) {
        await runSlowly(row, returned);
        waitedMono = deps.clock.mono();
      } else note(row, returned);
    }
  };
  await (isSuspect || settings.atOnce === 1 ? lane() : Promise.all(Array.from({ length: settings.atOnce }, lane)));
  if (run.isInterrupted) throw run.signal.reason;
  if (next < rows.length)
    throw new RetryLater("0ms", `${rows.length - next} rows are left after ${settings.blockForMs} ms`);
  if (failed.length > 0) throw new RowsFailed(failed);
  if (later) throw later;
}

interface EachRow {
  readonly common: CommonRun;
  /** Read once: the contract makes its handlers into an object of its own each time. */
  readonly handler: NonNullable<AnyBatch["handlers"]["row"]>;
}

/** What a row threw; null: nothing. An own type, because anything may be thrown. */
type Thrown = { readonly error: unknown } | null;

function call({ handler, common }: EachRow, row: BlockRow): Thrown | Promise<Thrown> {
  try {
    const returned = handler(row as never, new OneRun(common, row) as never);
    return returned instanceof Promise
      ? returned.then(
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
  await deps.contract.handlers.block!(rows as never, new WholeRun(common, rows, ends) as never);
  for (const row of rows) if (!row.hasEnded) ends.succeed(row);
}

// ---- what handlers hold. Classes: an object with a dozen functions for each row cost more than the rest of the row.

class CommonRun {
  readonly batch: string;
  readonly round: number;
  readonly context: unknown;
  readonly shared: unknown;
  readonly attemptOf: BlockAttempt;

  constructor({ context, shared }: BlockDeps, run: BlockAttempt, batch: string, round: number) {
    this.batch = batch;
    this.round = round;
    this.context = context;
    this.shared = shared;
    this.attemptOf = run;
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

class OneRun extends AnyRun implements RowRun<unknown, unknown> {
  readonly #row: BlockRow;

  constructor(common: CommonRun, row: BlockRow) {
    super(common);
    this.#row = row;
  }

  key(name: string): string {
    return `${this.batch}:${this.#row.line}:${name}`;
  }

  write(file: string, text: string): void {
    this.#row.write(file, text);
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
    for (const row of rows) this.#ends.succeed(row);
    try {
      return await this.#run.commit(form, body);
    } catch (thrown) {
      // Or a worker that has lost its lease would release the block with rows marked that were never committed.
      this.#ends.takeBack(rows);
      throw thrown;
    }
  }
}

// ---- rows and their ends

/** Most rows write nothing. */
const NO_TEXTS: BlockRow["texts"] = [];

class BlockRow implements Row<unknown> {
  readonly index: number;
  readonly line: number;
  /** As it is stored. */
  readonly stored: Json;
  input: unknown;
  hasEnded = false;
  texts: readonly { readonly file: string; readonly text: string }[] = NO_TEXTS;
  readonly #ends: Ends;

  constructor(ends: Ends, index: number, line: number, stored: Json) {
    this.#ends = ends;
    this.index = index;
    this.line = line;
    this.stored = stored;
    this.input = stored;
  }

  write(file: string, text: string): void {
    assertOutput(file, text, this.line);
    if (this.texts === NO_TEXTS) this.texts = [{ file, text }];
    else (this.texts as { file: string; text: string }[]).push({ file, text });
  }

  commit(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<never> {
    return this.#ends.commit(this, form, body);
  }
}

function failedRow({ index, line, stored }: BlockRow, thrown: unknown): FailedRow {
  return { row: index, line, input: JSON.stringify(stored), error: toStoredError(thrown), as: "failed" };
}

/** The rows that ended in this attempt, and which of them are durable. */
class Ends {
  readonly #clock: Clock;
  readonly #run: BlockAttempt;
  #succeeded: BlockRow[] = [];
  #failed: FailedRow[] = [];
  /** In a write whose response has not come. It is sent again with the attempt's end, because marks are OR-ed. */
  #sent: RowEnds | null = null;
  #timer: CallOff | undefined;
  #flushing: Promise<void> | undefined;
  #stopped = false;
  /** How many rows have ended in this attempt. */
  count = 0;

  constructor(clock: Clock, run: BlockAttempt) {
    this.#clock = clock;
    this.#run = run;
  }

  succeed(row: BlockRow): void {
    if (row.hasEnded) return;
    row.hasEnded = true;
    this.#succeeded.push(row);
    this.count++;
  }

  fail(row: BlockRow, thrown: unknown): void {
    if (row.hasEnded) return;
    row.hasEnded = true;
    this.#failed.push(failedRow(row, thrown));
    this.count++;
  }

  /** They have not succeeded. */
  takeBack(rows: readonly BlockRow[]): void {
    this.#succeeded = this.#succeeded.filter((row) => !rows.includes(row));
    for (const row of rows) row.hasEnded = false;
    this.count -= rows.length;
  }

  /** What has ended is durable within MARK_MS. Called where other work may follow: rows that end without waiting for anything end with their block. */
  arm(): void {
    if (this.#stopped || this.#timer || this.#succeeded.length + this.#failed.length === 0) return;
    this.#timer = this.#clock.after(MARK_MS, () => void this.flush().catch(() => {}));
  }

  /** Makes durable what has ended. One write at a time. */
  async flush(): Promise<void> {
    while (this.#flushing) await this.#flushing.catch(() => {});
    this.#timer?.();
    this.#timer = undefined;
    const ends = this.#take();
    if (ends === null || this.#stopped) return;
    this.#sent = ends;
    this.#flushing = this.#run.endRows(ends);
    try {
      await this.#flushing;
      this.#sent = null;
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

  /** What ends with the attempt. Null: nothing but what the attempt's own end says. */
  pending(): RowEnds | null {
    this.#stopped = true;
    const sent = this.#sent;
    const ends = this.#take();
    return sent === null || ends === null ? (sent ?? ends) : bothEnds(sent, ends);
  }

  stop(): void {
    this.#timer?.();
    this.#timer = undefined;
  }

  #take(): RowEnds | null {
    const succeeded = this.#succeeded;
    const failed = this.#failed;
    if (succeeded.length === 0 && failed.length === 0) return null;
    this.#succeeded = [];
    this.#failed = [];
    return { succeeded: succeeded.map(({ index }) => index), failed, outputs: partsOf(succeeded) };
  }
}
