// Bugs on purpose in collections. The laws must find each of them, or they prove nothing.
import type { PartBlobs } from "../../../src/collections/blob-names.ts";
import type { CollectionRow } from "../../../src/job/collections.ts";
import type { Clock } from "../../../src/job/time.ts";
import type { Broker } from "../../../src/stores/broker.ts";
import type { Collections } from "../../../src/stores/collections.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";

export interface CollectionMutant {
  readonly name: string;
  /** What is wrong with it. */
  readonly what: string;
  /** Instead of the real store. */
  readonly store?: (store: Store, db: Database) => Store;
  /** Instead of what one process asks of it. */
  readonly process?: (collections: Collections) => Collections;
  /** Instead of what one process stores blobs with. */
  readonly blobs?: (blobs: PartBlobs, clock: Clock) => PartBlobs;
  /** Instead of what one process publishes with. */
  readonly broker?: (broker: Broker, clock: Clock) => Broker;
  /** Instead of what a job is given. */
  readonly run?: (run: SimulatedRun) => SimulatedRun;
}

/** As much of a run as the jobs of a collection use. */
export interface SimulatedRun {
  readonly id: string;
  readonly signal: AbortSignal;
  heartbeat(): Promise<void>;
  wait(ids: readonly string[]): Promise<void>;
}

function verbs(change: (real: Collections, db: Database) => Partial<Collections>): Pick<CollectionMutant, "store"> {
  return { store: (store, db) => withVerbs(store, { collections: change(store.collections!, db) }) };
}

const inRow =
  "collection = (SELECT seq FROM outlive_collections WHERE id = ?) AND series = (SELECT place FROM outlive_series s WHERE s.collection = outlive_parts.collection AND s.name = ?) AND ordinal = ?";

export const COLLECTION_MUTANTS: readonly CollectionMutant[] = [
  {
    name: "partForgotten",
    what: "of the parts of a turn the last one is answered as accepted, and not kept",
    ...verbs((real) => ({
      async put(parts) {
        const kept = parts.length > 2 ? parts.slice(0, -1) : parts;
        const answers = await real.put(kept);
        return parts.map((_, i) => answers[i] ?? "accepted");
      },
    })),
  },
  {
    name: "rowBeforeBlob",
    what: "a put of a blob resolves when it has begun: the row is there before the bytes",
    blobs: (blobs, clock) => ({
      ...blobs,
      async put(key, data, expected) {
        clock.after(1_500, () => void blobs.put(key, data, expected).catch(() => {}));
        return { size: data.length, sha256: "" };
      },
    }),
  },
  {
    name: "laterBytesWin",
    what: "a second message for an ordinal replaces the part that is there",
    ...verbs((real, db) => ({
      known: async (places) => (await real.known(places)).map((one) => one && { ...one, sha256: null }),
      async put(parts) {
        const answers = await real.put(parts);
        for (const [i, { collection, series, ordinal, sha256, blob }] of parts.entries())
          if (answers[i] === "conflict")
            db.sql(`UPDATE outlive_parts SET sha256 = ?, blob = ? WHERE ${inRow}`).run(
              sha256,
              blob,
              collection,
              series,
              ordinal,
            );
        return answers;
      },
    })),
  },
  {
    name: "duplicatesCounted",
    what: "a part that comes again counts again",
    ...verbs((real, db) => ({
      known: async (places) => (await real.known(places)).map((one) => one && { ...one, sha256: null }),
      async put(parts) {
        const answers = await real.put(parts);
        for (const [i, { collection, series }] of parts.entries())
          if (answers[i] === "duplicate")
            db.sql(
              "UPDATE outlive_series SET have = have + 1 WHERE collection = (SELECT seq FROM outlive_collections WHERE id = ?) AND name = ?",
            ).run(collection, series);
        return answers;
      },
    })),
  },
  {
    name: "endsUnannounced",
    what: "a series without an announcement is taken for one that has all of its parts",
    ...verbs((real, db) => ({
      get: async (ids) =>
        (await real.get(ids)).map((row): CollectionRow => ({
          ...row,
          series: row.series.map((one) => ({ ...one, expected: one.expected ?? one.have })),
        })),
      async step(step) {
        if (step.to === "complete")
          db.sql(
            "UPDATE outlive_series SET expected = have WHERE expected IS NULL AND collection = (SELECT seq FROM outlive_collections WHERE id = ?)",
          ).run(step.collection);
        return real.step(step);
      },
    })),
  },
  {
    name: "onlyThePutterLooks",
    what: "whether a collection is complete is looked for by the process that kept its last part, and by no other",
    ...verbs((real) => ({ due: async (limit) => ({ ...(await real.due(limit)), ids: [] }) })),
  },
  {
    name: "decidedBefore",
    what: "a collection is abandoned by what was read of it first, whatever has come since",
    ...verbs((real) => {
      const first = new Map<string, number>();
      return {
        async get(ids) {
          return (await real.get(ids)).map((row) => {
            if (!first.has(row.id)) first.set(row.id, row.activeAt);
            return row.state === "collecting" ? { ...row, activeAt: first.get(row.id)! } : row;
          });
        },
        async due(limit) {
          const { now } = await real.due(limit);
          const open = await real.list({ state: "collecting" }, limit, null);
          return { now, ids: open.map(({ id }) => id) };
        },
        step: ({ collection, from, to, why, follow }) => real.step({ collection, from, to, why, follow }),
      };
    }),
  },
  {
    name: "stepsFromAnywhere",
    what: "a change of state does not ask in which state the collection is",
    ...verbs((real) => ({
      step: (step) =>
        real.step({
          ...step,
          from: ["requested", "collecting", "complete", "notified", "abandoned", "cancelled"],
        }),
    })),
    process: (collections) => ({
      ...collections,
      // What it reads is late.
      get: async (ids) => {
        const rows = await collections.get(ids);
        return rows.map((row) => (row.state === "notified" ? { ...row, state: "complete" as const } : row));
      },
    }),
  },
  {
    name: "headerReplaced",
    what: "an announcement that contradicts the first one takes its place",
    ...verbs((real, db) => ({
      async announce(id, expected) {
        const answer = await real.announce(id, expected);
        if (answer.is !== "contradicts") return answer;
        for (const [name, count] of Object.entries(expected))
          db.sql(
            "UPDATE outlive_series SET expected = ? WHERE name = ? AND collection = (SELECT seq FROM outlive_collections WHERE id = ?)",
          ).run(count, name, id);
        return { is: "announced" };
      },
    })),
  },
  {
    name: "headerDropped",
    what: "an announcement before the first part is acknowledged and not kept",
    ...verbs((real) => ({
      async announce(id, expected) {
        const [row] = await real.get([id]);
        const isEmpty = row?.series.every(({ have }) => have === 0) ?? false;
        return isEmpty ? { is: "announced" } : real.announce(id, expected);
      },
    })),
  },
  {
    name: "notifiedUnderNewIds",
    what: "each attempt of the notification makes an id of its own",
    broker: (broker, clock) => ({
      ...broker,
      publish: (message) => broker.publish({ ...message, messageId: `${message.messageId}-${clock.mono()}` }),
    }),
  },
  {
    name: "notifiedUnconfirmed",
    what: "a notification is taken for sent before the broker has it",
    broker: (broker) => ({
      ...broker,
      publish: async (message) =>
        message.messageId.length % 2 === 0 ? broker.publish(message) : new Promise<void>((resolve) => resolve()),
    }),
  },
  {
    name: "followsUnderNewIds",
    what: "the jobs that follow have ids of their own, made by the process that found the end",
    ...verbs((real) => {
      let ids = 0;
      return {
        step: (step) =>
          real.step({ ...step, follow: step.follow.map((one) => ({ ...one, id: `${one.id}-${ids++}` })) }),
      };
    }),
  },
  {
    name: "cleansUpAtOnce",
    what: "the clean-up is due when the collection has ended, and goes before the notification has its parts",
    ...verbs((real) => ({
      step: (step) =>
        real.step({
          ...step,
          follow:
            step.to === "complete"
              ? [
                  ...step.follow,
                  {
                    ...step.follow[0]!,
                    id: `${step.collection}:clean-up`,
                    kind: `${step.follow[0]!.kind}:clean-up`,
                  },
                ]
              : step.follow,
        }),
    })),
  },
  {
    name: "cleansUpBeforeDone",
    what: "the clean-up does not wait for what follows the end, which then finds no parts",
    run: (run) => ({ ...run, wait: async () => {} }),
  },
  {
    name: "cleanUpForgotten",
    what: "what has ended is never cleaned up",
    ...verbs((real) => ({
      step: (step) => real.step({ ...step, follow: step.follow.filter(({ kind }) => !kind.endsWith(":clean-up")) }),
    })),
  },
  {
    name: "missingMiscounted",
    what: "the report of an abandoned collection leaves out its last range",
    ...verbs((real) => ({
      async missing(id, series, limit) {
        const found = await real.missing(id, series, limit);
        return { ...found, ranges: found.ranges.slice(0, -1) };
      },
    })),
  },
];
