// `outlive/postgres`: the form of `commit` and `transaction` on PostgreSQL, and `enqueue` in a transaction of the user's own.
import type { JobContract } from "./core/contract.ts";
import type { EnqueueOptions } from "./core/enqueue.ts";
import { idSource } from "./core/ids.ts";
import type { Enqueued } from "./core/job.ts";
import { systemClock, systemRandom } from "./platform/clock.ts";
import { enqueueIn, type PostgresClient } from "./stores/postgres/index.ts";

export {
  postgres,
  type PostgresClient,
  type PostgresOptions,
  type PostgresPool,
  type PostgresTransaction,
} from "./stores/postgres/index.ts";

const newId = idSource(systemClock, systemRandom);

/**
 * Enqueues on your own client, in the transaction that is open on it: the job is there if and only if you commit. The kind must
 * have been declared by some `open` or `connect`. Workers are not woken, they find it when they look (`poll`, a second).
 */
export function enqueue<In>(
  client: PostgresClient,
  job: JobContract<In, never> | JobContract<In, unknown>,
  input: In,
  options: EnqueueOptions & {
    /** The schema that holds Outlive's tables. Default "outlive". */
    readonly schema?: string;
  } = {},
): Promise<Enqueued> {
  const { schema = "outlive", ...given } = options;
  return enqueueIn({ newId, schema }, client, job, input, given);
}
