// What `outlive/postgres` gives to users: the form of `commit` and `transaction` on PostgreSQL, and its types.
export { postgres, type PostgresTransaction } from "./transaction.ts";
