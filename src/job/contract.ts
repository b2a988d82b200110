// The contract of a kind: its name, its schema and its settings, safe to import anywhere. The handler is attached where workers
// run. Made by `job()` (job.ts at the top), which checks the options.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { Run } from "../worker/run.ts";
import type { Enqueue, EnqueueChildren } from "./enqueue.ts";
import { ErrorCode, OutliveError, type StoredError } from "./errors.ts";
import type { ClaimedJob, KindSettings } from "./job.ts";
import type { JobKey } from "./limits.ts";
import type { Json, ResultMustBeJson, ResultOf } from "./json.ts";
import type { Change } from "./transitions.ts";

/** The second argument of a handler. */
export interface TypedRun extends Omit<Run, "enqueue" | "enqueueMany"> {
  /** Enqueues another job under this attempt's fence. Without an id it gets one made of its kind, input and dedupe key. It is the same in every attempt, so a replay adds nothing. Pass your own ids for equal children of which only some are enqueued inside steps. */
  readonly enqueue: Enqueue;
  /** Enqueues many jobs of one kind, 1,000 in each transaction. Returns their ids, in the order of the inputs. */
  readonly enqueueMany: EnqueueChildren;
}

/** A handler that returns `Returned`, which is JSON, nothing, or the promise of either. */
export type Handler<Out, Returned> = (
  input: Out,
  run: TypedRun,
) => [Awaited<Returned>] extends [ResultOf<Awaited<Returned>>] ? Returned : ResultMustBeJson;

/** A kind of job, made by `job()`. */
export class JobContract<In = unknown, Out = In, Result = Json> {
  /** The kind's name. */
  readonly name: string;
  /** Its options, checked and with their defaults. */
  readonly settings: KindSettings;
  /** The schema of its input; null if it has none. */
  readonly schema: StandardSchemaV1<In, Out> | null;
  /** Checks what the handler returns; null: any JSON. */
  readonly output: StandardSchemaV1<unknown, Result> | null;
  /** @internal What a job with this input counts against; null: its kind has no limits. */
  readonly keysOf: ((input: never) => readonly JobKey[]) | null;
  /** @internal The key by which a job with this input takes turns with the others of its kind; null: they take none. */
  readonly fairOf: ((input: never) => JobKey) | null;
  /** @internal The kind's own backoff function; null if it has none. */
  readonly backoff: ((failures: number, error: StoredError) => number) | null;
  #handler: ((input: never, run: Run) => unknown) | null = null;

  /** @internal */
  constructor(
    settings: KindSettings,
    schema: StandardSchemaV1<In, Out> | null,
    backoff: ((failures: number, error: StoredError) => number) | null,
    output: StandardSchemaV1<unknown, Result> | null = null,
    keysOf: ((input: never) => readonly JobKey[]) | null = null,
    fairOf: ((input: never) => JobKey) | null = null,
  ) {
    this.name = settings.name;
    this.settings = settings;
    this.schema = schema;
    this.backoff = backoff;
    this.output = output;
    this.keysOf = keysOf;
    this.fairOf = fairOf;
  }

  /** Attaches the handler. Call it once, in the module that workers import; a second call throws. */
  handle<Returned>(handler: Handler<Out, Returned>): this {
    if (this.#handler)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The job ${this.name} has a handler already.`,
        "Call handle() once per job. For another kind of work, declare another job() with its own name.",
        { kind: this.name },
      );
    this.#handler = handler as unknown as (input: never, run: Run) => unknown;
    return this;
  }

  /** @internal What workers run; null if no handler is attached. */
  get handler(): ((input: never, run: Run) => unknown) | null {
    return this.#handler;
  }
}

/** What a job, a batch, a request or a collection is known by. */
export interface NamedKind {
  /** The kind's name. */
  readonly name: string;
}

/** A contract that the compiler knows by its name. */
export type Named<Contract, Name extends string> = Contract & {
  /** The kind's name. */
  readonly name: Name;
};

/** A contract whose types do not matter. */
export type AnyContract = JobContract<never, never, unknown>;

/** Returned by a handler of the engine's own (requests): its attempt ends with this change. */
export class EndsWith {
  readonly change: Change;

  constructor(change: Change) {
    this.change = change;
  }
}

// What the engine needs of a kind in order to run it. The contract that users write is made in contract.ts.

export interface RunnableKind {
  readonly settings: KindSettings;
  /** The value that the handler gets: the stored input through the kind's schema. Throws or rejects if it does not fit. */
  readonly parse: ((input: Json) => unknown) | null;
  readonly handler: (input: never, run: Run) => unknown;
  /** What is kept of the value that the handler returned. Throws or rejects if it does not fit. Omitted or null: the value itself. */
  readonly checkResult?: ((value: unknown, jobId: string) => unknown) | null;
  /** What a job with this input counts against. Omitted or null: nothing. */
  readonly keysOf?: ((input: never) => readonly JobKey[]) | null;

  /** Hears of every settlement of its jobs that is durable. Must not throw. Omitted: nothing does. */
  readonly settled?: (job: ClaimedJob, change: Change) => void;
  /** Whether jobs that were claimed have yet to begin, because they begin a few at a time: meanwhile no more are claimed. Omitted: never. */
  readonly isOpening?: () => boolean;
  /** The user's own backoff, asked when the attempt fails; null: the settings' backoff. */
  readonly delayMs: ((failures: number, error: StoredError) => number) | null;
}
