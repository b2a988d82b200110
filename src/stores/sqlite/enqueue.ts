// The way in: the table of kinds and the jobs that are enqueued. Inside a transaction; a job whose id or dedupe key is known already adds
// nothing.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Enqueued, JobDraft, KindSettings } from "../../job/job.ts";
import type { Change } from "../../job/transitions.ts";
import type { Opening } from "../integrity.ts";
import { type KindColumns, kindSettings, LANE, toStored } from "../rows.ts";
import { checksumOf } from "./checksums.ts";
import { type Database, storedEpoch } from "./database.ts";
import { NO_WORKER } from "./schema.ts";

const COLUMNS =
  "state, lane, kind, priority, worker, epoch, created_at, run_at, started_at, deadline_at, finished_at, id, dedupe_key, input, input_sum";
/** Most jobs ask for nothing special. Each value that is bound costs 50 ns, and four of ten are the same for all of those. */
const INSERT_PLAIN = `INSERT INTO outlive_jobs (${COLUMNS})
  VALUES (0, ${LANE.open}, ?1, 0, ${NO_WORKER}, ?2, ?3, NULL, ?3, ?3, ?3, ?4, NULL, ?5, ?6) ON CONFLICT DO NOTHING`;
const INSERT = `INSERT INTO outlive_jobs (${COLUMNS})
  VALUES (0, ?7, ?1, ?8, ${NO_WORKER}, ?2, ?3, ?9, ?3, ?3, ?3, ?4, ?10, ?5, ?6) ON CONFLICT DO NOTHING`;

export function insertJobs(db: Database, kinds: Kinds, drafts: readonly JobDraft[], now: number): Enqueued[] {
  const insertPlain = db.sql(INSERT_PLAIN);
  const insert = db.sql(INSERT);
  const epoch = storedEpoch(db);
  const added = new Map<number, number>();
  const enqueued = drafts.map((draft) => {
    const kind = kinds.idOf(draft.kind);
    if (kind === undefined) throw undeclared(draft.kind);
    const runAt = draft.runAt ?? (draft.delayMs > 0 ? now + draft.delayMs : null);
    const lane = runAt !== null && runAt > now ? LANE.delayed : LANE.open;
    const { id, priority, dedupeKey, input } = draft;
    const sum = checksumOf(input, id);
    const plain = runAt === null && priority === 0 && dedupeKey === null;
    const { changes } = plain
      ? insertPlain.run(kind, epoch, now, id, input, sum)
      : insert.run(kind, epoch, now, id, input, sum, lane, priority, runAt, dedupeKey);
    if (changes === 0) return { id: existing(db, kind, draft), created: false };
    added.set(kind, (added.get(kind) ?? 0) + 1);
    return { id, created: true };
  });
  for (const [kind, count] of added) kinds.countJobs(kind, count);
  return enqueued;
}

/** Enqueues what follows from changes that this transaction has applied. Most have nothing that follows, and cost nothing here. */
export function insertFollowing(db: Database, kinds: Kinds, applied: readonly Change[], now: number): void {
  const drafts = applied.flatMap(({ follow }) => follow ?? []);
  if (drafts.length > 0) insertJobs(db, kinds, drafts, now);
}

/** Refuses kinds that were never declared. */
export function demandKinds(kinds: Kinds, drafts: readonly JobDraft[]): void {
  for (const { kind } of drafts) if (kinds.idOf(kind) === undefined) throw undeclared(kind);
}

/** Which unfinished job holds the key, or the id itself if that was known already. */
function existing(db: Database, kind: number, draft: JobDraft): string {
  if (db.sql("SELECT 1 FROM outlive_jobs WHERE id = ?").get(draft.id)) return draft.id;
  const holder = db
    .sql("SELECT id FROM outlive_jobs WHERE kind = ? AND dedupe_key = ? AND dedupe_key IS NOT NULL AND state < 2")
    .get(kind, draft.dedupeKey) as { id: string };
  return holder.id;
}

function undeclared(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.kindUnknown,
    `The kind ${JSON.stringify(kind)} was never declared in this store.`,
    "Pass its job to `open({ jobs })` or to the client's `jobs`, so that its settings are known before its first job.",
    { kind },
  );
}

// The table of kinds: settings that every process and every decision reads, and the numbers that stand for the names.

/** Settings of a kind that somebody enqueued by name before any program declared it. A worker's own replace them. */
const DEFAULTS =
  "grace_ms, max_errors, max_timeouts, max_crashes, backoff_type, backoff_base_ms, backoff_max_ms, backoff_jitter, on_crash, timeout_ms";

export class Kinds {
  readonly #db: Database;
  readonly #ids = new Map<string, number>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** After a rollback: the same numbers may be given to other kinds. */
  forgetIds(): void {
    this.#ids.clear();
  }

  /** Inside a transaction. */
  declare(kinds: readonly KindSettings[]): void {
    const upsert = this.#db.sql(`
      INSERT INTO outlive_kinds (name, max_runtime_ms, ${DEFAULTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
      ON CONFLICT (name) DO UPDATE SET max_runtime_ms = excluded.max_runtime_ms, grace_ms = excluded.grace_ms,
        max_errors = excluded.max_errors, max_timeouts = excluded.max_timeouts, max_crashes = excluded.max_crashes,
        backoff_type = excluded.backoff_type, backoff_base_ms = excluded.backoff_base_ms, backoff_max_ms = excluded.backoff_max_ms,
        backoff_jitter = excluded.backoff_jitter, on_crash = excluded.on_crash, timeout_ms = excluded.timeout_ms`);
    for (const { name, timeoutMs, maxRuntimeMs, graceMs, limits, backoff, onCrash } of kinds) {
      upsert.run(
        name,
        maxRuntimeMs,
        graceMs,
        limits.errors,
        limits.timeouts,
        limits.crashes,
        backoff.type,
        backoff.baseMs,
        backoff.maxMs,
        backoff.jitter,
        toStored(onCrash),
        timeoutMs,
      );
    }
  }

  /** The number of a declared kind; undefined: nobody has declared it yet. */
  idOf(name: string): number | undefined {
    const known = this.#ids.get(name);
    if (known !== undefined) return known;
    const row = this.#db.sql("SELECT id FROM outlive_kinds WHERE name = ?").get(name) as { id: number } | undefined;
    if (row) this.#ids.set(name, row.id);
    return row?.id;
  }

  settingsById(id: number): KindSettings {
    return kindSettings(this.#db.sql("SELECT * FROM outlive_kinds WHERE id = ?").get(id) as unknown as KindColumns);
  }

  paused(): ReadonlySet<number> {
    const rows = this.#db.sql("SELECT id FROM outlive_kinds WHERE paused = 1").all() as { id: number }[];
    return rows.length === 0 ? NONE : new Set(rows.map(({ id }) => id));
  }

  /** Keeps the number of rows in step. Inside the transaction that adds or removes them. */
  countJobs(kind: number, by: number): void {
    this.#db.sql("UPDATE outlive_kinds SET jobs = jobs + ? WHERE id = ?").run(by, kind);
  }
}

const NONE: ReadonlySet<number> = new Set();

// What the store keeps about itself in `outlive_meta`: which store it is, and what the latest noteworthy open found.

/** A random id, kept with the rows. It shows whether a write-ahead log next to the file belongs to it. Null: none, or unreadable. */
export function storeIdentity(db: Database): string | null {
  try {
    return read(db, "store");
  } catch {
    return null;
  }
}

/** Gives the file an identity if it has none. The caller has begun a transaction. */
export function ensureIdentity(db: Database, newId: () => string): void {
  db.sql("INSERT INTO outlive_meta (key, value) VALUES ('store', ?) ON CONFLICT DO NOTHING").run(newId());
}

/** One row, the latest: an incident is a death, and this open may have found damage without one. */
export function noteOpening(db: Database, opening: Opening): void {
  db.sql(
    "INSERT INTO outlive_meta (key, value) VALUES ('latest_opening', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
  ).run(JSON.stringify(opening));
}

export function latestOpening(db: Database): Opening | null {
  const text = read(db, "latest_opening");
  return text === null ? null : (JSON.parse(text) as Opening);
}

function read(db: Database, key: string): string | null {
  const row = db.sql("SELECT value FROM outlive_meta WHERE key = ?").get(key) as { value: string } | undefined;
  return row?.value ?? null;
}
