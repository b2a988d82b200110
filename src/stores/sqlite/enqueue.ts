// Jobs on their way in. Inside a transaction; what is known already by id or by dedupe key adds nothing.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Enqueued, JobDraft } from "../../job/job.ts";
import type { Change } from "../../job/transitions.ts";
import { LANE } from "../rows.ts";
import { checksumOf } from "./checksums.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./kinds.ts";
import { NO_WORKER, storedEpoch } from "./schema.ts";

const COLUMNS =
  "state, lane, kind, priority, worker, epoch, created_at, run_at, started_at, deadline_at, finished_at, id, dedupe_key, input, input_sum, extras";
/** Most jobs ask for nothing special. Each value that is bound costs 50 ns, and four of ten are the same for all of those. */
const INSERT_PLAIN = `INSERT INTO outlive_jobs (${COLUMNS})
  VALUES (0, ${LANE.open}, ?1, 0, ${NO_WORKER}, ?2, ?3, NULL, ?3, ?3, ?3, ?4, NULL, ?5, ?6, 0) ON CONFLICT DO NOTHING`;
const INSERT = `INSERT INTO outlive_jobs (${COLUMNS})
  VALUES (0, ?7, ?1, ?8, ${NO_WORKER}, ?2, ?3, ?9, ?3, ?3, ?3, ?4, ?10, ?5, ?6, ?11) ON CONFLICT DO NOTHING`;

/** `parent`: the row of the job that enqueues them. */
export function insertJobs(
  db: Database,
  kinds: Kinds,
  drafts: readonly JobDraft[],
  now: number,
  parent: number | null = null,
): Enqueued[] {
  const insertPlain = db.sql(INSERT_PLAIN);
  const insert = db.sql(INSERT);
  const epoch = storedEpoch(db);
  const added = new Map<number, number>();
  const enqueued = drafts.map((draft) => {
    const kind = kinds.idOf(draft.kind);
    if (kind === undefined) throw undeclared(draft.kind);
    const runAt = draft.runAt ?? (draft.delayMs > 0 ? now + draft.delayMs : null);
    const lane = runAt !== null && runAt > now ? LANE.delayed : LANE.open;
    const { id, priority, dedupeKey, input } = draft;
    const sum = checksumOf(input, id);
    const plain = runAt === null && priority === 0 && dedupeKey === null && parent === null;
    const { changes, lastInsertRowid } = plain
      ? insertPlain.run(kind, epoch, now, id, input, sum)
      : insert.run(kind, epoch, now, id, input, sum, lane, priority, runAt, dedupeKey, parent === null ? 0 : 1);
    if (changes === 0) return { id: existing(db, kind, draft), created: false };
    if (parent !== null)
      db.sql("INSERT INTO outlive_extras (job, parent) VALUES (?, ?)").run(lastInsertRowid, parent);
    added.set(kind, (added.get(kind) ?? 0) + 1);
    return { id, created: true };
  });
  for (const [kind, count] of added) kinds.countJobs(kind, count);
  return enqueued;
}

/** Enqueues what follows from changes that this transaction has applied. Most have nothing that follows, and cost nothing here. */
export function insertFollowing(db: Database, kinds: Kinds, applied: readonly Change[], now: number): void {
  const drafts = applied.flatMap(({ follow }) => follow ?? []);
  if (drafts.length > 0) insertJobs(db, kinds, drafts, now);
}

/** Refuses kinds that were never declared. */
export function demandKinds(kinds: Kinds, drafts: readonly JobDraft[]): void {
  for (const { kind } of drafts) if (kinds.idOf(kind) === undefined) throw undeclared(kind);
}

/** Which unfinished job holds the key, or the id itself if that was known already. */
function existing(db: Database, kind: number, draft: JobDraft): string {
  if (db.sql("SELECT 1 FROM outlive_jobs WHERE id = ?").get(draft.id)) return draft.id;
  const holder = db
    .sql("SELECT id FROM outlive_jobs WHERE kind = ? AND dedupe_key = ? AND dedupe_key IS NOT NULL AND state < 2")
    .get(kind, draft.dedupeKey) as { id: string };
  return holder.id;
}

function undeclared(kind: string): OutliveError {
  return new OutliveError(
    ErrorCode.kindUnknown,
    `The kind ${JSON.stringify(kind)} was never declared in this store.`,
    "Pass its job to `open({ jobs })` or to the client's `jobs`, so that its settings are known before its first job.",
    { kind },
  );
}
