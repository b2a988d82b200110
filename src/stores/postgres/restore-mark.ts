// How a store restored from a dump is recognized. The epoch's row records which transaction wrote it, in which table
// and in which database. Restoring a dump is another transaction, so the row contradicts itself from then on. That also
// holds if only the data was restored, and in a copy made by CREATE DATABASE ... TEMPLATE. VACUUM FULL keeps all three.
// So do a restart, a failover and a base backup, where only the most recent changes can be missing; `server_run` covers
// those.
//
// While the row contradicts itself, no worker is registered: nothing can be claimed, settled or written, and no
// heartbeat is accepted. The next worker that registers makes the mark valid again. The same transaction raises the
// epoch, so that no fence is issued twice.
//
// The mark is on the epoch's row because every turn reads that row anyway: an empty turn takes the server 119 µs
// instead of 114, and with a separate table it was 130.
import type { Session } from "./statements.ts";

/**
 * The epoch's row, as m, was written where it is now. `pg_relation_filepath` names the database without reading a
 * catalog.
 */
export const MARK_HOLDS = `m.written_by = m.xmin AND m.written_in = m.tableoid
    AND m.written_at = split_part(pg_relation_filepath(m.tableoid), '/', -2)::oid`;

/** Not restored since a worker last registered. */
export const IS_ORIGINAL = `EXISTS (SELECT 1 FROM outlive.meta m WHERE m.key = 'epoch' AND ${MARK_HOLDS})`;

/**
 * The row, as f, is this worker's own. It is not another worker's row with the same number, which comes from a sequence
 * that a restore or a failover can set back. And it did not come back with a backup.
 */
export const isRowOf = (seq: string, id: string): string => `f.seq = ${seq} AND f.id = ${id} AND NOT f.restored`;

/** The guard of everything a worker changes: it is registered in this very store. */
export const registered = (seq: string, id: string): string =>
  `EXISTS (SELECT 1 FROM outlive.fleet f WHERE ${isRowOf(seq, id)} AND ${IS_ORIGINAL})`;

/**
 * Raises the epoch, once for each row of `from`. A valid mark stays valid, and an invalid one is left for
 * `noticeRestore`.
 */
export const raiseEpoch = (
  from: string,
): string => `INSERT INTO outlive.meta AS m (key, value) SELECT 'epoch', outlive.now_ms() ${from}
  ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value),
    written_by = CASE WHEN ${MARK_HOLDS} THEN pg_current_xact_id()::xid ELSE m.written_by END`;

// The second of two callers waits for the first and finds it done.
const RENEW = `WITH renewed AS (
    INSERT INTO outlive.meta AS m (key, value, written_by, written_in, written_at)
    SELECT 'epoch', outlive.now_ms(), pg_current_xact_id()::xid, 'outlive.meta'::regclass, oid FROM pg_database WHERE datname = current_database()
    ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value),
      written_by = excluded.written_by, written_in = excluded.written_in, written_at = excluded.written_at
    WHERE (${MARK_HOLDS}) IS NOT TRUE RETURNING 1),
  came_back AS (UPDATE outlive.fleet SET restored = true FROM renewed WHERE NOT restored)
  SELECT 1 FROM renewed`;

/**
 * Makes a restored store usable: see above. Returns true if the store was restored and this call is the one that
 * renewed the mark.
 */
export async function noticeRestore(session: Session): Promise<boolean> {
  const [found] = await session.rows<{ original: boolean }>(`SELECT ${IS_ORIGINAL} AS original`);
  if (found!.original) return false;
  return (await session.rows(RENEW)).length > 0;
}

/**
 * Why the store is not the one this worker registered with, if its row is not live; null: it is the same store, and the
 * worker's work was taken.
 */
export async function whyReplaced(session: Session, seq: number, id: string): Promise<string | null> {
  const [found] = await session.rows<{ holder: string | null; restored: boolean | null; original: boolean }>(
    `SELECT f.id AS holder, f.restored, ${IS_ORIGINAL} AS original FROM (SELECT 1) AS one LEFT JOIN outlive.fleet f ON f.seq = $1`,
    [seq],
  );
  const { holder, restored, original } = found!;
  if (!original) return "its tables were restored from a dump, or are another database's";
  if (holder === null) return `it has no row of worker ${id}`;
  if (holder !== id) return `its row ${seq} belongs to worker ${holder}`;
  return restored ? "it was restored from a dump" : null;
}
