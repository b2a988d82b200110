// The way in: the table of kinds and the jobs that are enqueued. Inside a transaction; a job whose id or dedupe key is known already adds
// nothing.
import { undeclaredKind } from "../../job/errors.ts";
import type { Enqueued, JobDraft, KindSettings } from "../../job/job.ts";
import type { Change } from "../../job/transitions.ts";
import type { Opening } from "../store-parts.ts";
import { type KindColumns, kindSettings, LANE, STATE, toStored } from "../rows.ts";
import { checksumOf } from "./checksums.ts";
import { type Database, storedEpoch } from "./database.ts";
import { primaryCode, SQLITE_CONSTRAINT } from "./errors.ts";
import { arrive, leave, Limits, relocate, wakeKeys } from "./keys.ts";
import { NO_WORKER } from "./schema.ts";

const COLUMNS =
  "state, lane, kind, priority, worker, epoch, created_at, run_at, started_at, deadline_at, finished_at, id, dedupe_key, input, input_sum, extras";
/** Most jobs ask for nothing special. Each value that is bound costs 50 ns, and four of ten are the same for all of those. */
const INSERT_PLAIN = `INSERT INTO outlive_jobs (${COLUMNS})
  VALUES (0, ${LANE.open}, ?1, 0, ${NO_WORKER}, ?2, ?3, NULL, ?3, ?3, ?3, ?4, NULL, ?5, ?6, 0) ON CONFLICT DO NOTHING`;
const INSERT = `INSERT INTO outlive_jobs (${COLUMNS}, only_key)
  VALUES (0, ?7, ?1, ?8, ${NO_WORKER}, ?2, ?3, ?9, ?3, ?3, ?3, ?4, ?10, ?5, ?6, ?11, ?12) ON CONFLICT DO NOTHING`;

/**
 * So many plain jobs in one statement cost 1.7 us each instead of 2.8. It has no conflict clause, which would not say whose id was known: then it
 * fails as a whole, and they are inserted one by one.
 */
const TOGETHER = 25;
const INSERT_TOGETHER = `INSERT INTO outlive_jobs (${COLUMNS}) VALUES ${Array.from({ length: TOGETHER }, (_, i) => {
  const [id, input, sum] = [4, 5, 6].map((first) => `?${first + 3 * i}`);
  return `(0, ${LANE.open}, ?1, 0, ${NO_WORKER}, ?2, ?3, NULL, ?3, ?3, ?3, ${id}, NULL, ${input}, ${sum}, 0)`;
}).join(", ")}`;

/** A number that a purged job had may be used again. */
const KEEP_TRACE = "INSERT INTO outlive_traces (job, trace) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET trace = ?2";

/**
 * What the enqueues of one group commit share: the epoch is read once, and the jobs of a kind are counted once. With 50 callers at once each of the two
 * was 4.5 % of an enqueue.
 */
export class EnqueueGroup {
  readonly added = new Map<number, number>();
  epoch: number | null = null;

  /** Before the commit. */
  count(kinds: Kinds): void {
    for (const [kind, count] of this.added) kinds.countJobs(kind, count);
    this.forget();
  }

  /** After the commit or a rollback. */
  forget(): void {
    this.added.clear();
    this.epoch = null;
  }
}

/**
 * `parent`: the row of the job that enqueues them. `blocks`: they are blocks of rows, whose own rows the caller inserts. With a `group`, they are counted
 * when that is committed.
 */
export function insertJobs(
  db: Database,
  kinds: Kinds,
  drafts: readonly JobDraft[],
  now: number,
  parent: number | null = null,
  blocks = false,
  group: EnqueueGroup | null = null,
): Enqueued[] {
  const insertPlain = db.sql(INSERT_PLAIN);
  const insert = db.sql(INSERT);
  const epoch = group?.epoch ?? storedEpoch(db);
  if (group) group.epoch = epoch;
  const added = group?.added ?? new Map<number, number>();
  let limits: Limits | undefined;
  const woken: number[] = [];
  const insertOne = (draft: JobDraft): Enqueued => {
    const kind = kinds.idOf(draft.kind);
    if (kind === undefined) throw undeclaredKind(draft.kind);
    const runAt = runAtOf(draft, now, null);
    const isDelayed = runAt !== null && runAt > now;
    const { id, priority, dedupeKey, input, keys, dedupe } = draft;
    const lane = isDelayed ? LANE.delayed : keys === undefined ? LANE.open : LANE.held;
    const sum = checksumOf(input, id);
    const expires = draft.expiresMs !== undefined;
    const extras = parent !== null || keys !== undefined || dedupe?.debounce !== undefined || expires;
    const plain = runAt === null && priority === 0 && dedupeKey === null && !extras && !blocks;
    const { changes, lastInsertRowid } = plain
      ? insertPlain.run(kind, epoch, now, id, input, sum)
      : insert.run(
          kind,
          epoch,
          now,
          id,
          input,
          sum,
          lane,
          priority,
          runAt,
          dedupeKey,
          extras || blocks ? 1 : 0,
          onlyKeyOf(draft),
        );
    if (changes === 0) return present(db, kind, draft, now);
    if (extras) {
      const job = { job: Number(lastInsertRowid), kind };
      const door = insertExtras(db, (limits ??= new Limits(db)), job, draft, parent, !isDelayed, now);
      if (door !== null) woken.push(door);
      if (expires) keepExpiry(db, job.job, expiryOf(draft, runAt, now));
    }
    if (draft.trace !== undefined) db.sql(KEEP_TRACE).run(lastInsertRowid, draft.trace);
    added.set(kind, (added.get(kind) ?? 0) + 1);
    return { id, created: true };
  };
  const enqueued: Enqueued[] = [];
  let mayBeTogether = parent === null && !blocks;
  for (let at = 0; at < drafts.length;) {
    const kind = mayBeTogether ? kindOfPlain(kinds, drafts, at) : undefined;
    if (kind === undefined) {
      enqueued.push(insertOne(drafts[at++]!));
      continue;
    }
    const next = drafts.slice(at, (at += TOGETHER));
    mayBeTogether = insertTogether(db, next, [kind, epoch, now]);
    if (mayBeTogether) added.set(kind, (added.get(kind) ?? 0) + TOGETHER);
    for (const draft of next) enqueued.push(mayBeTogether ? { id: draft.id, created: true } : insertOne(draft));
  }
  if (!group) for (const [kind, count] of added) kinds.countJobs(kind, count);
  if (woken.length > 0) wakeKeys(db, woken, now);
  return enqueued;
}

/** The kind of the next TOGETHER drafts, if all of them are plain and of one. */
function kindOfPlain(kinds: Kinds, drafts: readonly JobDraft[], from: number): number | undefined {
  if (from + TOGETHER > drafts.length) return undefined;
  const { kind } = drafts[from]!;
  for (let at = from; at < from + TOGETHER; at++) {
    const draft = drafts[at]!;
    if (draft.kind !== kind || !isPlain(draft)) return undefined;
  }
  return kinds.idOf(kind);
}

function isPlain({ priority, runAt, delayMs, dedupeKey, dedupe, keys, expiresMs, trace }: JobDraft): boolean {
  return (
    priority === 0 &&
    runAt === null &&
    delayMs === 0 &&
    dedupeKey === null &&
    (dedupe ?? keys ?? expiresMs ?? trace) === undefined
  );
}

/** False: one of the ids is known already, and none was inserted. */
function insertTogether(
  db: Database,
  drafts: readonly JobDraft[],
  shared: readonly [kind: number, epoch: number, now: number],
): boolean {
  const values: (string | number)[] = [...shared];
  for (const { id, input } of drafts) values.push(id, input, checksumOf(input, id));
  try {
    db.sql(INSERT_TOGETHER).run(...values);
    return true;
  } catch (thrown) {
    // A trigger of the user's may have ended the whole transaction.
    if (primaryCode(thrown) === SQLITE_CONSTRAINT && db.inTransaction) return false;
    throw thrown;
  }
}

/** Enqueues what follows from changes that this transaction has applied. Most have nothing that follows, and cost nothing here. */
export function insertFollowing(db: Database, kinds: Kinds, applied: readonly Change[], now: number): void {
  const drafts = applied.flatMap(({ follow }) => follow ?? []);
  if (drafts.length > 0) insertJobs(db, kinds, drafts, now);
}

/** Refuses kinds that were never declared. */
export function demandKinds(kinds: Kinds, drafts: readonly Pick<JobDraft, "kind">[]): void {
  for (const { kind } of drafts) if (kinds.idOf(kind) === undefined) throw undeclaredKind(kind);
}

/** Returns the door that has to be checked; null: none. */
function insertExtras(
  db: Database,
  limits: Limits,
  job: { readonly job: number; readonly kind: number },
  draft: JobDraft,
  parent: number | null,
  isReady: boolean,
  now: number,
): number | null {
  const { keys, dedupe } = draft;
  const maxMs = dedupe?.debounce?.maxMs ?? null;
  const latestAt = maxMs === null ? null : now + maxMs;
  if (keys !== undefined) return arrive(db, limits, job, { ...draft, keys }, isReady, { parent, latestAt });
  db.sql("INSERT INTO outlive_extras (job, parent, latest_at) VALUES (?, ?, ?)").run(job.job, parent, latestAt);
  return null;
}

/** The key whose slot its own row takes when it is claimed at the door (door-visit.ts); null: none, or it counts against more than one. */
function onlyKeyOf({ keys, fair }: JobDraft): number | null {
  return keys?.length === 1 && fair === undefined ? keys[0]!.id : null;
}

/** When a draft is due, in ms of the store's clock; null: at once. A debounced one waits again, but not beyond `latestAt`. */
function runAtOf({ dedupe, runAt, delayMs }: JobDraft, now: number, latestAt: number | null): number | null {
  if (dedupe?.debounce) return Math.min(now + dedupe.debounce.waitMs, latestAt ?? Number.MAX_SAFE_INTEGER);
  return runAt ?? (delayMs > 0 ? now + delayMs : null);
}

/** When it expires, in ms of the store's clock; null: never. */
function expiryOf({ expiresMs }: JobDraft, runAt: number | null, now: number): number | null {
  return expiresMs === undefined ? null : Math.max(now, runAt ?? now) + expiresMs;
}

function keepExpiry(db: Database, job: number, expiresAt: number | null): void {
  db.sql("UPDATE outlive_extras SET expires_at = ? WHERE job = ?").run(expiresAt, job);
}

/** The id or the dedupe key is known already: what becomes of the job that has it. */
function present(db: Database, kind: number, draft: JobDraft, now: number): Enqueued {
  if (db.sql("SELECT 1 FROM outlive_jobs WHERE id = ?").get(draft.id)) return { id: draft.id, created: false };
  const holder = db
    .sql(
      "SELECT seq, id, state, fence FROM outlive_jobs WHERE kind = ? AND dedupe_key = ? AND dedupe_key IS NOT NULL AND state < 2",
    )
    .get(kind, draft.dedupeKey) as unknown as Holder;
  const { id } = holder;
  if (draft.dedupe === undefined) return { id, created: false };
  if (holder.state === STATE.queued && holder.fence === 0) {
    replace(db, holder, draft, now);
    return { id, created: false, became: "replaced" };
  }
  if (draft.dedupe.then === "replace") return { id, created: false };
  markRerun(db, holder, draft, now);
  return { id, created: false, became: "rerun" };
}

interface Holder {
  readonly seq: number;
  readonly id: string;
  readonly state: number;
  readonly fence: number;
}

/** The job has not begun: whatever runs it will see this input. */
function replace(db: Database, { seq, id }: Pick<Holder, "seq" | "id">, draft: JobDraft, now: number): void {
  const { input, keys, priority } = draft;
  const before = db
    .sql(
      "SELECT j.lane, e.latest_at, j.kind FROM outlive_jobs j LEFT JOIN outlive_extras e ON e.job = j.seq WHERE j.seq = ?",
    )
    .get(seq) as { lane: number; latest_at: number | null; kind: number };
  const latestAt = before.latest_at ?? latestOf(draft, now);
  const runAt = runAtOf(draft, now, latestAt);
  const isReady = runAt === null ? before.lane !== LANE.delayed : runAt <= now;
  if (keys !== undefined) leave(db, seq, now);
  db.sql(
    "UPDATE outlive_jobs SET input = ?, input_sum = ?, priority = ?, lane = ?, run_at = ifnull(?, run_at) WHERE seq = ?",
  ).run(input, checksumOf(input, id), priority, isReady ? LANE.open : LANE.delayed, runAt, seq);
  if (latestAt !== null) keepLatest(db, seq, latestAt);
  if (draft.expiresMs !== undefined) withExtras(db, seq);
  keepExpiry(db, seq, expiryOf(draft, runAt, now));
  if (keys === undefined) return relocate(db, [seq], now);
  db.sql("UPDATE outlive_jobs SET extras = 1, lane = ?, only_key = ? WHERE seq = ?").run(
    isReady ? LANE.held : LANE.delayed,
    onlyKeyOf(draft),
    seq,
  );
  const door = arrive(db, new Limits(db), { job: seq, kind: before.kind }, { ...draft, keys }, isReady);
  if (door !== null) wakeKeys(db, [door], now);
}

/** How long a debounced draft may be put off; null: without an end. */
function latestOf({ dedupe }: JobDraft, now: number): number | null {
  const maxMs = dedupe?.debounce?.maxMs ?? null;
  return maxMs === null ? null : now + maxMs;
}

function keepLatest(db: Database, job: number, latestAt: number): void {
  db.sql("INSERT INTO outlive_extras (job, latest_at) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET latest_at = ?2").run(
    job,
    latestAt,
  );
  db.sql("UPDATE outlive_jobs SET extras = 1 WHERE seq = ?").run(job);
}

/** The job has begun: it may have read an older state already. The latest draft is kept, and becomes a job when this one has ended. */
function markRerun(db: Database, { seq }: Pick<Holder, "seq">, draft: JobDraft, now: number): void {
  const kept = db.sql("SELECT latest_at FROM outlive_reruns WHERE job = ?").get(seq) as
    | { latest_at: number | null }
    | undefined;
  const latestAt = kept?.latest_at ?? latestOf(draft, now);
  const next = { ...draft, runAt: runAtOf(draft, now, latestAt), delayMs: 0 };
  db.sql(
    `INSERT INTO outlive_reruns (job, draft, at, latest_at) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT DO UPDATE SET draft = ?2, at = ?3, latest_at = ?4`,
  ).run(seq, JSON.stringify(next), now, latestAt);
  withExtras(db, seq);
}

function withExtras(db: Database, job: number): void {
  db.sql("INSERT INTO outlive_extras (job) VALUES (?) ON CONFLICT DO NOTHING").run(job);
  db.sql("UPDATE outlive_jobs SET extras = 1 WHERE seq = ?").run(job);
}

/**
 * A job that was enqueued again after it had begun, and has ended, runs again. If its key belongs to a younger job by now, that one begins after
 * the event and has a later input; one that is older, and was retried by hand, runs again instead. If the job itself was retried by hand, the mark stays until it ends again. Returns how many were added.
 */
export function rerun(db: Database, kinds: Kinds, job: number, now: number): number {
  const row = db
    .sql(
      `SELECT r.draft, r.at, r.latest_at FROM outlive_reruns r JOIN outlive_jobs j ON j.seq = r.job WHERE r.job = ? AND j.state >= ${STATE.succeeded}`,
    )
    .get(job) as { draft: string; at: number; latest_at: number | null } | undefined;
  if (row === undefined) return 0;
  db.sql("DELETE FROM outlive_reruns WHERE job = ?").run(job);
  const { dedupe: _, ...draft } = JSON.parse(row.draft) as JobDraft;
  const [{ id, created }] = insertJobs(db, kinds, [draft], now) as [Enqueued];
  const { seq, fence } = db
    .sql("SELECT seq, id, state, fence FROM outlive_jobs WHERE id = ?")
    .get(id) as unknown as Holder;
  if (created && row.latest_at !== null) keepLatest(db, seq, row.latest_at);
  if (!created && seq < job) {
    const isNewer = db.sql("SELECT 1 FROM outlive_reruns WHERE job = ? AND at >= ?").get(seq, row.at) !== undefined;
    if (fence === 0) replace(db, { seq, id }, draft, now);
    else if (!isNewer) markRerun(db, { seq }, draft, now);
  }
  return created ? 1 : 0;
}

// The table of kinds: settings that every process and every decision reads, and the numbers that stand for the names.

/** Settings of a kind that was enqueued by name before any program declared it. A worker's own replace them. */
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
      INSERT INTO outlive_kinds (name, max_runtime_ms, ${DEFAULTS}, fair) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
      ON CONFLICT (name) DO UPDATE SET max_runtime_ms = excluded.max_runtime_ms, grace_ms = excluded.grace_ms,
        max_errors = excluded.max_errors, max_timeouts = excluded.max_timeouts, max_crashes = excluded.max_crashes,
        backoff_type = excluded.backoff_type, backoff_base_ms = excluded.backoff_base_ms, backoff_max_ms = excluded.backoff_max_ms,
        backoff_jitter = excluded.backoff_jitter, on_crash = excluded.on_crash, timeout_ms = excluded.timeout_ms,
        fair = max(fair, excluded.fair)`);
    for (const { name, timeoutMs, maxRuntimeMs, graceMs, limits, backoff, onCrash, fair = false } of kinds) {
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
        fair ? 1 : 0,
      );
    }
    for (const { name, keyed = [], retention } of kinds)
      this.#db
        .sql(
          "UPDATE outlive_kinds SET keyed = ?2, retention = ?3 WHERE name = ?1 AND (keyed <> ?2 OR retention IS NOT ?3)",
        )
        .run(name, keyed.length > 0 ? 1 : 0, retention === undefined ? null : JSON.stringify(retention));
  }

  /** The number of a declared kind; undefined: no program has declared it yet. */
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

  /**
   * The kinds that are paused, and those whose jobs may wait at a gate: what was fair once may still have some there. A pause whose end has come is removed:
   * workers of earlier versions know no end.
   */
  marks(now: number): Marks {
    const rows = this.#db
      .sql("SELECT id, paused, paused_until, fair FROM outlive_kinds WHERE paused = 1 OR fair = 1")
      .all() as unknown as { id: number; paused: number; paused_until: number | null; fair: number }[];
    if (rows.length === 0) return UNMARKED;
    const ids = (is: (row: (typeof rows)[0]) => boolean): Set<number> => new Set(rows.filter(is).map(({ id }) => id));
    const hasEnded = ({ paused, paused_until: until }: (typeof rows)[0]): boolean =>
      paused === 1 && until !== null && until <= now;
    for (const row of rows)
      if (hasEnded(row)) this.#db.sql(`UPDATE outlive_kinds SET ${NOT_PAUSED} WHERE id = ?`).run(row.id);
    const paused = rows.filter((row) => row.paused === 1 && !hasEnded(row));
    const ends = paused.flatMap(({ paused_until: until }) => (until === null ? [] : [until - now]));
    return {
      paused: new Set(paused.map(({ id }) => id)),
      fair: ids(({ fair }) => fair === 1),
      resumesInMs: ends.length === 0 ? null : Math.min(...ends),
    };
  }

  /** Keeps the number of rows in step. Inside the transaction that adds or removes them. */
  countJobs(kind: number, by: number): void {
    this.#db.sql("UPDATE outlive_kinds SET jobs = jobs + ? WHERE id = ?").run(by, kind);
  }
}

/** Kinds by their numbers. */
export interface Marks {
  readonly paused: ReadonlySet<number>;
  readonly fair: ReadonlySet<number>;
  /** When the first of the pauses ends; null: none has an end. */
  readonly resumesInMs: number | null;
}

const UNMARKED: Marks = { paused: new Set(), fair: new Set(), resumesInMs: null };

export const NOT_PAUSED = "paused = 0, paused_at = NULL, paused_until = NULL, paused_by = NULL, paused_reason = NULL";

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
