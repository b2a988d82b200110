// Jobs for the tests of `crashTest`: some that are careful, and some that are not.
import { randomUUID } from "node:crypto";
import { appendFileSync, readFileSync } from "node:fs";
import { batch, collection, job, TerminalError } from "../../src/index.ts";
import { request } from "../../src/requests.ts";
import { sqlite } from "../../src/sqlite.ts";
import { effect } from "../../src/testing/index.ts";

/** Charges in a step, under a key of its own. */
export const careful = job<{ amount: number }>("careful").handle(async ({ amount }, run) => {
  await run.step("charge", () => effect(`charge ${amount}`, { key: run.key("charge") }));
  return { charged: amount };
});

/** Charges in a step, but its receiver can't know a repetition. */
export const keyless = job<{ amount: number }>("keyless").handle(async ({ amount }, run) => {
  await run.step("charge", () => effect(`charge ${amount}`));
});

/** Charges under a key that is another one in each attempt: its receiver can't know a repetition either. */
export const newKey = job<{ amount: number }>("new-key").handle(async ({ amount }, run) => {
  await run.step("charge", () => effect(`charge ${amount}`, { key: randomUUID() }));
});

/** Charges under a key, with a text, that are other ones in each run and the same in every attempt of it. */
export const keptKey = job<{ amount: number }>("kept-key").handle(async ({ amount }, run) => {
  const key = await run.step("key", () => randomUUID());
  await run.step("charge", () => effect(`charge ${amount} for ${key}`, { key }));
});

/** Reads the same twice, on purpose. */
export const rereading = job<{ url: string }>("rereading").handle(async ({ url }, run) => {
  await run.step("before", async () => (await fetch(url)).status);
  await run.step("after", async () => (await fetch(url)).status);
});

/** Charges outside of any step. */
export const stepless = job<{ amount: number }>("stepless").handle(async ({ amount }, run) => {
  effect(`charge ${amount}`);
  await run.step("book", () => amount);
});

/** All in one transaction: nothing is outside the store. */
export const booked = job<{ amount: number }>("booked").handle(async ({ amount }, run) => {
  await run.commit(sqlite, (tx) => {
    tx.exec("CREATE TABLE IF NOT EXISTS bookings (amount INTEGER)");
    tx.run("INSERT INTO bookings VALUES (?)", amount);
  });
});

/** Calls a server. */
export const calling = job<{ url: string }>("calling").handle(async ({ url }, run) => {
  await run.step("call", async () => {
    await fetch(url, { method: "POST", headers: { "idempotency-key": run.key("call") } });
  });
  await run.step("tell", async () => {
    await fetch(`${url}/tell`, { method: "POST" });
  });
});

export const failing = job<null>("failing", { retry: { attempts: 1 } }).handle(() => {
  throw new Error("it never works");
});

/** Has a step in its first run only. */
export const wandering = job<{ file: string }>("wandering").handle(async ({ file }, run) => {
  if (startsIn(file) === 1) await run.step("once", () => 1);
});

/** Leaves a mark whenever it starts. */
export const starting = job<{ file: string }>("starting").handle(async ({ file }) => void startsIn(file));

/** Never ends in its third run. */
export const hanging = job<{ file: string }>("hanging").handle(async ({ file }) => {
  if (startsIn(file) === 3) await new Promise(() => {});
});

/** Waits in every way, with an effect in a step before and after each wait. */
export const waiting = job<{ amount: number }>("waiting").handle(async ({ amount }, run) => {
  const charge = (name: string) => run.step(name, () => effect(name, { key: run.key(name) }));
  await charge("before");
  await run.sleep("20ms");
  await charge("after the sleep");
  const approval = await run.waitForSignal<{ by: string }>("approved");
  await charge(`approved by ${approval?.by}`);
  const late = await run.waitForSignal("never", { timeout: "20ms" });
  const ids = await run.enqueueMany(doubling, [{ n: amount }, { n: amount + 1 }]);
  const doubled = await run.results(ids);
  await charge(`doubled ${doubled.join(" ")} ${late === null}`);
});

export const doubling = job<{ n: number }, number>("doubling").handle(({ n }) => 2 * n);

/** Charges between two waits, but in no step. */
export const carelesslyWaiting = job<null>("carelessly-waiting").handle(async (_, run) => {
  await run.sleep("10ms");
  effect("charge");
  await run.sleep("10ms");
});

function startsIn(file: string): number {
  appendFileSync(file, ".");
  return readFileSync(file, "utf8").length;
}

/** Rows that are paid under a key of their own, write a line each, and of which one fails. */
export const payments = batch("payments", { block: 2, mark: "row" });
payments.handle(({ line, input }, run) => {
  if (input === 13) throw new TerminalError("13");
  effect(`pay ${JSON.stringify(input)}`, { key: run.key("pay") });
  run.write("paid.csv", `${line},${JSON.stringify([input, run.context])}\n`);
});
payments.done(({ rows }, run) => effect(`report ${rows.succeeded}`, { key: run.key("report") }));

/** The same without keys: a row whose end was not durable is paid again. */
export const keylessPayments = batch("keyless-payments", { block: 2, mark: "row" });
keylessPayments.handle(({ input }) => effect(`pay ${JSON.stringify(input)}`));

/** Rows that are booked in the user's own table, in the transaction that ends them. */
export const bookedRows = batch("booked-rows", { block: 2 });
bookedRows.handle((row, run) =>
  row.commit(sqlite, (tx) => {
    tx.exec("CREATE TABLE IF NOT EXISTS booked (line INTEGER NOT NULL)");
    tx.run("INSERT INTO booked (line) VALUES (?)", row.line);
    run.write("booked.csv", `${tx.get<{ n: number }>("SELECT count(*) AS n FROM booked")!.n}\n`);
  }),
);

/** Loads its parts in a step, under a key; asks its producer and notifies by messages. */
export const collecting = collection("collecting", { series: ["files"] })
  .request((_input, run) => run.publish("scanners", {}))
  .done(async (collected, run) => {
    await run.step("load", async () => {
      for await (const part of collected.parts("files"))
        effect(`load ${part.ordinal}`, { key: run.key(`${part.ordinal}`) });
    });
  })
  .notify("results");

/** Loads its parts, and its receiver can't know a repetition. */
export const keylessCollecting = collection("keyless-collecting", { series: ["files"] }).done(async (collected) => {
  for await (const part of collected.parts("files")) effect(`load ${part.ordinal}`);
});

/** Requests of each policy, to the server that the test names. */
const sent = { addresses: "any", retry: { attempts: 5, backoff: { base: "1ms", max: "1ms" } } } as const;
const send = (input: unknown) => ({ url: `${process.env["OUTLIVE_TEST_RECEIVER"]}/charge`, json: input });
export const resentCharge = request("resent-charge", { ...sent, method: "POST", ifUnknown: "resend", send });
resentCharge.onResponse((_, run) => effect("note", { key: run.key("note") }));
export const onceCharge = request("once-charge", { ...sent, method: "POST", ifUnknown: "fail", send });
onceCharge.onError(({ is }, run) => effect(`failed: ${is}`, { key: run.key("failed") }));
export const askedCharge = request("asked-charge", { ...sent, method: "POST", ifUnknown: "ask", send });
askedCharge.onUnknown(() => ({ status: 200, body: "found" }));
export const readCharge = request("read-charge", {
  ...sent,
  method: "GET",
  send: (input) => ({ url: send(input).url }),
});
