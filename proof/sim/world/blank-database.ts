// A database with the engine's tables and nothing in them. One real database serves one history after the other: opening,
// migrating and preparing cost a tenth of a history otherwise.
import { Database } from "../../../src/stores/sqlite/database.ts";
import { migrate } from "../../../src/stores/sqlite/schema.ts";

/** What `migrate` wrote stays. */
const NOT_OF_THE_SCHEMA = "key <> 'schema' AND key NOT LIKE 'checksum %'";
const spares = new Map<string, Database[]>();

export function emptyDatabase(): Database {
  return new Database({ path: ":memory:", durability: "relaxed" });
}

/** `prepare` is called once for each real database, to add tables and triggers of one's own; `sort` tells different ones apart. */
export function takeBlank(sort: string, prepare: (db: Database) => void): Database {
  const spare = spares.get(sort)?.pop();
  if (spare) return spare;
  const db = emptyDatabase();
  migrate(db);
  prepare(db);
  return db;
}

/** Makes it blank again for the next history. */
export function giveBack(sort: string, db: Database): void {
  if (db.inTransaction) return db.close();
  const tables = db.sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").all();
  db.exec("BEGIN");
  for (const { name } of tables)
    db.sql(`DELETE FROM ${String(name)}${name === "outlive_meta" ? ` WHERE ${NOT_OF_THE_SCHEMA}` : ""}`).run();
  db.sql("DELETE FROM sqlite_sequence").run();
  db.sql("DELETE FROM sim_seen").run();
  db.exec("COMMIT");
  const pool = spares.get(sort) ?? [];
  spares.set(sort, pool);
  pool.push(db);
}
