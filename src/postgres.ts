// `outlive/postgres`: the form of `commit` and `transaction` on PostgreSQL, and `enqueue` in a transaction of the user's own.
import type { JobContract } from "./job/contract.ts";
import { type EnqueueOptions, idSource } from "./job/enqueue.ts";
import type { Enqueued } from "./job/job.ts";
import { systemClock, systemRandom } from "./platform/clock.ts";
import type { PostgresClient } from "./stores/postgres/statements.ts";
import { enqueueIn } from "./stores/postgres/transaction.ts";

export type { PostgresOptions, PostgresPool } from "./stores/postgres/address.ts";
export type { PostgresClient } from "./stores/postgres/statements.ts";
export { postgres, type PostgresTransaction } from "./stores/postgres/transaction.ts";

const newId = idSource(systemClock, systemRandom);

/**
 * Enqueues on your own client, in the transaction that is open on it: the job is there if and only if you commit. The kind must
 * have been declared by some `open` or `connect`. Your COMMIT wakes an idle worker, once however many jobs it brings.
 */
export function enqueue<In>(
  client: PostgresClient,
  job: JobContract<In, never, unknown> | JobContract<In, unknown, unknown>,
  input: In,
  options: EnqueueOptions & {
    /** The schema that holds Outlive's tables. Default "outlive". */
    readonly schema?: string;
    /**
     * Whether the commit wakes idle workers. Transactions that do so commit one after the other in the whole server; with false they
     * do not, and a worker finds the job at its next poll (`poll`, a second). Default true.
     */
    readonly wake?: boolean;
  } = {},
): Promise<Enqueued> {
  const { schema = "outlive", wake = true, ...given } = options;
  return enqueueIn({ newId, schema, wake }, client, job, input, given);
}
