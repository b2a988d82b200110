// `batch()`: how users write the contract of a batch. The options that it shares with jobs are checked by `job()`, the others by the table of
// settings.ts.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { type AnyBatch, BatchContract, isBatch } from "../batches/contract.ts";
import { isRequest } from "../requests/contract.ts";
import { isCollection } from "../collections/contract.ts";
import type { Named } from "../job/contract.ts";
import { doneKind, ingestKind, roundKind, type Tolerance } from "../job/batches.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Json, JsonOf } from "../job/json.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { isScheduleDeclaration, type ScheduleDeclaration } from "../schedules/declaration.ts";
import { check, refuse } from "./option-checks.ts";
import { kindsOfRequest } from "./request.ts";
import { job, type KindOptions, type LimitOptions, schemaOf } from "./options.ts";
import { BATCH_OPTIONS } from "./kind-options.ts";

export { isBatch, isScheduleDeclaration };

/** The options of a batch, in addition to its schemas and to those of a job, which hold for its blocks. */
export interface BatchOptions {
  /** The maximum number of rows in a block; a block is also limited to 256 KiB. A worker claims and settles a block as a whole. Use 1 for rows that take seconds. Default 50; from 1 to 1000. */
  readonly block?: number;
  /** How many rows of a block run at once. Default 1; from 1 to 1000. */
  readonly atOnce?: number;
  /** "time": rows that ended are durable within 200 ms, so a kill repeats at most that much work. "row": the end of each row is durable before the next begins. Default "time". */
  readonly mark?: "time" | "row";
  /** After this time a worker settles the rows that have ended and queues the rest of the block again, at no cost to it. So a deploy or another batch never waits for a long block. Default "10s"; from "10ms" to "24d". */
  readonly blockFor?: Duration;
  /** How many rows may fail or be quarantined, as a number or a share such as "5%". If more do, the batch is aborted as failed; rows in flight may add to the number. Default: any number. */
  readonly tolerate?: number | `${number}%`;
}

/** Declares a kind of batch. Safe to import anywhere; attach `handle` or `handleBlock`, and `done`, where workers run. */
export function batch<
  S extends StandardSchemaV1 = StandardSchemaV1<Json>,
  C extends StandardSchemaV1 = StandardSchemaV1<Json>,
  const Name extends string = string,
>(
  name: Name,
  options: Omit<KindOptions, "expires"> &
    BatchOptions & {
      /** The schema of a row. A row that does not fit fails alone, with its line. Default: any JSON. */
      readonly row?: S & RowSchema<S>;
      /** The schema of the context. Default: any JSON. */
      readonly context?: C;
      /** Limits of its blocks, by keys computed from the context. */
      readonly limits?: readonly LimitOptions<StandardSchemaV1.InferInput<C>>[];
    } = {},
): Named<BatchOf<S, C>, Name> {
  const { block, atOnce, mark, blockFor, tolerate, row, context, limits, ...ofJob } = options;
  refuse(
    "expires" in ofJob && ofJob.expires !== undefined,
    `expires of batch ${name}`,
    "was set, and blocks of a batch do not expire",
    "Remove it. To end a batch early, use abortBatch.",
  );
  check(`batch ${name}`, BATCH_OPTIONS, defined({ block, atOnce, mark, blockFor, tolerate, row, context }));
  const blocks = job<string>(name, { ...ofJob, ...(limits && { limits }), fair: (id) => id });
  const kinds = {
    block: blocks,
    done: job(doneKind(name)),
    round: job(roundKind(name)),
    ingest: job(ingestKind(name)),
  } as unknown as AnyBatch["kinds"];
  const contract: BatchOf<S, C> = new BatchContract(
    name,
    {
      blockRows: block ?? BATCH_OPTIONS.block.default,
      atOnce: atOnce ?? BATCH_OPTIONS.atOnce.default,
      mark: mark ?? BATCH_OPTIONS.mark.default,
      blockForMs: durationMs(blockFor ?? BATCH_OPTIONS.blockFor.default, `blockFor of ${name}`),
      tolerance: toleranceOf(name, tolerate),
    },
    schemaOf(row, `The row of batch ${name}`),
    schemaOf(context, `The context of batch ${name}`),
    kinds,
  );
  return contract as Named<BatchOf<S, C>, Name>;
}

/** The contract that `batch()` makes of these schemas. */
type BatchOf<S extends StandardSchemaV1, C extends StandardSchemaV1> = BatchContract<
  StandardSchemaV1.InferInput<S>,
  StandardSchemaV1.InferOutput<S>,
  StandardSchemaV1.InferOutput<C>
>;

/** The schema itself if its input is JSON by type; a message for the compiler if it is not. */
type RowSchema<S extends StandardSchemaV1> = [StandardSchemaV1.InferInput<S>] extends [
  JsonOf<StandardSchemaV1.InferInput<S>>,
]
  ? S
  : { readonly "rows are stored as JSON: no Date, Buffer, bigint, Map, Set or function in them": never };

function toleranceOf(name: string, given: number | string | undefined): Tolerance {
  if (given === undefined) return null;
  const share = typeof given === "string" ? Number(given.replace(/%$/, "")) / 100 : null;
  refuse(
    share === null ? !Number.isInteger(given) || (given as number) < 0 : !(share >= 0 && share <= 1),
    `tolerate of ${name}`,
    `is ${JSON.stringify(given)}`,
    'Use a number of rows from 0, or a share from "0%" to "100%".',
  );
  return share === null ? { rows: given as number } : { share };
}

function defined(options: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/** The contracts that `jobs` come to: a batch, a request or a collection stands for the kinds of its jobs. */
export function kindsOf(jobs: readonly object[]): readonly object[] {
  return jobs.flatMap((one) => {
    if (isBatch(one) || isCollection(one)) return Object.values<object>(one.kinds);
    if (isScheduleDeclaration(one)) return [];
    return isRequest(one) ? kindsOfRequest(one) : [one];
  });
}

/** The schedules among `jobs`, by name. */
export function schedulesOf(jobs: readonly object[]): ReadonlyMap<string, ScheduleDeclaration> {
  const declared = new Map<string, ScheduleDeclaration>();
  for (const one of jobs.filter(isScheduleDeclaration)) {
    if (declared.has(one.name) && declared.get(one.name) !== one)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `Two different schedules are named ${one.name}.`,
        "Give each schedule its own name.",
        { schedule: one.name },
      );
    declared.set(one.name, one);
  }
  return declared;
}

export function batchesOf(jobs: readonly object[]): ReadonlyMap<string, AnyBatch> {
  return new Map(jobs.filter(isBatch).map((one) => [one.name, one]));
}
