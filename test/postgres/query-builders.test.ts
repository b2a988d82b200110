// The documented lines for plain pg, Drizzle and Kysely: in `commit`, where your rows are there if the job succeeded, and in your own
// transaction, where the job is there if your rows are.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { drizzle } from "drizzle-orm/node-postgres";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import {
  CompiledQuery,
  DummyDriver,
  type Generated,
  Kysely,
  PostgresAdapter,
  PostgresDialect,
  PostgresIntrospector,
  PostgresQueryCompiler,
} from "kysely";
import pg from "pg";
import { type Engine, job, open } from "../../src/index.ts";
import { enqueue, postgres, type PostgresClient } from "../../src/postgres.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";

const run = promisify(execFile);

interface Tables {
  payments: { id: Generated<number>; job: string; cents: number };
}
const payments = pgTable("payments", {
  id: integer("id").generatedAlwaysAsIdentity(),
  job: text("job").notNull(),
  cents: integer("cents").notNull(),
});

async function database(t: TestContext): Promise<{ url: string; pool: pg.Pool; sum: () => Promise<number> }> {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive");
    await client.query(
      "CREATE TABLE payments (id integer GENERATED ALWAYS AS IDENTITY, job text NOT NULL, cents integer NOT NULL)",
    );
  });
  const pool = new pg.Pool({ connectionString: url, max: 3 });
  // The database is dropped with everybody still on it.
  pool.on("error", () => {});
  t.after(() => pool.end());
  const sum = async (): Promise<number> =>
    (await pool.query("SELECT coalesce(sum(cents), 0)::int AS n FROM payments")).rows[0].n as number;
  return { url, pool, sum };
}

/** Writes queries and runs none: it has no connection. */
const compiler = new Kysely<Tables>({
  dialect: {
    createAdapter: () => new PostgresAdapter(),
    createDriver: () => new DummyDriver(),
    createIntrospector: (db) => new PostgresIntrospector(db),
    createQueryCompiler: () => new PostgresQueryCompiler(),
  },
});

const pay = job<{ cents: number; with: "drizzle" | "kysely" | "pg"; fail?: boolean }>("pay", { retry: { errors: 1 } });
pay.handle(async ({ cents, with: by, fail }, run_) => {
  await run_.commit(postgres, async (tx) => {
    if (by === "drizzle") {
      const db = drizzle(tx.client as pg.PoolClient);
      await db.insert(payments).values({ job: run_.id, cents });
    } else if (by === "kysely") {
      const insert = compiler.insertInto("payments").values({ job: run_.id, cents }).compile();
      await tx.query(insert.sql, insert.parameters);
    } else await tx.query("INSERT INTO payments (job, cents) VALUES ($1, $2)", [run_.id, cents]);
    if (fail) throw new Error("no");
  });
});

async function working(t: TestContext, url: string): Promise<Engine> {
  const engine = await open(url, { jobs: [pay], logger: false, poll: "50ms" });
  t.after(() => engine.close({ grace: "0ms" }));
  await engine.start();
  return engine;
}

for (const by of ["pg", "drizzle", "kysely"] as const) {
  test(`in commit with ${by}: the row is there if and only if the job succeeded`, async (t) => {
    const { url, sum } = await database(t);
    const engine = await working(t, url);
    const { id } = await engine.enqueue(pay, { cents: 5, with: by });
    await untilState(engine, id, "succeeded");
    assert.equal(await sum(), 5);
    const { id: failing } = await engine.enqueue(pay, { cents: 7, with: by, fail: true });
    await untilState(engine, failing, "dead");
    assert.equal(await sum(), 5);
  });
}

test("in your own transaction with plain pg: the job is there if and only if you commit", async (t) => {
  const { url, pool } = await database(t);
  const engine = await working(t, url);
  const ids: string[] = [];
  for (const end of ["COMMIT", "ROLLBACK"]) {
    const client = await pool.connect();
    await client.query("BEGIN");
    ids.push((await enqueue(client, pay, { cents: 1, with: "pg" })).id);
    await client.query(end);
    client.release();
  }
  await untilState(engine, ids[0]!, "succeeded");
  assert.equal(await engine.get(ids[1]!), null);
});

test("in your own transaction with Drizzle: the job is there if and only if you commit", async (t) => {
  const { url, pool } = await database(t);
  const engine = await working(t, url);
  const ids: string[] = [];
  const book = async (fail: boolean): Promise<void> => {
    const client = await pool.connect();
    try {
      await drizzle(client).transaction(async (tx) => {
        await tx.insert(payments).values({ job: "mine", cents: 3 });
        // Drizzle's transaction is on the client that it was given.
        ids.push((await enqueue(client, pay, { cents: 1, with: "drizzle" })).id);
        if (fail) tx.rollback();
      });
    } finally {
      client.release();
    }
  };
  await book(false);
  await assert.rejects(book(true));
  await untilState(engine, ids[0]!, "succeeded");
  assert.equal(await engine.get(ids[1]!), null);
});

test("in your own transaction with Kysely: the job is there if and only if you commit", async (t) => {
  const { url, pool } = await database(t);
  const engine = await working(t, url);
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) });
  const ids: string[] = [];
  const book = (fail: boolean): Promise<void> =>
    db.transaction().execute(async (trx) => {
      await trx.insertInto("payments").values({ job: "mine", cents: 3 }).execute();
      const client = {
        query: async (sql: string | { text: string; values?: unknown[] }, values: unknown[] = []) => {
          const query =
            typeof sql === "string" ? CompiledQuery.raw(sql, values) : CompiledQuery.raw(sql.text, sql.values ?? []);
          const { rows } = await trx.executeQuery(query);
          return { rows, rowCount: rows.length };
        },
      };
      ids.push((await enqueue(client as PostgresClient, pay, { cents: 1, with: "kysely" })).id);
      if (fail) throw new Error("no");
    });
  await book(false);
  await assert.rejects(book(true));
  await untilState(engine, ids[0]!, "succeeded");
  assert.equal(await engine.get(ids[1]!), null);
});

test("examples/postgres-commit.ts pays each order once, also when it is started twice", async (t) => {
  const { url } = await database(t);
  const file = fileURLToPath(new URL("../../examples/postgres-commit.ts", import.meta.url));
  await withClient(url, (client) => client.query("DROP TABLE payments"));
  for (let time = 0; time < 2; time++) {
    const { stdout } = await run(process.execPath, ["--disable-warning=ExperimentalWarning", file], {
      env: { ...process.env, DATABASE_URL: url },
    });
    assert.equal(stdout, "15 orders, 15 paid, 15 payments\n");
  }
});
