// `outlive/postgres`: the form of `commit` and `transaction` on PostgreSQL, and its types.
export { postgres, type PostgresTransaction } from "./stores/postgres/index.ts";
