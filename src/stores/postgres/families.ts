// A cancel that includes the children of a job. The transaction of the cancel records it in one row and writes a wake; the children that have not
// begun are cancelled by turns of any workers, a piece each. `act_on_wakes` keeps the wake as long as the row is due: killed between two pieces, the
// next turn of any worker goes on.
import { JOB_STATES } from "../../job/job.ts";
import * as transitions from "../../job/transitions.ts";
import { type CounterColumns, counters, STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { applyChanges } from "./settle.ts";
import { list, type Session } from "./statements.ts";

/** How many children one turn reads. */
const PIECE = 500;

/** In the transaction of the cancel, which has the lock of the parent's row: an enqueue of its attempt comes before this, or finds the row. */
export async function cancelFamily(session: Session, parent: number, actor: string): Promise<void> {
  await session.run(
    `WITH family AS (INSERT INTO outlive.family_cancels (job, actor) VALUES ($1, $2)
       ON CONFLICT (job) DO UPDATE SET actor = excluded.actor, cursor = 0, due = true, skipped = false RETURNING job)
     INSERT INTO outlive.wakes (job, at) SELECT job, outlive.now_ms() FROM family`,
    [parent, actor],
  );
}

/** The job, whose row is locked, has enqueued more children. */
export async function noteNewChildren(session: Session, parent: number): Promise<void> {
  await session.run(
    `WITH family AS (UPDATE outlive.family_cancels SET cursor = 0, due = true WHERE job = $1 RETURNING job)
     INSERT INTO outlive.wakes (job, at) SELECT job, outlive.now_ms() FROM family`,
    [parent],
  );
}

/** The job was retried: it may have children again. */
export async function withdrawFamilyCancel(session: Session, parent: number): Promise<void> {
  await session.run("DELETE FROM outlive.family_cancels WHERE job = $1", [parent]);
}

interface ChildRow extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
}

const FAMILY = `SELECT f.job, f.actor, f.cursor, f.skipped, p.id AS parent, coalesce(p.state < ${STATE.succeeded}, false) AS unfinished
  FROM outlive.family_cancels f LEFT JOIN outlive.jobs p ON p.seq = f.job WHERE f.due ORDER BY f.job LIMIT 1 FOR UPDATE OF f SKIP LOCKED`;

const CHILDREN = `SELECT j.seq, j.id, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
  FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job WHERE e.parent = $1 AND NOT e.ended AND e.job > $2 ORDER BY e.job LIMIT ${PIECE}`;

const UNBEGUN = `SELECT j.seq FROM outlive.jobs j WHERE j.seq = ANY ($1::bigint[]) AND j.state + 0 = ${STATE.queued} AND j.fence = 0`;

/** Cancels a piece of one family, in a transaction of its own. Returns how many jobs were cancelled, and whether more is to be done now. */
export function cancelChildren(
  connection: Connection,
): Promise<{ readonly cancelled: number; readonly more: boolean }> {
  return connection.transaction(async (tx) => {
    const [family] = await tx.rows<{
      job: number;
      actor: string;
      cursor: number;
      skipped: boolean;
      parent: string | null;
      unfinished: boolean;
    }>(FAMILY);
    if (!family) return { cancelled: 0, more: false };
    const children = await tx.rows<ChildRow>(CHILDREN, [family.job, family.cursor]);
    const unbegun = children.filter(({ state, fence }) => transitions.hasNotBegun(JOB_STATES[state]!, fence));
    const seqs = unbegun.map(({ seq }) => seq);
    // What another transaction has locked is skipped: it may stand still for minutes, and every worker's turn would wait for it.
    const rows =
      seqs.length === 0 ? [] : await tx.rows<{ seq: number }>(`${UNBEGUN} FOR UPDATE SKIP LOCKED`, [list(seqs)]);
    const locked = new Set(rows.map(({ seq }) => seq));
    const mine = unbegun.filter(({ seq }) => locked.has(seq));
    const changes = mine.map((child) => {
      const view = { id: child.id, state: "queued", counters: counters(child) } as const;
      const change = transitions.cancel(view, family.parent ?? undefined);
      return { seq: child.seq, change, incident: null, epoch: child.epoch, fence: child.fence, actor: family.actor };
    });
    await applyChanges(tx, changes, "queued");
    const others = seqs.filter((seq) => !locked.has(seq));
    const left = others.length === 0 ? [] : await tx.rows(UNBEGUN, [list(others)]);
    const skipped = family.skipped || left.length > 0;
    const isLast = children.length < PIECE;
    if (!isLast)
      await tx.run("UPDATE outlive.family_cancels SET cursor = $2, skipped = $3 WHERE job = $1", [
        family.job,
        children.at(-1)!.seq,
        skipped,
      ]);
    // The next turns begin again with the first child: not at once, a lock may last.
    else if (skipped)
      await tx.run("UPDATE outlive.family_cancels SET cursor = 0, skipped = false WHERE job = $1", [family.job]);
    // A parent that runs may enqueue more. What is left then goes with the parent's row.
    else if (family.unfinished)
      await tx.run("UPDATE outlive.family_cancels SET due = false WHERE job = $1", [family.job]);
    else await withdrawFamilyCancel(tx, family.job);
    return { cancelled: mine.length, more: !isLast || !skipped || mine.length > 0 };
  });
}
