// Whether the migrations in a file are the released ones. `outlive_meta` holds the checksum of each migration that was applied. A file
// from before checksums were kept is judged by its columns: migration 1 was edited in place until then.
import {
  checksumRefused,
  columnDifferences,
  columnsRefused,
  type ComparedStep,
  differingStep,
  stepChecksum,
} from "../released-steps.ts";
import { Database } from "./database.ts";

/** One step of the schema. */
export interface Migration {
  readonly name: string;
  readonly sql: string;
}

/** The migrations that were applied, next to what the file says of them. */
export function comparedSteps(db: Database, applied: readonly Migration[]): ComparedStep[] {
  if (applied.length === 0) return [];
  const rows = db.sql("SELECT key, value FROM outlive_meta WHERE key LIKE 'checksum %'").all();
  const kept = new Map(rows.map(({ key, value }) => [key, String(value)]));
  return applied.map(({ name, sql }, i) => ({
    number: i + 1,
    name,
    checksum: stepChecksum(sql),
    stored: kept.get(`checksum ${i + 1}`) ?? null,
  }));
}

/** Refuses a file that was made by other migrations of the same numbers. Reads only. */
export function refuseUnreleased(db: Database, applied: readonly Migration[]): void {
  const steps = comparedSteps(db, applied);
  const store = { store: db.path, instead: "move the file away and begin with a new one" };
  const differing = differingStep(steps);
  if (differing) throw checksumRefused(store, differing);
  if (steps.every(({ stored }) => stored !== null)) return;
  const differences = columnDifferences(
    columnsMadeBy(applied),
    columnsOf((sql) => db.sql(sql).all()),
  );
  if (differences.length > 0) throw columnsRefused(store, applied.length, differences);
}

export function keepChecksum(db: Database, number: number, { sql }: Migration): void {
  db.sql("INSERT INTO outlive_meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING").run(
    `checksum ${number}`,
    stepChecksum(sql),
  );
}

/** Our columns in a database, one line each. */
export function columnsOf(all: (sql: string) => readonly Record<string, unknown>[]): ReadonlySet<string> {
  const rows = all(`SELECT t.name || '.' || c.name || ' ' || c.type || iif(c."notnull", ' NOT NULL', '') AS line
    FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name LIKE 'outlive\\_%' ESCAPE '\\'`);
  return new Set(rows.map(({ line }) => line as string));
}

/** The columns of a new file with these migrations. */
export function columnsMadeBy(migrations: readonly Migration[]): ReadonlySet<string> {
  const db = new Database({ path: ":memory:", allowUnsafeSqlite: true });
  try {
    for (const { sql } of migrations) db.exec(sql);
    return columnsOf((sql) => db.sql(sql).all());
  } finally {
    db.close();
  }
}
