// An order that waits: an hour in which the customer may cancel, then a person's decision, for at most two days. Here it is a second of
// each. While a job waits it holds no slot, no timer and no memory: kill this program with `kill -9` and start it again, and every
// order goes on where it waited. Outside of this repository write:
//   import { job, open } from "outlive";
//   import { sqlite } from "outlive/sqlite";
import * as z from "zod";
import { job, open } from "../src/index.ts";
import { sqlite } from "../src/sqlite.ts";

const Decision = z.object({ approve: z.boolean(), by: z.string() });

const order = job("order", {
  input: z.object({ item: z.string() }),
  output: z.object({ state: z.enum(["shipped", "refused", "expired"]), by: z.string().nullable() }),
});

order.handle(async ({ item }, run) => {
  // A step runs once; every later attempt gets its result.
  await run.step("reserve", () => console.log(`${run.id}: ${item} is reserved`));
  await run.sleep("1s");
  // Null: no decision came in time. A decision that came before is not lost.
  const decision = await run.waitForSignal("decision", { schema: Decision, timeout: "1s" });
  if (decision === null) return { state: "expired", by: null };
  return { state: decision.approve ? "shipped" : "refused", by: decision.by };
});

await using engine = await open("sqlite:./orders.db", { jobs: [order], logger: false });

// Ids of your own make a second start of this program harmless.
const names = ["order-1", "order-2", "order-3"];
const orders = await Promise.all(names.map((id) => engine.enqueue(order, { item: "a lamp" }, { id })));
await engine.start();

// What a web process does when a user clicks. A click that is sent again, with the same id, adds nothing.
await engine.signal("order-1", "decision", { approve: true, by: "ann" }, { id: "click-1" });

// The decision and a row of your own, together or not at all.
await engine.transaction(sqlite, (tx) => {
  tx.exec("CREATE TABLE IF NOT EXISTS decisions (job TEXT PRIMARY KEY, by TEXT NOT NULL)");
  tx.run("INSERT OR IGNORE INTO decisions VALUES (?, ?)", "order-2", "bob");
  tx.signal("order-2", "decision", { approve: false, by: "bob" }, { id: "click-2" });
});

for (const { id } of orders) {
  // Reads the row, so it works for a job that ended long ago, and in a program that started after it was enqueued.
  const { state, by } = await engine.result(id, { timeout: "1m" });
  console.log(`${id}: ${state}${by === null ? "" : ` by ${by}`}`);
}
