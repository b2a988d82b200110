// What people changed, each entry in the transaction of its change.
import { type AuditEntry, type AuditQuery, type AuditRecord, MAX_AUDIT } from "../../job/audit.ts";
import type { Session } from "./statements.ts";

const WRITE = `INSERT INTO outlive.audit AS a (id, at, actor, action, target, reason, count) VALUES ($1, outlive.now_ms(), $2, $3, $4, $5, $6)
  ON CONFLICT (id) DO UPDATE SET count = a.count + excluded.count`;

/** Nothing was changed: nothing is kept. The chunks of a bulk change share one entry. */
export async function writeAudit(session: Session, entry: AuditEntry | undefined, count: number): Promise<void> {
  if (entry === undefined || count === 0) return;
  const { id, actor, action, target, reason } = entry;
  await session.run(WRITE, [id, actor, action, target, reason, count]);
}

const READ = `SELECT id, at, actor, action, target, reason, count FROM outlive.audit
  WHERE ($1::text IS NULL OR actor = $1) AND ($2::text IS NULL OR action = $2) AND ($3::text IS NULL OR target = $3)
    AND ($4::text IS NULL OR seq < (SELECT a.seq FROM outlive.audit a WHERE a.id = $4)) ORDER BY seq DESC LIMIT $5`;

export function readAudit(session: Session, query: AuditQuery): Promise<AuditRecord[]> {
  const { actor = null, action = null, target = null, after = null, limit } = query;
  return session.rows<AuditRecord>(READ, [actor, action, target, after, limit]);
}

const PURGE = `DELETE FROM outlive.audit WHERE seq IN (SELECT seq FROM outlive.audit WHERE at < (SELECT outlive.now_ms()) - $1 ORDER BY seq LIMIT $2)
  OR seq <= (SELECT max(seq) FROM outlive.audit) - ${MAX_AUDIT}`;

/** A piece of those that are too old, or too many. */
export async function purgeAudit(session: Session, olderThanMs: number, limit: number): Promise<void> {
  await session.run(PURGE, [olderThanMs, limit]);
}
