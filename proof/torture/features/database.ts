// The rig's own way into the tables of a store, next to the engine's: for the observer, for what is planted, and for scenarios of plain SQL.
import { DatabaseSync } from "node:sqlite";
import pg from "pg";

export interface Trigger {
  /** A table of the engine's, without its prefix. */
  readonly on: string;
  readonly when: "after insert" | "before insert" | "after update of state";
  /** A condition on OLD and NEW. */
  readonly if?: string;
  /** A statement, which may name OLD and NEW. */
  readonly sql?: string;
  /** Before an insert: the row is not inserted if this holds. */
  readonly ignoreIf?: string;
}

export interface Database extends AsyncDisposable {
  readonly store: "sqlite" | "postgres";
  /** The name of a table of the engine's. */
  table(name: string): string;
  /** A member of the JSON object in a column. */
  member(column: string, name: string): string;
  run(sql: string): Promise<void>;
  rows<R>(sql: string): Promise<R[]>;
  trigger(trigger: Trigger): Promise<void>;
}

export async function databaseAt(url: string): Promise<Database> {
  return url.startsWith("sqlite:") ? onSqlite(url.slice("sqlite:".length)) : onPostgres(url);
}

function onSqlite(path: string): Database {
  const db = new DatabaseSync(path, { timeout: 20_000 });
  let triggers = 0;
  return {
    store: "sqlite",
    table: (name) => `outlive_${name}`,
    member: (column, name) => `json_extract(${column}, '$.${name}')`,
    run: async (sql) => db.exec(sql),
    rows: async <R>(sql: string) => db.prepare(sql).all() as R[],
    trigger: async ({ on, when, if: condition, sql, ignoreIf }) => {
      const body = sql ?? `SELECT RAISE(IGNORE) WHERE ${ignoreIf}`;
      db.exec(
        `CREATE TRIGGER rig_${++triggers} ${when} ON outlive_${on} ${condition ? `WHEN ${condition}` : ""} BEGIN ${body}; END`,
      );
    },
    [Symbol.asyncDispose]: async () => db.close(),
  };
}

async function onPostgres(url: string): Promise<Database> {
  const client = new pg.Client({ connectionString: url });
  // A server that is stopped before this session ends is not an error of the rig's.
  client.on("error", () => {});
  await client.connect();
  let triggers = 0;
  return {
    store: "postgres",
    table: (name) => `outlive.${name}`,
    member: (column, name) => `(${column})::json->>'${name}'`,
    run: async (sql) => void (await client.query(sql)),
    rows: async <R>(sql: string) => (await client.query(sql)).rows as R[],
    trigger: async ({ on, when, if: condition, sql, ignoreIf }) => {
      const name = `rig_${++triggers}`;
      const body = sql ? `${sql}; RETURN NULL;` : `IF ${ignoreIf} THEN RETURN NULL; END IF; RETURN NEW;`;
      await client.query(
        `CREATE FUNCTION ${name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN ${body} END $$;
         CREATE TRIGGER ${name} ${when} ON outlive.${on} FOR EACH ROW ${condition ? `WHEN (${condition})` : ""} EXECUTE FUNCTION ${name}()`,
      );
    },
    [Symbol.asyncDispose]: () => client.end(),
  };
}
