// How a store that came back from a dump is recognized. The row of the epoch says by which transaction, in which table and in which database
// it was written. Whatever restores a dump is another transaction, so the row contradicts itself from then on: also if only the data
// was restored, and in a copy made by CREATE DATABASE ... TEMPLATE. VACUUM FULL keeps all three. So do a restart, a failover and a base
// backup, where nothing but the latest time can be missing; for those there is `server_run`.
//
// While the row contradicts itself, no worker is registered: nothing can be claimed, settled, written or beaten. The next worker that
// registers makes the store its own again, and that raises the epoch in the same transaction, so that no fence is issued twice.
//
// The mark is on the epoch's row because every turn reads that row anyway: an empty turn takes the server 119 µs instead of 114, and
// with a table of its own it was 130.
import type { Session } from "./statements.ts";

/** The row of the epoch, as m, was written where it is. `pg_relation_filepath` names the database without reading a catalog. */
export const MARK_HOLDS = `m.written_by = m.xmin AND m.written_in = m.tableoid
    AND m.written_at = split_part(pg_relation_filepath(m.tableoid), '/', -2)::oid`;

/** Not restored since a worker last registered. */
export const IS_ORIGINAL = `EXISTS (SELECT 1 FROM outlive.meta m WHERE m.key = 'epoch' AND ${MARK_HOLDS})`;

/**
 * The row of a worker, as f, is its own: not another worker's with the same number, which comes from a sequence that a restore and a
 * failover can take back; and not one that came back with a backup.
 */
export const isRowOf = (seq: string, id: string): string => `f.seq = ${seq} AND f.id = ${id} AND NOT f.restored`;

/** The guard of whatever a worker changes: it is registered in this very store. */
export const registered = (seq: string, id: string): string =>
  `EXISTS (SELECT 1 FROM outlive.fleet f WHERE ${isRowOf(seq, id)} AND ${IS_ORIGINAL})`;

/** Raises the epoch, once for each row of `from`. A mark that holds goes on to hold, and one that does not is left for `noticeRestore`. */
export const raiseEpoch = (
  from: string,
): string => `INSERT INTO outlive.meta AS m (key, value) SELECT 'epoch', outlive.now_ms() ${from}
  ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value),
    written_by = CASE WHEN ${MARK_HOLDS} THEN pg_current_xact_id()::xid ELSE m.written_by END`;

// The second of two waits for the first and finds it done.
const RENEW = `WITH renewed AS (
    INSERT INTO outlive.meta AS m (key, value, written_by, written_in, written_at)
    SELECT 'epoch', outlive.now_ms(), pg_current_xact_id()::xid, 'outlive.meta'::regclass, oid FROM pg_database WHERE datname = current_database()
    ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value),
      written_by = excluded.written_by, written_in = excluded.written_in, written_at = excluded.written_at
    WHERE (${MARK_HOLDS}) IS NOT TRUE RETURNING 1),
  came_back AS (UPDATE outlive.fleet SET restored = true FROM renewed WHERE NOT restored)
  SELECT 1 FROM renewed`;

/** Makes a restored store one to work on: see above. Returns whether it was one, and this call is the one that did so. */
export async function noticeRestore(session: Session): Promise<boolean> {
  const [found] = await session.rows<{ original: boolean }>(`SELECT ${IS_ORIGINAL} AS original`);
  if (found!.original) return false;
  return (await session.rows(RENEW)).length > 0;
}

/** Why the store is not the one with which this worker registered, if its row is not live; null: it is, and the worker's work was taken. */
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
