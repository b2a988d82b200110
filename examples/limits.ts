// Limits per key, over all workers: each tenant has two jobs running at once, an API gets 40 calls a second, and the bookings of one account
// run one after the other. Outside of this repository write:
//   import { job, open, RetryLater } from "outlive";
import { setTimeout as work } from "node:timers/promises";
import * as z from "zod";
import { job, open, RetryLater } from "../src/index.ts";

const call = job("call", {
  input: z.object({ tenant: z.string(), n: z.number() }),
  limits: [
    { name: "tenant", key: ({ tenant }) => tenant, running: 2 },
    { name: "api", rate: 40, per: "1s", burst: 5 },
  ],
});

const running = new Map<string, number>();
const most = new Map<string, number>();
let isBusy = true;

call.handle(async ({ tenant, n }, run) => {
  if (n === 3 && isBusy) {
    isBusy = false;
    // The API answered 429 with "retry after": no other call is admitted before then, and this one has lost nothing.
    await run.holdOff("api", "300ms");
    throw new RetryLater("300ms", "the API asked for a pause");
  }
  running.set(tenant, (running.get(tenant) ?? 0) + 1);
  most.set(tenant, Math.max(most.get(tenant) ?? 0, running.get(tenant)!));
  await work(20);
  running.set(tenant, running.get(tenant)! - 1);
});

const book = job("book", {
  input: z.object({ account: z.string(), n: z.number() }),
  retry: { backoff: { base: "50ms" } },
  limits: [{ name: "account", key: ({ account }) => account, order: "strict" }],
});

const booked: number[] = [];

book.handle(({ n }, run) => {
  // The second booking fails once. The third waits until it has succeeded.
  if (n === 2 && run.attempt === 1) throw new Error("the ledger is locked");
  booked.push(n);
});

// Tenants take turns: one that has queued a hundred jobs does not make the others wait for them.
const sync = job("sync", {
  input: z.object({ tenant: z.string(), n: z.number() }),
  fair: ({ tenant }) => tenant,
});

const synced: string[] = [];

sync.handle(async ({ tenant }) => {
  synced.push(tenant);
  // The invoice of coil is paid.
  if (synced.length === 50) await engine.limits.resume("fair", "coil");
});

await using engine = await open("sqlite::memory:", { jobs: [call, book, sync], logger: false });
const inputs = Array.from({ length: 24 }, (_, n) => ({ tenant: n % 3 === 0 ? "beta" : "acme", n }));
await engine.enqueueMany(call, inputs);
for (const n of [1, 2, 3]) await engine.enqueue(book, { account: "ada", n });

// A tenant that pays for more: at once, in all workers, without a deploy. `outlive limit tenant beta --running 3` is the same.
await engine.limits.set("tenant", "beta", { running: 3 });

await engine.enqueueMany(
  sync,
  Array.from({ length: 100 }, (_, n) => ({ tenant: "acme", n })),
);
await engine.enqueue(sync, { tenant: "beta", n: 0 });
await engine.enqueue(sync, { tenant: "coil", n: 0 });
// Nothing of this tenant starts until it is resumed. `outlive limit fair coil --pause "the invoice is unpaid"` is the same.
await engine.limits.pause("fair", "coil", { reason: "the invoice is unpaid" });

const startedAt = performance.now();
await engine.runUntilIdle({ concurrency: 20, only: [call, book] });
const seconds = (performance.now() - startedAt) / 1_000;

for (const [tenant, count] of [...most].sort(([a], [b]) => a.localeCompare(b)))
  console.log(`${tenant}: at most ${count} at once`);
console.log(`24 calls took ${seconds > 0.7 ? "more" : "less"} than 0.7 s`);
console.log(`booked in order: ${booked.join(", ")}`);

await engine.runUntilIdle({ concurrency: 2, only: [sync] });
const [beta, coil] = ["beta", "coil"].map((tenant) => synced.indexOf(tenant) + 1) as [number, number];
console.log(
  `beta was ${beta <= 3 ? "among the first three" : `number ${beta}`} of ${synced.length}, coil began ${coil > 50 ? "after" : "before"} it was resumed`,
);
