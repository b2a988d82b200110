// What `outlive/postgres` gives to users: the form of `commit` and `transaction` on PostgreSQL, and its types.

export type { PostgresOptions, PostgresPool } from "./address.ts";
export type { PostgresClient } from "./statements.ts";
export { enqueueIn, postgres, type PostgresTransaction } from "./transaction.ts";
