// Compile-time test of batches: rows, context and what set-up returns are typed end to end. Checked by `npm run typecheck`; nothing here runs.
import * as z from "zod";
import type * as client from "../../src/client.ts";
import { csv, ndjson } from "../../src/files.ts";
import {
  batch,
  type BatchInfo,
  type Engine,
  type FailedBatchRow,
  job,
  type ListedBatchRow,
  type OpenBatch,
} from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { isTrue, type Same } from "./same.ts";

const payments = batch("payments", {
  row: z.object({ iban: z.string(), amount: z.coerce.number<string>() }),
  context: z.object({ tenant: z.string() }),
  tolerate: "5%",
});

payments
  .setUp(() => ({ pay: (iban: string) => iban.length }))
  .handle(async (row, run) => {
    isTrue<Same<typeof row.input, { iban: string; amount: number }>>();
    isTrue<Same<typeof run.context, { tenant: string }>>();
    const length: number = run.shared.pay(row.input.iban);
    run.write("out.csv", `${row.line},${length}\n`);
    await row.commit(sqlite, (tx) => void tx.run("SELECT 1"));
  });

// A web process names the same types.
isTrue<Same<client.BatchInfo, BatchInfo>>();
isTrue<Same<client.OpenBatch, OpenBatch>>();
isTrue<Same<client.FailedBatchRow | client.ListedBatchRow, FailedBatchRow | ListedBatchRow>>();

const report = job<{ paid: number }>("report");
payments.done(async (end, run) => {
  isTrue<Same<typeof end.context, { tenant: string }>>();
  isTrue<Same<typeof end.state, "completed" | "failed" | "aborted">>();
  await run.enqueue(report, { paid: end.rows.succeeded });
  // @ts-expect-error an input of another shape
  await run.enqueue(report, { paid: "none" });
});

const plain = batch("plain");
plain.handleBlock((rows, run) => {
  for (const row of rows) if (row.input === null) run.fail(row, new Error("empty"));
});

export async function calls(engine: Engine): Promise<void> {
  await engine.submit(payments, [{ iban: "x", amount: "1" }], { context: { tenant: "acme" }, key: "november" });
  // @ts-expect-error a row of another shape
  await engine.submit(payments, [{ iban: 1 }], { context: { tenant: "acme" } });
  // @ts-expect-error a context of another shape
  await engine.submit(payments, [], { context: { tenant: 1 } });
  const open: OpenBatch<{ iban: string; amount: string }> = await engine.openBatch(payments, {
    context: { tenant: "a" },
  });
  await open.append([{ iban: "x", amount: "1" }]);
  // @ts-expect-error a row of another shape
  await open.append([1]);
  await engine.submit(payments, csv("november.csv"), { context: { tenant: "acme" } });
  await engine.submit(plain, ndjson("rows.ndjson"));
  await engine.submit(plain, [1, "two", null]);
  for await (const row of engine.batchRows("id", { failed: true })) void row.error?.message;
  for await (const row of engine.batchRows("id", { failed: true })) isTrue<Same<typeof row, FailedBatchRow>>();
  for await (const row of engine.batchRows("id")) isTrue<Same<typeof row, ListedBatchRow>>();
}

// @ts-expect-error a Date is not JSON
batch("dates", { row: z.object({ at: z.date() }) });
// @ts-expect-error there is no such option
batch("typo", { blok: 10 });
// @ts-expect-error marks are "time" or "row"
batch("marks", { mark: "block" });
