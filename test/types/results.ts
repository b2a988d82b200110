// Compile-time tests of results: of handlers, steps, commits and transactions. Checked by `npm run typecheck`; nothing here runs.
import { type AwaitedJob, type Engine, job, type Json, type Run } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { isTrue, type Same } from "./same.ts";

interface Receipt {
  readonly id: string;
  readonly lines: readonly { readonly cents: number }[];
}

// ---- what a handler may return

const kind = () => job<{ n: number }>("kind");
kind().handle(() => {});
kind().handle(async () => {});
kind().handle(() => undefined);
kind().handle(() => null);
kind().handle((input) => input.n);
kind().handle(async (input) => ({ n: input.n, list: ["a", null, { b: true }] }));
kind().handle(async (): Promise<Receipt> => ({ id: "1", lines: [] }));
kind().handle((): Json => ({ a: [1] }));
kind().handle(async (): Promise<Json> => [1]);
kind().handle((input) => (input.n > 1 ? { big: true } : null));
kind().handle(async (input) => {
  if (input.n > 1) return;
  return { n: input.n };
});
job<Json>("echo").handle((input) => input);
job<Json>("echo").handle(async (input) => input);
kind().handle(() => {
  throw new Error("always");
});
kind().handle(async (_input, run) => run.commit(sqlite, () => ({ n: 1 })));
kind().handle(async (_input, run) => run.step("a", () => ({ n: 1 })));

// @ts-expect-error a Date is not JSON
kind().handle(() => new Date());
// @ts-expect-error also by a promise
kind().handle(async () => new Date());
// @ts-expect-error also deep inside
kind().handle(async () => ({ a: [{ at: new Date() }] }));
// @ts-expect-error also without a promise
kind().handle(() => ({ rows: [{ at: new Date() }] }));
// @ts-expect-error a bigint is not JSON
kind().handle(() => 5n);
// @ts-expect-error nor a Map
kind().handle(async () => new Map([["a", 1]]));
// @ts-expect-error nor a Buffer
kind().handle(async () => Buffer.from("x"));
// @ts-expect-error nor a function
kind().handle(() => () => 1);
// @ts-expect-error nor one of several
kind().handle(async (input) => (input.n > 1 ? new Date() : "today"));

// ---- steps

export async function steps(run: Run): Promise<void> {
  const sync = await run.step("sync", () => ({ n: 1 }));
  isTrue<Same<typeof sync, { n: number }>>();
  const later = await run.step("later", async () => ["a"]);
  isTrue<Same<typeof later, string[]>>();
  const nothing = await run.step("nothing", async () => {});
  isTrue<Same<typeof nothing, void>>();
  const receipt = await run.step("receipt", async (): Promise<Receipt> => ({ id: "1", lines: [] }));
  receipt.lines[0]?.cents.toFixed();
  const json = await run.step("json", (): Json => 1);
  isTrue<Same<typeof json, Json>>();

  const date = await run.step("date", () => new Date());
  // @ts-expect-error a step's Date would come back as a text: it can't be used as anything
  date.getTime();
  isTrue<Same<typeof date, never>>();
  const inside = await run.step("inside", async () => ({ at: new Date(), n: 1 }));
  // @ts-expect-error also deep inside
  inside.at.getTime();
  isTrue<Same<typeof inside.at, never>>();
  isTrue<Same<typeof inside.n, number>>();
  const big = await run.step("big", () => 5n);
  isTrue<Same<typeof big, never>>();
  const bytes = await run.step("bytes", () => Buffer.from("x"));
  isTrue<Same<typeof bytes, never>>();

  // @ts-expect-error progress is JSON
  await run.progress({ at: new Date() });
  await run.progress({ done: 1, of: [2, null] });
}

// ---- the results of other jobs

const priced = job<{ n: number }, { cents: number }>("priced");
job<null>("parent").handle(async (_, run) => {
  const ids = await run.enqueueMany(priced, [{ n: 1 }]);
  const ends = await run.wait(ids, { timeout: "1h" });
  isTrue<Same<typeof ends, readonly AwaitedJob<{ cents: number }>[]>>();
  const results = await run.results(ids);
  isTrue<Same<typeof results, readonly { cents: number }[]>>();
  const { id } = await run.enqueue(priced, { n: 2 });
  const [one] = await run.results([id]);
  one?.cents.toFixed();
  // @ts-expect-error the kind says what its result is
  await run.results<string>(ids);
  const untyped = await run.enqueueMany(kind(), [{ n: 1 }]);
  const anything = await run.results(untyped);
  isTrue<Same<typeof anything, readonly Json[]>>();
  // @ts-expect-error results of two types need the type of both
  await run.results([...ids, ...(await run.enqueueMany(job<null, string>("text"), [null]))]);
  const both = await run.results<{ cents: number } | string>([
    ...ids,
    ...(await run.enqueueMany(job<null, string>("text"), [null])),
  ]);
  isTrue<Same<typeof both, readonly ({ cents: number } | string)[]>>();
});

export async function plainIds(run: Run): Promise<void> {
  const texts: readonly string[] = ["order-1"];
  const ends = await run.wait(texts);
  isTrue<Same<typeof ends, readonly AwaitedJob[]>>();
  const typed = await run.results<{ cents: number }>(texts);
  isTrue<Same<typeof typed, readonly { cents: number }[]>>();
}

// ---- commit and transaction on SQLite take a synchronous callback

export async function commits(run: Run): Promise<void> {
  const number = await run.commit(sqlite, (tx) => tx.run("INSERT INTO t VALUES (?)", 1).changes);
  isTrue<Same<typeof number, number>>();
  const object = await run.commit(sqlite, () => ({ id: "1" }));
  isTrue<Same<typeof object, { id: string }>>();
  const nothing = await run.commit(sqlite, (tx) => tx.exec("DELETE FROM t"));
  isTrue<Same<typeof nothing, void>>();
  const row = await run.commit(sqlite, (tx) => tx.get<{ n: number }>("SELECT n FROM t")?.n ?? null);
  isTrue<Same<typeof row, number | null>>();

  // @ts-expect-error a transaction of SQLite can't wait
  await run.commit(sqlite, async (tx) => tx.exec("DELETE FROM t"));
  // @ts-expect-error also with a result
  await run.commit(sqlite, async () => ({ id: "1" }));
  // @ts-expect-error also by a promise in hand
  await run.commit(sqlite, () => Promise.resolve(1));
  // @ts-expect-error also if it only might be one
  await run.commit(sqlite, () => (Math.random() > 0.5 ? 1 : Promise.resolve(1)));
  // @ts-expect-error a text is not an SQL value list
  await run.commit(sqlite, (tx) => void tx.run("SELECT ?", { a: 1 }));
}

export async function transactions(engine: Engine): Promise<void> {
  const number = await engine.transaction(sqlite, (tx) => tx.run("INSERT INTO t VALUES (?)", 1).changes);
  isTrue<Same<typeof number, number>>();
  // The result of a transaction is not stored: it may be anything.
  const date = await engine.transaction(sqlite, () => new Date());
  isTrue<Same<typeof date, Date>>();

  // @ts-expect-error a transaction of SQLite can't wait
  await engine.transaction(sqlite, async (tx) => tx.exec("DELETE FROM t"));
  // @ts-expect-error also with a result
  await engine.transaction(sqlite, async () => 1);
  // @ts-expect-error also by a promise in hand
  await engine.transaction(sqlite, (tx) => Promise.resolve(tx.all("SELECT 1")));
  // @ts-expect-error the form is needed
  await engine.transaction(() => 1);
}

export async function committedResults(run: Run): Promise<void> {
  // @ts-expect-error what a commit returns is the job's result: a Date is not JSON
  await run.commit(sqlite, () => new Date());
  // @ts-expect-error nor a bigint deep inside
  await run.commit(sqlite, () => ({ n: 5n }));
}
