// Jobs of which no attempt has begun in time are cancelled by the turn of any worker, whatever kinds that runs, before it claims. Those that have begun, or ended,
// lose the mark instead: neither a claim nor an end of a job touches it. Inside a transaction.
import { EXPIRE, hasNotBegun } from "../../job/transitions.ts";
import { JOB_STATES } from "../../job/job.ts";
import type { Database } from "./database.ts";
import { applyChange } from "./settle.ts";

/** How many one turn looks at. 250 cancels take 10 ms (families.ts), and a turn with more to expire claims nothing, so these are few turns. */
const PIECE = 500;

const DUE = `SELECT e.job, j.state, j.epoch, j.fence FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
  WHERE e.expires_at IS NOT NULL AND e.expires_at <= ? ORDER BY e.expires_at LIMIT ${PIECE}`;

/** Returns whether more are left. */
export function expireDue(db: Database, now: number): boolean {
  const rows = db.sql(DUE).all(now) as { job: number; state: number; epoch: number; fence: number }[];
  for (const { job, state, epoch, fence } of rows) {
    const from = JOB_STATES[state]!;
    if (!hasNotBegun(from, fence)) continue;
    const where = { sql: "seq = ? AND state = 0 AND fence = 0", values: [job] };
    applyChange(db, EXPIRE, now, where, { job, from, actor: "system/expiry", epoch, fence, incident: null });
  }
  db.sql("UPDATE outlive_extras SET expires_at = NULL WHERE job IN (SELECT value FROM json_each(?))").run(
    JSON.stringify(rows.map(({ job }) => job)),
  );
  return rows.length === PIECE;
}
