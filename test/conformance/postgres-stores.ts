// PostgreSQL as the conformance suite wants it: connections to a schema as it was after its migration, a clock that the suite steers in
// place of the server's, and the user's own writes in its form of a transaction.
import assert from "node:assert/strict";
import { after, type TestContext } from "node:test";
import { job } from "../../src/engine/options.ts";
import { idSource } from "../../src/job/enqueue.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { postgresStore, type PostgresStoreDeps } from "../../src/stores/postgres/store.ts";
import type { PostgresTransaction } from "../../src/stores/postgres/transaction.ts";
import type { ConformanceStores, Damage, Restore, UserWrites } from "../../src/testing/conformance/suite.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { type FreshSchema, freshDatabase, withClient } from "../support/postgres.ts";

const START = Date.UTC(2026, 0, 1);

/** A file of cases has one database. Cases of one file run one after the other, and a migration for each would take most of their time. */
let place: Promise<Place> | undefined;
const afterAll: (() => Promise<unknown>)[] = [];
after(async () => {
  for (const then of afterAll) await then();
});

export async function postgresStores(_t: TestContext, more: More = {}): Promise<ConformanceStores> {
  const fresh = await (place ??= Place.create());
  await fresh.reset();
  const clock = steeredClock(fresh);
  return {
    open: () => openStore(fresh, more),
    clock,
    user: userWrites(fresh.schema),
    restore: restoreIn(fresh),
    polls: true,
    reclaim: async () => void (await fresh.query(`SELECT "${fresh.schema}".tick()`)),
    damage: damageIn(fresh),
    cleanup: async () => {},
  };
}

/** A schema in a database of its own, that can be reset to what its migration left. */
class Place implements FreshSchema {
  readonly url: string;
  readonly schema = "conformance";
  readonly #reset: string;

  private constructor(url: string, reset: string) {
    this.url = url;
    this.#reset = reset;
  }

  static async create(): Promise<Place> {
    const url = await freshDatabase({ after: (then) => void afterAll.push(then) });
    const reset = await withClient(url, async (client) => {
      await migrate(client, "conformance");
      await client.query(`CREATE TABLE conformance.steered AS SELECT ${START}::bigint AS now`);
      await client.query("CREATE TABLE conformance.notes (ord bigserial, text text NOT NULL)");
      await client.query(
        "CREATE OR REPLACE FUNCTION conformance.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT now FROM conformance.steered $$",
      );
      await client.query("CREATE SCHEMA seed");
      const { rows } = await client.query<{ name: string; is: string }>(
        "SELECT relname AS name, relkind AS is FROM pg_class WHERE relnamespace = 'conformance'::regnamespace AND relkind IN ('r', 'S')",
      );
      const statements: string[] = ["SET session_replication_role = replica"];
      for (const { name, is } of rows)
        if (is === "S") statements.push(`ALTER SEQUENCE conformance."${name}" RESTART`);
        else {
          await client.query(`CREATE TABLE seed."${name}" AS SELECT * FROM conformance."${name}"`);
          statements.push(
            `DELETE FROM conformance."${name}"`,
            `INSERT INTO conformance."${name}" OVERRIDING SYSTEM VALUE SELECT * FROM seed."${name}"`,
          );
        }
      // The row of the epoch says which transaction wrote it (restore-mark.ts).
      statements.push(
        "UPDATE conformance.meta SET written_by = pg_current_xact_id()::xid WHERE written_by IS NOT NULL",
      );
      return statements.join(";\n");
    });
    return new Place(url, reset);
  }

  readonly query: FreshSchema["query"] = (text, values) =>
    withClient(this.url, async (client) => (await client.query(text, values)).rows);

  /** Waits for the last session of the case before: what it wrote after this would be found by the next one. */
  async reset(): Promise<void> {
    await withClient(this.url, async (client) => {
      const others = async (): Promise<number> =>
        (
          await client.query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
          )
        ).rows.length;
      const began = performance.now();
      while ((await others()) > 0)
        assert.ok(performance.now() - began < 20_000, "the case before this one left a session open");
      await client.query(this.#reset);
    });
  }
}

type More = Partial<Pick<PostgresStoreDeps, "turnInTwoFrom" | "halvesFrom" | "clock">>;

export async function openStore(
  { url, schema }: Pick<FreshSchema, "url" | "schema">,
  more: More = {},
): Promise<Store<PostgresTransaction>> {
  const connection = await Connection.open({ url, schema });
  return postgresStore({ connection, clock: systemClock, newId: idSource(systemClock, systemRandom), ...more });
}

/** The one function that all SQL takes its time from is under the suite's hand. */
function steeredClock({ query, schema }: FreshSchema): ConformanceStores["clock"] {
  let now = START;
  return {
    now: () => now,
    async advance(ms) {
      now += ms;
      await query(`UPDATE "${schema}".steered SET now = $1`, [now]);
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
