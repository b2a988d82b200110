// The lines that docs/postgres.md shows for plain pg, Drizzle and Kysely: in `commit`, where your rows are there if the job succeeded,
// and in your own transaction, where the job is there if your rows are. A test holds that they are the same lines.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { drizzle } from "drizzle-orm/node-postgres";
import { integer, pgTable, text } from "drizzle-orm/pg-core";
import { type Generated, Kysely, PostgresDialect, type PostgresPoolClient } from "kysely";
import pg from "pg";
import { type Engine, job, open } from "../../src/index.ts";
import { enqueue, postgres, type PostgresClient } from "../../src/postgres.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";

const execute = promisify(execFile);

interface Tables {
  orders: { id: string };
  payments: { id: Generated<number>; job: string; cents: number };
}
const orders = pgTable("orders", { id: text("id").primaryKey() });
const payments = pgTable("payments", {
  id: integer("id").generatedAlwaysAsIdentity(),
  job: text("job").notNull(),
  cents: integer("cents").notNull(),
});

/** From here on the COMMIT itself refuses a payment, after everything in the transaction went well. */
const TOO_MUCH = 1_000;

const TABLES = `CREATE TABLE orders (id text PRIMARY KEY);
  CREATE TABLE payments (id integer GENERATED ALWAYS AS IDENTITY, job text NOT NULL, cents integer NOT NULL);
  CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'too much'; END $$;
  CREATE CONSTRAINT TRIGGER limited AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.cents >= ${TOO_MUCH}) EXECUTE FUNCTION refuse()`;

interface Place {
  readonly url: string;
  readonly pool: pg.Pool;
  /** An engine that works there. */
  readonly working: () => Promise<Engine>;
}

async function database(t: TestContext): Promise<Place> {
  // Hooks run in the order in which they came: everybody is gone before the database is.
  const engines: Engine[] = [];
  const pools: pg.Pool[] = [];
  t.after(async () => {
    for (const engine of engines) await engine.close({ grace: "0ms" });
    for (const pool of pools) await pool.end();
  });
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive");
    await client.query(TABLES);
  });
  const pool = new pg.Pool({ connectionString: url, max: 3 });
  pools.push(pool);
  // `end` resolves while its last sessions still say goodbye: they may see the end of their database.
  pool.on("error", () => {});
  const working = async (): Promise<Engine> => {
    const engine = await open(url, { jobs: [pay], logger: false, poll: "50ms" });
    engines.push(engine);
    await engine.start();
    return engine;
  };
  return { url, pool, working };
}

// Kysely on a client that is lent to it: it neither opens nor ends it.
function kyselyOn<Tables>(client: PostgresClient): Kysely<Tables> {
  const lent = { query: client.query.bind(client), release() {} } as PostgresPoolClient;
  return new Kysely<Tables>({
    dialect: new PostgresDialect({ pool: { connect: async () => lent, end: async () => {} } }),
  });
}

const pay = job<{ cents: number; with: "pg" | "drizzle" | "kysely" }>("pay", { retry: { attempts: 1 } });
pay.handle(async ({ cents, with: by }, run) => {
  switch (by) {
    case "pg":
      await run.commit(postgres, async (tx) => {
        await tx.query("INSERT INTO payments (job, cents) VALUES ($1, $2)", [run.id, cents]);
      });
      break;
    case "drizzle":
      await run.commit(postgres, async (tx) => {
        const db = drizzle(tx.client as pg.PoolClient);
        await db.insert(payments).values({ job: run.id, cents });
      });
      break;
    case "kysely":
      await run.commit(postgres, async (tx) => {
        const db = kyselyOn<Tables>(tx.client);
        await db.insertInto("payments").values({ job: run.id, cents }).execute();
      });
  }
});

for (const by of ["pg", "drizzle", "kysely"] as const) {
  test(`in commit with ${by}: the row is there if and only if the job succeeded`, async (t) => {
    const { pool, working } = await database(t);
    const engine = await working();
    const { id } = await engine.enqueue(pay, { cents: 5, with: by });
    await untilState(engine, id, "succeeded");
    const { id: failing } = await engine.enqueue(pay, { cents: TOO_MUCH, with: by });
    await untilState(engine, failing, "dead");
    assert.match((await engine.get(failing))!.error!.message, /too much/);
    const { rows } = await pool.query("SELECT job, cents FROM payments");
    assert.deepEqual(rows, [{ job: id, cents: 5 }]);
  });
}

type Book = (place: { engine: Engine; client: pg.PoolClient }, order: string) => Promise<void>;
const input = { cents: 1, with: "pg" } as const;

const books: Readonly<Record<string, Book>> = {
  async "plain pg"({ client }, order) {
    try {
      await client.query("BEGIN");
      await enqueue(client, pay, input);
      await client.query("INSERT INTO orders (id) VALUES ($1)", [order]);
      await client.query("COMMIT");
    } catch (thrown) {
      await client.query("ROLLBACK");
      throw thrown;
    }
  },
  async Drizzle({ client }, order) {
    await drizzle(client).transaction(async (tx) => {
      await enqueue(client, pay, input);
      await tx.insert(orders).values({ id: order });
    });
  },
  async Kysely({ client }, order) {
    const db = kyselyOn<Tables>(client);
    await db.transaction().execute(async (tx) => {
      await enqueue(client, pay, input);
      await tx.insertInto("orders").values({ id: order }).execute();
    });
  },
  async "the engine"({ engine }, order) {
    await engine.transaction(postgres, async (tx) => {
      await tx.enqueue(pay, input);
      await tx.query("INSERT INTO orders (id) VALUES ($1)", [order]);
    });
  },
};

for (const [by, book] of Object.entries(books)) {
  test(`in your own transaction with ${by}: the job is there if and only if your rows are`, async (t) => {
    const { pool, working } = await database(t);
    const engine = await working();
    const client = await pool.connect();
    try {
      await book({ engine, client }, "a");
      // The same order again: its row is refused after the job was enqueued.
      await assert.rejects(book({ engine, client }, "a"));
      await book({ engine, client }, "b");
    } finally {
      client.release();
    }
    await untilTrue(
      async () => (await engine.counts())[0]!,
      ({ succeeded }) => succeeded === 2,
      "the jobs of a and b have succeeded",
    );
    const { rows } = await pool.query(
      "SELECT (SELECT count(*)::int FROM outlive.jobs) AS jobs, array_agg(id) AS ids FROM orders",
    );
    assert.deepEqual(rows, [{ jobs: 2, ids: ["a", "b"] }]);
  });
}

test("the lines that the paper shows are the lines that are tested here", () => {
  const lines = (shown: string): string =>
    shown
      .split("\n")
      .map((line) => line.trim())
      .filter((line) => line !== "" && !line.startsWith("import "))
      .join("\n");
  const here = lines(readFileSync(new URL(import.meta.url), "utf8"));
  const paper = readFileSync(new URL("../../docs/postgres.md", import.meta.url), "utf8");
  const [, section] = /\n## Your own rows\n([^]*?)\n## /.exec(paper)!;
  const blocks = [...section!.matchAll(/```ts\n([^]*?)```/g)].map(([, block]) => lines(block!)).filter(Boolean);
  assert.ok(blocks.length >= 7, `${blocks.length} blocks`);
  for (const block of blocks) assert.ok(here.includes(block), `not tested:\n${block}`);
});

test("examples/postgres-commit.ts pays each order once, also when it is started twice", async (t) => {
  const { url } = await database(t);
  const file = fileURLToPath(new URL("../../examples/postgres-commit.ts", import.meta.url));
  await withClient(url, (client) => client.query("DROP TABLE payments, orders"));
  for (let time = 0; time < 2; time++) {
    const { stdout } = await execute(process.execPath, ["--disable-warning=ExperimentalWarning", file], {
      env: { ...process.env, DATABASE_URL: url },
    });
    assert.equal(stdout, "15 orders, 15 paid, 15 payments\n");
  }
});
