// Money moves exactly once, on PostgreSQL: your rows and the job's success are one transaction. Kill this program with `kill -9` as
// often as you like and start it again. Needs DATABASE_URL and, once: outlive migrate up --store "$DATABASE_URL"
// Outside of this repository write:
//   import { job, open } from "outlive";
//   import { enqueue, postgres } from "outlive/postgres";
import pg from "pg";
import { job, open } from "../src/index.ts";
import { enqueue, postgres } from "../src/postgres.ts";

const url = process.env["DATABASE_URL"]!;
const pool = new pg.Pool({ connectionString: url, max: 5 });
await pool.query(`CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, paid boolean NOT NULL DEFAULT false);
                  CREATE TABLE IF NOT EXISTS payments (order_id text NOT NULL, job text NOT NULL)`);

const pay = job<{ order: string }>("pay");
pay.handle(async ({ order }, run) => {
  // Both rows are there if and only if this job has succeeded.
  await run.commit(postgres, async (tx) => {
    await tx.query("UPDATE orders SET paid = true WHERE id = $1", [order]);
    await tx.query("INSERT INTO payments VALUES ($1, $2)", [order, run.id]);
  });
});

await using engine = await open(url, { jobs: [pay], logger: false });

// Conversely: the job is there if and only if your own transaction commits.
for (let n = 1; n <= 20; n++) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const { rowCount } = await client.query("INSERT INTO orders (id) VALUES ($1) ON CONFLICT DO NOTHING", [
      `order-${n}`,
    ]);
    if (rowCount === 1) await enqueue(client, pay, { order: `order-${n}` });
    await client.query(n % 4 === 0 ? "ROLLBACK" : "COMMIT");
  } finally {
    client.release();
  }
}

const worker = await engine.start();
for (let left = 1; left > 0; await new Promise((resolve) => setTimeout(resolve, 20))) {
  const [counts] = await engine.counts();
  left = counts!.ready + counts!.delayed + counts!.running;
}
await worker.stop();
const { rows } = await pool.query(
  `SELECT (SELECT count(*)::int FROM orders) AS orders, (SELECT count(*)::int FROM orders WHERE paid) AS paid,
     (SELECT count(*)::int FROM payments) AS payments`,
);
await pool.end();
console.log(`${rows[0].orders} orders, ${rows[0].paid} paid, ${rows[0].payments} payments`);
