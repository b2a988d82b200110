// The contract of a collection: its name, its series and its settings, safe to import anywhere. What runs is attached where workers run. Made by
// `collection()` (engine/collection.ts), which checks the options.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { CollectionState } from "../job/collections.ts";
import type { JobContract, TypedRun } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Json } from "../job/json.ts";
import type { ScheduledTarget } from "../job/schedules.ts";
import type { PublishOptions, PublishTarget, Wire } from "../stores/broker.ts";

/** The second argument of `request`. */
export interface RequestRun extends TypedRun {
  /** The id of the collection. */
  readonly collection: string;
  /** Where its producer sends header and parts; null: this engine has no broker, so put the parts with `engine.put`. */
  readonly wire: Wire | null;
  /** Publishes a message, with the collection's id as its message id and `wire` in its headers, and resolves when the broker has confirmed it. */
  publish(target: PublishTarget, body: Json | Uint8Array, options?: PublishOptions): Promise<void>;
}

/** A part as `done` reads it. */
export interface CollectedPart {
  /** Its number within the series, from 1. */
  readonly ordinal: number;
  /** Its name in the blob store. */
  readonly blob: string;
  /** Its size in bytes. */
  readonly bytes: number;
  /** The SHA-256 of its bytes, in hexadecimal. */
  readonly sha256: string;
  /** Its bytes. Throws, after the last one, if they are not those that were put. */
  stream(): AsyncIterable<Uint8Array>;
}

/** A collection whose parts are all there: the first argument of `done`. */
export interface Collected<Input = Json> {
  /** The collection's id. */
  readonly id: string;
  /** Its input. */
  readonly input: Input;
  /** How many parts and bytes each series has. */
  readonly series: Readonly<
    Record<
      string,
      {
        /** How many parts. */
        readonly parts: number;
        /** Their size together, in bytes. */
        readonly bytes: number;
      }
    >
  >;
  /** The parts of a series from 1 to the last, in constant memory. */
  parts(series: string): AsyncIterable<CollectedPart>;
}

/** A collection that ended without all of its parts: the first argument of `abandoned`. */
export interface CollectionEnded<Input = Json> {
  /** The collection's id. */
  readonly id: string;
  /** Its input. */
  readonly input: Input;
  /** How it ended. */
  readonly state: Extract<CollectionState, "abandoned" | "cancelled">;
  /** The reason, in words; null if none was given. */
  readonly why: string | null;
  /** Per series: "3, 17-42". Of a series that was never announced: what is missing up to its highest part, and "...". */
  readonly missing: Readonly<Record<string, string>>;
}

/** What `collection()` decides. */
export interface CollectionSettings {
  /** The names of its series. */
  readonly series: readonly string[];
  /** The maximum size of a message, in bytes. */
  readonly messageMax: number;
  /** How many bytes of messages one process holds in memory. */
  readonly memory: number;
  /** After this long without a part or an announcement it is abandoned, in ms. */
  readonly idleMs: number;
  /** After this long it is abandoned, in ms. */
  readonly totalMs: number;
  /** How long its parts are kept after its end, in ms. */
  readonly keepMs: number;
  /** Whether its collections share queues. */
  readonly queues: "shared" | "per-collection";
}

type RequestHandler = (input: never, run: RequestRun) => unknown;
type DoneHandler = (collected: Collected<never>, run: TypedRun) => unknown;
type EndedHandler = (ended: CollectionEnded<never>, run: TypedRun) => unknown;

/** By which a collection is known, also if the program's copy of outlive is not the command line's. */
const COLLECTION = Symbol.for("outlive.collection");

/** A kind of collection, made by `collection()`. */
export class CollectionContract<In = unknown, Out = In> {
  readonly [COLLECTION] = true;
  /** For the compiler only: the input of a schedule of it. */
  declare readonly scheduledWith?: In;
  /** The kind's name. */
  readonly name: string;
  /** Its options, checked and with their defaults. */
  readonly settings: CollectionSettings;
  /** The schema of its input; null if it has none. */
  readonly input: StandardSchemaV1<In, Out> | null;
  /** @internal The kinds of its jobs: what asks its producer, what follows its last part, its notification, what follows another end, and the clean-up. */
  readonly kinds: Readonly<
    Record<"done" | "request" | "notify" | "ended" | "cleanUp", JobContract<never, never, unknown>>
  >;
  #request: RequestHandler | null = null;
  #done: DoneHandler | null = null;
  #abandoned: EndedHandler | null = null;
  #notify: PublishTarget | null = null;

  /** @internal */
  constructor(
    name: string,
    settings: CollectionSettings,
    input: StandardSchemaV1<In, Out> | null,
    kinds: CollectionContract["kinds"],
  ) {
    this.name = name;
    this.settings = settings;
    this.input = input;
    this.kinds = kinds;
  }

  /** Attaches what asks the producer: a job, once the collection is durable. It may run again after a crash, so the producer should know the collection's id. */
  request(handler: (input: Out, run: RequestRun) => void | Promise<void>): this {
    this.#assertFirst(this.#request, "request");
    this.#request = handler as unknown as RequestHandler;
    return this;
  }

  /** Attaches what follows the last part: a job, once for each collection. */
  done(handler: (collected: Collected<Out>, run: TypedRun) => unknown): this {
    this.#assertFirst(this.#done, "done");
    this.#done = handler as unknown as DoneHandler;
    return this;
  }

  /** Attaches what follows a collection that was abandoned or cancelled: a job, once for each of them. */
  abandoned(handler: (ended: CollectionEnded<Out>, run: TypedRun) => void | Promise<void>): this {
    this.#assertFirst(this.#abandoned, "abandoned");
    this.#abandoned = handler as unknown as EndedHandler;
    return this;
  }

  /** Where the notification of a complete collection goes. A separate job publishes it, always with the same message id. */
  notify(target: PublishTarget): this {
    this.#assertFirst(this.#notify, "notify");
    this.#notify = target;
    return this;
  }

  /** What a schedule of it enqueues: the job that asks the producer, which first opens a collection with the id of the job. */
  get scheduled(): ScheduledTarget {
    return {
      contract: this.kinds.request,
      inputOf: async (input) => {
        const checked = await this.input?.["~standard"].validate(input);
        if (checked?.issues) throw invalidInput(this.name, checked.issues);
        return { opens: input === undefined ? null : input };
      },
    };
  }

  /** @internal What workers run. */
  get handlers(): {
    readonly request: RequestHandler | null;
    readonly done: DoneHandler | null;
    readonly abandoned: EndedHandler | null;
    readonly notify: PublishTarget | null;
  } {
    return { request: this.#request, done: this.#done, abandoned: this.#abandoned, notify: this.#notify };
  }

  /** @internal Whether a worker that knows this contract runs its jobs: something is attached. */
  get isRunnable(): boolean {
    return Object.values(this.handlers).some((one) => one !== null);
  }

  #assertFirst(attached: unknown, method: string): void {
    if (attached === null) return;
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The collection ${this.name} has a ${method} already.`,
      `Call ${method}() once per collection.`,
      { kind: this.name },
    );
  }
}

export function isCollection(value: unknown): value is AnyCollection {
  return typeof value === "object" && value !== null && COLLECTION in value;
}

export type AnyCollection = CollectionContract<never, never>;
