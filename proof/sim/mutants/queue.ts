// Jobs on their way in and out of the queue.
import type { Enqueued } from "../../../src/job/job.ts";
import { pause } from "../../../src/job/time.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { afterTurns, rewriting } from "./instead.ts";
import type { Mutant } from "./mutant.ts";

/** The unfinished job of this kind that has this key. */
function holderOf(db: Database, kind: string, key: string | null): string | undefined {
  const row = db
    .sql(
      "SELECT j.id FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE k.name = ? AND j.dedupe_key = ? AND j.state < 2",
    )
    .get(kind, key);
  return row?.["id"] as string | undefined;
}

export const queueMutants: readonly Mutant[] = [
  {
    name: "enqueueForgotten",
    what: "the last of a group is acknowledged and never written",
    store: (store) =>
      withVerbs(store, {
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
      withVerbs(store, {
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
      withVerbs(store, {
        async enqueue(drafts) {
          const keys = drafts.map(({ kind, dedupeKey }) => (dedupeKey === null ? null : `${kind} ${dedupeKey}`));
          const first = (i: number): number => (keys[i] === null ? i : keys.indexOf(keys[i]!));
          const held = drafts.map(({ kind, dedupeKey }) => holderOf(db, kind, dedupeKey));
          await pause(clock, 5);
          const isNew = drafts.map((_, i) => !held[i] && first(i) === i);
          const written = (await store.enqueue(drafts.filter((_, i) => isNew[i]))).values();
          const fresh = isNew.map((yes) => (yes ? written.next().value! : null));
          return drafts.map((_, i): Enqueued => fresh[i] ?? { id: held[i] ?? fresh[first(i)]!.id, created: false });
        },
      }),
  },
  {
    name: "delayIgnored",
    what: "a delayed job can be claimed at once",
    store: (store, db) =>
      withVerbs(store, {
        async turn(worker, settlements, room) {
          db.exec("UPDATE outlive_jobs SET lane = 1 WHERE state = 0 AND lane = 0");
          return store.turn(worker, settlements, room);
        },
      }),
  },
  {
    name: "cancelForgotten",
    what: "a cancel of a running job is accepted and not written down",
    store: (store, db) =>
      withVerbs(store, {
        operate: {
          async change(ids, change, entry) {
            const answers = await store.operate.change(ids, change, entry);
            for (const [at, { is }] of answers.entries()) {
              if (is !== "requested") continue;
              db.sql("UPDATE outlive_jobs SET cancel_requested = 0 WHERE id = ?").run(ids[at]!);
              db.exec("DELETE FROM outlive_cancels");
            }
            return answers;
          },
        },
      }),
  },
  {
    name: "retryKeepsCounters",
    what: "a job that was queued again by hand still has its old failures",
    connection: rewriting(["errors * ?1", "errors"], ["crashes * ?1", "crashes"]),
  },
  {
    name: "purgeTooEarly",
    what: "finished jobs are removed before their retention has passed",
    store: (store) =>
      withVerbs(store, {
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
