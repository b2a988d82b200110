// The small writes of a running attempt, each under its fence: steps, progress, log, heartbeat, children, rows. Inside a transaction.
import type { Lease } from "../../job/lease.ts";
import { APPLIED, type AttemptWrite, MAX_LOG_LINES, triedBy, type WriteAnswer } from "../port.ts";
import { beginRow, endRows } from "./blocks.ts";
import { checksumOrNull, stepOwner } from "./checksums.ts";
import type { Database } from "./database.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { noteNewChildren } from "./families.ts";
import type { Settling } from "./settle.ts";
import { holdOff } from "./keys.ts";
import { PROGRESS, readSignal } from "./waits.ts";

export function writeOfAttempt(
  db: Database,
  kinds: Kinds,
  settling: Settling,
  lease: Lease,
  write: AttemptWrite,
  now: number,
): WriteAnswer {
  const suspicions = settling.owned(lease);
  if (suspicions === undefined) return settling.refused(lease, triedBy(write), now);
  switch (write.type) {
    case "step": {
      // A repeated write of the same step (its answer was lost) keeps the first result, and does not count as progress.
      const { changes } = db
        .sql(
          "INSERT INTO outlive_steps (job, name, result, result_sum, at, fence) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .run(
          lease.row,
          write.name,
          write.result,
          checksumOrNull(write.result, stepOwner(lease.jobId, write.name)),
          now,
          lease.fence,
        );
      if (changes === 1 && suspicions > 0) db.sql(PROGRESS).run(lease.row);
      break;
    }
    case "progress":
      db.sql("UPDATE outlive_jobs SET progress = ? WHERE seq = ?").run(write.value, lease.row);
      break;
    case "log":
      db.sql("INSERT INTO outlive_logs (job, at, fence, message) VALUES (?, ?, ?, ?)").run(
        lease.row,
        now,
        lease.fence,
        write.message,
      );
      db.sql(
        "DELETE FROM outlive_logs WHERE ord IN (SELECT ord FROM outlive_logs WHERE job = ? ORDER BY ord DESC LIMIT -1 OFFSET ?)",
      ).run(lease.row, MAX_LOG_LINES);
      break;
    case "heartbeat":
      // deadline = the latest heartbeat + timeout, but never beyond the start + the longest run that the kind allows.
      db.sql(
        `UPDATE outlive_jobs SET deadline_at = (
           SELECT min(? + k.timeout_ms, ifnull(outlive_jobs.started_at + k.max_runtime_ms, 9e15)) FROM outlive_kinds k WHERE k.id = outlive_jobs.kind
         ) WHERE seq = ?`,
      ).run(now, lease.row);
      break;
    case "enqueue":
      noteNewChildren(db, lease.row);
      return { is: "applied", enqueued: insertJobs(db, kinds, write.drafts, now, lease.row) };
    case "holdOff":
      holdOff(db, write.key, now + write.forMs);
      break;
    case "signal":
      return { is: "applied", signal: readSignal(db, lease, write, now) };
    case "rows":
      endRows(db, lease.row, write.ends);
      break;
    case "rowBegins":
      beginRow(db, lease, write.row);
      break;
  }
  return APPLIED;
}
