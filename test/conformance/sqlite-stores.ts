// SQLite as the conformance suite wants it: connections by path, and the user's own writes in its form of a transaction.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { job } from "../../src/engine/options.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import type { Clock } from "../../src/job/time.ts";
import { systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import type { SqliteTransaction } from "../../src/stores/sqlite/transaction.ts";
import { readMark, writeMark } from "../../src/stores/sqlite/workers.ts";
import type { Damage, Restore, UserWrites } from "../../src/testing/conformance/suite.ts";

export async function openStore(clock: Clock, path: string): Promise<Store> {
  const deps = { clock, random: systemRandom, events: new EventBus(toStoredError), bootId: "boot-1" };
  return (await openSqlite(deps, { path })).store;
}

const TEXTS = {
  input: "UPDATE outlive_jobs SET input = replace(input, substr(input, 1, 1), '?') WHERE id = ?",
  result: "UPDATE outlive_jobs SET result = replace(result, substr(result, 1, 1), '?') WHERE id = ?",
  step: "UPDATE outlive_steps SET result = replace(result, substr(result, 1, 1), '?') WHERE job = (SELECT seq FROM outlive_jobs WHERE id = ?)",
} as const;

/** By a connection of its own that knows nothing of checksums. */
export function damageIn(path: string): Damage {
  return async (id, what) => {
    const db = new DatabaseSync(path, { timeout: 10_000 });
    try {
      assert.equal(db.prepare(TEXTS[what]).run(id).changes, 1, `job ${id} has one ${what}`);
    } finally {
      db.close();
    }
  };
}

/** A restored copy is in another file than the one that was opened here before. */
export function restoreIn(path: string): Restore {
  return {
    async renameWorker(id, to) {
      const db = new DatabaseSync(path, { timeout: 10_000 });
      try {
        assert.equal(db.prepare("UPDATE outlive_workers SET id = ? WHERE id = ?").run(to, id).changes, 1);
      } finally {
        db.close();
      }
    },
    async comeBack() {
      const epoch = readMark(path)?.epoch ?? 0;
      writeMark(path, { boot: "boot-1", inode: "that of the old file", epoch });
    },
  };
}

const NOTES = "CREATE TABLE IF NOT EXISTS notes (text TEXT NOT NULL)";

export const sqliteUser: UserWrites = {
  writing: (text, then) => (tx: SqliteTransaction) => {
    tx.exec(NOTES);
    tx.run("INSERT INTO notes VALUES (?)", text);
    return then();
  },
  enqueueing: (kind, id, then) => (tx: SqliteTransaction) => {
    tx.enqueue(job(kind), {}, { id });
    return then();
  },
  signalling: (id, signal, then) => (tx: SqliteTransaction) => {
    tx.signal(id, "go", { n: 1 }, { id: signal });
    return then();
  },
  async written(store) {
    const { value } = await store.transactions!.transact((handle) => {
      const tx = handle as SqliteTransaction;
      tx.exec(NOTES);
      return tx.all<{ text: string }>("SELECT text FROM notes ORDER BY rowid").map(({ text }) => text);
    });
    return value;
  },
};
