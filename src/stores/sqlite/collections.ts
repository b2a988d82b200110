// Collections as the port wants them: opened, announced, filled with parts, ended once, deleted. Each verb is one small transaction or one read.
// There is one writer at a time, so sums are kept in the transaction that keeps the parts.
import {
  answerPut,
  COLLECTION_STATES,
  type CollectionDraft,
  type CollectionRow,
  type CollectionState,
  decideAnnounce,
  decodeTransitions,
  dueAt,
  isFull,
  isOpen,
  type KnownPlace,
  MAX_ORDINAL,
  type MissingOrdinals,
  type ParkedMessage,
  type ParkedRow,
  type Part,
  type PartPlace,
  type PutAnswer,
  type SeriesRow,
} from "../../job/collections.ts";
import {
  type AnnounceAnswer,
  type CollectionCount,
  type CollectionFilter,
  type Collections,
  type CollectionStep,
  listedRanges,
  type OpenedCollection,
  PAGE_ORDINALS,
  pageOf,
  type ParkedFilter,
  STATE_CODE,
} from "../collections.ts";
import { checksumOf, isIntact } from "./checksums.ts";
import type { Database } from "./database.ts";
import { writeAudit } from "./audit.ts";
import { demandKinds, insertJobs, type Kinds } from "./enqueue.ts";
import type { FileAccess } from "./writer.ts";

export function collections({ db, now, write, read }: FileAccess, kinds: Kinds): Collections {
  return {
    open: (draft) => write(() => open(db, kinds, draft, now())),
    announce: (id, expected) => write(() => announce(db, id, expected, now())),
    known: (places) => read(() => places.map((place) => knownPlace(db, place)?.known ?? null)),
    put: (parts) => write(() => putParts(db, parts, now())),
    get: (ids) => read(() => ids.flatMap((id) => getOne(db, id) ?? [])),
    list: (filter, limit, after) => read(() => list(db, filter, limit, after)),
    counts: () => read(() => counts(db)),
    parts: (id, series, after, limit) => read(() => partsOf(db, id, series, after, limit)),
    missing: (id, series, limit) => read(() => missing(db, id, series, limit)),
    due: (limit) => read(() => due(db, limit, now())),
    step: (step, entry) =>
      write(() => {
        const isTaken = takeStep(db, kinds, step, now());
        writeAudit(db, entry, isTaken ? 1 : 0, now());
        return isTaken;
      }),
    park: (messages) => write(() => park(db, messages, now())),
    parked: (filter, limit, after) => read(() => parked(db, filter, limit, after)),
    unpark: (ids, entry) =>
      write(() => {
        const forget = db.sql("DELETE FROM outlive_parked WHERE id = ?");
        const gone = ids.reduce((sum, id) => sum + Number(forget.run(id).changes), 0);
        writeAudit(db, entry, gone, now());
      }),
    remove: (id, limit) => write(() => remove(db, id, limit)),
  };
}

interface PlainCollection {
  readonly seq: number;
  readonly kind: string;
  readonly state: number;
  readonly created_at: number;
  readonly active_at: number;
  readonly idle_ms: number;
  readonly total_ms: number;
}

interface SeriesColumns {
  readonly place: number;
  readonly name: string;
  readonly expected: number | null;
  readonly have: number;
  readonly bytes: number;
}

const FIND = `SELECT c.seq, k.name AS kind, c.state, c.created_at, c.active_at, c.idle_ms, c.total_ms
  FROM outlive_collections c JOIN outlive_kinds k ON k.id = c.kind WHERE c.id = ?`;

function find(db: Database, id: string): PlainCollection | undefined {
  return db.sql(FIND).get(id) as unknown as PlainCollection | undefined;
}

function seriesOf(db: Database, collection: number): SeriesColumns[] {
  return db
    .sql("SELECT place, name, expected, have, bytes FROM outlive_series WHERE collection = ? ORDER BY place")
    .all(collection) as unknown as SeriesColumns[];
}

// ---- in

function open(db: Database, kinds: Kinds, draft: CollectionDraft, now: number): OpenedCollection {
  demandKinds(kinds, draft.follow);
  const { id, kind, input, series, idleMs, totalMs, keepMs, follow } = draft;
  const state: CollectionState = follow.length > 0 ? "requested" : "collecting";
  const due = dueAt({ activeAt: now, createdAt: now, idleMs, totalMs });
  demandKinds(kinds, [draft]);
  const { changes, lastInsertRowid: seq } = db
    .sql(
      `INSERT INTO outlive_collections (id, kind, state, touched, created_at, active_at, due_at, idle_ms, total_ms, keep_ms)
       VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING`,
    )
    .run(
      id,
      kinds.idOf(kind)!,
      STATE_CODE[state],
      isFull(series.map((one) => ({ ...one, have: 0, bytes: 0 }))) ? 1 : 0,
      now,
      due,
      idleMs,
      totalMs,
      keepMs,
    );
  if (changes === 1) {
    db.sql("INSERT INTO outlive_collection_texts (collection, input, input_sum, transitions) VALUES (?, ?, ?, ?)").run(
      seq,
      input,
      checksumOf(input, id),
      `${state} ${now}`,
    );
    for (const [place, { name, expected }] of series.entries())
      db.sql("INSERT INTO outlive_series (collection, place, name, expected) VALUES (?, ?, ?, ?)").run(
        seq,
        place,
        name,
        expected,
      );
    insertJobs(db, kinds, follow, now);
  }
  return { created: changes === 1, collection: getOne(db, id)! };
}

function announce(db: Database, id: string, expected: Readonly<Record<string, number>>, now: number): AnnounceAnswer {
  const collection = find(db, id);
  if (collection === undefined) return { is: "unknown", series: null };
  const state = COLLECTION_STATES[collection.state]!;
  const decided = decideAnnounce(state, seriesOf(db, collection.seq), expected, ({ place }) => {
    const found = db
      .sql("SELECT max(ordinal) AS highest FROM outlive_parts WHERE collection = ? AND series = ?")
      .get(collection.seq, place) as { highest: number | null };
    return found.highest;
  });
  if ("is" in decided) return decided;
  if (decided.news.length === 0) return { is: "announced" };
  for (const { series, count } of decided.news)
    db.sql("UPDATE outlive_series SET expected = ? WHERE collection = ? AND place = ?").run(
      count,
      collection.seq,
      series.place,
    );
  touch(db, collection, now);
  return { is: "announced" };
}

/** After something came: when it is due next, whether it may be complete, and that it collects. */
function touch(db: Database, { seq, state, created_at, idle_ms, total_ms }: PlainCollection, now: number): void {
  const due = dueAt({ activeAt: now, createdAt: created_at, idleMs: idle_ms, totalMs: total_ms });
  db.sql("UPDATE outlive_collections SET active_at = ?, due_at = ?, state = ?, touched = ? WHERE seq = ?").run(
    now,
    due,
    STATE_CODE.collecting,
    isFull(seriesOf(db, seq)) ? 1 : 0,
    seq,
  );
  if (state === STATE_CODE.requested) noteTransition(db, seq, "collecting", now);
}

function noteTransition(db: Database, seq: number, state: CollectionState, now: number): void {
  db.sql("UPDATE outlive_collection_texts SET transitions = transitions || ',' || ? WHERE collection = ?").run(
    `${state} ${now}`,
    seq,
  );
}

interface Place {
  readonly collection: PlainCollection;
  /** -1: no such series. */
  readonly place: number;
  readonly known: KnownPlace;
}

function knownPlace(db: Database, { collection: id, series: name, ordinal }: PartPlace): Place | null {
  const collection = find(db, id);
  if (collection === undefined) return null;
  const series = db
    .sql("SELECT place, expected FROM outlive_series WHERE collection = ? AND name = ?")
    .get(collection.seq, name) as { place: number; expected: number | null } | undefined;
  const part =
    series &&
    (db
      .sql("SELECT sha256 FROM outlive_parts WHERE collection = ? AND series = ? AND ordinal = ?")
      .get(collection.seq, series.place, ordinal) as { sha256: string } | undefined);
  return {
    collection,
    place: series?.place ?? -1,
    known: {
      kind: collection.kind,
      state: COLLECTION_STATES[collection.state]!,
      series: series ? { expected: series.expected } : null,
      sha256: part?.sha256 ?? null,
    },
  };
}

function putParts(db: Database, parts: readonly Part[], now: number): PutAnswer[] {
  const touched = new Map<number, PlainCollection>();
  const pages = new Map<string, { readonly of: readonly [number, number, number]; have: number }>();
  const answers = parts.map((part) => {
    const found = knownPlace(db, part);
    const answer = answerPut(found?.known ?? null, part);
    if (answer !== "accepted") return answer;
    const { collection, place } = found!;
    db.sql(
      "INSERT INTO outlive_parts (collection, series, ordinal, bytes, sha256, blob) VALUES (?, ?, ?, ?, ?, ?)",
    ).run(collection.seq, place, part.ordinal, part.bytes, part.sha256, part.blob);
    db.sql("UPDATE outlive_series SET have = have + 1, bytes = bytes + ? WHERE collection = ? AND place = ?").run(
      part.bytes,
      collection.seq,
      place,
    );
    touched.set(collection.seq, collection);
    const of = [collection.seq, place, pageOf(part.ordinal)] as const;
    const page = pages.get(of.join()) ?? { of, have: 0 };
    page.have++;
    pages.set(of.join(), page);
    return answer;
  });
  for (const { of, have } of pages.values())
    db.sql(
      `INSERT INTO outlive_part_pages (collection, series, page, have) VALUES (?1, ?2, ?3, ?4)
       ON CONFLICT DO UPDATE SET have = have + ?4`,
    ).run(...of, have);
  for (const collection of touched.values()) touch(db, collection, now);
  return answers;
}

// ---- reads

interface CollectionColumns extends PlainCollection {
  readonly id: string;
  readonly keep_ms: number;
  readonly input: string;
  readonly input_sum: number;
  readonly transitions: string;
  readonly why: string | null;
  readonly parked: number;
}

const SELECT = `SELECT c.*, k.name AS kind, t.input, t.input_sum, t.transitions, t.why,
    (SELECT count(*) FROM outlive_parked p WHERE p.collection = c.id) AS parked
  FROM outlive_collections c JOIN outlive_kinds k ON k.id = c.kind JOIN outlive_collection_texts t ON t.collection = c.seq`;

function getOne(db: Database, id: string): CollectionRow | null {
  const row = db.sql(`${SELECT} WHERE c.id = ?`).get(id) as unknown as CollectionColumns | undefined;
  return row ? collectionRow(db, row) : null;
}

function collectionRow(db: Database, row: CollectionColumns): CollectionRow {
  return {
    id: row.id,
    kind: row.kind,
    state: COLLECTION_STATES[row.state]!,
    input: row.input,
    series: seriesOf(db, row.seq).map(({ name, expected, have, bytes }): SeriesRow => ({
      name,
      expected,
      have,
      bytes,
    })),
    idleMs: row.idle_ms,
    totalMs: row.total_ms,
    keepMs: row.keep_ms,
    createdAt: row.created_at,
    activeAt: row.active_at,
    transitions: decodeTransitions(row.transitions),
    why: row.why,
    parked: row.parked,
    ...(!isIntact(row.input, row.id, row.input_sum) && { corrupt: true }),
  };
}

function list(db: Database, { kind, state }: CollectionFilter, limit: number, after: string | null): CollectionRow[] {
  const rows = db
    .sql(
      `${SELECT} WHERE (?1 IS NULL OR k.name = ?1) AND (?2 IS NULL OR c.state = ?2)
         AND (?3 IS NULL OR c.seq < (SELECT seq FROM outlive_collections WHERE id = ?3)) ORDER BY c.seq DESC LIMIT ?4 + 0`,
    )
    .all(kind ?? null, state === undefined ? null : STATE_CODE[state], after, limit) as unknown as CollectionColumns[];
  return rows.map((row) => collectionRow(db, row));
}

function counts(db: Database): CollectionCount[] {
  const rows = db
    .sql(
      `SELECT k.name AS kind, c.state, c.count FROM (SELECT kind, state, count(*) AS count FROM outlive_collections GROUP BY state, kind) c
       JOIN outlive_kinds k ON k.id = c.kind ORDER BY k.name, c.state`,
    )
    .all() as { kind: string; state: number; count: number }[];
  return rows.map(({ kind, state, count }) => ({ kind, state: COLLECTION_STATES[state]!, count }));
}

function findSeries(
  db: Database,
  id: string,
  name: string,
): { seq: number; place: number; expected: number | null } | null {
  const row = db
    .sql(
      `SELECT s.collection AS seq, s.place, s.expected FROM outlive_series s
       WHERE s.collection = (SELECT seq FROM outlive_collections WHERE id = ?) AND s.name = ?`,
    )
    .get(id, name) as { seq: number; place: number; expected: number | null } | undefined;
  return row ?? null;
}

function partsOf(db: Database, id: string, series: string, after: number, limit: number): Part[] {
  const found = findSeries(db, id, series);
  if (!found) return [];
  const rows = db
    .sql(
      "SELECT ordinal, bytes, sha256, blob FROM outlive_parts WHERE collection = ? AND series = ? AND ordinal > ? ORDER BY ordinal LIMIT ? + 0",
    )
    .all(found.seq, found.place, after, limit) as Pick<Part, "ordinal" | "bytes" | "sha256" | "blob">[];
  return rows.map((row) => ({ collection: id, series, ...row }));
}

// What lies between full pages, from a page on: there something may be missing.
const WIDE = `SELECT before + 1 AS first, page - 1 AS last FROM (
    SELECT page, lag(page, 1, ?3 - 1) OVER (ORDER BY page) AS before FROM (
      SELECT page FROM outlive_part_pages WHERE collection = ?1 AND series = ?2 AND page BETWEEN ?3 AND ?4 AND have = ${PAGE_ORDINALS} UNION ALL SELECT ?4 + 1))
  WHERE page > before + 1 ORDER BY page LIMIT ?5 + 0`;
// Gaps before parts. The one after the last part is the caller's. Rows come in the order of the window; with an order of its own the statement
// sorts all of them before the first: 464 ms instead of 2 where every second of 1,000,000 is missing.
const GAPS = `SELECT before + 1 AS first, ordinal - 1 AS last FROM (
    SELECT ordinal, lag(ordinal, 1, ?3 - 1) OVER (ORDER BY ordinal) AS before FROM outlive_parts
    WHERE collection = ?1 AND series = ?2 AND ordinal BETWEEN ?3 AND ?4)
  WHERE ordinal > before + 1 LIMIT ?5 + 0`;
const HIGHEST =
  "SELECT ifnull(max(ordinal), ?3 - 1) AS highest FROM outlive_parts WHERE collection = ?1 AND series = ?2 AND ordinal BETWEEN ?3 AND ?4";

interface Range {
  readonly first: number;
  readonly last: number;
}

function missing(db: Database, id: string, series: string, limit: number): MissingOrdinals {
  const found = findSeries(db, id, series);
  if (!found) return { ranges: [], cut: false };
  const of = [found.seq, found.place] as const;
  const highest = (first: number, last: number): number =>
    (db.sql(HIGHEST).get(...of, first, last) as { highest: number }).highest;
  const upTo = found.expected ?? highest(1, MAX_ORDINAL);
  const rows: Range[] = [];
  for (let page = 0; rows.length <= limit;) {
    const wide = db.sql(WIDE).all(...of, page, pageOf(upTo), limit + 1) as unknown as Range[];
    for (const pages of wide) {
      const [first, last] = [pages.first * PAGE_ORDINALS + 1, Math.min(upTo, (pages.last + 1) * PAGE_ORDINALS)];
      rows.push(...(db.sql(GAPS).all(...of, first, last, limit + 1) as unknown as Range[]));
      const behind = highest(first, last) + 1;
      if (behind <= last) rows.push({ first: behind, last });
      if (rows.length > limit) break;
    }
    if (wide.length <= limit) break;
    page = wide.at(-1)!.last + 1;
  }
  return listedRanges(rows, limit);
}

// ---- the end

const DUE = `SELECT id FROM outlive_collections WHERE touched = 1 UNION SELECT id FROM (
  SELECT id FROM outlive_collections WHERE due_at IS NOT NULL AND due_at <= ?1 ORDER BY due_at LIMIT ?2 + 0) LIMIT ?2 + 0`;

function due(db: Database, limit: number, now: number): { ids: readonly string[]; now: number } {
  const rows = db.sql(DUE).all(now, limit) as { id: string }[];
  return { ids: rows.map(({ id }) => id), now };
}

function takeStep(
  db: Database,
  kinds: Kinds,
  { collection: id, from, to, why, ifDue, follow }: CollectionStep,
  now: number,
): boolean {
  const collection = find(db, id);
  if (collection === undefined || !from.includes(COLLECTION_STATES[collection.state]!)) return false;
  const { seq, created_at, active_at, idle_ms, total_ms } = collection;
  if (to === "complete" && !isWhole(db, seq)) return false;
  const due = dueAt({ activeAt: active_at, createdAt: created_at, idleMs: idle_ms, totalMs: total_ms });
  if (ifDue && due > now) return false;
  db.sql("UPDATE outlive_collections SET state = ?, touched = 0, due_at = ? WHERE seq = ?").run(
    STATE_CODE[to],
    isOpen(to) ? due : null,
    seq,
  );
  noteTransition(db, seq, to, now);
  if (why !== null) db.sql("UPDATE outlive_collection_texts SET why = ? WHERE collection = ?").run(why, seq);
  insertJobs(db, kinds, follow, now);
  return true;
}

/** Counted from the parts themselves: the sums only say when it is worth it. */
function isWhole(db: Database, seq: number): boolean {
  const broken = db
    .sql(
      `SELECT 1 FROM outlive_series s WHERE s.collection = ?1 AND (s.expected IS NULL OR s.expected <>
         (SELECT count(*) FROM outlive_parts p WHERE p.collection = ?1 AND p.series = s.place AND p.ordinal BETWEEN 1 AND s.expected)) LIMIT 1`,
    )
    .get(seq);
  if (broken !== undefined) db.sql("UPDATE outlive_collections SET touched = 0 WHERE seq = ?").run(seq);
  return broken === undefined;
}

// ---- parked messages

function park(db: Database, messages: readonly ParkedMessage[], now: number): void {
  for (const { id, kind, collection, series, ordinal, reason, blob, bytes } of messages)
    db.sql(
      "INSERT INTO outlive_parked (id, kind, collection, series, ordinal, reason, blob, bytes, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    ).run(id, kind, collection, series, ordinal, reason, blob, bytes, now);
}

function parked(
  db: Database,
  { kind, collection }: ParkedFilter,
  limit: number,
  after: string | null,
): readonly ParkedRow[] {
  return db
    .sql(
      `SELECT * FROM outlive_parked WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR collection = ?2) AND (?3 IS NULL OR id > ?3)
       ORDER BY id LIMIT ?4 + 0`,
    )
    .all(kind ?? null, collection ?? null, after, limit)
    .map((row) => ({ ...row })) as unknown as ParkedRow[];
}

// ---- retention

/** Parts first, and the row last: killed in between, the next call goes on. */
function remove(db: Database, id: string, limit: number): boolean {
  const collection = find(db, id);
  if (collection === undefined || isOpen(COLLECTION_STATES[collection.state]!)) return false;
  const { seq } = collection;
  // First: a page must not count parts that are gone.
  db.sql("DELETE FROM outlive_part_pages WHERE collection = ?").run(seq);
  const { changes } = db
    .sql(
      `DELETE FROM outlive_parts WHERE collection = ?1 AND (series, ordinal) IN
         (SELECT series, ordinal FROM outlive_parts WHERE collection = ?1 LIMIT ?2 + 0)`,
    )
    .run(seq, limit);
  if (Number(changes) === limit) return true;
  db.sql("DELETE FROM outlive_series WHERE collection = ?").run(seq);
  db.sql("DELETE FROM outlive_collection_texts WHERE collection = ?").run(seq);
  db.sql("DELETE FROM outlive_collections WHERE seq = ?").run(seq);
  return false;
}
