// The table of kinds: settings that every process and every decision reads, and the numbers that stand for the names.
import type { KindSettings } from "../../job/job.ts";
import type { Opening } from "../integrity.ts";
import { type KindColumns, kindSettings, toStored } from "../rows.ts";
import type { Database } from "./database.ts";

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
