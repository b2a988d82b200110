// How the demo reaches its own tables and the engine's on each store: the same SQL, in the store's own tongue.
import { randomBytes } from "node:crypto";
import type { Engine, Run } from "../index.ts";
import { postgres } from "../postgres.ts";
import { sqlite } from "../sqlite.ts";

export type SqlValue = string | number;
export interface Statement {
  readonly sql: string;
  readonly values?: readonly SqlValue[];
}

export interface Vault {
  readonly store: "sqlite" | "postgres";
  /** Rows of one statement. */
  rows<T>(engine: Engine, sql: string, values: readonly SqlValue[]): Promise<T[]>;
  /** These statements in one transaction of the engine's. */
  write(engine: Engine, statements: readonly Statement[]): Promise<void>;
  /** These statements and the job's success in one transaction. */
  commit(run: Run, statements: readonly Statement[]): Promise<void>;
  /** Whether nobody who is frozen just now holds up the others. */
  isFree(engine: Engine): Promise<boolean>;
}

export const sqliteVault: Vault = {
  store: "sqlite",
  rows: (engine, sql, values) => engine.transaction(sqlite, (tx) => tx.all(sql, ...values) as never),
  write: (engine, statements) =>
    engine.transaction(sqlite, (tx) => {
      for (const { sql, values = [] } of statements) tx.run(sql, ...values);
    }),
  commit: (run, statements) =>
    run.commit(sqlite, (tx) => {
      for (const { sql, values = [] } of statements) tx.run(sql, ...values);
    }),
  // A process that is frozen inside a transaction holds the file's write lock.
  isFree: (engine) => engine.transaction(sqlite, (tx) => tx.get("SELECT 1") !== undefined),
};

/** Everything is in the one schema, so that nothing of anybody else's is touched. */
export function postgresVault(schema: string): Vault {
  const inTongue = (sql: string): string => {
    let at = 0;
    return sql
      .replaceAll(/\boutlive_(\w+)/g, (_, table: string) => `"${schema}".${table === "workers" ? "fleet" : table}`)
      .replaceAll(/(?<![."\w])(ledger|accounts)\b/g, `"${schema}".$1`)
      .replaceAll(/json_extract\((\S+), '\$\.(\w+)'\)/g, "($1::json ->> '$2')::int")
      .replaceAll(/group_concat\((\w+)\)/g, "string_agg($1::text, ',')")
      .replaceAll("?", () => `$${++at}`);
  };
  const all = async (tx: { query: Query }, statements: readonly Statement[]): Promise<void> => {
    for (const { sql, values = [] } of statements) await tx.query(inTongue(sql), [...values]);
  };
  return {
    store: "postgres",
    rows: (engine, sql, values) =>
      engine.transaction(postgres, async (tx) => (await tx.query(inTongue(sql), [...values])).map(plain) as never),
    write: (engine, statements) => engine.transaction(postgres, (tx) => all(tx, statements)),
    commit: (run, statements) => run.commit(postgres, (tx) => all(tx, statements)),
    isFree: async (engine) => {
      const [row] = await idleInTransaction(engine);
      return row?.waiting === 0;
    },
  };
}

type Query = (sql: string, values?: readonly unknown[]) => Promise<unknown>;

/** Sessions that have done nothing for a moment in the middle of a transaction: their row locks stop others until the lease is over. */
function idleInTransaction(engine: Engine): Promise<{ waiting: number }[]> {
  return engine.transaction(postgres, (tx) =>
    tx.query<{ waiting: number }>(
      `SELECT count(*)::int AS waiting FROM pg_stat_activity
       WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '15 ms'`,
    ),
  );
}

/** The driver gives large whole numbers as text. */
function plain(row: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(row).map(([key, value]) => [
      key,
      typeof value === "string" && /^-?\d+$/.test(value) ? Number(value) : value,
    ]),
  );
}

export function newDemoSchema(): string {
  return `demo_${randomBytes(4).toString("hex")}`;
}

const vaults = new WeakMap<Engine, Vault>();

/** Which vault an engine's questions go to. Default: SQLite's. */
export function useVault(engine: Engine, vault: Vault): void {
  vaults.set(engine, vault);
}

export function vaultOf(engine: Engine): Vault {
  return vaults.get(engine) ?? sqliteVault;
}

/** Where the demo plays: an address, and on PostgreSQL a schema. As a worker process gets it. */
export interface Scene {
  readonly url: string;
  readonly schema: string | null;
}

export function vaultAt({ schema }: Scene): Vault {
  return schema === null ? sqliteVault : postgresVault(schema);
}

/** The options of `open` that belong to the scene. */
export function sceneOptions({ schema }: Scene): { readonly postgres?: { readonly schema: string } } {
  return schema === null ? {} : { postgres: { schema } };
}
