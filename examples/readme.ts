// The program of the README, and test/examples.test.ts holds them the same. Outside of this repository write:
//   import { job, open } from "outlive";
import { job, open } from "../src/index.ts";
import * as z from "zod";

// The contract: safe to import anywhere. The handler is attached where workers run.
const invoice = job("invoice", { input: z.object({ orderId: z.string() }), timeout: "5m", retry: { attempts: 10 } });

invoice.handle(async (input, run) => {
  // A step runs once. After a crash the next attempt gets its result without running it again.
  const path = await run.step("render", () => `/tmp/invoice-${input.orderId}.pdf`);
  await run.step("mail", () => console.log(`mailing ${path}, idempotency key ${run.key("mail")}`));
});

await using engine = await open("sqlite:./jobs.db", { jobs: [invoice] });
await engine.enqueue(invoice, { orderId: "42" }, { dedupeKey: "order-42" });

const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
await engine.work({ concurrency: 50, signal: stop.signal });
