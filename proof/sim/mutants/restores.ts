// An older copy of the store is restored while processes live, and those do not notice it, or their writes are accepted.
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import type { StatementSync } from "../../../src/stores/sqlite/database.ts";
import { observed, withVerbs } from "../../../src/stores/observed.ts";
import { rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

/** Restores, and now and then all workers die: a process that opens the store alone raises the epoch. */
const RESTORE = only(
  ["money", "steps"],
  { restore: 2, kill: 1, killAll: 1, pause: 1 },
  { workers: 3, sessions: false, locksProve: true, durability: "full", stall: 0.02, slow: 0, requestLost: 0 },
);
/** Every open raises the epoch, so a copy from before that has the rows of workers that live, and can be written over the file. */
const WRITTEN_OVER = { ...RESTORE, locksProve: false, processesProve: false, workers: 4 };
/** The row of a worker that writes: by its whole id, and not from before a restore. */
const OWN_ROW = /^SELECT seq, state, beats FROM outlive_workers WHERE id = \?/;

function asDown(thrown: unknown): never {
  throw whyStoreReplaced(thrown) === null ? thrown : new Error("the store is down");
}

export const restoreMutants: readonly Mutant[] = [
  {
    name: "restoreNotNoticed",
    what: "a worker whose file was moved away goes on with it",
    focus: RESTORE,
    connection: (db) =>
      new Proxy(db, {
        get(target, name) {
          if (name === "whyReplaced" || name === "whyLogReplaced") return () => null;
          const member: unknown = Reflect.get(target, name, target);
          return typeof member === "function" ? (member.bind(target) as unknown) : member;
        },
      }),
  },
  {
    name: "replacedTakenForDown",
    what: "a worker whose store was replaced takes that for a store that is down, and tries again until it is back",
    focus: RESTORE,
    asks: (store) => observed(store, { around: (_verb, _args, call) => call().catch(asDown) }),
  },
  {
    name: "restoreNotNotedAtOpen",
    what: "who opens a restored store takes it for the one that was there, with the workers that its rows call alive",
    focus: RESTORE,
    store: (store) => withVerbs(store, { upkeep: { noticeRestore: async () => null } }),
  },
  {
    name: "epochNotAboveTheMark",
    what: "after a restore the epoch rises above those of the backup, and not above all that were issued",
    focus: { ...RESTORE, nemesis: { ...RESTORE.nemesis!, hostClockJump: 2 } },
    mark: (mark) => ({
      ...mark,
      read() {
        const found = mark.read();
        return found && { ...found, epoch: 0 };
      },
    }),
  },
  {
    name: "restoredWorkersWrite",
    what: "a worker whose row came back with a backup claims and settles as before",
    focus: WRITTEN_OVER,
    connection: rewriting([
      "AND seq > ifnull((SELECT value FROM outlive_meta WHERE key = 'restored_workers'), 0)",
      "AND ifnull((SELECT 1 FROM outlive_meta WHERE key = 'restored_workers'), 1)",
    ]),
  },
  {
    name: "workerKnownByNumber",
    what: "a worker is known by the number of its row, which another worker has after a restore",
    focus: WRITTEN_OVER,
    connection: (db) => {
      const numbers = new Map<string, number>();
      return new Proxy(db, {
        get(target, name) {
          const member: unknown = Reflect.get(target, name, target);
          if (typeof member !== "function") return member;
          if (name !== "sql") return member.bind(target) as unknown;
          return (text: string) => {
            if (!OWN_ROW.test(text)) return target.sql(text);
            return {
              get(id: string) {
                const number = numbers.get(id) ?? (target.sql(text).get(id)?.["seq"] as number | undefined);
                if (number === undefined) return undefined;
                numbers.set(id, number);
                const byNumber = text.replace("id = ?", "seq = ?").replace("state, beats", "state, 1e9 AS beats");
                return target.sql(byNumber).get(number);
              },
            } as unknown as StatementSync;
          };
        },
      });
    },
  },
];
