// Jobs for the tests of `crashTest`: one that is careful, and three that are not.
import { appendFileSync, readFileSync } from "node:fs";
import { job } from "../../src/index.ts";
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

export const failing = job<null>("failing", { retry: { errors: 1 } }).handle(() => {
  throw new Error("it never works");
});

/** Has a step in its first run only. */
export const wandering = job<{ file: string }>("wandering").handle(async ({ file }, run) => {
  if (startsIn(file) === 1) await run.step("once", () => 1);
});

/** Never ends in its third run. */
export const hanging = job<{ file: string }>("hanging").handle(async ({ file }) => {
  if (startsIn(file) === 3) await new Promise(() => {});
});

function startsIn(file: string): number {
  appendFileSync(file, ".");
  return readFileSync(file, "utf8").length;
}
