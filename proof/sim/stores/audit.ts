// What people changed, each entry in the script of its change.
import type { AuditEntry, AuditQuery, AuditRecord } from "../../../src/job/audit.ts";
import type { Data } from "./records.ts";

export function audit(data: Data, entry: AuditEntry | null | undefined, count: number): void {
  if (!entry || count === 0) return;
  const kept = data.audit();
  const at = kept.findIndex(({ id }) => id === entry.id);
  if (at < 0) data.putAudit([...kept, { ...entry, at: data.now, count }]);
  else data.putAudit(kept.with(at, { ...kept[at]!, count: kept[at]!.count + count }));
}

export function readAudit(data: Data, { actor, action, target, limit, after }: AuditQuery): AuditRecord[] {
  const all = data.audit().toReversed();
  const from = after === undefined ? 0 : all.findIndex(({ id }) => id === after) + 1;
  const found = all.slice(from).filter((one) => {
    const fits = (given: string | undefined, has: string): boolean => given === undefined || given === has;
    return fits(actor, one.actor) && fits(action, one.action) && fits(target, one.target);
  });
  return found.slice(0, limit);
}
