// What people changed, each entry in the transaction of its change. Inside a transaction, except for `readAudit`.
import { type AuditAction, type AuditEntry, type AuditQuery, type AuditRecord, MAX_AUDIT } from "../../job/audit.ts";
import type { Database } from "./database.ts";

/** Nothing was changed: nothing is kept. The chunks of a bulk change share one entry. */
export function writeAudit(db: Database, entry: AuditEntry | undefined, count: number, now: number): void {
  if (entry === undefined || count === 0) return;
  const { id, actor, action, target, reason } = entry;
  db.sql(
    `INSERT INTO outlive_audit (id, at, actor, action, target, reason, count) VALUES (?, ?, ?, ?, ?, ?, ?)
     ON CONFLICT (id) DO UPDATE SET count = count + excluded.count`,
  ).run(id, now, actor, action, target, reason, count);
}

const SELECT = `SELECT id, at, actor, action, target, reason, count FROM outlive_audit
  WHERE (?1 IS NULL OR actor = ?1) AND (?2 IS NULL OR action = ?2) AND (?3 IS NULL OR target = ?3)
    AND (?4 IS NULL OR seq < (SELECT seq FROM outlive_audit WHERE id = ?4)) ORDER BY seq DESC LIMIT ?5 + 0`;

export function readAudit(
  db: Database,
  { actor = null, action = null, target = null, after = null, limit }: Partial<Nulls> & Pick<AuditQuery, "limit">,
): AuditRecord[] {
  const rows = db.sql(SELECT).all(actor, action, target, after, limit) as unknown as AuditRecord[];
  return rows.map(({ id, at, actor: by, action: did, target: to, reason, count }) => {
    return { id, at, actor: by, action: did, target: to, reason, count };
  });
}

type Nulls = { readonly actor: string | null; readonly action: AuditAction | null } & Record<
  "target" | "after",
  string | null
>;

/** Entries are in the order of their numbers, and only a change of the clock has an older one after a younger. */
export function hasOldAudit(db: Database, before: number): boolean {
  const row = db
    .sql(
      "SELECT min(seq) AS first, max(seq) AS last, (SELECT at FROM outlive_audit ORDER BY seq LIMIT 1) AS at FROM outlive_audit",
    )
    .get() as { first: number | null; last: number; at: number };
  return row.first !== null && (row.at < before || row.last - row.first >= MAX_AUDIT);
}

const OLD = "seq IN (SELECT seq FROM outlive_audit WHERE at < ?1 ORDER BY seq LIMIT ?2 + 0)";

/** A piece of those that are too old, or too many. */
export function purgeAudit(db: Database, before: number, limit: number): void {
  db.sql(`DELETE FROM outlive_audit WHERE ${OLD}`).run(before, limit);
  db.sql(`DELETE FROM outlive_audit WHERE seq <= (SELECT max(seq) FROM outlive_audit) - ${MAX_AUDIT}`).run();
}
