// Events of dedupe keys that could not be applied at once (dedupe.ts), and those whose job has ended: it runs again.
import type { JobDraft } from "../../job/job.ts";
import { STATE } from "../rows.ts";
import type { Connection } from "./connection.ts";
import {
  defer,
  type Event,
  hasBegun,
  type Holder,
  keep,
  keepLatest,
  LOCK,
  type LockedHolder,
  replace,
  runAtOf,
} from "./dedupe.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import type { Session } from "./statements.ts";

/** How many jobs one turn applies events to. */
const JOBS_PER_TURN = 100;

/** Applies events that are due. Returns how many jobs were added or changed, and whether events are left. */
export async function applyEvents(
  connection: Connection,
  kinds: Kinds,
): Promise<{ readonly applied: number; readonly more: boolean }> {
  const rows = await connection.rows<{ job: number }>(
    `SELECT DISTINCT job FROM outlive.reruns WHERE due ORDER BY job LIMIT ${JOBS_PER_TURN}`,
  );
  let applied = 0;
  // A transaction for each: a kind that is not known, or a value that is refused, stops no other.
  for (const { job } of rows) applied += await connection.transaction((tx) => applyTo(tx, kinds, job));
  return { applied, more: rows.length === JOBS_PER_TURN };
}

interface EventColumns {
  readonly ord: number;
  readonly at: number;
  readonly latest_at: number | null;
  readonly seen: boolean;
  readonly draft: string;
}

/** Removes them: what is returned is this transaction's to apply. */
const REMOVE = "DELETE FROM outlive.reruns WHERE job = $1 RETURNING ord, at, latest_at, seen, draft";

async function applyTo(tx: Session, kinds: Kinds, job: number): Promise<number> {
  const [row] = await tx.rows<LockedHolder>(LOCK, [job]);
  if (!row && (await tx.rows("SELECT 1 FROM outlive.jobs WHERE seq = $1", [job])).length > 0) return 0;
  const events = (await tx.rows<EventColumns>(REMOVE, [job])).sort((a, b) => a.ord - b.ord).map(toEvent);
  const all = events.at(-1);
  if (!all) return 0;
  const bounds = events.flatMap(({ latestAt }) => latestAt ?? []);
  const latestAt = bounds.length === 0 ? null : Math.min(...bounds);
  if (row && !hasBegun(row)) {
    await replace(tx, row, all.draft, all.at);
    return 1;
  }
  const last = events.findLast(({ draft }) => draft.dedupe?.then === "rerun");
  if (!last) return 0;
  if (row && row.state < STATE.succeeded) {
    await keep(tx, job, { ...last, latestAt });
    return 0;
  }
  return rerun(
    tx,
    kinds,
    { ...last, latestAt },
    events.every(({ seen }) => seen),
  );
}

function toEvent({ at, latest_at: latestAt, seen, draft }: EventColumns): Event & { readonly seen: boolean } {
  return { draft: JSON.parse(draft) as JobDraft, at, latestAt, seen };
}

/**
 * The job has ended, and runs again. If a younger job holds the key, that one has a later input. But an event that no worker had seen before the end may
 * have been committed after that job began: then it waits for the end of that one.
 */
async function rerun(tx: Session, kinds: Kinds, { draft, at, latestAt }: Event, seen: boolean): Promise<number> {
  const { dedupe, ...plain } = draft;
  const next = { ...plain, runAt: runAtOf(draft, at, latestAt), delayMs: 0 };
  const [enqueued] = await insertJobs(tx, kinds, [next]);
  if (enqueued!.created) {
    if (latestAt !== null) await keepLatest(tx, enqueued!.id, latestAt);
    return 1;
  }
  if (seen) return 0;
  const [younger] = await tx.rows<Holder>(
    "SELECT id, seq, state, fence FROM outlive.jobs WHERE seq = (SELECT i.seq FROM outlive.job_ids i WHERE i.id = $1)",
    [enqueued!.id],
  );
  if (younger && younger.id !== draft.id && hasBegun(younger))
    await defer(tx, younger, { ...next, ...(dedupe && { dedupe }) });
  return 0;
}
