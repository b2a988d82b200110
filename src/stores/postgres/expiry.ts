// Jobs of which no attempt has begun in time are cancelled by the turn of any worker, whatever kinds that runs, before it claims. Those that have begun, or ended,
// lose the mark instead: neither a claim nor an end of a job touches it.
import { EXPIRE } from "../../job/transitions.ts";
import { STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { applyChanges } from "./settle.ts";
import { list } from "./statements.ts";

/** How many one transaction looks at. */
const PIECE = 500;
/** How many pieces one turn takes. With more left it claims nothing. */
const PIECES = 10;

// What another transaction has locked is skipped: a claim that is under way has begun it in time.
const TAKE = `SELECT j.seq, j.state, j.epoch, j.fence FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
  WHERE e.expires_at IS NOT NULL AND e.expires_at <= (SELECT outlive.now_ms()) ORDER BY e.expires_at LIMIT ${PIECE} FOR UPDATE OF j SKIP LOCKED`;
const UNMARK = "UPDATE outlive.extras SET expires_at = NULL WHERE job = ANY ($1::bigint[])";

/** Returns whether more are left than this turn took. */
export async function expireDue(connection: Connection): Promise<boolean> {
  for (let piece = 0; piece < PIECES; piece++) if ((await expirePiece(connection)) < PIECE) return false;
  return true;
}

function expirePiece(connection: Connection): Promise<number> {
  return connection.transaction(async (tx) => {
    const rows = await tx.rows<{ seq: number; state: number; epoch: number; fence: number }>(TAKE);
    if (rows.length === 0) return 0;
    const due = rows.filter(({ state, fence }) => state === STATE.queued && fence === 0);
    const changes = due.map(({ seq, epoch, fence }) => ({
      seq,
      change: EXPIRE,
      incident: null,
      epoch,
      fence,
      actor: "system/expiry",
    }));
    if (changes.length > 0) await applyChanges(tx, changes, "queued");
    await tx.run(UNMARK, [list(rows.map(({ seq }) => seq))]);
    return rows.length;
  });
}
