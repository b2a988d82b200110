// Jobs on their way in and out of the queue.
import { pause } from "../../src/core/clock.ts";
import type { Enqueued } from "../../src/core/job.ts";
import { afterTurns, instead } from "./instead.ts";
import type { Mutant } from "./mutant.ts";

export const queueMutants: readonly Mutant[] = [
  {
    name: "enqueueForgotten",
    what: "the last of a group is acknowledged and never written",
    store: (store) =>
      instead(store, {
        async enqueue(drafts) {
          if (drafts.length === 1) return store.enqueue(drafts);
          await store.enqueue(drafts.slice(0, -1));
          return drafts.map(({ id }) => ({ id, created: true }));
        },
      }),
  },
  {
    name: "enqueueAnsweredTooSoon",
    what: "an enqueue is acknowledged before it is in the store",
    store: (store) =>
      instead(store, {
        enqueue: async (drafts) => {
          void store.enqueue(drafts).catch(() => {});
          return drafts.map(({ id }): Enqueued => ({ id, created: true }));
        },
      }),
  },
  {
    name: "dedupeOutsideTheTransaction",
    what: "whether a key is held is looked up first, and the job is written a moment later",
    schema: (db) => db.exec("DROP INDEX outlive_jobs_dedupe"),
    store: (store, db, clock) =>
      instead(store, {
        async enqueue(drafts) {
          const held = drafts.map(({ kind, dedupeKey }) =>
            db
              .sql(
                "SELECT j.id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE k.name = ? AND j.dedupe_key = ? AND j.state < 2",
              )
              .get(kind, dedupeKey),
          );
          await pause(clock, 5);
          const fresh = await store.enqueue(drafts.filter((_, i) => !held[i]));
          let at = 0;
          return held.map((row): Enqueued => (row ? { id: row["id"] as string, created: false } : fresh[at++]!));
        },
      }),
  },
  {
    name: "delayIgnored",
    what: "a delayed job can be claimed at once",
    store: (store, db) =>
      instead(store, {
        async settleAndClaim(worker, settlements, room) {
          db.exec("UPDATE outlive_jobs SET lane = 1 WHERE state = 0 AND lane = 0");
          return store.settleAndClaim(worker, settlements, room);
        },
      }),
  },
  {
    name: "cancelForgotten",
    what: "a cancel of a running job is accepted and not written down",
    store: (store, db) =>
      instead(store, {
        async cancel(id, actor) {
          const answer = await store.cancel(id, actor);
          if (answer.is === "requested") {
            db.sql("UPDATE outlive_jobs SET cancel_requested = 0 WHERE id = ?").run(id);
            db.exec("DELETE FROM outlive_cancels");
          }
          return answer;
        },
      }),
  },
  {
    name: "retryKeepsCounters",
    what: "a job that was queued again by hand still has its old failures",
    store: (store, db) =>
      instead(store, {
        async retry(id, actor) {
          const counts = db.sql("SELECT errors, crashes FROM outlive_jobs WHERE id = ?").get(id);
          const answer = await store.retry(id, actor);
          if (answer.is === "applied" && counts)
            db.sql("UPDATE outlive_jobs SET errors = ?, crashes = ? WHERE id = ?").run(
              counts["errors"]!,
              counts["crashes"]!,
              id,
            );
          return answer;
        },
      }),
  },
  {
    name: "purgeTooEarly",
    what: "finished jobs are removed before their retention has passed",
    store: (store) =>
      instead(store, {
        purge: (request) => store.purge({ ...request, finishedOlderThanMs: 1_000 }),
      }),
  },
  {
    name: "claimedTwice",
    what: "what was claimed stays in the queue for others",
    store: afterTurns(({ claimed }, db) => {
      const last = claimed.at(-1);
      if (last && claimed.length > 1)
        db.sql("UPDATE outlive_jobs SET state = 0, lane = 1 WHERE seq = ?").run(last.lease.row);
    }),
  },
];
