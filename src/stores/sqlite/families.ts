// A cancel that includes the children of a job. The transaction of the cancel records it in one row; the children that have not begun are cancelled
// by turns of any workers, a piece each, so 100,000 of them hold up no other write for long. The row is its own wake: killed between two pieces,
// the next turn of any worker goes on from it. Inside a transaction.
import { JOB_STATES } from "../../job/job.ts";
import * as transitions from "../../job/transitions.ts";
import { type CounterColumns, counters, STATE } from "../rows.ts";
import type { Database } from "./database.ts";
import { applyChange } from "./settle.ts";

/** How many children one turn reads. 250 cancels take 10 ms, and the turn of another process waits that long; 100,000 took 4.2 s. */
const PIECE = 250;

/** The cancel of the job includes its children, also those that it enqueues from now on while it runs. */
export function cancelFamily(db: Database, parent: number, actor: string, now: number): void {
  db.sql(
    `INSERT INTO outlive_family_cancels (job, actor, at) VALUES (?, ?, ?)
     ON CONFLICT DO UPDATE SET actor = excluded.actor, cursor = 0, due = 1, at = excluded.at`,
  ).run(parent, actor, now);
}

/** The job has enqueued more children. */
export function noteNewChildren(db: Database, parent: number): void {
  db.sql("UPDATE outlive_family_cancels SET cursor = 0, due = 1 WHERE job = ?").run(parent);
}

/** The job was retried: it may have children again. */
export function withdrawFamilyCancel(db: Database, parent: number): void {
  db.sql("DELETE FROM outlive_family_cancels WHERE job = ?").run(parent);
}

interface ChildRow extends CounterColumns {
  readonly seq: number;
  readonly id: string;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
}

/** Cancels a piece of one family. Returns how many jobs were cancelled, and whether more is to be done. */
export function cancelChildren(db: Database, now: number): { readonly cancelled: number; readonly more: boolean } {
  const family = db.sql("SELECT job, actor, cursor FROM outlive_family_cancels WHERE due = 1 LIMIT 1").get() as
    | { job: number; actor: string; cursor: number }
    | undefined;
  if (family === undefined) return NOTHING;
  const parent = db.sql("SELECT id, state FROM outlive_jobs WHERE seq = ?").get(family.job) as
    | { id: string; state: number }
    | undefined;
  const children = db
    .sql(
      `SELECT j.seq, j.id, j.state, j.epoch, j.fence, j.errors, j.crashes, j.blamed, j.timeouts, j.interruptions, j.losses
       FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job WHERE e.parent = ? AND e.ended = 0 AND e.job > ? ORDER BY e.job LIMIT ${PIECE}`,
    )
    .all(family.job, family.cursor) as unknown as ChildRow[];
  let cancelled = 0;
  for (const child of children) {
    const { seq: job, id, epoch, fence } = child;
    const state = JOB_STATES[child.state]!;
    if (!transitions.hasNotBegun(state, fence)) continue;
    const change = transitions.cancel({ id, state, counters: counters(child) }, parent?.id);
    const where = { sql: "seq = ? AND state = ?", values: [job, child.state] };
    applyChange(db, change, now, where, { job, from: state, actor: family.actor, epoch, fence, incident: null });
    cancelled++;
  }
  if (children.length === PIECE)
    db.sql("UPDATE outlive_family_cancels SET cursor = ? WHERE job = ?").run(children.at(-1)!.seq, family.job);
  // A parent that runs may enqueue more. What is left then goes with the parent's row.
  else if (parent !== undefined && parent.state < STATE.succeeded)
    db.sql("UPDATE outlive_family_cancels SET due = 0 WHERE job = ?").run(family.job);
  else withdrawFamilyCancel(db, family.job);
  return { cancelled, more: true };
}

const NOTHING = { cancelled: 0, more: false } as const;
