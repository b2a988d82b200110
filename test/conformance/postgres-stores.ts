// PostgreSQL as the conformance suite wants it: connections to one fresh schema, a clock that the suite steers in place of the
// server's, and the user's own writes in its form of a transaction.
import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { job } from "../../src/engine/options.ts";
import { idSource } from "../../src/job/enqueue.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { postgresStore, type PostgresStoreDeps } from "../../src/stores/postgres/store.ts";
import type { PostgresTransaction } from "../../src/stores/postgres/transaction.ts";
import type { ConformanceStores, Damage, Restore, UserWrites } from "../../src/testing/index.ts";
import { type FreshSchema, freshSchema } from "../support/postgres.ts";

const START = Date.UTC(2026, 0, 1);

export async function postgresStores(t: TestContext, more: More = {}): Promise<ConformanceStores> {
  const fresh = await freshSchema(t);
  const clock = await steeredClock(fresh);
  await fresh.query(`CREATE TABLE "${fresh.schema}".notes (ord bigserial, text text NOT NULL)`);
  return {
    open: () => openStore(fresh, more),
    clock,
    user: userWrites(fresh.schema),
    restore: restoreIn(fresh),
    reclaim: async () => void (await fresh.query(`SELECT "${fresh.schema}".tick()`)),
    damage: damageIn(fresh),
    cleanup: async () => {},
  };
}

type More = Pick<PostgresStoreDeps, "turnInTwoFrom">;

export async function openStore(
  { url, schema }: Pick<FreshSchema, "url" | "schema">,
  more: More = {},
): Promise<Store<PostgresTransaction>> {
  const connection = await Connection.open({ url, schema });
  return postgresStore({ connection, clock: systemClock, newId: idSource(systemClock, systemRandom), ...more });
}

/** Puts the one function that all SQL takes its time from under the suite's hand. */
async function steeredClock(fresh: FreshSchema): Promise<ConformanceStores["clock"]> {
  const { schema } = fresh;
  let now = START;
  await fresh.query(`CREATE TABLE "${schema}".steered AS SELECT ${now}::bigint AS now`);
  await fresh.query(
    `CREATE OR REPLACE FUNCTION "${schema}".now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT now FROM "${schema}".steered $$`,
  );
  return {
    now: () => now,
    async advance(ms) {
      now += ms;
      await fresh.query(`UPDATE "${schema}".steered SET now = $1`, [now]);
    },
  };
}

/** A restored row differs from the one before in the transaction that wrote it. */
function restoreIn({ schema, query }: FreshSchema): Restore {
  return {
    renameWorker: async (id, to) => void (await query(`UPDATE "${schema}".fleet SET id = $2 WHERE id = $1`, [id, to])),
    comeBack: async () => void (await query(`UPDATE "${schema}".meta SET value = value WHERE key = 'epoch'`)),
  };
}

/** By a session of its own that knows nothing of checksums. */
function damageIn({ schema, query }: FreshSchema): Damage {
  const job = (name: string): string =>
    `UPDATE "${schema}".jobs SET ${name} = replace(${name}, left(${name}, 1), '?') WHERE id = $1 RETURNING 1`;
  const texts = {
    input: job("input"),
    result: job("result"),
    step: `UPDATE "${schema}".steps SET result = replace(result, left(result, 1), '?') WHERE job = (SELECT seq FROM "${schema}".jobs WHERE id = $1) RETURNING 1`,
  } as const;
  return async (id, what) => assert.equal((await query(texts[what], [id])).length, 1, `job ${id} has one ${what}`);
}

function userWrites(schema: string): UserWrites {
  const notes = `"${schema}".notes`;
  return {
    writing: (text, then) => async (tx: PostgresTransaction) => {
      await tx.query(`INSERT INTO ${notes} (text) VALUES ($1)`, [text]);
      return then();
    },
    waiting: (text, gate) => async (tx: PostgresTransaction) => {
      await tx.query(`INSERT INTO ${notes} (text) VALUES ($1)`, [text]);
      await gate;
    },
    enqueueing: (kind, id, then) => async (tx: PostgresTransaction) => {
      await tx.enqueue(job(kind), {}, { id });
      return then();
    },
    signalling: (id, signal, then) => async (tx: PostgresTransaction) => {
      await tx.signal(id, "go", { n: 1 }, { id: signal });
      return then();
    },
    async written(store) {
      const { value } = await store.transactions!.transact(async (handle) => {
        const tx = handle as PostgresTransaction;
        return (await tx.query<{ text: string }>(`SELECT text FROM ${notes} ORDER BY ord`)).map(({ text }) => text);
      });
      return value;
    },
  };
}
