// How the store responds: to an enqueue, to a settlement that is repeated, to one that comes too late.
import type { Enqueued, JobDraft } from "../../../src/job/job.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { ignoring, rewriting } from "./instead.ts";
import type { Mutant, StoreMutation } from "./mutant.ts";

/** Enqueues of drafts for which `holder` finds a job are answered with that, and nothing is written. It is unfinished when they are. */
function swallowing(holder: (db: Database, draft: JobDraft) => unknown): StoreMutation {
  return (store, db) => {
    const held = (draft: JobDraft): string | undefined => (holder(db, draft) as { id: string } | undefined)?.id;
    const enqueue: Store["enqueue"] = async (drafts) => {
      const written = drafts.filter((draft) => held(draft) === undefined);
      const fresh = new Map((await store.enqueue(written)).map((one, i) => [written[i]!, one]));
      const answers = drafts.map((draft): Enqueued => fresh.get(draft) ?? { id: held(draft) ?? "", created: false });
      return answers.some(({ id }) => id === "") ? enqueue(drafts) : answers;
    };
    return withVerbs(store, { enqueue });
  };
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
    what: "of several enqueues in one call each gets the result of another",
    asks: (store) => withVerbs(store, { enqueue: async (drafts) => (await store.enqueue(drafts)).toReversed() }),
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
    what: "a settlement that comes too late is reported as accepted, although recovery has ended its attempt",
    connection: rewriting(
      [SETTLED_BEFORE, "(actor = ? OR 1) AND (event = ? OR 1)"],
      [OUTCOME_OF_THE_ROW, "j.fence, 0 AS outcome, w.id"],
    ),
  },
  {
    name: "refusalNotRecorded",
    what: "a refused write leaves no trace",
    schema: ignoring("INSERT ON outlive_history", "NEW.event = 'write.rejected'"),
  },
];
