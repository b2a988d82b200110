// One producer process: enqueues jobs through a client for as long as it lives. An enqueue that failed is repeated under its id.
import { setTimeout as pause } from "node:timers/promises";
import { type Client, connect } from "../../../src/client.ts";
import type { EnqueueOptions } from "../../../src/index.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { teller } from "./history.ts";
import { block, flaky, JOBS, stepped, tick, transfer } from "./jobs.ts";
import { type Order, orderOf, placeOrder } from "./order.ts";
import { JOBS_PER_SECOND, LEASE_MS, storeOptions, TICK_MS, TICKS_AT_ONCE, TICKS_EVERY_MS } from "./settings.ts";

const EVERY_MS = 250;
const [url, name, seed] = process.argv.slice(2) as [string, string, string];
const tell = teller(process.env["OUTLIVE_TORTURE_HISTORY"]!);
const chance = new Chance(Number(seed));
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
process.on("SIGINT", () => {});
process.on("disconnect", () => process.exit(1));

main().catch((thrown: unknown) => {
  console.error(thrown);
  process.exit(1);
});

async function main(): Promise<void> {
  const client = await connect(url, { ...storeOptions(), jobs: JOBS });
  process.send!({}); // at work; a producer has nothing else to tell its parent
  let made = 0;
  let owed = 0;
  for (let round = 1; !stop.signal.aborted; round++) {
    owed += (JOBS_PER_SECOND * EVERY_MS) / 1_000;
    const orders: Order[] = [];
    for (; owed >= 1; owed--) orders.push(order(`${name}-${++made}`));
    if (round % (TICKS_EVERY_MS / EVERY_MS) === 0)
      for (let n = 0; n < TICKS_AT_ONCE; n++)
        orders.push(orderOf(tick, { ms: chance.whole(0, TICK_MS) }, { id: `${name}-${++made}` }));
    await Promise.all(orders.map((one) => insist(client, one)));
    await pause(EVERY_MS, undefined, { signal: stop.signal }).catch(() => {});
  }
  await client.close();
  process.removeAllListeners("disconnect");
  process.disconnect();
}

async function insist(client: Client, one: Order): Promise<void> {
  for (let tries = 1; !(await placeOrder(client, one, tell)); tries++) {
    if (stop.signal.aborted) return;
    await pause(100 * Math.min(tries, 20), undefined, { signal: stop.signal }).catch(() => {});
  }
}

function order(id: string): Order {
  const workMs = chance.whole(20, 400);
  const amount = chance.whole(1, 1_000);
  const as = (contract: object, input: unknown, options: EnqueueOptions = {}): Order =>
    orderOf(contract, input, { id, ...options });
  const die = chance.next();
  if (die < 0.5) return as(transfer, { amount, workMs });
  if (die < 0.6) return as(transfer, { amount, workMs }, { delay: `${chance.whole(1, 2_000)}ms` });
  if (die < 0.68) return as(transfer, { amount, workMs }, { dedupeKey: `key-${chance.whole(1, 20)}` });
  if (die < 0.88) return as(stepped, { workMs });
  if (die < 0.995) return as(flaky, { failures: chance.whole(0, 3) });
  return as(block, { ms: chance.whole(LEASE_MS / 2, LEASE_MS * 2) });
}
