// Whether the migrations in a schema are the released ones. `meta` holds the checksum of each migration that was applied. A schema from
// before checksums were kept is judged by its columns: its migrations were edited in place until then.
import {
  checksumRefused,
  columnDifferences,
  columnsRefused,
  type ComparedStep,
  differingStep,
} from "../released-steps.ts";
import type { MigrationSession } from "./migrate.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { columnsOfRecord, WITHOUT_CHECKSUMS } from "./migrations/record.ts";
import { checksumOf } from "./migrations/text.ts";
import { quotedSchema } from "./schema.ts";

/** What `meta` says of the migrations. */
export interface Installed {
  /** The number of the latest; 0: none of our tables is there. */
  readonly version: number;
  /** Those of them that this program knows. */
  readonly steps: readonly ComparedStep[];
  /** When each was applied, in ms of the server's clock. */
  readonly appliedAt: ReadonlyMap<number, number>;
}

export async function installed(session: MigrationSession, name: string): Promise<Installed> {
  const schema = quotedSchema(name);
  const { rows } = await session.query(`SELECT to_regclass('${schema}.meta') IS NOT NULL AS there`);
  if (!(rows[0] as { there: boolean }).there) return { version: 0, steps: [], appliedAt: new Map() };
  const { rows: found } = await session.query(
    `SELECT key, CASE WHEN key LIKE 'checksum %' THEN lpad(to_hex(value), 15, '0') ELSE value::text END AS value
     FROM ${schema}.meta WHERE key = 'schema' OR key LIKE 'checksum %' OR key LIKE 'migration %'`,
  );
  const meta = new Map((found as { key: string; value: string }[]).map(({ key, value }) => [key, value]));
  const version = Number(meta.get("schema") ?? 0);
  const steps = MIGRATIONS.slice(0, version).map((migration, i) => ({
    number: i + 1,
    name: migration.name,
    checksum: checksumOf(i + 1),
    stored: meta.get(`checksum ${i + 1}`) ?? null,
  }));
  const appliedAt = new Map<number, number>();
  for (const [key, value] of meta)
    if (key.startsWith("migration ")) appliedAt.set(Number(key.slice("migration ".length)), Number(value));
  return { version, steps, appliedAt };
}

/** Refuses a schema that was made by other migrations of the same numbers. Reads only. */
export async function refuseUnreleased(
  session: MigrationSession,
  name: string,
  { version, steps }: Installed,
): Promise<void> {
  const store = { store: `the schema "${name}"`, instead: "drop the schema and run `outlive migrate up`" };
  const differing = differingStep(steps);
  if (differing) throw checksumRefused(store, differing);
  if (!steps.some(({ number, stored }) => stored === null && number <= WITHOUT_CHECKSUMS)) return;
  const expected = columnsOfRecord(version);
  const found = await columnsOf(session, quotedSchema(name));
  // Later migrations, run by hand from `outlive migrate print`, add columns.
  const differences = columnDifferences(expected, version > WITHOUT_CHECKSUMS ? found.intersection(expected) : found);
  if (differences.length > 0) throw columnsRefused(store, version, differences);
}

async function columnsOf(session: MigrationSession, schema: string): Promise<Set<string>> {
  const { rows } = await session.query(
    `SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS line
     FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relnamespace = '${schema}'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped`,
  );
  return new Set((rows as { line: string }[]).map(({ line }) => line));
}
