// Compile-time tests of inputs: what can't be stored as JSON does not compile, and what is enqueued fits the kind. Checked by
// `npm run typecheck`; nothing here runs.
import * as z from "zod";
import { type Engine, job, type Json, type Run } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { isTrue, type Same } from "./same.ts";

class Money {
  readonly cents = 5;
  format(): string {
    return "5";
  }
}

// ---- kinds with a schema

export const mail = job("mail", { input: z.object({ to: z.string(), copies: z.number().optional() }) });
/** The schema's input and output differ. */
export const parsed = job("parsed", {
  input: z.object({
    id: z.string().transform(Number),
    size: z.number().default(3),
    at: z.string().transform((text) => new Date(text)),
  }),
});
job("array", { input: z.array(z.object({ a: z.union([z.string(), z.null()]) })) });
job("tuple", { input: z.tuple([z.string(), z.number()]) });
job("text", { input: z.string() });
job("record", { input: z.record(z.string(), z.number()) });
job("literal", {
  input: z.discriminatedUnion("type", [
    z.object({ type: z.literal("a") }),
    z.object({ type: z.literal("b"), n: z.number() }),
  ]),
});
job("json", { input: z.json() });

// @ts-expect-error a Date is not JSON
job("date", { input: z.object({ at: z.date() }) });
// @ts-expect-error not even as the whole input
job("date", { input: z.date() });
// @ts-expect-error deep inside an array
job("deep", { input: z.object({ list: z.array(z.object({ at: z.date() })) }) });
// @ts-expect-error or as an optional member
job("optional", { input: z.object({ at: z.date().optional() }) });
// @ts-expect-error or as one of several
job("union", { input: z.object({ at: z.union([z.string(), z.date()]) }) });
// @ts-expect-error a Buffer is not JSON
job("buffer", { input: z.object({ body: z.instanceof(Buffer) }) });
// @ts-expect-error nor a bigint
job("bigint", { input: z.object({ n: z.bigint() }) });
// @ts-expect-error nor a Map
job("map", { input: z.object({ m: z.map(z.string(), z.number()) }) });
// @ts-expect-error nor a Set
job("set", { input: z.set(z.string()) });
// @ts-expect-error nor a symbol
job("symbol", { input: z.symbol() });
// @ts-expect-error nor undefined as the whole input
job("undefined", { input: z.undefined() });
// @ts-expect-error nor a class with methods
job("class", { input: z.instanceof(Money) });
// @ts-expect-error nor a function
job("function", { input: z.object({ f: z.custom<() => void>() }) });

// ---- kinds with a type only

export const plain = job<{ n: number; tags?: readonly string[]; nested?: { a: null | boolean } }>("plain");
export const anything = job("anything");
interface Order {
  id: string;
  lines: { sku: string; count: number }[];
}
export const order = job<Order>("order");
export const loose = job<Json>("loose");

// @ts-expect-error a Date is not JSON: what comes back is not a contract
job<{ at: Date }>("date").handle(() => {});
// @ts-expect-error nor a Buffer
job<{ body: Buffer }>("buffer").handle(() => {});
// @ts-expect-error nor a bigint
job<{ n: bigint }>("bigint").handle(() => {});
// @ts-expect-error nor a Map
job<{ m: Map<string, number> }>("map").handle(() => {});
// @ts-expect-error nor a Set
job<Set<string>>("set").handle(() => {});
// @ts-expect-error nor a class with methods
job<Money>("class").handle(() => {});
// @ts-expect-error nor a function
job<{ f: () => void }>("function").handle(() => {});
// @ts-expect-error deep inside an array
job<{ list: { at: Date }[] }>("deep").handle(() => {});
// @ts-expect-error or as an optional member
job<{ at?: Date }>("optional").handle(() => {});
// @ts-expect-error or as one of several
job<{ at: string | Date }>("union").handle(() => {});

// ---- enqueue

export async function enqueues(engine: Engine, run: Run): Promise<void> {
  await engine.enqueue(mail, { to: "a@b.c" });
  await engine.enqueue(mail, { to: "a@b.c", copies: 2 }, { delay: "5m", priority: 3, dedupeKey: "k" });
  await engine.enqueue(plain, { n: 1, tags: ["a"], nested: { a: null } });
  await engine.enqueue(order, { id: "1", lines: [] });
  await engine.enqueue(loose, [1, { a: null }]);
  await engine.enqueue(parsed, { id: "7", at: "2024-01-15" });
  await engine.enqueueMany(mail, [{ to: "a" }, { to: "b" }]);
  await run.enqueue(mail, { to: "a@b.c" });
  await engine.transaction(sqlite, (tx) => tx.enqueue(mail, { to: "a@b.c" }));

  // @ts-expect-error a field is missing
  await engine.enqueue(mail, {});
  // @ts-expect-error a field is of the wrong type
  await engine.enqueue(mail, { to: 5 });
  // @ts-expect-error a field is too many
  await engine.enqueue(mail, { to: "a@b.c", cc: "d" });
  // @ts-expect-error the input is missing
  await engine.enqueue(mail);
  // @ts-expect-error without a schema it is the same
  await engine.enqueue(plain, {});
  // @ts-expect-error without a schema it is the same
  await engine.enqueue(plain, { n: "1" });
  // @ts-expect-error without a schema it is the same
  await engine.enqueue(order, { id: "1", lines: [{ sku: "x" }] });
  // @ts-expect-error what is enqueued is the schema's input and not its output
  await engine.enqueue(parsed, { id: 7, size: 3, at: new Date() });
  // @ts-expect-error one of many is wrong
  await engine.enqueueMany(mail, [{ to: "a" }, { to: 5 }]);
  // @ts-expect-error inside a handler
  await run.enqueue(mail, { to: 5 });
  // @ts-expect-error inside a transaction
  await engine.transaction(sqlite, (tx) => tx.enqueue(mail, { to: 5 }));
  // @ts-expect-error an option is misspelt
  await engine.enqueue(mail, { to: "a" }, { delays: "5m" });
  // @ts-expect-error a Date is not JSON for a kind that takes anything either
  await engine.enqueue(anything, { at: new Date() });
  // @ts-expect-error the name of a kind is not the kind
  await engine.enqueue("mail", { to: "a" });
}

// ---- the handler's input is the schema's output

parsed.handle((input) => {
  isTrue<Same<typeof input, { id: number; size: number; at: Date }>>();
});
mail.handle((input) => {
  isTrue<Same<typeof input.to, string>>();
  isTrue<Same<typeof input.copies, number | undefined>>();
});
plain.handle((input) => {
  isTrue<Same<typeof input.n, number>>();
  // @ts-expect-error there is no such field
  void input.m;
});
loose.handle((input) => {
  isTrue<Same<typeof input, Json>>();
});
