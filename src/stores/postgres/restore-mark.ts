// How a worker and its store know that the tables came back from a dump. `restore_mark` has one row, which says by which transaction, in
// which table and in which database it was written. Whatever restores a dump writes it again, in another transaction, so it contradicts
// itself from then on: also after a restore of the data alone, and in a copy made by CREATE DATABASE ... TEMPLATE. VACUUM FULL keeps all three;
// so do a restart, a failover and a base backup, where nothing but time may be missing, and for those there is `server_run`.
// While the row contradicts itself nobody is registered here: nothing can be claimed, settled, written or beaten. Whoever registers
// next makes the store its own again, and that raises the epoch in the same transaction: no fence is issued twice.
import type { Connection, Session } from "./connection.ts";

/** The row of `restore_mark`, as m, was written where it is. `pg_relation_filepath` names the database without reading a catalog. */
const HOLDS = `m.written_by = m.xmin AND m.written_in = m.tableoid
  AND m.written_at = split_part(pg_relation_filepath(m.tableoid), '/', -2)::oid`;

export const MARK_HOLDS = `EXISTS (SELECT 1 FROM outlive.restore_mark m WHERE m.one AND ${HOLDS})`;

/**
 * The row of a worker, as f, is its own: not another worker's with the same number, which comes from a sequence that a restore and a
 * failover can take back; and not one that came back with a backup.
 */
export const isRowOf = (seq: string, id: string): string =>
  `f.seq = ${seq} AND f.id = ${id} AND NOT f.restored AND ${MARK_HOLDS}`;

/** The guard of every write by which a worker changes something: it is registered in this very store. */
export const registered = (seq: string, id: string): string =>
  `EXISTS (SELECT 1 FROM outlive.fleet f WHERE ${isRowOf(seq, id)})`;

// Who comes second waits for the first and finds it done.
const RENEW = `WITH renewed AS (
    INSERT INTO outlive.restore_mark AS m (written_by, written_in, written_at)
    SELECT pg_current_xact_id()::xid, 'outlive.restore_mark'::regclass, oid FROM pg_database WHERE datname = current_database()
    ON CONFLICT (one) DO UPDATE SET written_by = excluded.written_by, written_in = excluded.written_in, written_at = excluded.written_at
    WHERE NOT (${HOLDS}) RETURNING 1),
  came_back AS (UPDATE outlive.fleet SET restored = true FROM renewed WHERE NOT restored)
  INSERT INTO outlive.meta AS m (key, value) SELECT 'epoch', outlive.now_ms() FROM renewed
  ON CONFLICT (key) DO UPDATE SET value = greatest(m.value + 1, excluded.value) RETURNING value`;

/** Makes a restored store one to work on: see above. Answers whether it was one. */
export async function noticeRestore(connection: Connection): Promise<boolean> {
  const [found] = await connection.rows<{ holds: boolean }>(`SELECT ${MARK_HOLDS} AS holds`);
  if (found!.holds) return false;
  return (await connection.rows(RENEW)).length > 0;
}

/**
 * Why the store is not the one that this worker registered with, of a worker whose row is not live; null: it is, and the worker was taken
 * for dead.
 */
export async function whyReplaced(session: Session, seq: number, id: string): Promise<string | null> {
  const [found] = await session.rows<{ holder: string | null; restored: boolean | null; holds: boolean }>(
    `SELECT f.id AS holder, f.restored, ${MARK_HOLDS} AS holds FROM (SELECT 1) AS one LEFT JOIN outlive.fleet f ON f.seq = $1`,
    [seq],
  );
  const { holder, restored, holds } = found!;
  if (!holds) return "its tables were restored from a dump, or belong to another database";
  if (holder === null) return `it has no row of worker ${id}`;
  if (holder !== id) return `the number of worker ${id} belongs to worker ${holder} there`;
  return restored ? `the row of worker ${id} came back with a backup` : null;
}
