// From a call of `enqueue` to a draft: the input through the schema and into JSON, the options checked. Nothing is written here.
import type { AnyContract, JobContract } from "./contract.ts";
import { type Duration, durationMs } from "./duration.ts";
import { ErrorCode, OutliveError } from "./errors.ts";
import { assertKey } from "./ids.ts";
import type { Enqueued, JobDraft } from "./job.ts";
import { encodeJson } from "./json.ts";

export interface EnqueueOptions {
  /** The job's id, if you have one: enqueueing it again adds nothing. Default: a new one that sorts by time. 1 to 255 characters. */
  readonly id?: string;
  /** Higher runs first. Default 0, from -1000 to 1000. */
  readonly priority?: number;
  /** Not before this moment of the store's clock: this machine's wall clock on SQLite, the server's on PostgreSQL. A change of that clock moves it. Default: at once. */
  readonly runAt?: Date;
  /** Not before this long from now; instead of `runAt`. Kept as an instant of the store's clock, so a change of that clock shortens or extends it. */
  readonly delay?: Duration;
  /** Unique among the unfinished jobs of the kind: a second enqueue returns the first job with `created: false`. 1 to 255 characters. */
  readonly dedupeKey?: string;
}

export type Enqueue = <In>(
  job: JobContract<In, never> | JobContract<In, unknown>,
  input: In,
  options?: EnqueueOptions,
) => Promise<Enqueued>;

export const MAX_PRIORITY = 1_000;

/** A draft, or the promise of one if the kind's schema is asynchronous. */
export function makeDraft(
  contract: AnyContract,
  input: unknown,
  options: EnqueueOptions,
  newId: () => string,
): JobDraft | Promise<JobDraft> {
  const draft = fromOptions(contract.name, options, newId);
  const checked = contract.schema?.["~standard"].validate(input);
  if (checked instanceof Promise) return checked.then((result) => finish(contract.name, draft, input, result.issues));
  return finish(contract.name, draft, input, checked?.issues);
}

/** As `makeDraft`, inside a synchronous transaction. */
export function makeDraftNow(
  contract: AnyContract,
  input: unknown,
  options: EnqueueOptions,
  newId: () => string,
): JobDraft {
  const draft = makeDraft(contract, input, options, newId);
  if (!(draft instanceof Promise)) return draft;
  draft.catch(() => {});
  throw new OutliveError(
    ErrorCode.inputInvalid,
    `The schema of ${contract.name} is asynchronous and can't be asked inside a synchronous transaction.`,
    "Use a schema without asynchronous checks, or enqueue outside the transaction.",
    { kind: contract.name },
  );
}

function finish(
  kind: string,
  draft: Omit<JobDraft, "input">,
  input: unknown,
  issues: readonly Issue[] | undefined,
): JobDraft {
  if (issues && issues.length > 0) throw invalidInput(kind, issues);
  // What is stored is the schema's input, so that a newer program may read it with a newer schema.
  return { ...draft, input: encodeJson(input === undefined ? null : input, `The input of ${kind}`) };
}

interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

export function invalidInput(kind: string, issues: readonly Issue[]): OutliveError {
  const told = issues.slice(0, 5).map((issue) => {
    const path = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part)).join(".");
    return path === "" ? issue.message : `${path}: ${issue.message}`;
  });
  return new OutliveError(
    ErrorCode.inputInvalid,
    `The input does not fit the schema of ${kind}: ${told.join("; ")}.`,
    "Nothing was enqueued. Correct the input or the schema.",
    { kind, issues: told },
  );
}

const OPTIONS: ReadonlySet<string> = new Set<keyof EnqueueOptions>(["id", "priority", "runAt", "delay", "dedupeKey"]);

function fromOptions(kind: string, options: EnqueueOptions, newId: () => string): Omit<JobDraft, "input"> {
  for (const name in options) {
    if (!OPTIONS.has(name)) throw optionInvalid(kind, name, "unknown", `Use ${[...OPTIONS].join(", ")}.`);
  }
  const { id, priority = 0, runAt, delay, dedupeKey } = options;
  if (id !== undefined) assertKey(id, `The id of a ${kind} job`);
  if (dedupeKey !== undefined) assertKey(dedupeKey, `The dedupe key of a ${kind} job`);
  if (!Number.isInteger(priority) || Math.abs(priority) > MAX_PRIORITY) {
    throw optionInvalid(
      kind,
      "priority",
      priority,
      `Use a whole number from -${MAX_PRIORITY} to ${MAX_PRIORITY}; higher runs first.`,
    );
  }
  if (runAt !== undefined && delay !== undefined)
    throw optionInvalid(kind, "delay", delay, "Say either `runAt` or `delay`.");
  if (runAt !== undefined && !(runAt instanceof Date && Number.isFinite(runAt.getTime()))) {
    throw optionInvalid(kind, "runAt", String(runAt), "Pass a valid Date.");
  }
  return {
    id: id ?? newId(),
    kind,
    priority,
    runAt: runAt ? runAt.getTime() : null,
    delayMs: delay === undefined ? 0 : durationMs(delay, `delay of a ${kind} job`),
    dedupeKey: dedupeKey ?? null,
  };
}

function optionInvalid(kind: string, option: string, value: unknown, hint: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `The option ${option} of a ${kind} job is ${JSON.stringify(value)}.`,
    hint,
    { kind, option, value },
  );
}
