// Brings a schema to this program's version: numbered migrations, each in one transaction and under one lock, so that one that was
// killed half-way has not happened. `meta` holds the number of the latest.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { quotedSchema } from "./schema.ts";

/** One step of the schema. Both texts name everything with its schema, which comes checked and quoted. */
export interface Migration {
  readonly name: string;
  readonly up: (schema: string) => string;
  readonly down: (schema: string) => string;
}

/** One session: a client of `pg`, connected, or anything like it. */
export interface MigrationSession {
  query(text: string): Promise<{ readonly rows: readonly unknown[] }>;
}

/** Brings `schema` up to `target`. Safe to repeat and to run in several processes at once. */
export async function migrate(session: MigrationSession, name: string, target = MIGRATIONS.length): Promise<void> {
  const schema = quotedSchema(name);
  for (;;) {
    await session.query("BEGIN");
    try {
      await session.query(`SELECT pg_advisory_xact_lock(hashtextextended('outlive migrate ${name}', 0))`);
      const version = await installedVersion(session, name);
      if (version >= target) {
        await session.query("COMMIT");
        return;
      }
      if (version === 0) {
        await session.query(`CREATE SCHEMA IF NOT EXISTS ${schema}`);
        await session.query(`CREATE TABLE IF NOT EXISTS ${schema}.meta (key text PRIMARY KEY, value bigint NOT NULL)`);
      }
      await session.query(MIGRATIONS[version]!.up(schema));
      await session.query(
        `INSERT INTO ${schema}.meta (key, value) VALUES ('schema', ${version + 1}) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
      );
      await session.query("COMMIT");
    } catch (thrown) {
      await session.query("ROLLBACK").catch(() => {});
      throw thrown;
    }
  }
}

/** The number of the latest migration in the schema; 0: none of our tables is there. */
export async function installedVersion(session: MigrationSession, name: string): Promise<number> {
  const schema = quotedSchema(name);
  const { rows } = await session.query(`SELECT to_regclass('${schema}.meta') IS NOT NULL AS there`);
  if (!(rows[0] as { there: boolean }).there) return 0;
  const { rows: found } = await session.query(`SELECT value FROM ${schema}.meta WHERE key = 'schema'`);
  return Number((found[0] as { value: string } | undefined)?.value ?? 0);
}

/** Refuses a schema that is not of this program's version, and says what to run. */
export async function assertMigrated(session: MigrationSession, name: string): Promise<void> {
  const found = await installedVersion(session, name);
  const known = MIGRATIONS.length;
  if (found === known) return;
  if (found > known) {
    throw new OutliveError(
      ErrorCode.schemaNewer,
      `The schema "${name}" has version ${found}; this version of Outlive knows ${known}.`,
      "Upgrade the outlive package in this program. Nothing was changed.",
      { schema: name, found, known },
    );
  }
  throw new OutliveError(
    ErrorCode.schemaMissing,
    found === 0
      ? `The schema "${name}" holds no Outlive tables.`
      : `The schema "${name}" has version ${found}; ${known} is needed.`,
    "Run `outlive migrate up` once, as a role that may create tables; workers and clients do not migrate PostgreSQL.",
    { schema: name, found, known },
  );
}
