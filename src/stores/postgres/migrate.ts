// Migrates a schema to this program's version, or back: numbered migrations, each in one transaction and under one
// lock, so a migration killed half-way has not happened. `meta` holds the number of the latest, when each was applied,
// and its checksum.
import { setTimeout as pause } from "node:timers/promises";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { MigrationInfo, PrintedSql, StoreMigrations } from "../backend.ts";
import {
  checksumRefused,
  columnDifferences,
  columnsRefused,
  type ComparedStep,
  differingStep,
} from "../released-steps.ts";
import { type Address, quotedSchema } from "./address.ts";
import { newClient } from "./connection.ts";
import { childrenByState } from "./migrations/children.ts";
import { columnsOfRecord, WITHOUT_CHECKSUMS } from "./migrations/core.ts";
import {
  adoptText,
  ALSO_ACCEPTED,
  checksumOf,
  downText,
  lockText,
  MIGRATIONS,
  ownerText,
  pgCronText,
  scriptText,
  upText,
} from "./migrations/index.ts";
import { rolesText } from "./roles.ts";
import { counted } from "../../job/text.ts";

/**
 * One step of the schema. Both texts qualify everything with the schema name, which is passed in checked and quoted.
 * `up` never changes once it is in the list, and so uses no constant that may change: its checksum is compared with the
 * one stored in a schema.
 */
export interface Migration {
  readonly name: string;
  /** What its `down` drops, in words. */
  readonly drops: string;
  /** Tables whose columns it changes. They are locked before its first statement, in this order. */
  readonly locks?: readonly string[];
  /**
   * Indexes that are built before the step, outside its transaction, so that no writer waits for them. The step builds
   * what is missing: in an empty table, which is quick.
   */
  readonly ahead?: (schema: string) => { readonly indexes: readonly string[]; readonly texts: readonly string[] };
  /** The statements of `up` in another order, which holds locks for a shorter time. Default: `up`. */
  readonly sent?: (schema: string) => string;
  readonly up: (schema: string) => string;
  readonly down: (schema: string) => string;
}

/** One session: a client of `pg`, connected, or anything like it. */
export interface MigrationSession {
  query(text: string): Promise<{ readonly rows: readonly unknown[] }>;
}

/**
 * The lowest version with which this program works: its settlements call the function of the step before that one, and
 * its cancels of families read an index of that one in order.
 */
export const NEEDED_VERSION = MIGRATIONS.indexOf(childrenByState) + 1;
export const KNOWN_VERSION = MIGRATIONS.length;

/**
 * A migration that waits for a lock makes every later transaction wait behind it. So it gives up after half a second,
 * lets them pass, and tries again. A step itself changes only the catalog, which takes milliseconds. A migration that
 * meets a transaction locking in the opposite order also gives up, before the server checks for a deadlock (after 1 s)
 * and ends either of them.
 */
const LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'";
const TRIES = 10;
const BETWEEN_TRIES_MS = 500;

/**
 * Migrates `schema` up to `target` and returns the numbers of the migrations it ran. Safe to repeat and to run in
 * several processes at once.
 */
export async function migrate(session: MigrationSession, name: string, target = KNOWN_VERSION): Promise<number[]> {
  quotedSchema(name);
  const done: number[] = [];
  for (;;) {
    const next = await locked(session, name, async () => {
      const found = await installed(session, name);
      const { version } = found;
      if (version > KNOWN_VERSION) throw newer(name, version);
      await refuseUnreleased(session, name, found);
      const unkept = found.steps.filter(({ stored }) => stored === null).map(({ number }) => number);
      if (unkept.length > 0) await session.query(adoptText(name, unkept));
      if (version >= target) return null;
      if (await lacksIndexes(session, name, version + 1)) return "indexes";
      await session.query(LOCK_TIMEOUT);
      await session.query(upText(name, version + 1));
      return version + 1;
    });
    if (next === null) return done;
    if (next === "indexes") await buildAhead(session, name);
    else done.push(next);
  }
}

/** Whether indexes have to be built before this step. In an empty table the step builds them itself. */
async function lacksIndexes(session: MigrationSession, name: string, number: number): Promise<boolean> {
  const schema = quotedSchema(name);
  const ahead = MIGRATIONS[number - 1]!.ahead?.(schema);
  if (!ahead) return false;
  const all = ahead.indexes.map((index) => `to_regclass('${schema}.${index}')`).join(", ");
  return isTrue(
    session,
    `EXISTS (SELECT 1 FROM ${schema}.jobs) AND (SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid IN (${all})) < ${ahead.indexes.length}`,
  );
}

/**
 * Builds the indexes of the next step while all other processes write. Safe to be killed anywhere: a half-built index
 * is dropped and built again. No lock is held meanwhile. The server finishes such an index only after every older
 * statement has ended, so it would wait for a process that waits for our lock.
 */
async function buildAhead(session: MigrationSession, name: string): Promise<void> {
  const schema = quotedSchema(name);
  const { version } = await installed(session, name);
  const { indexes, texts } = MIGRATIONS[version]?.ahead?.(schema) ?? { indexes: [], texts: [] };
  try {
    await session.query(ownerText(name, "session"));
    // It waits for open transactions, and nothing waits for it.
    await session.query("SET lock_timeout = 0");
    for (const [i, index] of indexes.entries()) {
      // Another process may be migrating, too: an index it is building right now is not half-built.
      const jobs = `'${schema}.jobs'::regclass`;
      while (await isTrue(session, `EXISTS (SELECT 1 FROM pg_stat_progress_create_index WHERE relid = ${jobs})`))
        await pause(BETWEEN_TRIES_MS);
      const one = `to_regclass('${schema}.${index}')`;
      if (await isTrue(session, `EXISTS (SELECT 1 FROM pg_index WHERE indexrelid = ${one} AND NOT indisvalid)`))
        await session.query(`DROP INDEX CONCURRENTLY IF EXISTS ${schema}.${index}`);
      await session.query(texts[i]!);
    }
  } catch (thrown) {
    if (!isLocked(thrown)) throw migrationError(name, thrown);
  } finally {
    await session.query("RESET lock_timeout; RESET ROLE").catch(() => {});
  }
}

async function isTrue(session: MigrationSession, condition: string): Promise<boolean> {
  const { rows } = await session.query(`SELECT ${condition} AS is`);
  return (rows[0] as { is: boolean }).is;
}

/** Rolls back every migration above `target`, the latest first. Refuses while unfinished jobs exist unless forced. */
export async function migrateDown(
  session: MigrationSession,
  name: string,
  { target, force }: { readonly target: number; readonly force: boolean },
): Promise<number[]> {
  const done: number[] = [];
  for (;;) {
    const next = await locked(session, name, async () => {
      const found = await installed(session, name);
      const { version } = found;
      if (version > KNOWN_VERSION) throw newer(name, version);
      if (version <= target) return null;
      await refuseUnreleased(session, name, found);
      await session.query(LOCK_TIMEOUT);
      if (!force) await refuseWhileUnfinished(session, name, version, target);
      await session.query(downText(name, version));
      return version;
    });
    if (next === null) return done;
    done.push(next);
  }
}

export async function listMigrations(session: MigrationSession, name: string): Promise<Required<MigrationInfo>[]> {
  const { version, steps, appliedAt } = await installed(session, name);
  return MIGRATIONS.map((migration, i) => ({
    number: i + 1,
    name: migration.name,
    drops: migration.drops,
    applied: i < version,
    appliedAt: appliedAt.get(i + 1) ?? null,
    checksum: checksumOf(i + 1),
    storedChecksum: steps[i]?.stored ?? null,
  }));
}

/** The number of the latest migration in the schema; 0: none of our tables exists. */
export async function installedVersion(session: MigrationSession, name: string): Promise<number> {
  return (await installed(session, name)).version;
}

/**
 * Refuses a schema with which this program can't work, and says what to run. It migrates nothing: a worker's role may
 * not.
 */
export async function assertMigrated(session: MigrationSession, name: string): Promise<number> {
  const schema = await installed(session, name);
  const found = schema.version;
  if (found > KNOWN_VERSION) throw newer(name, found);
  await refuseUnreleased(session, name, schema);
  if (found >= NEEDED_VERSION) return found;
  throw new OutliveError(
    ErrorCode.schemaMissing,
    found === 0
      ? `The schema "${name}" holds no Outlive tables.`
      : `The schema "${name}" has version ${found}; ${NEEDED_VERSION} is needed.`,
    "Run `outlive migrate up` once, as a role that may create tables; workers and clients do not migrate PostgreSQL.",
    { schema: name, found, known: KNOWN_VERSION },
  );
}

async function locked<T>(session: MigrationSession, name: string, work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    await session.query("BEGIN");
    try {
      await session.query(lockText(name));
      const result = await work();
      await session.query("COMMIT");
      return result;
    } catch (thrown) {
      await session.query("ROLLBACK").catch(() => {});
      if (!isLocked(thrown) || tries === TRIES) throw migrationError(name, thrown);
    }
    await pause(BETWEEN_TRIES_MS);
  }
}

function isLocked(thrown: unknown): boolean {
  const code = (thrown as { code?: string } | null)?.code;
  return code === "55P03" || code === "40P01";
}

/** No job may arrive between the count and the drop, so the table is locked first. */
async function refuseWhileUnfinished(
  session: MigrationSession,
  name: string,
  version: number,
  target: number,
): Promise<void> {
  const schema = quotedSchema(name);
  await session.query(`LOCK TABLE ${schema}.jobs IN ACCESS EXCLUSIVE MODE`);
  const { rows } = await session.query(`SELECT count(*)::text AS n FROM ${schema}.jobs WHERE state < 2`);
  const unfinished = Number((rows[0] as { n: string }).n);
  if (unfinished === 0) return;
  const drops = MIGRATIONS.slice(target, version)
    .toReversed()
    .map((migration) => migration.drops);
  throw new OutliveError(
    ErrorCode.wrongState,
    `${counted(unfinished, "job")} in the schema "${name}" ${unfinished === 1 ? "is" : "are"} unfinished, and going down to ${target} drops ${drops.join("; ")}.`,
    "Nothing was changed. Wait until they are done, or pass --force.",
    { schema: name, unfinished, drops },
  );
}

function migrationError(name: string, thrown: unknown): unknown {
  const { code, message } = (thrown ?? {}) as { code?: string; message?: string };
  const words = {
    "55P03": [
      ErrorCode.storeBusy,
      `Nothing of it was done. Another transaction kept a lock on our tables through ${TRIES} tries; run it again when that has ended.`,
    ],
    "42501": [
      ErrorCode.storeUnusable,
      "Nothing of it was done. Run it as the owner of the schema, or as a role that may create one.",
    ],
  } as const;
  const known = code === "55P03" || code === "42501" ? words[code] : undefined;
  if (!known) return thrown;
  return new OutliveError(
    known[0],
    `The schema "${name}" could not be migrated: ${message}.`,
    known[1],
    { schema: name, sqlState: code },
    { cause: thrown },
  );
}

function newer(name: string, found: number): OutliveError {
  return new OutliveError(
    ErrorCode.schemaNewer,
    `The schema "${name}" has version ${found}; this version of Outlive knows ${KNOWN_VERSION}.`,
    "Upgrade the outlive package in this program. Nothing was changed.",
    { schema: name, found, known: KNOWN_VERSION },
  );
}

// Whether the migrations in a schema are the released ones. `meta` holds the checksum of each applied migration. A
// schema from before checksums were stored is judged by its columns: its migrations were edited in place until then.

/** What `meta` records about the migrations. */
export interface Installed {
  /** The number of the latest; 0: none of our tables exists. */
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
    alsoAccepted: ALSO_ACCEPTED[i + 1] ?? [],
    stored: meta.get(`checksum ${i + 1}`) ?? null,
  }));
  const appliedAt = new Map<number, number>();
  for (const [key, value] of meta)
    if (key.startsWith("migration ")) appliedAt.set(Number(key.slice("migration ".length)), Number(value));
  return { version, steps, appliedAt };
}

/** Refuses a schema created by different migrations with the same numbers. Reads only. */
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
  // Later migrations, run manually from `outlive migrate print`, add columns.
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

/** The migrations of the schema at this address. A worker's role may not run them, so no open does. */
export function schemaMigrations({ client, schema }: Pick<Address, "client" | "schema">): StoreMigrations {
  const connected = async <T>(work: (session: Awaited<ReturnType<typeof newClient>>) => Promise<T>): Promise<T> => {
    const session = await newClient(client);
    try {
      return await work(session);
    } finally {
      await session.end().catch(() => {});
    }
  };
  return {
    title: `Schema ${schema}`,
    place: { schema },
    list: () => connected((session) => listMigrations(session, schema)),
    up: (to) => connected((session) => migrate(session, schema, to)),
    down: ({ to, force = false }) =>
      connected(async (session) => {
        const latest = (await listMigrations(session, schema)).filter(({ applied }) => applied).length;
        return migrateDown(session, schema, { target: to ?? Math.max(0, latest - 1), force });
      }),
  };
}

/** The SQL of this store, to read and to run with psql. Connects to no server. */
export function printedSql(schema: string, { migrations, cron, roles }: PrintedSql): string {
  quotedSchema(schema);
  const numbers = MIGRATIONS.map((_, i) => i + 1);
  const script = ({ from, to, direction }: NonNullable<PrintedSql["migrations"]>): string => {
    const chosen = numbers.filter((number) => number >= from && number <= to);
    return scriptText(schema, direction === "up" ? chosen : chosen.toReversed(), direction);
  };
  return [
    ...(migrations ? [script(migrations)] : []),
    ...(roles ? [rolesText(schema)] : []),
    ...(cron ? [pgCronText(schema)] : []),
  ].join("\n");
}
