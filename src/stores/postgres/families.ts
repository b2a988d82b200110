// A cancel that includes the children of a job. The transaction of the cancel records it in one row and writes a wake; the children that have not
// begun are cancelled by turns of any workers, a piece each. `act_on_wakes` keeps the wake as long as the row is due: killed between two pieces, the
// next turn of any worker goes on.
import * as transitions from "../../job/transitions.ts";
import { type CounterColumns, counters, STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import { applyChanges } from "./settle.ts";
import type { Session } from "./statements.ts";

/** How many children one turn cancels. */
const PIECE = 500;

/** In the transaction of the cancel, which has the lock of the parent's row: an enqueue of its attempt comes before this, or finds the row. */
export async function cancelFamily(session: Session, parent: number, actor: string): Promise<void> {
  await session.run(
    `WITH family AS (INSERT INTO outlive.family_cancels (job, actor) VALUES ($1, $2)
       ON CONFLICT (job) DO UPDATE SET actor = excluded.actor, due = true RETURNING job)
     INSERT INTO outlive.wakes (job, at) SELECT job, outlive.now_ms() FROM family`,
    [parent, actor],
  );
}

/** The job, whose row is locked, has enqueued more children. */
export async function noteNewChildren(session: Session, parent: number): Promise<void> {
  await session.run(
    `WITH family AS (UPDATE outlive.family_cancels SET due = true WHERE job = $1 RETURNING job)
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
  readonly epoch: number;
  readonly fence: number;
}

const FAMILY = `SELECT f.job, f.actor, p.id AS parent, coalesce(p.state < ${STATE.succeeded}, false) AS unfinished
  FROM outlive.family_cancels f LEFT JOIN outlive.jobs p ON p.seq = f.job WHERE f.due ORDER BY f.job LIMIT 1 FOR UPDATE OF f SKIP LOCKED`;

const UNBEGUN = `FROM outlive.extras e JOIN outlive.jobs j ON j.seq = e.job
  WHERE e.parent = $1 AND e.job > $2 AND j.state + 0 = ${STATE.queued} AND j.fence = 0 ORDER BY e.job`;
const FIRST = `SELECT e.job ${UNBEGUN} LIMIT 1`;
// What another transaction has locked is skipped: it may stand still for minutes, and every worker's turn would wait for it.
const TAKE = `SELECT j.seq, j.id, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
  ${UNBEGUN} LIMIT ${PIECE} FOR UPDATE OF j SKIP LOCKED`;

// The planner expects few children and would read and sort all that are left: 60,000 were cancelled in 7.8 s; in the order of the index in 2.5 s.
const IN_ORDER = "SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)";

/**
 * Up to which child this process has cancelled a family: without it each piece would read all children of those before. It only saves time, because what
 * is left is searched for among all children before a family is done.
 */
const PASSED = new WeakMap<Connection, { readonly parent: number; readonly child: number }>();

/** Cancels a piece of one family, in a transaction of its own. Returns how many jobs were cancelled, and whether more is to be done now. */
export async function cancelChildren(
  connection: Connection,
): Promise<{ readonly cancelled: number; readonly more: boolean }> {
  let passed: { readonly parent: number; readonly child: number } | null = null;
  const answer = await connection.transaction(async (tx) => {
    const [family] = await tx.rows<{ job: number; actor: string; parent: string | null; unfinished: boolean }>(FAMILY);
    if (!family) return { cancelled: 0, more: false };
    const former = PASSED.get(connection);
    const from = former?.parent === family.job ? former.child : 0;
    await tx.run(IN_ORDER);
    const children = await tx.rows<ChildRow>(TAKE, [family.job, from]);
    const changes = children.map((child) => {
      const view = { id: child.id, state: "queued", counters: counters(child) } as const;
      const change = transitions.cancel(view, family.parent ?? undefined);
      return { seq: child.seq, change, incident: null, epoch: child.epoch, fence: child.fence, actor: family.actor };
    });
    await applyChanges(tx, changes, "queued");
    const isLast = children.length < PIECE;
    // A child that was skipped keeps the row due. It is not tried again at once: a lock may last.
    const left = isLast ? await firstUnbegun(tx, family.job, from) : null;
    const isSkipped = left !== null;
    passed = { parent: family.job, child: isSkipped ? left - 1 : (children.at(-1)?.seq ?? from) };
    // A parent that runs may enqueue more. What is left then goes with the parent's row.
    if (isLast && !isSkipped && family.unfinished)
      await tx.run("UPDATE outlive.family_cancels SET due = false WHERE job = $1", [family.job]);
    else if (isLast && !isSkipped) await withdrawFamilyCancel(tx, family.job);
    // One in front of where this piece began was not tried yet: it was retried meanwhile.
    return { cancelled: children.length, more: !isSkipped || children.length > 0 || left <= from };
  });
  if (passed !== null) PASSED.set(connection, passed);
  return answer;
}

/** Behind where this piece began, and if there is none, among all children. */
async function firstUnbegun(session: Session, parent: number, from: number): Promise<number | null> {
  for (const after of new Set([from, 0])) {
    const [row] = await session.rows<{ job: number }>(FIRST, [parent, after]);
    if (row) return row.job;
  }
  return null;
}
