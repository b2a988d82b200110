// `outlive/sqlite`: the form of `commit` and `transaction` on SQLite, and its types.

export { sqlite, type SqliteTransaction, type SqlValue } from "./stores/sqlite/transaction.ts";
