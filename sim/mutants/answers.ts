// What the store answers: to an enqueue, to a settlement that is repeated, to one that comes too late.
import type { Enqueued, JobDraft } from "../../src/core/job.ts";
import type { Database } from "../../src/stores/sqlite/database.ts";
import { instead, rewriting } from "./instead.ts";
import type { Mutant, StoreMutation } from "./mutant.ts";

/** Enqueues of drafts for which `holder` finds a job are answered with that, and nothing is written. */
function swallowing(holder: (db: Database, draft: JobDraft) => unknown): StoreMutation {
  return (store, db) =>
    instead(store, {
      async enqueue(drafts) {
        const held = drafts.map((draft) => holder(db, draft) as { id: string } | undefined);
        const fresh = (await store.enqueue(drafts.filter((_, i) => !held[i]))).values();
        return held.map((row): Enqueued => (row ? { id: row.id, created: false } : fresh.next().value!));
      },
    });
}

const SETTLED_BEFORE = "actor = ? AND event = ?";
const OUTCOME_OF_THE_ROW = "j.fence, j.outcome, w.id";

export const answerMutants: readonly Mutant[] = [
  {
    name: "enqueueSwallowed",
    what: "an enqueue without a key is answered with any unfinished job, and nothing is written",
    store: swallowing((db, { dedupeKey }) =>
      dedupeKey === null ? db.sql("SELECT id FROM outlive_jobs WHERE state < 2 LIMIT 1").get() : undefined,
    ),
  },
  {
    name: "keyOfAnotherKind",
    what: "an enqueue is answered with a job that has its key and is of another kind",
    store: swallowing((db, { kind, dedupeKey }) =>
      db
        .sql(
          "SELECT j.id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE k.name <> ? AND j.dedupe_key = ? AND j.state < 2",
        )
        .get(kind, dedupeKey),
    ),
  },
  {
    name: "acknowledgedToAnother",
    what: "of several enqueues in one call each is told what became of another",
    asks: (store) => instead(store, { enqueue: async (drafts) => (await store.enqueue(drafts)).toReversed() }),
  },
  {
    name: "repetitionCalledStale",
    what: "a settlement whose answer was lost is refused when it is repeated, and recorded so, although it counts",
    connection: rewriting(
      [SETTLED_BEFORE, `${SETTLED_BEFORE} AND 0`],
      [OUTCOME_OF_THE_ROW, "j.fence, NULL AS outcome, w.id"],
    ),
  },
  {
    name: "zombieCalledRepeated",
    what: "who comes too late is told that its settlement had been accepted, although recovery has ended its attempt",
    connection: rewriting(
      [SETTLED_BEFORE, "(actor = ? OR 1) AND (event = ? OR 1)"],
      [OUTCOME_OF_THE_ROW, "j.fence, 0 AS outcome, w.id"],
    ),
  },
  {
    name: "refusalNotRecorded",
    what: "a refused write leaves no trace",
    connection: rewriting([
      "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      "SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE ?3 <> 'write.rejected'",
    ]),
  },
];
