// `collection()`: how users write the contract of a collection. The options that it shares with jobs are checked by `job()` and hold for the job
// that follows the last part, the others by the table of settings.ts.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type AnyCollection, CollectionContract, isCollection } from "../collections/contract.ts";
import type { Named } from "../job/contract.ts";
import { jobKind } from "../job/collections.ts";
import type { Json, JsonOf } from "../job/json.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { check, refuse } from "./option-checks.ts";
import { job, type KindOptions, schemaOf } from "./options.ts";
import { COLLECTION_OPTIONS } from "./kind-options.ts";

export { isCollection };

/** A number of bytes, or a text such as "16MB". */
export type Bytes = number | `${number}${"KB" | "MB" | "GB"}`;

/** The options of a collection, in addition to those of a job, which hold for the job that follows its last part. */
export interface CollectionOptions {
  /** The names of its series. */
  readonly series: readonly string[];
  /** What a message may be. */
  readonly message?: {
    /** The maximum size of a part, at most 512 MB. A larger part is refused; a larger message is parked. Default: 16MB. */
    readonly max?: Bytes;
  };
  /** How many bytes of messages one process holds in memory, at most 64 GB and at least `message.max`. The broker keeps the others. Default: 256MB. */
  readonly memory?: Bytes;
  /** When a collection that does not become complete is abandoned. */
  readonly abandonAfter?: {
    /** A collection that gets no part for this long is abandoned. Default "1h"; from "10ms" to "3650d". */
    readonly idle?: Duration;
    /** A collection that is not complete this long after it was opened is abandoned. Default "7d"; from "10ms" to "3650d". */
    readonly total?: Duration;
  };
  /** How long the parts and blobs of a collection are kept after it has ended. Default "7d"; at most "3650d". */
  readonly keep?: Duration;
  /** With a broker: "shared" queues for all collections of the kind, or "per-collection" ones named transaction-ID-header and transaction-ID-payload. If the broker is killed, a queue that is less than a second old can lose confirmed messages. Default "shared". */
  readonly queues?: "shared" | "per-collection";
}

/** Declares a kind of collection. Safe to import anywhere; attach `request`, `done`, `abandoned` and `notify` where workers run. */
export function collection<S extends StandardSchemaV1 = StandardSchemaV1<Json>, const Name extends string = string>(
  name: Name,
  options: KindOptions &
    CollectionOptions & {
      /** The schema of the input. Default: any JSON. */
      readonly input?: S & InputSchema<S>;
    },
): Named<CollectionOf<S>, Name> {
  const { series, message, memory, abandonAfter, keep, queues, input, ...ofJob } = options;
  const own = { series, message, memory, abandonAfter, keep, queues, input };
  check(`collection ${name}`, COLLECTION_OPTIONS, own);
  const duration = (value: Duration | undefined, row: { readonly default: Duration }, what: string): number =>
    durationMs(value ?? row.default, `${what} of ${name}`);
  const messageMax = bytesOf(message?.max ?? COLLECTION_OPTIONS["message.max"].otherwise);
  const held = bytesOf(memory ?? COLLECTION_OPTIONS.memory.otherwise);
  refuse(
    held < messageMax,
    `memory of ${name}`,
    `is ${JSON.stringify(memory)}, less than one message of ${messageMax} bytes`,
    "Raise `memory` or lower `message.max`.",
  );
  const follow = job(name, ofJob);
  const contract: CollectionOf<S> = new CollectionContract(
    name,
    {
      series: [...series],
      messageMax,
      memory: held,
      idleMs: duration(abandonAfter?.idle, COLLECTION_OPTIONS["abandonAfter.idle"], "abandonAfter.idle"),
      totalMs: duration(abandonAfter?.total, COLLECTION_OPTIONS["abandonAfter.total"], "abandonAfter.total"),
      keepMs: duration(keep, COLLECTION_OPTIONS.keep, "keep"),
      queues: queues ?? COLLECTION_OPTIONS.queues.default,
    },
    schemaOf(input, `The input of collection ${name}`),
    {
      done: follow,
      request: job(jobKind(name, "request")),
      notify: job(jobKind(name, "notify")),
      ended: job(jobKind(name, "ended")),
      cleanUp: job(jobKind(name, "clean-up")),
    } as unknown as AnyCollection["kinds"],
  );
  return contract as Named<CollectionOf<S>, Name>;
}

/** The contract that `collection()` makes of this schema. */
type CollectionOf<S extends StandardSchemaV1> = CollectionContract<
  StandardSchemaV1.InferInput<S>,
  StandardSchemaV1.InferOutput<S>
>;

/** The schema itself if its input is JSON by type; a message for the compiler if it is not. */
type InputSchema<S extends StandardSchemaV1> = [StandardSchemaV1.InferInput<S>] extends [
  JsonOf<StandardSchemaV1.InferInput<S>>,
]
  ? S
  : { readonly "the input is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never };

const UNITS = { KB: 1e3, MB: 1e6, GB: 1e9 } as const;

function bytesOf(given: string | number): number {
  if (typeof given === "number") return given;
  const unit = given.slice(-2) as keyof typeof UNITS;
  return Math.round(Number(given.slice(0, -2)) * UNITS[unit]);
}

export function collectionsOf(jobs: readonly object[]): ReadonlyMap<string, AnyCollection> {
  return new Map(jobs.filter(isCollection).map((one) => [one.name, one]));
}
