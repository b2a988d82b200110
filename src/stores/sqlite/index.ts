// What `outlive/sqlite` gives to users: the form of `commit` and `transaction` on SQLite, and its types.

export { sqlite, type SqliteTransaction, type SqlValue } from "./transaction.ts";
