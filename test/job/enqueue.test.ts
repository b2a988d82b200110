// Holds the way from a call of `enqueue` to a draft.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { job } from "../../src/engine/options.ts";
import type { AnyContract } from "../../src/job/contract.ts";
import { type EnqueueOptions, makeDraft, makeDraftNow } from "../../src/job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";

const mail = job("mail", { input: z.object({ to: z.string(), copies: z.number().default(1) }) }) as AnyContract;
const plain = job("plain") as AnyContract;
const slow = job("slow", { input: z.object({ n: z.number().refine(async (n) => n > 0, "too small") }) }) as AnyContract;
const draft = (contract: AnyContract, input: unknown, options: EnqueueOptions = {}) =>
  makeDraft(contract, input, options, () => "new-id");

const refused = (code: ErrorCode, words: RegExp) => (thrown: unknown) => {
  assert.ok(thrown instanceof OutliveError, String(thrown));
  assert.equal(thrown.code, code);
  assert.match(thrown.message, words);
  return true;
};

test("a draft has the defaults, a new id, and the input as it was given: the schema reads it again when it runs", () => {
  assert.deepEqual(draft(mail, { to: "a" }), {
    id: "new-id",
    kind: "mail",
    input: '{"to":"a"}',
    priority: 0,
    runAt: null,
    delayMs: 0,
    dedupeKey: null,
  });
});

test("the options go into the draft", () => {
  const runAt = new Date("2030-01-01");
  assert.deepEqual(draft(plain, 1, { id: "mine", priority: -1_000, runAt, dedupeKey: "k" }), {
    id: "mine",
    kind: "plain",
    input: "1",
    priority: -1_000,
    runAt: runAt.getTime(),
    delayMs: 0,
    dedupeKey: "k",
  });
  assert.equal((draft(plain, 1, { delay: "90s" }) as { delayMs: number }).delayMs, 90_000);
});

test("an input that does not fit the schema is refused with the paths of what is wrong", () => {
  assert.throws(
    () => draft(mail, { to: 5, copies: "x" }),
    refused(ErrorCode.inputInvalid, /schema of mail: to: .*; copies: /),
  );
});

test("an input without a schema is refused only if JSON can't carry it", () => {
  assert.throws(
    () => draft(plain, { at: new Date() }),
    refused(ErrorCode.notJson, /^The input of plain contains a Date at \$\.at/),
  );
  assert.equal((draft(plain, undefined) as { input: string }).input, "null");
});

test("an asynchronous schema makes the promise of a draft, and a synchronous transaction refuses it", async () => {
  assert.equal((await draft(slow, { n: 1 })).input, '{"n":1}');
  await assert.rejects(async () => draft(slow, { n: 0 }), refused(ErrorCode.inputInvalid, /n: too small/));
  assert.throws(
    () => makeDraftNow(slow, { n: 0 }, {}, () => "id"),
    refused(ErrorCode.inputInvalid, /^The schema of slow is asynchronous/),
  );
  assert.equal(makeDraftNow(mail, { to: "a" }, {}, () => "id").id, "id");
});

test("priorities are whole numbers from -1000 to 1000", () => {
  for (const priority of [1_001, -1_001, 0.5, Number.NaN, "5" as never]) {
    assert.throws(
      () => draft(plain, 1, { priority }),
      refused(ErrorCode.optionInvalid, /^The option priority of the plain job/),
    );
  }
});

test("a moment and a delay exclude each other, and each must be a real one", () => {
  const options = refused(ErrorCode.optionInvalid, /plain job/);
  assert.throws(() => draft(plain, 1, { runAt: new Date(), delay: "1s" }), options);
  assert.throws(() => draft(plain, 1, { runAt: new Date(Number.NaN) }), options);
  assert.throws(() => draft(plain, 1, { runAt: 5 as never }), options);
  assert.throws(() => draft(plain, 1, { delay: "soon" as never }), options);
});

test("ids and dedupe keys are checked and named", () => {
  assert.throws(() => draft(plain, 1, { id: "" }), refused(ErrorCode.keyInvalid, /^The id of a plain job is empty/));
  assert.throws(
    () => draft(plain, 1, { dedupeKey: "a\0" }),
    refused(ErrorCode.keyInvalid, /^The dedupe key of a plain job/),
  );
});

test("an option that enqueue does not know is refused by name", () => {
  assert.throws(() => draft(plain, 1, { delays: "5m" } as never), refused(ErrorCode.optionInvalid, /delays/));
});
