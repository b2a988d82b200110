// What people change: single jobs, all that a filter finds, and the pauses of kinds. Every change leaves an audit entry, which its store writes in the same
// transaction. What a change came to is a state, or the error that says why not.
import { type AuditAction, type AuditRecord, auditEntry, type By } from "../job/audit.ts";
import type { AnyContract } from "../job/contract.ts";
import { assertKey, makeDraft } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { JobDetails, JobInfo, JobState } from "../job/job.ts";
import { encodeJson } from "../job/json.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { changedCount, type HandChange, type JobFilter, type OperatorAnswer, type Store } from "../stores/port.ts";
import { refuse } from "./option-checks.ts";

/** The changes that `bulk` makes. */
export const BULK_CHANGES = ["cancel", "retry", "promote", "remove"] as const;
/** What `bulk` does to each job. */
export type BulkChange = (typeof BULK_CHANGES)[number];

/** The states that a bulk change without a state covers. */
export const BULK_STATES: Readonly<Record<BulkChange, readonly JobState[]>> = {
  cancel: ["queued", "running"],
  retry: ["dead"],
  promote: ["queued"],
  remove: ["succeeded", "dead", "cancelled", "quarantined"],
};

/** The options of `bulk`. */
export interface BulkOptions extends By {
  /** Only counts what would be changed. Default false. */
  readonly dryRun?: boolean;
  /** With a cancel: also children that have not begun. Default false. */
  readonly children?: boolean;
  /** Called after each chunk, with the ids of the jobs that it changed. Default: none. */
  readonly onProgress?: (progress: BulkProgress, changed: readonly string[]) => void;
  /** Ends it between two chunks when it aborts: what was changed stays changed. Default: none. */
  readonly signal?: AbortSignal;
}

/** How far a bulk change has come. */
export interface BulkProgress {
  /** Jobs that the filter has found so far. */
  readonly found: number;
  /** How many of them were changed. */
  readonly changed: number;
  /** How many of the changed jobs were running and were asked to end. */
  readonly requested: number;
  /** How many of them could not be changed. */
  readonly failed: number;
}

/** The outcome of a bulk change. */
export interface BulkResult extends BulkProgress {
  /** The entry of the audit; null: nothing was changed. */
  readonly audit: string | null;
  /** The first 100 that could not be changed. */
  readonly failures: readonly {
    /** The job's id. */
    readonly id: string;
    /** The code of the error. */
    readonly code: string;
    /** Why, in words. */
    readonly message: string;
  }[];
  /** False if `signal` ended it. */
  readonly complete: boolean;
}

/** Jobs that one transaction changes: other processes wait for it on SQLite. */
const CHUNK = 100;
const PAGE = 1_000;
const MAX_FAILURES = 100;

/** How a kind is paused. */
export interface PauseOptions extends By {
  /** When the pause ends: at an instant of the store's clock, or after this long. Default: when the kind is resumed. */
  readonly until?: Date | Duration;
}

/** The options of `audit`. */
export interface AuditOptions {
  /** Only changes of this actor. Default: of all. */
  readonly actor?: string;
  /** Only this action. Default: all. */
  readonly action?: AuditAction;
  /** Only changes of this job, by its id. Those of a bulk change have no ids. Default: of all. */
  readonly job?: string;
  /** Only changes of this, as an entry has it: "schedule nightly", "batch ID", "kind mail". Default: of all. Not together with `job`. */
  readonly target?: string;
  /** At most this many. Default 50, from 1 to 1000. */
  readonly limit?: number;
  /** The id of the last entry of the page before. */
  readonly after?: string;
}

/** What of a client the changes need. */
export interface ChangesDeps {
  readonly store: Store;
  readonly contracts: ReadonlyMap<string, AnyContract>;
  readonly newId: () => string;
  /** Deletes what a removed job kept outside of the store. */
  readonly forget: (job: JobDetails) => Promise<void>;
}

export class Changes {
  readonly #deps: ChangesDeps;

  constructor(deps: ChangesDeps) {
    this.#deps = deps;
  }

  async cancel(id: string, { children = false, ...by }: { readonly children?: boolean } & By): Promise<JobState> {
    return this.#one(id, { do: "cancel", children }, by);
  }

  /** `unchecked`: the input goes through no schema. */
  async retry(
    id: string,
    { input, unchecked = false, ...by }: { readonly input?: unknown; readonly unchecked?: boolean } & By,
  ): Promise<JobState> {
    if (input === undefined) return this.#one(id, { do: "retry" }, by);
    assertKey(id, "The job's id");
    const text = unchecked ? encodeJson(input, `The input of job ${id}`) : await this.#edited(id, input);
    return this.#one(id, { do: "retry", input: text }, by, "edit");
  }

  async promote(id: string, by: By): Promise<JobState> {
    return this.#one(id, { do: "promote" }, by);
  }

  async remove(id: string, by: By): Promise<void> {
    assertKey(id, "The job's id");
    const job = await this.#deps.store.inspect.get(id);
    await this.#one(id, { do: "remove" }, by);
    if (job) await this.#deps.forget(job);
  }

  async #one(id: string, change: HandChange, by: By, action: AuditAction = change.do): Promise<JobState> {
    assertKey(id, "The job's id");
    const entry = auditEntry(this.#deps.newId(), action, `job ${id}`, by);
    const [answer] = await this.#deps.store.operate.change([id], change, entry);
    return stateAfter(id, change.do, answer!);
  }

  /** The new input through the schema of the kind, which this program must know. What the job counts against can't change. */
  async #edited(id: string, input: unknown): Promise<string> {
    const job = await this.#deps.store.inspect.get(id);
    if (job === null) throw notFound(id);
    const contract = this.#deps.contracts.get(job.kind);
    if (contract === undefined)
      throw new OutliveError(
        ErrorCode.kindUnknown,
        `The input of job ${id} can't be checked: this program does not know the kind ${job.kind}.`,
        "Nothing was changed. Pass the job to `open` or `connect` in `jobs`.",
        { jobId: id, kind: job.kind },
      );
    const draft = await makeDraft(contract, input, {}, () => id);
    const named = (keys: readonly { readonly limit: string; readonly key: string }[]): string =>
      keys
        .map(({ limit, key }) => JSON.stringify([limit, key]))
        .toSorted((a, b) => (a < b ? -1 : 1))
        .join();
    if (named(draft.keys ?? []) !== named(job.keys))
      throw new OutliveError(
        ErrorCode.inputInvalid,
        `The new input of job ${id} has other limit keys than the job, which counts against its own.`,
        "Nothing was changed. Enqueue a new job with that input.",
        { jobId: id, kind: job.kind },
      );
    return draft.input;
  }

  /** A page is read and then changed in chunks, from the newest job to the oldest, so no job is met twice, whatever a change makes of it. */
  async bulk(change: BulkChange, filter: JobFilter, options: BulkOptions): Promise<BulkResult> {
    const { dryRun = false, onProgress, signal, children = false, ...by } = options;
    refuse(
      !BULK_CHANGES.includes(change),
      "change of bulk",
      `is ${JSON.stringify(change)}`,
      `Use ${BULK_CHANGES.join(", ")}.`,
    );
    const entry = auditEntry(this.#deps.newId(), change, targetOf(filter), by);
    const failures: BulkResult["failures"][number][] = [];
    const sums = { found: 0, changed: 0, requested: 0, failed: 0 };
    const isStopped = (): boolean => signal?.aborted ?? false;
    const hand: HandChange = change === "cancel" ? { do: change, children } : { do: change };
    for (const state of filter.state === undefined ? BULK_STATES[change] : [filter.state]) {
      for await (const jobs of this.#pages({ ...filter, state }, isStopped)) {
        const ids = jobs.filter((job) => change !== "promote" || mayBeDelayed(job)).map(({ id }) => id);
        sums.found += ids.length;
        if (dryRun) onProgress?.({ ...sums }, []);
        for (let from = 0; !dryRun && from < ids.length && !isStopped(); from += CHUNK) {
          const chunk = ids.slice(from, from + CHUNK);
          const answers = await this.#chunk(chunk, hand, entry);
          const changed: string[] = [];
          for (const [at, answer] of answers.entries()) {
            const id = chunk[at]!;
            if (answer.is === "requested") sums.requested++;
            if (changedCount([answer]) === 1) changed.push(id);
            // Its time has come since it was read, or another process has changed it: it is not what the filter meant.
            else if (answer.is === "not-delayed" || answer.is === "missing") sums.found--;
            else if (++sums.failed <= MAX_FAILURES) failures.push(failureOf(id, change, answer));
          }
          sums.changed += changed.length;
          onProgress?.({ ...sums }, changed);
        }
      }
    }
    return { ...sums, failures, audit: sums.changed > 0 ? entry.id : null, complete: !isStopped() };
  }

  async *#pages(filter: JobFilter, isStopped: () => boolean): AsyncIterable<readonly JobInfo[]> {
    let after: string | null = null;
    do {
      const page = await this.#deps.store.inspect.list(filter, PAGE, after);
      if (page.jobs.length > 0) yield page.jobs;
      after = page.next;
    } while (after !== null && !isStopped());
  }

  async #chunk(
    ids: readonly string[],
    change: HandChange,
    entry: ReturnType<typeof auditEntry>,
  ): Promise<readonly OperatorAnswer[]> {
    const { store, forget } = this.#deps;
    const jobs = change.do === "remove" ? await Promise.all(ids.map((id) => store.inspect.get(id))) : [];
    const answers = await store.operate.change(ids, change, entry);
    for (const [at, job] of jobs.entries()) if (job && answers[at]!.is === "removed") await forget(job);
    return answers;
  }

  async pause(kind: { readonly name: string } | string, { until, ...by }: PauseOptions): Promise<void> {
    const name = nameOf(kind);
    const entry = auditEntry(this.#deps.newId(), "pause", `kind ${name}`, by);
    const what = `The end of the pause of ${name}`;
    refuse(
      until instanceof Date && !Number.isFinite(until.getTime()),
      `until of pause`,
      "is not a valid Date",
      'Pass a Date, or a duration such as "1h".',
    );
    const { actor, reason } = entry;
    const untilAt = until instanceof Date ? until.getTime() : null;
    const forMs = until === undefined || until instanceof Date ? null : durationMs(until, what);
    const { operate } = this.#deps.store;
    if (!(await operate.setPaused(name, true, { actor, reason, untilAt, forMs }, entry))) throw noSuchKind(name);
  }

  async resume(kind: { readonly name: string } | string, by: By): Promise<void> {
    const name = nameOf(kind);
    const entry = auditEntry(this.#deps.newId(), "resume", `kind ${name}`, by);
    if (!(await this.#deps.store.operate.setPaused(name, false, undefined, entry))) throw noSuchKind(name);
  }

  audit({ job, target, limit = 50, ...query }: AuditOptions): Promise<readonly AuditRecord[]> {
    refuse(
      !(Number.isInteger(limit) && limit >= 1 && limit <= 1_000),
      "limit of audit",
      `is ${limit}`,
      "Use 1 to 1000 and page with `after`.",
    );
    refuse(
      job !== undefined && target !== undefined,
      "job of audit",
      "was given together with a target",
      "Give one of them.",
    );
    const of = job === undefined ? target : `job ${job}`;
    return this.#deps.store.inspect.audit({ ...query, limit, ...(of !== undefined && { target: of }) });
  }
}

/** Whether it waits for a time, as far as a list says. */
function mayBeDelayed({ runAt, waitsAt, waitsForResolution }: JobInfo): boolean {
  return runAt !== null && waitsAt === null && !waitsForResolution;
}

function nameOf(kind: { readonly name: string } | string): string {
  return typeof kind === "string" ? kind : kind.name;
}

/** "jobs kind=mail state=dead": how a filter is shown in the audit. */
function targetOf(filter: JobFilter): string {
  const terms = Object.entries(filter).flatMap(([name, value]) => {
    if (value === undefined) return [];
    const isInstant = name === "createdBefore" || name === "createdAfter";
    return [`${name}=${isInstant ? new Date(value as number).toISOString() : JSON.stringify(value)}`];
  });
  return ["jobs", ...terms].join(" ").slice(0, 1_000);
}

function failureOf(id: string, change: BulkChange, answer: OperatorAnswer): BulkResult["failures"][number] {
  try {
    stateAfter(id, change, answer);
  } catch (thrown) {
    if (thrown instanceof OutliveError) return { id, code: thrown.code, message: thrown.message };
    throw thrown;
  }
  throw new Error(`job ${id} was changed`);
}

function noSuchKind(name: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `No kind ${JSON.stringify(name)} is in the store.`,
    "Check the name; a kind appears with the first program that declares it.",
    { kind: name },
  );
}

function notFound(id: string): OutliveError {
  return new OutliveError(
    ErrorCode.notFound,
    `There is no job ${id}.`,
    "Check the id; finished jobs are deleted after their retention.",
    { jobId: id },
  );
}

function stateAfter(id: string, change: HandChange["do"], answer: OperatorAnswer): JobState {
  switch (answer.is) {
    case "applied":
      return answer.state;
    case "requested":
      return "running";
    // It is nowhere any more; the callers of a removal do not ask.
    case "removed":
      return "cancelled";
    case "missing":
      throw notFound(id);
    case "wrong-state":
      throw wrongState(id, change, answer.state);
    case "not-delayed":
      throw new OutliveError(
        ErrorCode.wrongState,
        `Job ${id} does not wait for a time, so there is nothing to promote.`,
        `Why it does not run: outlive why ${id}`,
        { jobId: id },
      );
    case "key-held":
      throw new OutliveError(
        ErrorCode.keyHeld,
        `Job ${id} can't be retried: job ${answer.holder} is unfinished and holds its dedupe key ${JSON.stringify(answer.dedupeKey)}.`,
        "Cancel that job, or let it finish.",
        { jobId: id, holder: answer.holder, dedupeKey: answer.dedupeKey },
      );
    case "of-batch":
      throw ofBatch(id, change, answer.batch);
  }
}

function ofBatch(id: string, change: HandChange["do"], batch: string): OutliveError {
  const [what, hint] =
    change === "retry"
      ? [
          "retried alone",
          `Retry the rows of the batch that failed: engine.retryBatch(${JSON.stringify(batch)}), or outlive retry --batch ${batch}`,
        ]
      : [`${change === "remove" ? "removed" : "promoted"} alone`, `See the batch: outlive batch ${batch}`];
  return new OutliveError(
    ErrorCode.wrongState,
    `Job ${id} can't be ${what}: it is a block of batch ${batch}, and its rows have been counted.`,
    hint,
    { jobId: id, batch },
  );
}

/** Only what has ended can be retried, only what has not can be cancelled, and only what does not run can be removed. */
function wrongState(id: string, change: HandChange["do"], state: JobState): OutliveError {
  const [what, hint] = {
    cancel: [
      "it has ended and will not run again, so there is nothing to cancel",
      `It is deleted after its retention. To run it again: outlive retry ${id}, or engine.retry(id).`,
    ],
    retry: ["it has not ended, so there is nothing to retry", "It will run anyway. Only finished jobs can be retried."],
    promote: ["only a delayed job can be promoted", `See it: outlive job ${id}`],
    remove: [
      "a running job can't be removed",
      `Cancel it, and remove it when it has ended: outlive cancel ${id}, or engine.cancel(id).`,
    ],
  }[change] as [string, string];
  return new OutliveError(ErrorCode.wrongState, `Job ${id} is ${state}; ${what}.`, hint, { jobId: id, state });
}
