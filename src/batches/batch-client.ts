// What programs do with batches: submit, append, seal, watch, abort, retry. No thread and no timer: any process may use it, and none has to stay.
import { type AuditAction, type AuditEntry, auditEntry, type By } from "../job/audit.ts";
import {
  type BatchRow,
  type BatchState,
  endedRows,
  FIRST_ROUND,
  hasEnded,
  isFilling,
  roundId,
  roundKind,
  type RowTotals,
  takesRows,
  totalOf,
} from "../job/batches.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Json } from "../job/json.ts";
import { batchDraft, type Submitted, type SubmittedWith } from "../job/submit.ts";
import { endBatches } from "../recovery/batch-ends.ts";
import type { Batches, BatchFilter, OpenedBatch } from "../stores/batches.ts";
import type { AnyBatch, OutputFile } from "./contract.ts";
import { failRest } from "./aborted-round.ts";
import { allRowsOf, type FailedBatchRow, failedRowsOf, type ListedBatchRow } from "./rows.ts";
import { notOpen, type RowsOf, Submission } from "./submission.ts";

/** The options of `submit` and `openBatch`. */
export interface SubmitOptions<Context = Json> extends SubmittedWith<Context>, By {
  /** Keeps the rows back until the batch is sealed. Default false. */
  readonly hold?: boolean;
  /** Called now and then with the number of rows that are stored. Default: none. */
  readonly onProgress?: (rows: number) => void;
}

/** A batch as people and programs see it. */
export interface BatchInfo {
  /** The batch's id. */
  readonly id: string;
  /** The name of its kind. */
  readonly kind: string;
  /** The key under which it was submitted; null if it has none. */
  readonly key: string | null;
  /** Where it stands. */
  readonly state: BatchState;
  /** 1, or more if failed rows were retried. */
  readonly round: number;
  /** How many rows it has, and how they ended. */
  readonly rows: RowTotals & {
    /** Rows that have not ended. */
    readonly left: number;
  };
  /** Rows per second, during the last seconds; null: not known yet, or nothing runs. */
  readonly rate: number | null;
  /** When all rows will have ended at this rate, in ms from now; null: not known. */
  readonly endsInMs: number | null;
  /** What its rows share. */
  readonly context: Json;
  /** Its output files by name. */
  readonly outputs: Readonly<Record<string, OutputFile>>;
  /** When it was begun, in milliseconds since 1970. */
  readonly createdAt: number;
  /** When its last row was submitted, in milliseconds since 1970; null if it is open. */
  readonly sealedAt: number | null;
  /** When it ended, in milliseconds since 1970; null if it has not. */
  readonly endedAt: number | null;
  /** Why it has not ended; null: it has. */
  readonly why: string | null;
}

function stateFor({ state, round }: BatchRow): string {
  return state === "open" && round > FIRST_ROUND ? "being retried" : state;
}

export class BatchClient {
  readonly #batches: Batches;
  readonly #events: Emitter;
  readonly #newId: () => string;

  constructor(batches: Batches, events: Emitter, newId: () => string) {
    this.#batches = batches;
    this.#events = events;
    this.#newId = newId;
  }

  async submit(contract: AnyBatch, rows: RowsOf<unknown>, options: SubmitOptions<unknown>): Promise<Submitted> {
    const { batch, created, entry } = await this.#open(contract, options);
    const { id, key } = batch;
    if (!takesRows(batch)) return { id, rows: totalOf(batch), alreadyThere: totalOf(batch), created };
    const submission = new Submission(this.#batches, batch, contract, {
      resumes: true,
      onProgress: options.onProgress,
    });
    let added = 0;
    try {
      added = (await submission.all(rows)).rows;
    } catch (thrown) {
      if (submission.refused === null) return await this.#broken(id, key, thrown);
      // Another submission with the key has brought all rows. Into a batch that was aborted they were not.
      if (key === null || !["sealed", "completed"].includes(submission.refused)) throw thrown;
      added = submission.added;
    }
    // Of a batch that was there the opening is another's; this one completes it.
    if (submission.refused === null) await this.seal(id, created ? undefined : entry);
    // Counted by the batch: another submission with the same key may have added some of them.
    const [now = batch] = await this.#batches.get([id]);
    return { id, rows: totalOf(now), alreadyThere: totalOf(now) - added, created };
  }

  /** The source broke. With a key the batch stays open, to be submitted again; without one nothing could find it, so it is aborted. */
  async #broken(id: string, key: string | null, thrown: unknown): Promise<never> {
    if (key === null) await this.abort(id).catch(() => {});
    const { message } = thrown instanceof Error ? thrown : { message: String(thrown) };
    throw new OutliveError(
      ErrorCode.sourceBroken,
      `The rows of batch ${id} could not be read to the end: ${message}`,
      key === null
        ? "The batch was aborted. Rows that ran before stay done. With a `key` you can continue such a submission."
        : `The batch is open and keeps what came before. Fix the source and submit it again with the key ${JSON.stringify(key)}, or abort the batch.`,
      { batch: id, key },
      { cause: thrown },
    );
  }

  async openBatch(contract: AnyBatch, options: SubmitOptions<unknown>): Promise<OpenBatch> {
    const { batch } = await this.#open(contract, options);
    return new OpenBatch(this, contract, batch.id);
  }

  /** A submission is audited if it says who makes it. */
  async #open(
    contract: AnyBatch,
    options: SubmitOptions<unknown>,
  ): Promise<OpenedBatch & { readonly entry: AuditEntry | undefined }> {
    const draft = await batchDraft(contract, options, this.#newId);
    const entry = this.#entry("submit", draft.id, options);
    const opened = await this.#batches.open(draft, entry);
    return { ...opened, entry: entry && { ...entry, target: targetOf(opened.batch.id) } };
  }

  #entry(action: AuditAction, id: string, by: By | undefined): AuditEntry | undefined {
    if (by === undefined || (by.actor === undefined && by.reason === undefined)) return undefined;
    return auditEntry(this.#newId(), action, targetOf(id), by);
  }

  async append(contract: AnyBatch, id: string, rows: RowsOf<unknown>): Promise<{ readonly rows: number }> {
    const [batch] = await this.#batches.get([id]);
    if (!batch || !takesRows(batch)) throw notOpen(id, batch ? stateFor(batch) : "missing");
    return { rows: (await new Submission(this.#batches, batch, contract, { resumes: false }).all(rows)).rows };
  }

  /** Nothing more can be appended. An empty batch ends here. */
  async seal(id: string, by?: AuditEntry | By): Promise<void> {
    const [batch] = await this.#batches.get([id]);
    const entry = by !== undefined && "action" in by ? by : this.#entry("seal", id, by);
    const state = batch ? await this.#batches.seal(id, FIRST_ROUND, entry) : "missing";
    if (state === "missing") throw notOpen(id, state);
    if (batch!.held) while (await this.#batches.tend(1_000));
    await endBatches(this.#batches, this.#events, [id]);
  }

  async get(id: string): Promise<BatchInfo | null> {
    const [batch] = await this.#batches.get([id]);
    return batch ? infoOf(batch) : null;
  }

  async list(filter: BatchFilter, limit: number, after: string | null): Promise<readonly BatchInfo[]> {
    return (await this.#batches.list(filter, limit, after)).map(infoOf);
  }

  /** Rows of the latest round that failed or were quarantined, by line, in constant memory. */
  async *failedRows(id: string): AsyncGenerator<FailedBatchRow> {
    const [batch] = await this.#batches.get([id]);
    if (!batch) throw notOpen(id, "missing");
    yield* failedRowsOf(this.#batches, id, batch.round);
  }

  /** All rows, in constant memory. */
  async *rows(id: string): AsyncGenerator<ListedBatchRow> {
    const [batch] = await this.#batches.get([id]);
    if (!batch) throw notOpen(id, "missing");
    yield* allRowsOf(this.#batches, batch);
  }

  /**
   * Ends the batch: blocks that have not begun are cancelled, running ones are asked to end. Rows that have ended stay as they are. Killed anywhere, another
   * call goes on.
   */
  async abort(id: string, entry?: AuditEntry): Promise<BatchState> {
    const state = await this.#batches.abort(id, entry);
    if (state === "missing") throw notOpen(id, state);
    if (state === "aborting") {
      while (await this.#batches.tend(1_000));
      await failRest(this.#batches, id);
    }
    await endBatches(this.#batches, this.#events, [id]);
    return (await this.#batches.get([id]))[0]?.state ?? state;
  }

  /** A new round of the rows that failed or were quarantined, and `done` again at its end. */
  async retry(id: string, entry: AuditEntry): Promise<{ readonly round: number; readonly rows: number }> {
    const [batch] = await this.#batches.get([id]);
    if (!batch) throw notOpen(id, "missing");
    const { state, kind, round, priority, sums } = batch;
    const failed = sums.failed + sums.quarantined;
    const input = JSON.stringify({ batch: id, round: round + 1 });
    const plain = { priority, runAt: null, delayMs: 0, dedupeKey: null };
    const draft = { id: roundId(id, round + 1), kind: roundKind(kind), input, ...plain };
    if (!hasEnded(state) || failed === 0 || !(await this.#batches.reopen(id, round, draft, entry)))
      throw new OutliveError(
        ErrorCode.wrongState,
        hasEnded(state) && failed === 0
          ? `Batch ${id} has no failed rows to retry.`
          : `Batch ${id} is ${state}; only a batch that has ended can be retried.`,
        "Nothing was changed. `outlive batch ID` shows its state.",
        { batch: id, state, round },
      );
    return { round: round + 1, rows: failed };
  }
}

function targetOf(batch: string): string {
  return `batch ${batch}`;
}

/** A batch to which rows are appended until it is sealed. */
export class OpenBatch<In = unknown> {
  /** The batch's id. */
  readonly id: string;
  readonly #client: BatchClient;
  readonly #contract: AnyBatch;

  /** Use `engine.openBatch`. @internal */
  constructor(client: BatchClient, contract: AnyBatch, id: string) {
    this.#client = client;
    this.#contract = contract;
    this.id = id;
  }

  /** Adds rows. Resolves when they are durable. */
  append(rows: RowsOf<In>): Promise<{
    /** How many rows were added. */
    readonly rows: number;
  }> {
    return this.#client.append(this.#contract, this.id, rows);
  }

  /** Nothing more can be appended; a batch that was held begins to run. With an actor or a reason it is in the audit. */
  seal(by?: By): Promise<void> {
    return this.#client.seal(this.id, by);
  }
}

export function infoOf(batch: BatchRow): BatchInfo {
  const { id, kind, key, state, round, sums, earlier, rows, pace, createdAt, sealedAt, endedAt } = batch;
  const left = rows - endedRows(sums);
  const rate =
    pace && pace.toAt > pace.fromAt && !hasEnded(state)
      ? Math.round(((pace.toRows - pace.fromRows) * 1_000) / (pace.toAt - pace.fromAt))
      : null;
  return {
    id,
    kind,
    key,
    state,
    round,
    rows: {
      total: totalOf(batch),
      succeeded: earlier.succeeded + sums.succeeded,
      failed: sums.failed,
      quarantined: sums.quarantined,
      aborted: earlier.aborted + sums.aborted,
      left,
    },
    rate,
    endsInMs: rate && state === "sealed" ? Math.round((left * 1_000) / rate) : null,
    context: JSON.parse(batch.context) as Json,
    outputs: batch.outputs === null ? {} : (JSON.parse(batch.outputs) as Record<string, OutputFile>),
    createdAt,
    sealedAt,
    endedAt,
    why: whyNotEnded(batch, left),
  };
}

function whyNotEnded(batch: BatchRow, left: number): string | null {
  const { id, state, held, round } = batch;
  if (hasEnded(state)) return null;
  if (isFilling(batch))
    return `${state === "open" ? "its failed rows are" : "it is being aborted, and the rest of its failed rows is"} still to be added to round ${round}, by the job ${roundId(id, round)}`;
  if (state === "open")
    return held ? "it is held until it is sealed" : "it is open: more rows may be appended until it is sealed";
  if (state === "aborting") return `it is being aborted; ${left} rows have not ended`;
  return left === 0 ? "all rows have ended; the next check ends it" : `${left} rows have not ended`;
}
