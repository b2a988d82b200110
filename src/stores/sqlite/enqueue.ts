// Jobs on their way in. Inside a transaction; what is known already by id or by dedupe key adds nothing.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { Enqueued, JobDraft } from "../../core/job.ts";
import type { Database } from "./database.ts";
import type { Kinds } from "./kinds.ts";
import { LANE } from "./schema.ts";

export function insertJobs(db: Database, kinds: Kinds, drafts: readonly JobDraft[], now: number): Enqueued[] {
  const insert = db.sql(`
    INSERT INTO outlive_jobs (state, lane, kind, priority, created_at, run_at, id, dedupe_key, input)
    VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`);
  return drafts.map((draft) => {
    const kind = kinds.idOf(draft.kind);
    if (kind === undefined) throw undeclared(draft.kind);
    const runAt = draft.runAt ?? (draft.delayMs > 0 ? now + draft.delayMs : null);
    const lane = runAt !== null && runAt > now ? LANE.delayed : LANE.open;
    const { changes } = insert.run(lane, kind, draft.priority, now, runAt, draft.id, draft.dedupeKey, draft.input);
    if (changes === 1) return { id: draft.id, created: true };
    return { id: existing(db, kind, draft), created: false };
  });
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
