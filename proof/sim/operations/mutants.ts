// Bugs on purpose in expiry, removal and the audit.
import type { Clock } from "../../../src/job/time.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { changedCount, type HandChange, type OperatorAnswer, type Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";

export interface OperationsMutant {
  readonly name: string;
  readonly what: string;
  readonly store: (store: Store, db: Database, clock: Clock) => Store;
}

type Change = Store["operate"]["change"];

/** `before` and `after` see the row numbers of the jobs. */
function changing(
  store: Store,
  db: Database,
  how: {
    readonly before?: (ids: readonly string[], change: HandChange) => void;
    readonly after?: (
      seqs: readonly number[],
      change: HandChange,
      answers: readonly OperatorAnswer[],
      entry: string,
    ) => void;
  },
): Store {
  const change: Change = async (ids, what, entry) => {
    const seqs = ids.map(
      (id) => (db.sql("SELECT seq FROM outlive_jobs WHERE id = ?").get(id) as { seq: number } | undefined)?.seq ?? -1,
    );
    how.before?.(ids, what);
    const answers = await store.operate.change(ids, what, entry);
    how.after?.(seqs, what, answers, entry.id);
    return answers;
  };
  return withVerbs(store, { operate: { change } });
}

/** Runs after each turn. */
function afterTurn(store: Store, then: (now: number) => void, clock: Clock): Store {
  return withVerbs(store, {
    async turn(...args) {
      const turn = await store.turn(...args);
      then(clock.now());
      return turn;
    },
  });
}

const lasting = (store: Store, factor: number): Store =>
  withVerbs(store, {
    enqueue: (drafts) =>
      store.enqueue(
        drafts.map((draft) => ({
          ...draft,
          ...(draft.expiresMs !== undefined && { expiresMs: Math.max(1, Math.round(draft.expiresMs * factor)) }),
        })),
      ),
  });

export const OPERATIONS_MUTANTS: readonly OperationsMutant[] = [
  { name: "expiryTooLate", what: "jobs expire after twice their time", store: (store) => lasting(store, 2) },
  { name: "expiryTooEarly", what: "jobs expire after half of their time", store: (store) => lasting(store, 0.5) },
  {
    name: "expiryFromEnqueue",
    what: "the time of a delayed job counts from its enqueue",
    store: (store, db) =>
      withVerbs(store, {
        async enqueue(drafts) {
          const enqueued = await store.enqueue(drafts);
          for (const { id, delayMs } of drafts)
            db.sql(
              "UPDATE outlive_extras SET expires_at = expires_at - ? WHERE job = (SELECT seq FROM outlive_jobs WHERE id = ?)",
            ).run(delayMs, id);
          return enqueued;
        },
      }),
  },
  {
    name: "begunJobsExpire",
    what: "a job in backoff expires, although an attempt has begun in time",
    store: (store, db, clock) =>
      afterTurn(
        store,
        () =>
          db
            .sql(
              "UPDATE outlive_jobs SET state = 4, outcome = 10 WHERE state = 0 AND lane = 0 AND fence > 0 AND outcome = 1",
            )
            .run(),
        clock,
      ),
  },
  {
    name: "expiryWakesNoParent",
    what: "what an expiry has to wake is forgotten",
    store: (store, db) =>
      withVerbs(store, {
        async turn(worker, settlements, room) {
          db.exec(
            "CREATE TEMP TRIGGER IF NOT EXISTS unwoken AFTER INSERT ON outlive_history WHEN NEW.event = 'expire' BEGIN UPDATE outlive_extras SET parent = NULL, watched = 0 WHERE job = NEW.job; END",
          );
          return store.turn(worker, settlements, room);
        },
      }),
  },
  {
    name: "removalWakesNoParent",
    what: "the wakes of a removal are lost",
    store: (store, db) =>
      changing(store, db, {
        after: (_, { do: what }) => {
          if (what === "remove") db.sql("DELETE FROM outlive_wakes").run();
        },
      }),
  },
  {
    name: "removalLeavesHistory",
    what: "the history of a removed job stays",
    store: (store, db) =>
      changing(store, db, {
        after: (seqs, _, answers) => {
          for (const [at, { is }] of answers.entries())
            if (is === "removed" && seqs[at]! > 0)
              db.sql(
                "INSERT INTO outlive_history (job, at, event, from_state, to_state, actor, epoch, fence, reason) VALUES (?, 0, 'x', 0, 0, 'a', 0, 0, 'secret')",
              ).run(seqs[at]!);
        },
      }),
  },
  {
    name: "removalKeepsInput",
    what: "the empty row of a removed child keeps its input",
    store: (store, db) =>
      changing(store, db, {
        after: (seqs, _, answers) => {
          for (const [at, { is }] of answers.entries())
            if (is === "removed")
              db.sql("UPDATE outlive_jobs SET input = '\"full\"' WHERE seq = ? AND kind > 0").run(seqs[at]!);
        },
      }),
  },
  {
    name: "runningJobsAreRemoved",
    what: "a running job is removed, too",
    store: (store, db) =>
      changing(store, db, {
        before: (ids, { do: what }) => {
          for (const id of ids)
            if (what === "remove") db.sql("UPDATE outlive_jobs SET state = 3 WHERE id = ? AND state = 1").run(id);
        },
      }),
  },
  {
    name: "auditCountsRefusals",
    what: "the audit counts what was asked for, not what was changed",
    store: (store, db) =>
      changing(store, db, {
        after: (seqs, _, answers, entry) => {
          if (changedCount(answers) > 0)
            db.sql("UPDATE outlive_audit SET count = ? WHERE id = ?").run(seqs.length, entry);
        },
      }),
  },
  {
    name: "auditIsLost",
    what: "an entry is not in the transaction of its change, and is lost",
    store: (store, db) => {
      let calls = 0;
      return changing(store, db, {
        after: (_, __, ___, entry) => {
          if (++calls % 7 === 0) db.sql("DELETE FROM outlive_audit WHERE id = ?").run(entry);
        },
      });
    },
  },
];
