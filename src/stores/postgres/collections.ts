// Collections as the port wants them: opened, announced, filled with parts, ended once, deleted. Parts are kept by one statement that locks
// nothing which others wait for; what changes the row of a collection locks it first, and takes its deltas only then.
import {
  answerPut,
  COLLECTION_STATES,
  type CollectionDraft,
  type CollectionRow,
  type CollectionState,
  decideAnnounce,
  decodeTransitions,
  isFull,
  isOpen,
  type KnownPlace,
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
import { writeAudit } from "./audit.ts";
import type { Connection } from "./connection.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { checksumSql, isIntactSql, list, type Session, texts } from "./statements.ts";

export function collections(connection: Connection, kinds: Kinds): Collections {
  return {
    open: (draft) => connection.transaction((tx) => open(tx, kinds, draft)),
    announce: (id, expected) => connection.transaction((tx) => announce(tx, id, expected)),
    known: (places) => known(connection, places),
    put: (parts) => putParts(connection, parts),
    get: (ids) => getAll(connection, ids),
    list: (filter, limit, after) => listAll(connection, filter, limit, after),
    counts: () => counts(connection),
    parts: (id, series, after, limit) => partsOf(connection, id, series, after, limit),
    missing: (id, series, limit) => missing(connection, id, series, limit),
    due: (limit) => due(connection, limit),
    step: (step, entry) =>
      connection.transaction(async (tx) => {
        const isTaken = await takeStep(tx, kinds, step);
        await writeAudit(tx, entry, isTaken ? 1 : 0);
        return isTaken;
      }),
    park: (messages) => park(connection, messages),
    parked: (filter, limit, after) => parked(connection, filter, limit, after),
    unpark: (ids, entry) =>
      connection.transaction(async (tx) => {
        const gone = await tx.run("DELETE FROM outlive.parked WHERE id = ANY ($1::text[])", [texts(ids)]);
        await writeAudit(tx, entry, gone);
      }),
    remove: (id, limit) => connection.maintain((tx) => remove(tx, id, limit)),
  };
}

interface PlainCollection {
  readonly seq: number;
  readonly state: number;
}

const LOCK = "SELECT seq, state FROM outlive.collection_state WHERE id = $1 FOR NO KEY UPDATE";
const DUE_AT = "least(c.active_at + c.idle_ms, c.created_at + c.total_ms)";

// ---- in

const OPEN = `INSERT INTO outlive.collection_state (id, kind, state, touched, created_at, active_at, due_at, idle_ms, total_ms, keep_ms, input, input_sum, transitions)
  SELECT $1, k.id, $3, $4, n.now, n.now, n.now + least($5::bigint, $6::bigint), $5, $6, $7, $8, ${checksumSql("$8", "$1")}, $9 || ' ' || n.now
  FROM outlive.kinds k, (SELECT outlive.now_ms() AS now) n WHERE k.name = $2
  ON CONFLICT DO NOTHING RETURNING seq`;
const OPEN_SERIES = `INSERT INTO outlive.series_state (collection, place, name, expected)
  SELECT $1, u.place - 1, u.name, u.expected FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS u (name, expected, place)`;

async function open(session: Session, kinds: Kinds, draft: CollectionDraft): Promise<OpenedCollection> {
  const { id, kind, input, series, idleMs, totalMs, keepMs, follow } = draft;
  await kinds.demand(session, [kind, ...follow.map((job) => job.kind)]);
  const state: CollectionState = follow.length > 0 ? "requested" : "collecting";
  const empty = isFull(series.map((one) => ({ ...one, have: 0, bytes: 0 })));
  const values = [id, kind, STATE_CODE[state], empty, idleMs, totalMs, keepMs, input, state];
  const [added] = await session.rows<{ seq: number }>(OPEN, values);
  if (added) {
    const expected = list(series.map((one) => one.expected));
    await session.run(OPEN_SERIES, [added.seq, texts(series.map(({ name }) => name)), expected]);
    if (follow.length > 0) await insertJobs(session, kinds, follow);
  }
  const [collection] = await getAll(session, [id]);
  return { created: added !== undefined, collection: collection! };
}

interface SeriesColumns {
  readonly place: number;
  readonly name: string;
  readonly expected: number | null;
  readonly highest: number | null;
}

const SERIES = `SELECT s.place, s.name, s.expected, (SELECT max(p.ordinal) FROM outlive.parts p WHERE p.collection = $1 AND p.series = s.place) AS highest
  FROM outlive.series_state s WHERE s.collection = $1`;
const ANNOUNCE = `UPDATE outlive.series_state s SET expected = u.expected FROM unnest($2::smallint[], $3::bigint[]) AS u (place, expected)
  WHERE s.collection = $1 AND s.place = u.place`;
// An announcement counts as activity.
const TOUCH = `UPDATE outlive.collection_state c SET active_at = n.now, due_at = least(n.now + c.idle_ms, c.created_at + c.total_ms), state = ${STATE_CODE.collecting},
    transitions = c.transitions || CASE WHEN c.state = ${STATE_CODE.requested} THEN ',collecting ' || n.now ELSE '' END
  FROM (SELECT outlive.now_ms() AS now) n WHERE c.seq = $1`;

async function announce(
  session: Session,
  id: string,
  expected: Readonly<Record<string, number>>,
): Promise<AnnounceAnswer> {
  const [collection] = await session.rows<PlainCollection>(LOCK, [id]);
  if (!collection) return { is: "unknown", series: null };
  const series = await session.rows<SeriesColumns>(SERIES, [collection.seq]);
  const state = COLLECTION_STATES[collection.state]!;
  const decided = decideAnnounce(state, series, expected, ({ highest }) => highest);
  if ("is" in decided) return decided;
  const { news } = decided;
  if (news.length === 0) return { is: "announced" };
  const { seq } = collection;
  const places = list(news.map((one) => one.series.place));
  await session.run(ANNOUNCE, [seq, places, list(news.map(({ count }) => count))]);
  await session.run(TOUCH, [seq]);
  await fold(session, [seq]);
  return { is: "announced" };
}

// In the order of the key: two turns that bring the same parts wait for each other instead of ending in a deadlock.
const PUT = `WITH given AS (
    SELECT c.seq, s.place, u.ordinal, u.bytes, u.sha256, u.blob
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[]) AS u (collection, series, ordinal, bytes, sha256, blob)
    JOIN outlive.collection_state c ON c.id = u.collection AND c.state <= ${STATE_CODE.collecting}
    JOIN outlive.series_state s ON s.collection = c.seq AND s.name = u.series AND (s.expected IS NULL OR u.ordinal <= s.expected)),
  added AS (
    INSERT INTO outlive.parts (collection, series, ordinal, bytes, sha256, blob)
    SELECT seq, place, ordinal, bytes, sha256, blob FROM given ORDER BY seq, place, ordinal
    ON CONFLICT DO NOTHING RETURNING collection, series, ordinal, bytes),
  delta AS (
    INSERT INTO outlive.collection_deltas (collection, series, page, parts, bytes, at)
    SELECT collection, series, (ordinal - 1) / ${PAGE_ORDINALS} AS page, count(*), sum(bytes), outlive.now_ms() FROM added GROUP BY collection, series, page),
  requested AS MATERIALIZED (
    SELECT c.seq FROM outlive.collection_state c WHERE c.state = ${STATE_CODE.requested} AND c.seq IN (SELECT collection FROM added)
    ORDER BY c.seq FOR NO KEY UPDATE),
  moved AS (
    UPDATE outlive.collection_state c SET state = ${STATE_CODE.collecting}, transitions = c.transitions || ',collecting ' || outlive.now_ms()
    FROM requested r WHERE c.seq = r.seq AND c.state = ${STATE_CODE.requested})
  SELECT c.id AS collection, s.name AS series, a.ordinal FROM added a
  JOIN outlive.collection_state c ON c.seq = a.collection JOIN outlive.series_state s ON s.collection = a.collection AND s.place = a.series`;

async function putParts(session: Session, parts: readonly Part[]): Promise<PutAnswer[]> {
  const firsts = new Map<string, number>();
  for (const [at, part] of parts.entries()) if (!firsts.has(keyOf(part))) firsts.set(keyOf(part), at);
  const own = [...firsts.values()].map((at) => parts[at]!);
  const added = await session.rows<PartPlace>(PUT, [
    texts(own.map(({ collection }) => collection)),
    texts(own.map(({ series }) => series)),
    list(own.map(({ ordinal }) => ordinal)),
    list(own.map(({ bytes }) => bytes)),
    texts(own.map(({ sha256 }) => sha256)),
    texts(own.map(({ blob }) => blob)),
  ]);
  const accepted = new Set(added.map(keyOf));
  const isNew = (part: Part, at: number): boolean => accepted.has(keyOf(part)) && firsts.get(keyOf(part)) === at;
  if (parts.every(isNew)) return parts.map(() => "accepted");
  // A part that is not new has a reason that the statement before did not see: another session's transaction has ended since.
  const places = await known(session, parts);
  return parts.map((part, at) => {
    if (isNew(part, at)) return "accepted";
    const answer = answerPut(places[at]!, part);
    // Announced meanwhile, or deleted: it has no place.
    return answer === "accepted" ? "conflict" : answer;
  });
}

function keyOf({ collection, series, ordinal }: PartPlace): string {
  return `${collection}\n${series}\n${ordinal}`;
}

const KNOWN = `SELECT k.name AS kind, c.state, s.place, s.expected, p.sha256
  FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u (collection, series, ordinal, ord)
  LEFT JOIN outlive.collection_state c ON c.id = u.collection
  LEFT JOIN outlive.kinds k ON k.id = c.kind
  LEFT JOIN outlive.series_state s ON s.collection = c.seq AND s.name = u.series
  LEFT JOIN outlive.parts p ON p.collection = c.seq AND p.series = s.place AND p.ordinal = u.ordinal
  ORDER BY u.ord`;

async function known(session: Session, places: readonly PartPlace[]): Promise<(KnownPlace | null)[]> {
  const rows = await session.rows<{
    kind: string;
    state: number | null;
    place: number | null;
    expected: number | null;
    sha256: string | null;
  }>(KNOWN, [
    texts(places.map(({ collection }) => collection)),
    texts(places.map(({ series }) => series)),
    list(places.map(({ ordinal }) => ordinal)),
  ]);
  return rows.map(({ kind, state, place, expected, sha256 }) =>
    state === null
      ? null
      : { kind, state: COLLECTION_STATES[state]!, series: place === null ? null : { expected }, sha256 },
  );
}

// ---- reads

interface CollectionColumns {
  readonly id: string;
  readonly kind: string;
  readonly state: number;
  readonly input: string;
  readonly intact: boolean;
  readonly created_at: number;
  readonly active_at: number;
  readonly idle_ms: number;
  readonly total_ms: number;
  readonly keep_ms: number;
  readonly transitions: string;
  readonly why: string | null;
  readonly parked: number;
  /** JSON. */
  readonly series: string;
}

// One statement sees each delta either in its row or in the sums.
const SELECT = `SELECT c.id, k.name AS kind, c.state, c.input, ${isIntactSql("c.input", "c.id", "c.input_sum")} AS intact, c.created_at,
    greatest(c.active_at, (SELECT max(d.at) FROM outlive.collection_deltas d WHERE d.collection = c.seq)) AS active_at,
    c.idle_ms, c.total_ms, c.keep_ms, c.transitions, c.why, (SELECT count(*) FROM outlive.parked p WHERE p.collection = c.id) AS parked,
    (SELECT json_agg(json_build_object('name', s.name, 'expected', s.expected, 'have', s.have + coalesce(d.parts, 0), 'bytes', s.bytes + coalesce(d.bytes, 0))
        ORDER BY s.place)::text
      FROM outlive.series_state s LEFT JOIN (SELECT series, sum(parts) AS parts, sum(bytes) AS bytes FROM outlive.collection_deltas
        WHERE collection = c.seq GROUP BY series) d ON d.series = s.place WHERE s.collection = c.seq) AS series
  FROM outlive.collection_state c JOIN outlive.kinds k ON k.id = c.kind`;
const GET = `${SELECT} JOIN unnest($1::text[]) WITH ORDINALITY AS u (id, ord) ON u.id = c.id ORDER BY u.ord`;
const LIST = `${SELECT} WHERE ($1::text IS NULL OR k.name = $1) AND ($2::smallint IS NULL OR c.state = $2)
  AND ($3::text IS NULL OR c.seq < (SELECT seq FROM outlive.collection_state WHERE id = $3)) ORDER BY c.seq DESC LIMIT $4`;

function collectionRow(row: CollectionColumns): CollectionRow {
  return {
    id: row.id,
    kind: row.kind,
    state: COLLECTION_STATES[row.state]!,
    input: row.input,
    series: JSON.parse(row.series) as SeriesRow[],
    idleMs: row.idle_ms,
    totalMs: row.total_ms,
    keepMs: row.keep_ms,
    createdAt: row.created_at,
    activeAt: row.active_at,
    transitions: decodeTransitions(row.transitions),
    why: row.why,
    parked: row.parked,
    ...(!row.intact && { corrupt: true }),
  };
}

async function getAll(session: Session, ids: readonly string[]): Promise<CollectionRow[]> {
  return (await session.rows<CollectionColumns>(GET, [texts(ids)])).map(collectionRow);
}

async function listAll(
  session: Session,
  { kind, state }: CollectionFilter,
  limit: number,
  after: string | null,
): Promise<CollectionRow[]> {
  const values = [kind ?? null, state === undefined ? null : STATE_CODE[state], after, limit];
  return (await session.rows<CollectionColumns>(LIST, values)).map(collectionRow);
}

async function counts(session: Session): Promise<CollectionCount[]> {
  const rows = await session.rows<{ kind: string; state: number; count: number }>(
    `SELECT k.name AS kind, c.state, c.count FROM (SELECT kind, state, count(*) AS count FROM outlive.collection_state GROUP BY state, kind) c
     JOIN outlive.kinds k ON k.id = c.kind ORDER BY k.name, c.state`,
  );
  return rows.map(({ kind, state, count }) => ({ kind, state: COLLECTION_STATES[state]!, count }));
}

const OF_SERIES = `FROM outlive.series_state s JOIN outlive.parts p ON p.collection = s.collection AND p.series = s.place
  WHERE s.collection = (SELECT seq FROM outlive.collection_state WHERE id = $1) AND s.name = $2 AND (s.expected IS NULL OR p.ordinal <= s.expected)`;

async function partsOf(session: Session, id: string, series: string, after: number, limit: number): Promise<Part[]> {
  const rows = await session.rows<Pick<Part, "ordinal" | "bytes" | "sha256" | "blob">>(
    `SELECT p.ordinal, p.bytes, p.sha256, p.blob ${OF_SERIES} AND p.ordinal > $3 ORDER BY p.ordinal LIMIT $4`,
    [id, series, after, limit],
  );
  return rows.map((row) => ({ collection: id, series, ...row }));
}

const SERIES_NAMED = `SELECT s.collection, s.place, coalesce(s.expected,
    (SELECT max(p.ordinal) FROM outlive.parts p WHERE p.collection = s.collection AND p.series = s.place), 0) AS "upTo"
  FROM outlive.series_state s WHERE s.collection = (SELECT seq FROM outlive.collection_state WHERE id = $1) AND s.name = $2`;
// What lies between full pages, from a page on: there something may be missing. One statement sees each delta either in its row or in the counts.
const WIDE = `SELECT before + 1 AS first, page - 1 AS last FROM (
    SELECT page, lag(page, 1, $3::integer - 1) OVER (ORDER BY page) AS before FROM (
      SELECT page FROM (
        SELECT page, have FROM outlive.part_pages WHERE collection = $1 AND series = $2 AND page BETWEEN $3 AND $4
        UNION ALL SELECT page, parts FROM outlive.collection_deltas WHERE collection = $1 AND series = $2 AND page BETWEEN $3 AND $4) c
      GROUP BY page HAVING sum(have) = ${PAGE_ORDINALS} UNION ALL SELECT $4::integer + 1) f) g
  WHERE page > before + 1 ORDER BY page LIMIT $5`;
// Gaps before parts, and the one after the last part.
const GAPS = `SELECT g.first, g.last FROM unnest($3::bigint[], $4::bigint[]) AS w (first, last) CROSS JOIN LATERAL (
    (SELECT before + 1 AS first, ordinal - 1 AS last FROM (
        SELECT p.ordinal, lag(p.ordinal, 1, w.first - 1) OVER (ORDER BY p.ordinal) AS before FROM outlive.parts p
        WHERE p.collection = $1 AND p.series = $2 AND p.ordinal BETWEEN w.first AND w.last) o
      WHERE ordinal > before + 1 ORDER BY ordinal LIMIT $5)
    UNION ALL
    SELECT behind, w.last FROM (SELECT coalesce(max(p.ordinal), w.first - 1) + 1 AS behind FROM outlive.parts p
      WHERE p.collection = $1 AND p.series = $2 AND p.ordinal BETWEEN w.first AND w.last) b WHERE behind <= w.last) g`;
/** Between full pages, of one call: each may have as many gaps as are asked for. */
const WIDE_AT_ONCE = 200;

interface Range {
  readonly first: number;
  readonly last: number;
}

async function missing(session: Session, id: string, series: string, limit: number): Promise<MissingOrdinals> {
  const [found] = await session.rows<{ collection: number; place: number; upTo: number }>(SERIES_NAMED, [id, series]);
  if (!found) return { ranges: [], cut: false };
  const { collection, place, upTo } = found;
  const rows: Range[] = [];
  for (let page = 0; rows.length <= limit;) {
    const wide = await session.rows<Range>(WIDE, [collection, place, page, pageOf(upTo), WIDE_AT_ONCE]);
    const firsts = wide.map(({ first }) => first * PAGE_ORDINALS + 1);
    const lasts = wide.map(({ last }) => Math.min(upTo, (last + 1) * PAGE_ORDINALS));
    const gaps = await session.rows<Range>(GAPS, [collection, place, list(firsts), list(lasts), limit + 1]);
    rows.push(...gaps.toSorted((a, b) => a.first - b.first));
    if (wide.length < WIDE_AT_ONCE) break;
    page = wide.at(-1)!.last + 1;
  }
  return listedRanges(rows, limit);
}

// ---- the end

const ANY = `SELECT n.now, EXISTS (SELECT 1 FROM outlive.collection_deltas) OR EXISTS (SELECT 1 FROM outlive.collection_state WHERE touched)
    OR EXISTS (SELECT 1 FROM outlive.collection_state WHERE due_at <= n.now) AS any FROM (SELECT outlive.now_ms() AS now) n`;
const WITH_DELTAS = `WITH RECURSIVE own AS (
    (SELECT d.collection FROM outlive.collection_deltas d ORDER BY d.collection LIMIT 1)
    UNION ALL SELECT (SELECT d.collection FROM outlive.collection_deltas d WHERE d.collection > o.collection ORDER BY d.collection LIMIT 1)
      FROM own o WHERE o.collection IS NOT NULL)
  SELECT c.seq FROM outlive.collection_state c WHERE c.seq IN (SELECT o.collection FROM own o WHERE o.collection IS NOT NULL LIMIT $1)
  ORDER BY c.seq FOR NO KEY UPDATE SKIP LOCKED`;
// What came for a collection that was deleted meanwhile counts for nothing.
const ORPHANS = `DELETE FROM outlive.collection_deltas d WHERE NOT EXISTS (SELECT 1 FROM outlive.collection_state c WHERE c.seq = d.collection)`;
const DUE = `SELECT c.id FROM outlive.collection_state c WHERE c.touched
  UNION SELECT id FROM (SELECT c.id FROM outlive.collection_state c WHERE c.due_at <= $1 ORDER BY c.due_at LIMIT $2) d LIMIT $2`;

async function due(connection: Connection, limit: number): Promise<{ ids: readonly string[]; now: number }> {
  const [found] = await connection.rows<{ now: number; any: boolean }>(ANY);
  const { now, any } = found!;
  if (!any) return { ids: [], now };
  await connection.maintain(async (tx) => {
    const rows = await tx.rows<{ seq: number }>(WITH_DELTAS, [limit]);
    if (rows.length > 0)
      await fold(
        tx,
        rows.map(({ seq }) => seq),
      );
    else await tx.run(ORPHANS);
  });
  const ids = await connection.rows<{ id: string }>(DUE, [now, limit]);
  return { ids: ids.map(({ id }) => id), now };
}

const FOLD = `WITH gone AS (
    DELETE FROM outlive.collection_deltas WHERE collection = ANY ($1::bigint[]) RETURNING collection, series, page, parts, bytes, at),
  sums AS (SELECT collection, series, sum(parts) AS parts, sum(bytes) AS bytes FROM gone GROUP BY collection, series),
  added AS (UPDATE outlive.series_state s SET have = s.have + g.parts, bytes = s.bytes + g.bytes FROM sums g
    WHERE s.collection = g.collection AND s.place = g.series),
  counted AS (INSERT INTO outlive.part_pages AS p (collection, series, page, have)
    SELECT collection, series, page, sum(parts) FROM gone WHERE page IS NOT NULL GROUP BY collection, series, page
    ON CONFLICT (collection, series, page) DO UPDATE SET have = p.have + excluded.have)
  UPDATE outlive.collection_state c SET active_at = greatest(c.active_at, g.at) FROM (SELECT collection, max(at) AS at FROM gone GROUP BY collection) g
  WHERE c.seq = g.collection`;
const JUDGE = `UPDATE outlive.collection_state c SET due_at = ${DUE_AT},
    touched = NOT EXISTS (SELECT 1 FROM outlive.series_state s WHERE s.collection = c.seq AND (s.expected IS NULL OR s.have < s.expected))
  WHERE c.seq = ANY ($1::bigint[]) AND c.state <= ${STATE_CODE.collecting}`;

/** Adds deltas of collections whose rows the caller has locked. */
async function fold(session: Session, seqs: readonly number[]): Promise<void> {
  await session.run(FOLD, [list(seqs)]);
  await session.run(JUDGE, [list(seqs)]);
}

const WHOLE = `SELECT NOT EXISTS (SELECT 1 FROM outlive.series_state s WHERE s.collection = $1 AND (s.expected IS NULL OR s.expected <>
    (SELECT count(*) FROM outlive.parts p WHERE p.collection = $1 AND p.series = s.place AND p.ordinal BETWEEN 1 AND s.expected))) AS whole`;
const STEP = `UPDATE outlive.collection_state c SET state = $2::smallint, touched = false, due_at = CASE WHEN $2::smallint <= ${STATE_CODE.collecting} THEN c.due_at END,
    why = coalesce($3, c.why), transitions = c.transitions || ',' || $4 || ' ' || outlive.now_ms() WHERE c.seq = $1`;

async function takeStep(
  session: Session,
  kinds: Kinds,
  { collection: id, from, to, why, ifDue, follow }: CollectionStep,
): Promise<boolean> {
  const [collection] = await session.rows<PlainCollection>(LOCK, [id]);
  if (!collection || !from.includes(COLLECTION_STATES[collection.state]!)) return false;
  const { seq } = collection;
  await fold(session, [seq]);
  if (to === "complete") {
    // Counted from the parts themselves: the sums only say when it is worth it.
    const [row] = await session.rows<{ whole: boolean }>(WHOLE, [seq]);
    if (!row!.whole) {
      await session.run("UPDATE outlive.collection_state SET touched = false WHERE seq = $1", [seq]);
      return false;
    }
  }
  if (ifDue) {
    const [row] = await session.rows(
      "SELECT 1 FROM outlive.collection_state WHERE seq = $1 AND due_at <= outlive.now_ms()",
      [seq],
    );
    if (!row) return false;
  }
  await session.run(STEP, [seq, STATE_CODE[to], why, to]);
  if (follow.length > 0) await insertJobs(session, kinds, follow);
  return true;
}

// ---- parked messages

const PARK = `INSERT INTO outlive.parked (id, kind, collection, series, ordinal, reason, blob, bytes, at)
  SELECT u.*, outlive.now_ms() FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[]) AS u
  ON CONFLICT DO NOTHING`;

async function park(session: Session, messages: readonly ParkedMessage[]): Promise<void> {
  await session.run(PARK, [
    texts(messages.map(({ id }) => id)),
    texts(messages.map(({ kind }) => kind)),
    texts(messages.map(({ collection }) => collection)),
    texts(messages.map(({ series }) => series)),
    list(messages.map(({ ordinal }) => ordinal)),
    texts(messages.map(({ reason }) => reason)),
    texts(messages.map(({ blob }) => blob)),
    list(messages.map(({ bytes }) => bytes)),
  ]);
}

function parked(
  session: Session,
  { kind, collection }: ParkedFilter,
  limit: number,
  after: string | null,
): Promise<readonly ParkedRow[]> {
  return session.rows<ParkedRow>(
    `SELECT id, kind, collection, series, ordinal, reason, blob, bytes, at FROM outlive.parked
     WHERE ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR collection = $2) AND ($3::text IS NULL OR id > $3) ORDER BY id LIMIT $4`,
    [kind ?? null, collection ?? null, after, limit],
  );
}

// ---- retention

const DELETE_PARTS = `DELETE FROM outlive.parts p USING (SELECT series, ordinal FROM outlive.parts WHERE collection = $1 LIMIT $2) d
  WHERE p.collection = $1 AND p.series = d.series AND p.ordinal = d.ordinal`;
const DELETE = `WITH series AS (DELETE FROM outlive.series_state WHERE collection = $1),
  deltas AS (DELETE FROM outlive.collection_deltas WHERE collection = $1)
  DELETE FROM outlive.collection_state WHERE seq = $1`;

/** Parts first, and the row last: killed in between, the next call goes on. */
async function remove(session: Session, id: string, limit: number): Promise<boolean> {
  const [collection] = await session.rows<PlainCollection>(LOCK, [id]);
  if (!collection || isOpen(COLLECTION_STATES[collection.state]!)) return false;
  // First: a page must not count parts that are gone.
  await session.run("DELETE FROM outlive.part_pages WHERE collection = $1", [collection.seq]);
  if ((await session.run(DELETE_PARTS, [collection.seq, limit])) === limit) return true;
  await session.run(DELETE, [collection.seq]);
  return false;
}
