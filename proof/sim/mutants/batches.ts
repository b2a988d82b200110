// Batches whose rows are lost, doubled, run again or counted by those who may not; ends that come too early, twice or never; files with their lines in
// another order.
import { decodeBlock } from "../../../src/job/batches.ts";
import type { ClaimedJob } from "../../../src/job/job.ts";
import type { Batches, Store } from "../../../src/stores/port.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { afterTurns, present, rewriting } from "./instead.ts";
import { type Mutant, only, type StoreMutation } from "./mutant.ts";

const SOME = { jobs: 3, durability: "full", console: false } as const;
const QUIET = only(["money", "batches"], {}, { ...SOME, requestLost: 0, answerLost: 0, stall: 0, slow: 0 });
const KILLS = only(["money", "batches"], { kill: 2 }, SOME);
const LOSSES = only(["money", "batches"], { kill: 1 }, { ...SOME, answerLost: 0.1 });
const ZOMBIES = only(["money", "batches"], { pause: 1 }, { ...SOME, workers: 3, stall: 0.03, ambush: 0.9 });

/** Some verbs of batches are others. */
function batching(own: (batches: Batches, db: Database) => Partial<Batches>): StoreMutation {
  return (store, db) => withVerbs(store, { batches: own(store.batches!, db) });
}

function asking(own: (batches: Batches) => Partial<Batches>): (store: Store) => Store {
  return (store) => withVerbs(store, { batches: own(store.batches!) });
}

function add(db: Database, batch: string, column: string, by: number): void {
  db.sql(`UPDATE outlive_batches SET ${column} = ${column} + ? WHERE id = ?`).run(by, batch);
}

function withoutMarks(job: ClaimedJob): ClaimedJob {
  const { block: _, ...rest } = job;
  return rest;
}

export const batchMutants: readonly Mutant[] = [
  {
    name: "lookBeforeTheCommit",
    what: "whether a batch has ended is looked for before the last row is durable, and not again",
    focus: QUIET,
    asks: asking((batches) => {
      const before = new Map<string, Awaited<ReturnType<Batches["get"]>>[number]>();
      return {
        fold: async () => [],
        async get(ids) {
          const found = await batches.get(ids);
          const told = found.map((batch) => (batch.state === "sealed" ? (before.get(batch.id) ?? batch) : batch));
          for (const batch of found) if (!before.has(batch.id)) before.set(batch.id, batch);
          return told;
        },
      };
    }),
  },
  {
    name: "endsNotLookedForAgain",
    what: "a worker dies between its last row and its check for the end, and no other process checks",
    focus: KILLS,
    asks: asking(() => ({ fold: async () => [] })),
  },
  {
    name: "rowsOfAZombie",
    what: "rows of an attempt that does not own its block any more are marked and counted",
    focus: ZOMBIES,
    store: (store, db) =>
      withVerbs(store, {
        write: (writes) =>
          store.write(
            writes.map(({ lease, write }) => ({ write, lease: write.type === "rows" ? present(db, lease) : lease })),
          ),
      }),
  },
  {
    name: "deltaOfAStaleSettlement",
    what: "the success of a zombie is refused, and its rows are counted",
    focus: ZOMBIES,
    store: afterTurns(({ settled }, db, settlements) => {
      settlements.forEach(({ lease, change }, i) => {
        const block = db.sql("SELECT batch, rows FROM outlive_blocks WHERE job = ?").get(lease.row);
        if (block === undefined || settled[i]!.is !== "stale" || change.to !== "succeeded") return;
        db.sql("UPDATE outlive_batches SET succeeded = succeeded + ? WHERE seq = ?").run(
          block["rows"]!,
          block["batch"]!,
        );
      });
    }),
  },
  {
    name: "foldedTwice",
    what: "what rows came to is added to their batch twice",
    focus: QUIET,
    connection: rewriting(["SET succeeded = succeeded + ?,", "SET succeeded = succeeded + 2 * ?,"]),
  },
  {
    name: "endOfAnOpenBatch",
    what: "an open batch whose rows so far have ended is taken for complete",
    focus: only(["money", "batches"], { kill: 1 }, { ...SOME, requestLost: 0.05, slow: 0.2, slowMs: 500 }),
    store: batching((batches, db) => ({
      async fold(limit) {
        const ids = await batches.fold(limit);
        for (const id of ids) {
          const complete = db
            .sql(
              "SELECT round FROM outlive_batches WHERE id = ? AND state = 0 AND rows > 0 AND rows = succeeded + failed + quarantined",
            )
            .get(id);
          if (complete !== undefined) await batches.seal(id, complete["round"] as number);
        }
        return ids;
      },
    })),
  },
  {
    name: "doneWithoutItsId",
    what: "what follows an end has an id of its own each time, so that nothing keeps it from being added twice",
    focus: QUIET,
    asks: asking((batches) => ({
      finish: (end) =>
        batches.finish({ ...end, follow: end.follow.map((draft) => ({ ...draft, id: `${draft.id}-again` })) }),
    })),
  },
  {
    name: "endWithoutItsDone",
    what: "a batch ends, and nothing follows",
    focus: QUIET,
    asks: asking((batches) => ({ finish: (end) => batches.finish({ ...end, follow: [] }) })),
  },
  {
    name: "marksOverwritten",
    what: "the marks of a block are those of its latest write",
    focus: QUIET,
    store: (store, db) =>
      withVerbs(store, {
        async write(writes) {
          const answers = await store.write(writes);
          writes.forEach(({ lease, write }, i) => {
            if (write.type !== "rows" || answers[i]!.is !== "applied") return;
            const ended = new Set([...write.ends.succeeded, ...write.ends.failed.map(({ row }) => row)]);
            const { rows } = db.sql("SELECT rows FROM outlive_blocks WHERE job = ?").get(lease.row) as { rows: number };
            const marks = Array.from({ length: rows }, (_, row) => (ended.has(row) ? "1" : "0")).join("");
            db.sql("UPDATE outlive_blocks SET marks = ? WHERE job = ?").run(marks, lease.row);
          });
          return answers;
        },
      }),
  },
  {
    name: "unmarkedRowsNotCounted",
    what: "a block succeeds, and its rows without a mark are not counted",
    focus: QUIET,
    connection: rewriting([
      "SELECT b.batch, b.round, b.rows, b.marks FROM",
      "SELECT b.batch, b.round, 0 AS rows, b.marks FROM",
    ]),
  },
  {
    name: "rejectedRowsNotCounted",
    what: "rows that don't fit their schema are in the batch and do not count as failed",
    focus: QUIET,
    store: batching((batches, db) => ({
      async append(batch, round, blocks, asNext) {
        const answer = await batches.append(batch, round, blocks, asNext);
        const rejected = blocks.reduce((sum, block) => sum + block.rejected.length, 0);
        if (answer.is === "appended" && answer.blocks === blocks.length && rejected > 0)
          add(db, batch, "failed", -rejected);
        return answer;
      },
    })),
  },
  {
    name: "submissionSkipsABlock",
    what: "a submission that starts again takes one block more for submitted than there is",
    focus: LOSSES,
    asks: asking((batches) => ({
      async open(draft) {
        const { created, batch } = await batches.open(draft);
        return { created, batch: created ? batch : { ...batch, blocks: batch.blocks + 1 } };
      },
    })),
  },
  {
    name: "submissionStartsAtTheEnd",
    what: "a submission that starts again numbers its blocks from those that are there: its rows come twice",
    focus: LOSSES,
    asks: asking((batches) => ({
      async append(batch, round, blocks) {
        const [found] = await batches.get([batch]);
        const from = found?.blocks ?? 0;
        return batches.append(
          batch,
          round,
          blocks.map((block, i) => ({
            ...block,
            number: from + i,
            job: block.job && { ...block.job, id: `${batch}:${round}:${from + i}` },
          })),
        );
      },
      async open(draft) {
        const { created, batch } = await batches.open(draft);
        return { created, batch: { ...batch, blocks: 0 } };
      },
    })),
  },
  {
    name: "begunRowNotCleared",
    what: "the first row that was ever begun in a block stays the one that is blamed",
    focus: QUIET,
    connection: rewriting(["SET begun = ?, begun_fence = ?", "SET begun = ifnull(begun, ?), begun_fence = ?"]),
  },
  {
    name: "neighbourConvicted",
    what: "a row is begun, and the one before it is written down",
    focus: QUIET,
    asks: (store) =>
      withVerbs(store, {
        write: (writes) =>
          store.write(
            writes.map(({ lease, write }) => ({
              lease,
              write: write.type === "rowBegins" ? { ...write, row: Math.max(0, write.row - 1) } : write,
            })),
          ),
      }),
  },
  {
    name: "marksNotClaimed",
    what: "the next attempt of a block is not shown which of its rows have ended",
    focus: KILLS,
    store: afterTurns((answer) => ({ ...answer, claimed: answer.claimed.map(withoutMarks) })),
  },
  {
    name: "abortForgetsTheRest",
    what: "an abort cancels one block and takes that for all of them",
    focus: QUIET,
    store: batching((batches, db) => ({
      async tend() {
        await batches.tend(1);
        db.sql("UPDATE outlive_batches SET tending = 0").run();
        return false;
      },
    })),
  },
  {
    name: "outputsInTheOrderOfTheirEnds",
    what: "an output file has its blocks in another order than their lines",
    focus: QUIET,
    asks: asking((batches) => ({
      async outputs(...args) {
        const page = await batches.outputs(...args);
        return { ...page, blocks: page.blocks.toReversed() };
      },
    })),
  },
  {
    name: "outputsWithoutTheRows",
    what: "what rows wrote is kept only if they end on their own, not with their block",
    focus: QUIET,
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(
            worker,
            settlements.map(({ lease, change }) =>
              change.rows ? { lease, change: { ...change, rows: { ...change.rows, outputs: [] } } } : { lease, change },
            ),
            room,
          ),
      }),
  },
  {
    name: "outputsOfEarlierRoundsDeleted",
    what: "the files of a round are deleted when the next one has its own, and a done was given their names",
    focus: QUIET,
    blobs: (blobs) => ({
      ...blobs,
      async put(key, data) {
        const content = await blobs.put(key, data);
        await blobs.delete([key.replace(/\/(\d+)\//, (_, round: string) => `/${Number(round) - 1}/`)]);
        return content;
      },
    }),
  },
  {
    name: "abortedRoundWithoutItsRest",
    what: "a later round that is aborted before it has all of its rows ends with those that it has",
    focus: QUIET,
    asks: asking((batches) => ({
      async abort(id, entry) {
        const [batch] = await batches.get([id]);
        const state = await batches.abort(id, entry);
        if (batch && batch.round > 1 && batch.sealedAt === null) await batches.seal(id, batch.round);
        return state;
      },
    })),
  },
  {
    name: "failedRowsOfTheRoundBeforeLost",
    what: "a retry runs the failed rows of each block but the first one",
    focus: QUIET,
    asks: asking((batches) => ({
      async failures(...args) {
        const blocks = await batches.failures(...args);
        return blocks.map(({ rows, whole, ...block }) => ({
          ...block,
          rows: rows.slice(1),
          whole: whole && decodeBlock(whole.input).rows.length > 1 ? whole : null,
        }));
      },
    })),
  },
];
