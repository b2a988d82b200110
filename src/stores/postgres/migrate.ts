// Brings a schema to this program's version, or back: numbered migrations, each in one transaction and under one lock, so that one
// that was killed half-way has not happened. `meta` holds the number of the latest, when each was applied, and its checksum.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import { MIGRATIONS } from "./migrations/index.ts";
import { seedViews } from "./migrations/seed-views.ts";
import { adoptText, checksumOf, downText, lockText, upText } from "./migrations/text.ts";
import { quotedSchema } from "./schema.ts";
import { installed, refuseUnreleased } from "./schema-record.ts";

/**
 * One step of the schema. Both texts name everything with its schema, which comes checked and quoted. `up` is never changed once it
 * is in the list, and so uses no constant that may change: its checksum is compared with the one that a schema keeps.
 */
export interface Migration {
  readonly name: string;
  /** What its `down` takes away, in words. */
  readonly drops: string;
  readonly up: (schema: string) => string;
  readonly down: (schema: string) => string;
}

/** One session: a client of `pg`, connected, or anything like it. */
export interface MigrationSession {
  query(text: string): Promise<{ readonly rows: readonly unknown[] }>;
}

export interface MigrationInfo {
  readonly number: number;
  readonly name: string;
  /** What its `down` takes away. */
  readonly drops: string;
  /** In ms of the server's clock; null: it is not there. */
  readonly appliedAt: number | null;
  readonly applied: boolean;
  /** Of the migration as this program has it. */
  readonly checksum: string;
  /** Of the migration that was applied; null: it is not there, or its checksum was not kept. Another one than `checksum`: an unreleased build made it. */
  readonly storedChecksum: string | null;
}

/** The least version with which this program works: a worker writes the checksums of that step. */
export const NEEDED_VERSION = MIGRATIONS.indexOf(seedViews) + 1;
export const KNOWN_VERSION = MIGRATIONS.length;

/** A migration that waits for a lock makes everybody wait behind it: it gives up soon, and can be run again. */
const LOCK_TIMEOUT = "SET LOCAL lock_timeout = '5s'";

/** Brings `schema` up to `target` and answers the numbers of what was done. Safe to repeat and to run in several processes at once. */
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
      await session.query(LOCK_TIMEOUT);
      await session.query(upText(name, version + 1));
      return version + 1;
    });
    if (next === null) return done;
    done.push(next);
  }
}

/** Takes back every migration above `target`, the latest first. Refuses while unfinished jobs exist unless forced. */
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

export async function listMigrations(session: MigrationSession, name: string): Promise<MigrationInfo[]> {
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

/** The number of the latest migration in the schema; 0: none of our tables is there. */
export async function installedVersion(session: MigrationSession, name: string): Promise<number> {
  return (await installed(session, name)).version;
}

/** Refuses a schema with which this program can't work, and says what to run. Nothing is migrated here: a worker's role may not. */
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
  await session.query("BEGIN");
  try {
    await session.query(lockText(name));
    const answer = await work();
    await session.query("COMMIT");
    return answer;
  } catch (thrown) {
    await session.query("ROLLBACK").catch(() => {});
    throw inOurWords(name, thrown);
  }
}

/** No job may come in between the count and the drop: the table is locked first. */
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
    `${unfinished} job(s) in the schema "${name}" are unfinished, and going down to ${target} drops ${drops.join("; ")}.`,
    "Nothing was changed. Wait until they are done, or say --force.",
    { schema: name, unfinished, drops },
  );
}

function inOurWords(name: string, thrown: unknown): unknown {
  const { code, message } = (thrown ?? {}) as { code?: string; message?: string };
  const words = {
    "55P03": [
      ErrorCode.storeBusy,
      "Nothing of it was done. Somebody holds a lock on our tables; run it again when that is over.",
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
