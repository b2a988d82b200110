// From a call of `enqueue` to a draft: the input through the schema and into JSON, the options checked, and the id made. Nothing is written
// here.
import type { AnyContract, JobContract } from "./contract.ts";
import { ErrorCode, OutliveError } from "./errors.ts";
import type { Enqueued, JobDraft, JobId } from "./job.ts";
import { type JobKey, MAX_KEYS, throttleKey, tooManyKeys } from "./limits.ts";
import { encodeJson, type Json } from "./json.ts";
import { nearest, storableText } from "./text.ts";
import { type Clock, type Duration, durationMs, type Random } from "./time.ts";

/** Options of an enqueue. */
export interface EnqueueOptions {
  /** The job's id, if you have one: enqueueing it again adds nothing. Default: a new one that sorts by time. 1 to 255 characters. */
  readonly id?: string;
  /** Higher runs first. Default 0, from -1000 to 1000. */
  readonly priority?: number;
  /** Not before this moment of the store's clock: this machine's wall clock on SQLite, the server's on PostgreSQL. A change of that clock moves it. Default: at once. */
  readonly runAt?: Date;
  /** Not before this long from now; instead of `runAt`. Kept as an instant of the store's clock, so a change of that clock shortens or extends it. Default: at once. */
  readonly delay?: Duration;
  /** It is cancelled, with the outcome "expired", if no attempt has begun within this time after it was due. "never" overrides the kind's own. Default: that of the kind; at most "3650d". */
  readonly expires?: Duration | "never";
  /** Unique among the unfinished jobs of the kind: a second enqueue returns the first job with `created: false`. 1 to 255 characters. Default: none. */
  readonly dedupeKey?: string;
  /** As `dedupeKey`, with a choice of what happens to the unfinished job that has the key. Default: none. */
  readonly dedupe?: {
    /** Unique among the unfinished jobs of the kind. 1 to 255 characters. */
    readonly key: string;
    /** "keep" that job; "replace" its input if it has not begun; "rerun": replace it, or, if it has begun, run again after it with the latest input. Default "keep". */
    readonly then?: "keep" | "replace" | "rerun";
  };
  /** Runs with the last input when no further job with this key has come for a while. Default: none. */
  readonly debounce?: {
    /** Jobs of the kind with this key become one. 1 to 255 characters. */
    readonly key: string;
    /** How long no further one must come. */
    readonly wait: Duration;
    /** It runs this long after the first at the latest. Default: no cap; not shorter than `wait`. */
    readonly max?: Duration;
  };
  /** Runs at once. Further jobs with this key become one, with the last input. Default: none. */
  readonly throttle?: {
    /** Jobs of the kind with this key share the pace. 1 to 255 characters. */
    readonly key: string;
    /** The least time between two starts. */
    readonly every: Duration;
  };
  /** The trace context of the caller, as W3C `traceparent`: kept with the job and shown by `engine.get`. `outlive/otel` sets and reads it. Default: none. 1 to 255 characters. */
  readonly trace?: string;
}

/** Enqueues a job of a kind. */
export type Enqueue = <In, Result = Json>(
  job: JobContract<In, never, Result> | JobContract<In, unknown, Result>,
  input: In,
  options?: EnqueueOptions,
) => Promise<Enqueued<Result>>;

/** Enqueues many jobs of a kind. */
export type EnqueueChildren = <In, Result = Json>(
  job: JobContract<In, never, Result> | JobContract<In, unknown, Result>,
  inputs: Iterable<In>,
  options?: {
    /** The options of each job. Default: none. */
    readonly each?: (input: In, index: number) => EnqueueOptions;
  },
) => Promise<JobId<Result>[]>;

export const MAX_PRIORITY = 1_000;

/** A draft, or the promise of one if the kind's schema is asynchronous. */
export function makeDraft(
  contract: AnyContract,
  input: unknown,
  options: EnqueueOptions,
  newId: () => string,
): JobDraft | Promise<JobDraft> {
  const draft = fromOptions(contract.name, options, newId, contract.settings?.expiresMs);
  const checked = contract.schema?.["~standard"].validate(input);
  if (checked instanceof Promise) return checked.then((result) => finish(contract, draft, input, result.issues));
  return finish(contract, draft, input, checked?.issues);
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
    `The schema of ${contract.name} is asynchronous and can't run inside a synchronous transaction.`,
    "Use a schema without asynchronous checks, or enqueue outside the transaction.",
    { kind: contract.name },
  );
}

function finish(
  { name: kind, keysOf, fairOf }: Pick<AnyContract, "name" | "keysOf" | "fairOf">,
  { throttled, ...draft }: DraftOptions,
  input: unknown,
  issues: readonly Issue[] | undefined,
): JobDraft {
  if (issues && issues.length > 0) throw invalidInput(kind, issues);
  // What is stored is the schema's input, so that a newer program may read it with a newer schema.
  const plain = { ...draft, input: encodeJson(input === undefined ? null : input, `The input of ${kind}`) };
  if (!keysOf && !fairOf && !throttled) return plain;
  const fair = fairOf?.(input as never);
  const limited = [...(keysOf?.(input as never) ?? []), ...(throttled ? [throttled] : [])];
  // A kind may be fair by the key of one of its limits.
  const keys = fair && limited.every(({ id }) => id !== fair.id) ? [...limited, fair] : limited;
  if (keys.length > MAX_KEYS) throw tooManyKeys(kind, keys.length);
  return keys.length === 0 ? plain : { ...plain, keys, ...(fair && { fair: fair.id }) };
}

/** What the options of an enqueue come to. */
type DraftOptions = Omit<JobDraft, "input" | "keys" | "fair"> & { readonly throttled?: JobKey };

interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

export function invalidInput(kind: string, issues: readonly Issue[]): OutliveError {
  const listed = issues.slice(0, 5).map((issue) => {
    const path = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part)).join(".");
    return path === "" ? issue.message : `${path}: ${issue.message}`;
  });
  return new OutliveError(
    ErrorCode.inputInvalid,
    `The input does not fit the schema of ${kind}: ${listed.join("; ")}.`,
    "Nothing was enqueued. Correct the input or the schema.",
    { kind, issues: listed },
  );
}

const OPTIONS: ReadonlySet<string> = new Set<keyof EnqueueOptions>([
  "id",
  "priority",
  "runAt",
  "delay",
  "expires",
  "dedupeKey",
  "dedupe",
  "debounce",
  "throttle",
  "trace",
]);

function fromOptions(
  kind: string,
  options: EnqueueOptions,
  newId: () => string,
  ofKindMs: number | undefined,
): DraftOptions {
  for (const name in options) {
    if (!OPTIONS.has(name)) throw notAnOption(kind, name);
  }
  const { id, priority = 0, runAt, delay, trace } = options;
  if (trace !== undefined) assertKey(trace, `The trace of a ${kind} job`);
  if (id !== undefined) assertKey(id, `The id of a ${kind} job`);
  if (!Number.isInteger(priority) || Math.abs(priority) > MAX_PRIORITY) {
    throw optionInvalid(
      kind,
      "priority",
      priority,
      `Use a whole number from -${MAX_PRIORITY} to ${MAX_PRIORITY}; higher runs first.`,
    );
  }
  if (runAt !== undefined && delay !== undefined)
    throw optionInvalid(kind, "delay", delay, "Set either `runAt` or `delay`.");
  if (runAt !== undefined && !(runAt instanceof Date && Number.isFinite(runAt.getTime()))) {
    throw optionInvalid(kind, "runAt", String(runAt), "Pass a valid Date.");
  }
  const expiresMs = expiryOf(kind, options.expires, ofKindMs);
  const draft = {
    id: id ?? newId(),
    kind,
    priority,
    runAt: runAt ? runAt.getTime() : null,
    delayMs: delay === undefined ? 0 : durationMs(delay, `delay of a ${kind} job`),
    ...(expiresMs !== undefined && { expiresMs }),
    ...dedupeOf(kind, options),
  };
  return trace === undefined ? draft : { ...draft, trace };
}

/** Undefined: it never expires. */
function expiryOf(kind: string, expires: EnqueueOptions["expires"], ofKindMs: number | undefined): number | undefined {
  if (expires === undefined) return ofKindMs;
  if (expires === "never") return undefined;
  const ms = durationMs(expires, `expires of a ${kind} job`);
  if (ms < 1 || ms > MAX_EXPIRY_MS) throw optionInvalid(kind, "expires", expires, 'Use "1ms" to "3650d", or "never".');
  return ms;
}

export const MAX_EXPIRY_MS = 3_650 * 86_400_000;

/** The one key by which an enqueue is known again, and what is done then. */
function dedupeOf(
  kind: string,
  options: EnqueueOptions,
): Pick<JobDraft, "dedupeKey" | "dedupe"> & { readonly throttled?: JobKey } {
  const { dedupeKey, dedupe, debounce, throttle } = options;
  if (dedupe === undefined && debounce === undefined && throttle === undefined) {
    if (dedupeKey !== undefined) assertKey(dedupeKey, `The dedupe key of a ${kind} job`);
    return { dedupeKey: dedupeKey ?? null };
  }
  const given = Object.entries({ dedupeKey, dedupe, debounce, throttle }).filter(([, value]) => value !== undefined);
  if (given.length > 1)
    throw optionInvalid(kind, given[1]![0], given[1]![1], `Set only one of ${given.map(([name]) => name).join(", ")}.`);
  if (debounce && (options.runAt !== undefined || options.delay !== undefined))
    throw optionInvalid(
      kind,
      "debounce",
      debounce,
      "A debounced job has its time from `wait`: omit `runAt` and `delay`.",
    );
  const [[name, value]] = given as [[string, { readonly key: string }]];
  assertKey(value.key, `The key in \`${name}\` of a ${kind} job`);
  if (dedupe) return { dedupeKey: dedupe.key, ...policyOf(kind, dedupe.then ?? "keep") };
  if (throttle) {
    const everyMs = durationMs(throttle.every, `throttle.every of a ${kind} job`);
    return { dedupeKey: throttle.key, dedupe: { then: "rerun" }, throttled: throttleKey(kind, throttle.key, everyMs) };
  }
  const { wait, max } = debounce!;
  const waitMs = durationMs(wait, `debounce.wait of a ${kind} job`);
  const maxMs = max === undefined ? NO_MAX_MS : durationMs(max, `debounce.max of a ${kind} job`);
  if (maxMs < waitMs) throw optionInvalid(kind, "debounce", debounce, "Make `max` at least as long as `wait`.");
  return { dedupeKey: debounce!.key, dedupe: { then: "rerun", debounce: { waitMs, maxMs } } };
}

/** Without `max`. A hundred years, so that every debounced job has a latest time in its row, by which `why` knows it. */
const NO_MAX_MS = 100 * 365 * 86_400_000;

function policyOf(kind: string, then: string): Pick<JobDraft, "dedupe"> {
  if (then === "keep") return {};
  if (then === "replace" || then === "rerun") return { dedupe: { then } };
  throw optionInvalid(kind, "dedupe", { then }, 'Use "keep", "replace" or "rerun".');
}

function notAnOption(kind: string, option: string): OutliveError {
  const near = nearest(option, [...OPTIONS]);
  return new OutliveError(
    ErrorCode.optionInvalid,
    `${option} is not an option of enqueue. No job of ${kind} was enqueued.`,
    near === null ? `There are ${[...OPTIONS].join(", ")}.` : `Did you mean ${near}?`,
    { kind, option },
  );
}

function optionInvalid(kind: string, option: string, value: unknown, hint: string): OutliveError {
  return new OutliveError(
    ErrorCode.optionInvalid,
    `The option ${option} of the ${kind} job is ${JSON.stringify(value)}.`,
    hint,
    { kind, option, value },
  );
}

// Ids are made by the enqueuer, before the store is asked, so that a repeated enqueue is the same enqueue.
// They sort by time, which keeps the id index growing at its right edge only.

/** Crockford's, in small letters: no i, l, o, u. */
export const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";
const MAX_KEY = 255;

/** A source of ids of 22 characters: 10 of time (ms), 12 that start at random and count up within a ms; one bit is left for the carry. */
export function idSource(clock: Clock, random: Random): () => string {
  let lastMs = -1;
  let time = "";
  let high = 0;
  let low = 0;
  return () => {
    const ms = clock.now();
    if (ms !== lastMs) {
      lastMs = ms;
      time = base32(ms, 10);
      high = Number.parseInt(random.hex(4), 16) >>> 3;
      low = Number.parseInt(random.hex(4), 16) >>> 2;
    } else if (++low > 0x3fff_ffff) {
      low = 0;
      high++;
    }
    return time + base32(high, 6) + base32(low, 6);
  };
}

function base32(value: number, width: number): string {
  let text = "";
  for (let left = value; text.length < width; left = Math.floor(left / 32)) text = ALPHABET[left % 32] + text;
  return text;
}

/** Ids, dedupe keys, kinds and step names: 1 to 255 characters, no NUL, no control characters, no lone surrogates. */
export function assertKey(value: unknown, what: string): asserts value is string {
  const wrong =
    typeof value !== "string"
      ? `is not a string but ${typeof value}`
      : value.length === 0
        ? "is empty"
        : value.length > MAX_KEY
          ? `has ${value.length} characters, at most ${MAX_KEY} are allowed`
          : /\p{Cc}/u.test(value)
            ? "contains NUL or a control character"
            : value.isWellFormed()
              ? undefined
              : "contains half a surrogate pair";
  if (wrong !== undefined) {
    throw new OutliveError(
      ErrorCode.keyInvalid,
      `${what} ${wrong}.`,
      `Use 1 to ${MAX_KEY} printable characters; hash longer keys before you pass them.`,
      { what, value: typeof value === "string" ? storableText(value, 300) : value },
    );
  }
}

/** A kind is a name that ends up in file names, metrics and SQL of every store: letters, digits and `. _ - : /`. */
export function assertKind(value: unknown): asserts value is string {
  assertKey(value, "The kind");
  if (!/^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$/.test(value)) {
    throw new OutliveError(
      ErrorCode.keyInvalid,
      `The kind ${JSON.stringify(value)} is not a name.`,
      "Use letters, digits and . _ - : / (at most 128, the first a letter or digit).",
      { what: "kind", value },
    );
  }
}
