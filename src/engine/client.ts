// The client: enqueue and inspect. No thread, no recovery, no migration, no signal handler: safe in web processes, under
// hot reload and in bundlers. The engine is a client that can also work.
import { BatchClient, type BatchInfo, type OpenBatch, type SubmitOptions } from "../batches/batch-client.ts";
import type { Ingested } from "../batches/batch-worker.ts";
import type { AnyBatch, BatchContract } from "../batches/contract.ts";
import type { FailedBatchRow, ListedBatchRow } from "../batches/rows.ts";
import type { RowsOf } from "../batches/submission.ts";
import { type AuditAction, type AuditEntry, auditEntry, type AuditRecord, type By } from "../job/audit.ts";
import type { BlobStore } from "../blobs/blob-store.ts";
import {
  CollectionClient,
  type CollectionInfo,
  type CollectionStarted,
  type CollectOptions,
} from "../collections/collection-client.ts";
import type { AnyCollection, CollectionContract } from "../collections/contract.ts";
import { type BatchState, doneId, type IngestedFile } from "../job/batches.ts";
import type { CollectionState, ParkedRow, PutAnswer } from "../job/collections.ts";
import { type EnqueueAround, type JobToEnqueue, ManyAround } from "../job/around.ts";
import type { AnyContract, JobContract, NamedKind } from "../job/contract.ts";
import { assertKey, type EnqueueOptions, idSource, makeDraft } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import {
  type Enqueued,
  type EnqueuedMany,
  isTerminal,
  JOB_STATES,
  type JobDetails,
  type JobDraft,
  type JobId,
  type JobState,
} from "../job/job.ts";
import type { Json } from "../job/json.ts";
import type { Submitted } from "../job/submit.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { makeSignal, type SentSignal, type SentSignalOptions, signalResult } from "../job/waits.ts";
import { systemClock, systemRandom } from "../platform/clock.ts";
import { type IncidentSummary, recoveryReport, type RecoveryReport, reportText } from "../recovery/incident.ts";
import type { WorkerRow } from "../stores/liveness.ts";
import type { CollectionCount } from "../stores/collections.ts";
import type { CancelOptions, JobFilter, KindCounts, ListPage, Store, WorkerQuery } from "../stores/port.ts";
import {
  type AwaitedJob,
  awaitedJob,
  checkedEnqueue,
  type CommitForm,
  type NoPromise,
  type WaitOptions,
  transactionsFor,
} from "../worker/run.ts";
import { ScheduleClient } from "../schedules/schedules.ts";
import type { ScheduleDeclaration } from "../schedules/declaration.ts";
import { responseBlob } from "../requests/body.ts";
import { kindsOf } from "./batch.ts";
import {
  type AuditOptions,
  type BulkChange,
  type BulkOptions,
  type BulkResult,
  Changes,
  type PauseOptions,
} from "./changes.ts";
import { aroundEnqueue, type Middleware } from "./middleware.ts";
import { follow, type FollowedJob, type FollowOptions } from "./follow.ts";
import { Results } from "./results.ts";

/** A report for people (`text`) and programs (the rest). */
export type Report = RecoveryReport & {
  /** The same for people. */
  readonly text: string;
};

/** Which jobs are listed, and from where on. */
export interface ListOptions extends JobFilter {
  /** At most this many jobs on the page. Default 50, from 1 to 1000. */
  readonly limit?: number;
  /** `next` of the page before. */
  readonly after?: string;
}

/** Options of `enqueueMany`. */
export interface EnqueueManyOptions<In> {
  /** The options of each job. Default: none. */
  readonly each?: (input: In, index: number) => EnqueueOptions;
  /** Called with each durable chunk, for progress or to collect ids. Default: none. */
  readonly onBatch?: (batch: readonly Enqueued[]) => void;
}

/** What belongs to each job is easily given for all. */
function assertManyOptions(kind: string, options: object): void {
  const known: readonly (keyof EnqueueManyOptions<unknown>)[] = ["each", "onBatch"];
  const wrong = Object.keys(options).find((name) => !(known as readonly string[]).includes(name));
  if (wrong === undefined) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${wrong} is not an option of enqueueMany. No job of ${kind} was enqueued.`,
    `Options of the jobs come from \`each\`: { each: (input) => ({ ${wrong}: ... }) }. The others are ${known.join(" and ")}.`,
    { kind, option: wrong },
  );
}

/** How many jobs of `enqueueMany` share one transaction, unless the store says otherwise. */
const BATCH = 1_000;
/** A batch of large inputs is cut sooner, so that memory stays constant. */
const BATCH_CHARACTERS = 4 << 20;

/** Enqueues, reads and changes jobs; runs none. Made by `connect()`. */
export class Client {
  /** @internal */
  protected readonly store: Store;
  /** @internal */
  protected readonly contracts: ReadonlyMap<string, AnyContract>;
  readonly #newId: () => string;
  readonly #release: () => Promise<void>;
  readonly #events: Emitter;
  /** The kinds of batches that this program knows. @internal */
  protected readonly batchKinds: ReadonlyMap<string, AnyBatch>;
  #results: Results | undefined;
  #changes: Changes | undefined;
  #batchClient: BatchClient | undefined;
  /** The schedules that this program declares. @internal */
  protected readonly declaredSchedules: ReadonlyMap<string, ScheduleDeclaration>;
  #schedules: ScheduleClient | undefined;
  /** The kinds of collections that this program knows. @internal */
  protected readonly collectionKinds: ReadonlyMap<string, AnyCollection>;
  readonly #blobs: BlobStore | null;
  #collectionClient: CollectionClient | undefined;
  /** Null: nothing is around the enqueues of this program. */
  readonly #around: EnqueueAround | null;
  #closed = false;

  /** Use `connect` or `open`. @internal */
  constructor(
    store: Store,
    contracts: ReadonlyMap<string, AnyContract>,
    release: () => Promise<void>,
    {
      batches = NO_BATCHES,
      collections = NO_COLLECTIONS,
      blobs = null,
      events = UNHEARD,
      schedules = NO_SCHEDULES,
      newId = idSource(systemClock, systemRandom),
      middleware,
    }: {
      batches?: ReadonlyMap<string, AnyBatch>;
      schedules?: ReadonlyMap<string, ScheduleDeclaration>;
      collections?: ReadonlyMap<string, AnyCollection>;
      blobs?: BlobStore | null;
      events?: Emitter;
      newId?: () => string;
      middleware?: readonly Middleware[];
    } = {},
  ) {
    this.#around = middleware === undefined ? null : aroundEnqueue(middleware);
    this.#newId = newId;
    this.store = store;
    this.contracts = contracts;
    this.#release = release;
    this.batchKinds = batches;
    this.declaredSchedules = schedules;
    this.collectionKinds = collections;
    this.#blobs = blobs;
    this.#events = events;
  }

  /** Adds a job. Resolves when it is durable; calls of one turn of the event loop share one transaction. */
  async enqueue<In, Result = Json>(
    job: JobContract<In, never, Result> | JobContract<In, unknown, Result>,
    input: In,
    options: EnqueueOptions = {},
  ): Promise<Enqueued<Result>> {
    if (this.#around)
      return this.#around({ job: job as never, input, options }, (passed) => this.#enqueueOne(passed)) as Promise<
        Enqueued<Result>
      >;
    const [enqueued] = await this.store.enqueue([await this.draft(job as never, input, options)]);
    return enqueued! as Enqueued<Result>;
  }

  async #enqueueOne({ job, input, options }: JobToEnqueue): Promise<Enqueued> {
    const [enqueued] = await this.store.enqueue([await this.draft(job, input, options)]);
    return enqueued!;
  }

  /** Adds many jobs, even from an asynchronous iterable, in transactions of 1,000 and in constant memory. If it rejects, earlier transactions are stored and later ones are not, except one that was on its way to Redis; with your own ids you can safely repeat the call. */
  async enqueueMany<In>(
    job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
    inputs: Iterable<In> | AsyncIterable<In>,
    options: EnqueueManyOptions<In> = {},
  ): Promise<EnqueuedMany> {
    assertManyOptions(job?.name, options);
    const most = this.store.bulk ?? BATCH;
    let index = 0;
    let count = 0;
    let created = 0;
    let drafts: JobDraft[] = [];
    let length = 0;
    const hear = (batch: readonly Enqueued[]): void => {
      count += batch.length;
      for (const enqueued of batch) if (enqueued.created) created++;
      options.onBatch?.(batch);
    };
    const taken = (): readonly JobDraft[] => {
      const batch = drafts;
      drafts = [];
      length = 0;
      return batch;
    };
    const add = (input: In): JobDraft | Promise<JobDraft> =>
      this.draft(job as never, input, options.each?.(input, index++) ?? {});
    const push = (draft: JobDraft): boolean => {
      drafts.push(draft);
      length += draft.input.length;
      return drafts.length >= most || length > BATCH_CHARACTERS;
    };
    if (this.#around) {
      const through = new ManyAround(this.#around);
      const flush = async (): Promise<void> =>
        hear(await through.flushed(async () => (drafts.length > 0 ? this.store.enqueue(taken()) : [])));
      let isFull = false;
      for await (const input of inputs) {
        const own = options.each?.(input, index++) ?? {};
        await through.add({ job: job as never, input, options: own }, async (passed) => {
          isFull = push(await this.draft(passed.job, passed.input, passed.options));
        });
        if (isFull) await flush();
        isFull = false;
      }
      await flush();
      return { count, created };
    }
    // While a batch is under way the next one is made: on a server, which works meanwhile, 20 % of the time of both.
    const underWay: Promise<void>[] = [];
    const call = {};
    const flush = async (): Promise<void> => {
      const batch = taken();
      while (underWay.length >= (this.store.bulkAtOnce ?? 1)) await underWay.shift();
      const enqueued = this.store.enqueue(batch, call).then(hear);
      // Whatever awaits it next rejects with it.
      enqueued.catch(() => {});
      underWay.push(enqueued);
      await new Promise<void>((sent) => systemClock.soon(sent));
    };
    try {
      if (Symbol.asyncIterator in inputs) {
        for await (const input of inputs) {
          if (push(await add(input))) await flush();
        }
      } else {
        for (const input of inputs) {
          const draft = add(input);
          if (push(draft instanceof Promise ? await draft : draft)) await flush();
        }
      }
      if (drafts.length > 0) await flush();
    } finally {
      // When it rejects, nothing is on its way any more.
      await Promise.allSettled(underWay);
      await Promise.all(underWay);
    }
    return { count, created };
  }

  /** Your own writes, `tx.enqueue` and `tx.signal` in one transaction of the store. */
  transaction<Tx, T>(form: CommitForm<Tx, "sync">, body: (tx: Tx) => NoPromise<T>): Promise<T>;
  transaction<Tx, T>(form: CommitForm<Tx, "async">, body: (tx: Tx) => Promise<T>): Promise<T>;
  async transaction(form: CommitForm<unknown, "sync" | "async">, body: (tx: never) => unknown): Promise<unknown> {
    const transactions = transactionsFor(this.store, form, "transaction was called");
    const checked = checkedEnqueue(body as (tx: unknown) => unknown, (job) => this.assertKnown(job));
    return (await transactions.transact(checked)).value;
  }

  /**
   * The result of a job, once it has succeeded. Rejects with NO_RESULT if it ended otherwise, was removed, or does not end within `timeout`. It also works for a job that has ended already, and in a program that started after the enqueue.
   */
  result<Result = Json>(id: JobId<Result>, options: WaitOptions = {}): Promise<Result> {
    assertKey(id, "The job's id");
    const { timeout } = options;
    const timeoutMs = timeout === undefined ? null : durationMs(timeout, `The timeout for the result of job ${id}`);
    return this.#waiting().wait(id, timeoutMs) as Promise<Result>;
  }

  /**
   * Sends a signal to an unfinished job, which reads it with `run.waitForSignal`. Resolves when it is stored, even if the job does not wait for it yet. With your own `id`, sending it again adds nothing. At most 1,000 unread signals are kept for a job. With an `actor` or a `reason` it is in the audit.
   */
  async signal(
    jobId: string,
    name: string,
    payload: Json = null,
    options: SentSignalOptions & By = {},
  ): Promise<SentSignal> {
    const { actor, reason } = options;
    const signal = makeSignal(jobId, name, payload, options, this.#newId);
    // Programs send many: only those of a person are kept in the audit.
    const isByHand = actor !== undefined || reason !== undefined;
    const entry = isByHand ? this.#entry("signal", `job ${jobId}`, options) : undefined;
    return signalResult(signal, await this.store.operate.signal(signal, entry));
  }

  /**
   * How all these jobs ended, in the order of the ids, once they have, however they ended; or their states when `timeout` has passed. One read at a time for
   * all of them.
   */
  async wait<Result = Json>(
    ids: readonly JobId<Result>[],
    options: WaitOptions = {},
  ): Promise<readonly AwaitedJob<Result>[]> {
    for (const id of ids) assertKey(id, "A job's id");
    const { timeout } = options;
    const timeoutMs = timeout === undefined ? null : durationMs(timeout, "The timeout of wait");
    return (await this.#waiting().ended(ids, timeoutMs)).map((outcome) => awaitedJob<Result>(outcome));
  }

  /**
   * Follows these jobs by reading their rows: first the state of each, then every change that a read finds, until all have
   * ended. Changes between two reads are one event. For web processes; in a worker, `engine.on` reports everything at once.
   */
  follow<Result = Json>(
    ids: readonly JobId<Result>[],
    options: FollowOptions = {},
  ): AsyncIterable<FollowedJob<Result>> {
    for (const id of ids) assertKey(id, "A job's id");
    return follow<Result>(this.store, systemClock, ids, options);
  }

  /**
   * Cancels a job: a queued one at once, a running one by aborting its signal. Returns its state after that. With `children`,
   * workers also cancel its children that have not begun; those that have begun continue.
   */
  cancel(id: string, options: CancelOptions & By = {}): Promise<JobState> {
    return this.changes.cancel(id, options);
  }

  /** Queues a finished job again, with its counters at zero and its steps kept. With an `input` it runs with that input, and its kept steps are deleted. */
  retry(
    id: string,
    options: {
      /** Its new input. Default: the input that it has. */
      readonly input?: unknown;
    } & By = {},
  ): Promise<JobState> {
    return this.changes.retry(id, options);
  }

  /** Makes a delayed job ready now. One that waits for a signal, for other jobs or in a sleep is refused. */
  promote(id: string, by: By = {}): Promise<JobState> {
    return this.changes.promote(id, by);
  }

  /**
   * Deletes a job and everything that it stored: input, result, steps, log, history, signals and blobs. Rejects for a running
   * job. A job that has not ended is ended first, and jobs that wait for it continue. While its parent is unfinished, an empty
   * job with the error REMOVED takes its place. The audit and incidents keep its id.
   */
  remove(id: string, by: By = {}): Promise<void> {
    return this.changes.remove(id, by);
  }

  /**
   * Changes all jobs that a filter finds, in transactions of 100, with one audit entry. Without a state: retry takes dead ones, cancel queued and running ones,
   * promote delayed ones, remove all that have ended. Killed half-way, what was changed is in the audit; run it again.
   */
  bulk(change: BulkChange, filter: JobFilter, options: BulkOptions = {}): Promise<BulkResult> {
    return this.changes.bulk(change, filter, options);
  }

  /** No worker claims jobs of this kind until `resume`, or until the pause ends. Running jobs continue; occurrences of its schedules obey `missed`. A second pause replaces the first. */
  pause(kind: NamedKind | string, options: PauseOptions = {}): Promise<void> {
    return this.changes.pause(kind, options);
  }

  /** Ends the pause of a kind: workers take its jobs again. */
  resume(kind: NamedKind | string, by: By = {}): Promise<void> {
    return this.changes.resume(kind, by);
  }

  /** What people changed, the newest first. */
  audit(options: AuditOptions = {}): Promise<readonly AuditRecord[]> {
    return this.changes.audit(options);
  }

  /** Everything about one job, or null if there is none. */
  async get(id: string): Promise<JobDetails | null> {
    assertKey(id, "The job's id");
    return this.store.inspect.get(id);
  }

  /** Jobs, newest first, by pages. */
  async list(options: ListOptions = {}): Promise<ListPage> {
    const { limit = 50, after, ...filter } = options;
    assertLimit(limit);
    if (filter.state !== undefined && !JOB_STATES.includes(filter.state)) {
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `There is no state ${JSON.stringify(filter.state)}.`,
        `Use one of ${JOB_STATES.join(", ")}.`,
        { state: filter.state },
      );
    }
    return this.store.inspect.list(filter, limit, after ?? null);
  }

  /** How many jobs of each kind are in each state. */
  counts(): Promise<readonly KindCounts[]> {
    return this.store.inspect.counts();
  }

  /** Workers with their heartbeats: those that are running or being recovered; those that have ended and still hold jobs; or all that are stored. */
  workers({ which = "present", heldIds }: Pick<WorkerQuery, "which" | "heldIds"> = {}): Promise<readonly WorkerRow[]> {
    return this.store.workers({ which, ...(heldIds !== undefined && { heldIds }) });
  }

  /** Deaths and what was done about them, newest first. */
  async incidents(
    options: {
      /** At most this many. Default 50, from 1 to 1000. */
      readonly limit?: number;
      /** The id of the last incident of the page before. */
      readonly after?: string;
    } = {},
  ): Promise<readonly IncidentSummary[]> {
    const { limit = 50, after = null } = options;
    assertLimit(limit);
    return this.store.inspect.incidents(limit, after);
  }

  /** The report of one incident, or without an id that of the latest recovery or open that found anything. Null: there was none. */
  async report(id?: string): Promise<Report | null> {
    const incident = id === undefined ? null : await this.store.inspect.incident(id);
    const incidents = id === undefined ? await this.store.inspect.latestRecovery() : incident ? [incident] : [];
    const opening = (id === undefined || incident ? await this.store.upkeep.latestOpening?.() : null) ?? null;
    const report = recoveryReport(incidents, opening, id !== undefined);
    return report && { ...report, text: reportText(report) };
  }

  /** Schedules: set, list, preview, pause, run, backfill and remove them at run time. Workers fire them. */
  get schedules(): ScheduleClient {
    const { schedules, name } = this.store;
    if (schedules === undefined)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The store ${name} has no schedules.`,
        "Use a store of this version of Outlive.",
        { store: name },
      );
    return (this.#schedules ??= new ScheduleClient({
      schedules,
      newId: this.#newId,
      assertKnown: (contract) => this.assertKnown(contract),
      declared: this.declaredSchedules,
    }));
  }

  // ---- batches

  /** Submits rows as one batch, in constant memory, and seals it. With a `key`, a killed submission continues where it ended. */
  submit<In, Context>(
    batch:
      | BatchContract<In, never, Context, never>
      | BatchContract<In, unknown, Context, never>
      | BatchContract<In, unknown, Context, unknown>,
    rows: RowsOf<NoInfer<In>>,
    options: SubmitOptions<NoInfer<Context>> = {},
  ): Promise<Submitted> {
    return this.#batchesFor(batch).submit(batch as unknown as AnyBatch, rows, options);
  }

  /**
   * Enqueues a job that reads a file into a batch. After a kill it continues at the last block. `source` is a path that every worker can
   * read, or `{ blob: key }`. `engine.result(job)` is `{ batch, rows }` when all rows are stored. With a `key` the same file is read once.
   */
  async ingest<In, Context>(
    batch:
      | BatchContract<In, never, Context, never>
      | BatchContract<In, unknown, Context, never>
      | BatchContract<In, unknown, Context, unknown>,
    source:
      | string
      | {
          /** The key of a blob. */
          readonly blob: string;
        },
    options: IngestOptions<NoInfer<Context>> = {},
  ): Promise<{
    /** The id of the job that reads it. */
    readonly job: JobId<Ingested>;
  }> {
    return { job: await this.ingestAs(this.#newId(), batch as unknown as AnyBatch, source, options) };
  }

  /** As `ingest`, by a job of this id. @internal */
  protected async ingestAs(
    id: string,
    batch: AnyBatch,
    source: string | { readonly blob: string },
    options: IngestOptions<unknown>,
  ): Promise<JobId<Ingested>> {
    this.#batchesFor(batch);
    const { context = null, key, priority = 0, hold = false, format = "csv" } = options;
    const file = typeof source === "string" ? source : source.blob;
    if (key !== undefined) assertKey(key, `The key of a ${batch.name} batch`);
    if (typeof file !== "string" || file === "" || !["csv", "ndjson"].includes(format))
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `${JSON.stringify(file)} can't be read as ${JSON.stringify(format)} rows of ${batch.name}.`,
        'Pass a path or { blob: key }, and the format "csv" or "ndjson".',
        { kind: batch.name, file, format },
      );
    const from = typeof source === "string" ? "path" : "blob";
    const input: IngestedFile = { file, from, format, key: key ?? id, context: context as Json, priority, hold };
    const { id: job } = await this.enqueue(batch.kinds.ingest as never, input as never, { id, priority });
    return job as string;
  }

  /** Opens a batch to which rows are appended until it is sealed. With a `key` it returns the open one that has it. */
  openBatch<In, Context>(
    batch:
      | BatchContract<In, never, Context, never>
      | BatchContract<In, unknown, Context, never>
      | BatchContract<In, unknown, Context, unknown>,
    options: SubmitOptions<NoInfer<Context>> = {},
  ): Promise<OpenBatch<In>> {
    return this.#batchesFor(batch).openBatch(batch as unknown as AnyBatch, options);
  }

  /** The state of a batch, or null if there is none. Reads a few rows, however large the batch is, and takes no lock. */
  async batch(id: string): Promise<BatchInfo | null> {
    assertKey(id, "The batch's id");
    return this.#batches().get(id);
  }

  /** A page of batches, the newest first. `after` is the id of the last one of the page before. */
  async batches(options: BatchListOptions = {}): Promise<readonly BatchInfo[]> {
    const { kind, state, since, limit = 50, after = null } = options;
    assertLimit(limit);
    const filter = {
      ...(kind !== undefined && { kind: typeof kind === "string" ? kind : kind.name }),
      ...(state !== undefined && { state }),
      ...(since !== undefined && { createdAfter: since.getTime() }),
    };
    return this.#batches().list(filter, limit, after);
  }

  /**
   * The rows of a batch with their states, by line, streamed: those of the first round, then those of each later one, with a row where it ended last. With
   * `failed`, only those of the latest round that failed or were quarantined. Blocks are read as they are at that moment; all rows can be listed until
   * the retention of the batch has passed.
   */
  batchRows(
    id: string,
    options: {
      /** Only failed rows. */
      readonly failed: true;
    },
  ): AsyncIterable<FailedBatchRow>;
  batchRows(
    id: string,
    options?: {
      /** Only failed rows. Default false. */
      readonly failed?: boolean;
    },
  ): AsyncIterable<ListedBatchRow>;
  batchRows(id: string, { failed = false }: { readonly failed?: boolean } = {}): AsyncIterable<ListedBatchRow> {
    assertKey(id, "The batch's id");
    return failed ? this.#batches().failedRows(id) : this.#batches().rows(id);
  }

  /** Ends a batch: aborts the rows that have not begun, asks running blocks to end, and keeps what has ended. Returns its state after that. */
  async abortBatch(id: string, by: By = {}): Promise<BatchState> {
    assertKey(id, "The batch's id");
    return this.#batches().abort(id, this.#entry("abort", `batch ${id}`, by));
  }

  /** Runs the failed rows of a batch that has ended again, as a new round with its own `done`. */
  async retryBatch(
    id: string,
    by: By = {},
  ): Promise<{
    /** The number of the new round. */
    readonly round: number;
    /** How many rows it has. */
    readonly rows: number;
  }> {
    assertKey(id, "The batch's id");
    await this.#assertDone(id);
    return this.#batches().retry(id, this.#entry("retry", `batch ${id}`, by));
  }

  /** `done` gets what a round came to. It must have run before the next round begins, because the batch keeps that of one round. */
  async #assertDone(id: string): Promise<void> {
    const batch = await this.#batches().get(id);
    if (batch === null || batch.endedAt === null) return;
    const done = doneId(id, batch.round);
    const [outcome] = await this.store.inspect.outcomes([done]);
    if (!outcome || outcome.state === "missing" || isTerminal(outcome.state)) return;
    throw new OutliveError(
      ErrorCode.wrongState,
      `Batch ${id} has ended, but its done job (${done}) has not: it is ${outcome.state}.`,
      `Nothing was changed. Retry the batch when that job has ended; why it has not: outlive why ${done}`,
      { batch: id, jobId: done, state: outcome.state },
    );
  }

  #batchesFor(batch: { readonly name: string }): BatchClient {
    if (this.#closed) throw closedError();
    if (this.batchKinds.get(batch?.name) !== (batch as unknown)) throw unknownKind(batch?.name, this.batchKinds);
    return this.#batches();
  }

  #batches(): BatchClient {
    const { batches, name } = this.store;
    if (batches === undefined)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The store ${name} has no batches.`,
        "Use a store of this version of Outlive.",
        { store: name },
      );
    return (this.#batchClient ??= new BatchClient(batches, this.#events, this.#newId));
  }

  // ---- collections

  /** Opens a collection and enqueues the job that asks its producer. Resolves when both are durable. If the id is known, it returns the first with `created: false`. */
  async collect<In>(
    collection: CollectionContract<In, never> | CollectionContract<In, unknown>,
    input: NoInfer<In>,
    options: CollectOptions = {},
  ): Promise<CollectionStarted> {
    return this.#collectionsFor(collection).collect(collection as unknown as AnyCollection, input, options);
  }

  /** Announces how many parts series have, before or after the parts come. A number that contradicts an earlier one is refused. */
  async announce(
    collection: Pick<CollectionContract, "name" | "settings">,
    id: string,
    expected: Readonly<Record<string, number>>,
  ): Promise<void> {
    return this.#collectionsFor(collection).announce(collection as unknown as AnyCollection, id, expected);
  }

  /** Stores a part. Resolves when it is durable: repeat it after a crash, and it counts once. */
  async put(
    collection: Pick<CollectionContract, "name" | "settings">,
    id: string,
    series: string,
    ordinal: number,
    data: Uint8Array,
  ): Promise<PutAnswer> {
    return this.#collectionsFor(collection).put(collection as unknown as AnyCollection, id, series, ordinal, data);
  }

  /** A collection and what it is missing, or null if there is none. */
  async collection(id: string): Promise<CollectionInfo | null> {
    assertKey(id, "The collection's id");
    return this.#collections().get(id);
  }

  /** A page of collections, the newest first. `after` is the id of the last one of the page before. */
  async collections(options: CollectionListOptions = {}): Promise<readonly CollectionInfo[]> {
    const { kind, state, limit = 50, after = null } = options;
    assertLimit(limit);
    const filter = {
      ...(kind !== undefined && { kind: typeof kind === "string" ? kind : kind.name }),
      ...(state !== undefined && { state }),
    };
    return this.#collections().list(filter, limit, after);
  }

  /** How many collections of each kind are in each state. */
  async collectionCounts(): Promise<readonly CollectionCount[]> {
    return this.#collections().counts();
  }

  /** Ends an open collection as if its time had passed: `abandoned` runs, and its parts are kept for `keep`. */
  async abandonCollection(id: string, by: By = {}): Promise<CollectionState> {
    assertKey(id, "The collection's id");
    const entry = this.#entry("abandon", `collection ${id}`, by);
    return this.#collections().end(id, "abandoned", "by an operator", entry);
  }

  /** Ends an open collection as cancelled. */
  async cancelCollection(id: string, by: By = {}): Promise<CollectionState> {
    assertKey(id, "The collection's id");
    const entry = this.#entry("cancel", `collection ${id}`, by);
    return this.#collections().end(id, "cancelled", "by an operator", entry);
  }

  /** Parked messages, by id. */
  async parked(options: ParkedListOptions = {}): Promise<readonly ParkedRow[]> {
    const { kind, collection, limit = 50, after = null } = options;
    assertLimit(limit);
    const filter = {
      ...(kind !== undefined && { kind: typeof kind === "string" ? kind : kind.name }),
      ...(collection !== undefined && { collection }),
    };
    return this.#collections().parked(filter, limit, after);
  }

  /** Handles a parked message again, as a part, a header or a job of this program's `jobs`, and returns what became of it; "kept": it can't be read as one, its bytes are refused again, or its body is gone, and it stays parked. */
  async retryParked(message: ParkedRow, by: By = {}): Promise<PutAnswer | "kept"> {
    return this.#collections().retryParked(message, this.#entry("retry", `parked message ${message.id}`, by));
  }

  /** Forgets a parked message, with its body. */
  async dropParked(message: ParkedRow, by: By = {}): Promise<void> {
    return this.#collections().dropParked(message, this.#entry("remove", `parked message ${message.id}`, by));
  }

  #collectionsFor(collection: { readonly name: string }): CollectionClient {
    if (this.#closed) throw closedError();
    if (this.collectionKinds.get(collection?.name) !== (collection as unknown))
      throw unknownKind(collection?.name, this.collectionKinds);
    return this.#collections();
  }

  #collections(): CollectionClient {
    const { collections, name } = this.store;
    if (collections === undefined)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The store ${name} has no collections.`,
        "Use a store of this version of Outlive.",
        { store: name },
      );
    return (this.#collectionClient ??= new CollectionClient({
      collections,
      blobs: this.#blobs,
      events: this.#events,
      newId: this.#newId,
      clock: systemClock,
      enqueue: (kind, body, id) => this.#enqueueFrom(kind, body, id),
      messageMax: (kind) => this.collectionKinds.get(kind)?.settings.messageMax ?? Infinity,
    }));
  }

  async #enqueueFrom(kind: string, body: Buffer, id: string): Promise<"accepted" | "duplicate" | "kept"> {
    const job = this.contracts.get(kind);
    if (job === undefined) return "kept";
    try {
      const { created } = await this.enqueue(job as never, JSON.parse(body.toString()) as never, { id });
      return created ? "accepted" : "duplicate";
    } catch (thrown) {
      // Too long, or with what no JSON of a job has: this time, too.
      const unfit: readonly unknown[] = [ErrorCode.inputInvalid, ErrorCode.notJson];
      if (thrown instanceof SyntaxError || unfit.includes((thrown as OutliveError).code)) return "kept";
      throw thrown;
    }
  }

  #entry(action: AuditAction, target: string, by: By): AuditEntry {
    return auditEntry(this.#newId(), action, target, by);
  }

  /** For what consumes messages in this process. @internal */
  protected get collectionClient(): CollectionClient {
    return this.#collections();
  }

  #waiting(): Results {
    return (this.#results ??= new Results(this.store, systemClock));
  }

  /** What people change. @internal */
  protected get changes(): Changes {
    const { store, contracts } = this;
    return (this.#changes ??= new Changes({
      store,
      contracts,
      newId: this.#newId,
      forget: async (job) => {
        const blob = responseBlob(job);
        if (blob !== null) await this.#blobs?.delete([blob]);
      },
    }));
  }

  /** @internal */
  protected get newId(): () => string {
    return this.#newId;
  }

  /** Closes the connection to the store. What is under way ends first. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#results?.close();
    await this.#release();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** @internal */
  protected draft(
    contract: AnyContract,
    input: unknown,
    options: EnqueueOptions,
    newId: () => string = this.#newId,
  ): JobDraft | Promise<JobDraft> {
    if (this.#closed) throw closedError();
    this.assertKnown(contract);
    return makeDraft(contract, input, options, newId);
  }

  /** @internal */
  protected assertKnown(contract: { readonly name: string } | undefined): void {
    // Undefined is what a circle of imports makes of a contract.
    if (!contract || this.contracts.get(contract.name) !== contract) throw unknownKind(contract?.name, this.contracts);
  }
}

const NO_BATCHES: ReadonlyMap<string, AnyBatch> = new Map();
const NO_SCHEDULES: ReadonlyMap<string, ScheduleDeclaration> = new Map();
const NO_COLLECTIONS: ReadonlyMap<string, AnyCollection> = new Map();
/** A client has no listeners. */
const UNHEARD: Emitter = { emit: () => {}, has: () => false };

/** The options of `ingest`: those of `submit`, and what the file is. */
export interface IngestOptions<Context = Json> extends Omit<SubmitOptions<Context>, "onProgress"> {
  /** What the file is. Default "csv". */
  readonly format?: "csv" | "ndjson";
}

/** The options of `watchFolder`. */
export interface WatchFolderOptions<Context = Json> extends Pick<
  IngestOptions<Context>,
  "context" | "priority" | "format"
> {
  /** How often the folder is read. A file is taken when it has not changed from one time to the next. Default "1s"; from "10ms" to "24d". */
  readonly every?: Duration;
}

/** Which batches are listed. */
export interface BatchListOptions {
  /** Only batches of this kind. Default: of all. */
  readonly kind?: string | NamedKind;
  /** Only batches in this state. Default: in any. */
  readonly state?: BatchState;
  /** Only batches that were opened after this moment. */
  readonly since?: Date;
  /** At most this many. Default 50, from 1 to 1000. */
  readonly limit?: number;
  /** The id of the last batch of the page before. */
  readonly after?: string;
}

/** Which collections are listed. */
export interface CollectionListOptions {
  /** Only collections of this kind. Default: of all. */
  readonly kind?: string | NamedKind;
  /** Only collections in this state. Default: in any. */
  readonly state?: CollectionState;
  /** At most this many. Default 50, from 1 to 1000. */
  readonly limit?: number;
  /** The id of the last collection of the page before. */
  readonly after?: string;
}

/** Which parked messages are listed. */
export interface ParkedListOptions {
  /** Only messages for this kind of collection. Default: for all. */
  readonly kind?: string | NamedKind;
  /** Only those of this collection. */
  readonly collection?: string;
  /** At most this many. Default 50, from 1 to 1000. */
  readonly limit?: number;
  /** The id of the last message of the page before. */
  readonly after?: string;
}

function closedError(): OutliveError {
  return new OutliveError(ErrorCode.closed, "This client is closed.", "Nothing was enqueued. Connect or open again.");
}

function assertLimit(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= 1_000) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The limit of a list is ${limit}.`,
    "Use 1 to 1000 and page with `after`.",
    { limit },
  );
}

export function contractsOf(jobs: readonly object[]): ReadonlyMap<string, AnyContract> {
  const contracts = new Map<string, AnyContract>();
  for (const contract of kindsOf(jobs) as readonly AnyContract[]) {
    if (typeof contract?.name !== "string" || contract.settings === undefined)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        "One of `jobs` was not made by job(), batch(), request(), collection() or schedule().",
        "Pass what these functions returned.",
      );
    if (contracts.has(contract.name) && contracts.get(contract.name) !== contract) {
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Two different jobs are named ${contract.name}.`,
        "Give each kind its own name.",
        { kind: contract.name },
      );
    }
    contracts.set(contract.name, contract);
  }
  return contracts;
}

export function unknownKind(name: unknown, known: ReadonlyMap<string, unknown>): OutliveError {
  return new OutliveError(
    ErrorCode.kindUnknown,
    `The kind ${JSON.stringify(name)} is not known here (known: ${[...known.keys()].join(", ") || "none"}).`,
    "Nothing was enqueued. Pass the job to `open` or `connect` in `jobs`.",
    { kind: name },
  );
}
