// Holds what is thrown on purpose, and what is kept of whatever users throw.
import assert from "node:assert/strict";
import vm from "node:vm";
import { test } from "node:test";
import { ErrorCode, Interruption, OutliveError, TerminalError, toStoredError } from "../../src/job/errors.ts";

test("an OutliveError keeps what happened and what to do next as fields, and its message is both", () => {
  const cause = new Error("below");
  const error = new OutliveError(ErrorCode.notFound, "There is no job 7.", "Check the id.", { jobId: "7" }, { cause });
  assert.equal(error.message, "There is no job 7. Check the id.");
  assert.equal(error.name, "OutliveError");
  assert.equal(error.code, "NOT_FOUND");
  assert.equal(error.what, "There is no job 7.");
  assert.equal(error.hint, "Check the id.");
  assert.deepEqual(error.data, { jobId: "7" });
  assert.equal(error.cause, cause);
  assert.ok(error instanceof Error);
});

test("without a hint the message has no space at its end, and without data there is an empty object", () => {
  const error = new OutliveError(ErrorCode.closed, "The engine is closed.", "");
  assert.equal(error.message, "The engine is closed.");
  assert.deepEqual(error.data, {});
});

test("codes are unique and written in capitals", () => {
  const codes = Object.values(ErrorCode);
  assert.equal(new Set(codes).size, codes.length);
  for (const code of codes) assert.match(code, /^[A-Z]+(_[A-Z]+)*$/);
});

test("a terminal error can be extended and keeps a cause", () => {
  class CardStolen extends TerminalError {
    override readonly name = "CardStolen";
  }
  const error = new CardStolen("no", { cause: 1 });
  assert.ok(error instanceof TerminalError);
  assert.equal(toStoredError(error).name, "CardStolen");
  assert.equal(new TerminalError("no").name, "TerminalError");
});

test("an interruption says why", () => {
  const interruption = new Interruption("timeout", "job 7 passed its deadline");
  assert.equal(interruption.why, "timeout");
  assert.equal(interruption.name, "Interruption");
  assert.equal(interruption.message, "job 7 passed its deadline");
});

test("of an error its name, message and stack are kept, and nothing else", () => {
  const error = Object.assign(new RangeError("boom", { cause: new Error("secret") }), { password: "secret" });
  const stored = toStoredError(error);
  assert.deepEqual(Object.keys(stored), ["name", "message", "stack"]);
  assert.equal(stored.name, "RangeError");
  assert.equal(stored.message, "boom");
  assert.equal(stored.stack, error.stack);
});

test("an error without a stack is kept without one", () => {
  const error = new Error("boom");
  delete error.stack;
  assert.deepEqual(toStoredError(error), { name: "Error", message: "boom" });
});

test("whatever else was thrown is described", () => {
  const cycle: Record<string, unknown> = {};
  cycle["self"] = cycle;
  const cases: [unknown, string][] = [
    ["a text", "a text"],
    ["", ""],
    [undefined, "undefined"],
    [null, "null"],
    [42, "42"],
    [Number.NaN, "null"],
    [true, "true"],
    [{ code: 7 }, '{"code":7}'],
    [[1, 2], "[1,2]"],
    [cycle, "[object Object]"],
    [5n, "[object BigInt]"],
    [Symbol("x"), "Symbol(x)"],
  ];
  for (const [thrown, message] of cases) assert.deepEqual(toStoredError(thrown), { name: "NonError", message });
});

test("an object whose own conversion throws is described all the same", () => {
  const stubborn = {
    toJSON() {
      throw new Error("no");
    },
  };
  assert.deepEqual(toStoredError(stubborn), { name: "NonError", message: "[object Object]" });
});

test("a huge message and a huge stack are cut, and say how long they were", () => {
  const error = new Error("x".repeat(1_000_000));
  error.stack = "y".repeat(2_000_000);
  const stored = toStoredError(error);
  assert.equal(stored.message, `${"x".repeat(8_192)}… (1000000 characters)`);
  assert.equal(stored.stack, `${"y".repeat(16_384)}… (2000000 characters)`);
  assert.equal(toStoredError("z".repeat(8_192)).message, "z".repeat(8_192));
  assert.match(toStoredError({ text: "z".repeat(9_000) }).message, /… \(9011 characters\)$/);
});

test("a NUL is written out, because some drivers cut a text there", () => {
  const error = new Error("a\0b");
  error.name = "N\0";
  assert.equal(toStoredError(error).message, "a\\0b");
  assert.equal(toStoredError(error).name, "N\\0");
  assert.doesNotMatch(toStoredError(error).stack!, /\0/);
  assert.equal(toStoredError("\0").message, "\\0");
});

test("an error whose name and message are not texts is kept as text", () => {
  const error = new Error("x");
  Object.defineProperties(error, { name: { value: 7 }, message: { value: undefined } });
  const { name, message } = toStoredError(error);
  assert.deepEqual([name, message], ["7", "undefined"]);
});

test("an error that fights back when it is read is kept all the same", () => {
  const error = new Error("x");
  Object.defineProperty(error, "message", { get: () => assert.fail("no") });
  assert.deepEqual(toStoredError(error), { name: "NonError", message: "what was thrown can't be read" });
  const odd = new Error("x");
  Object.defineProperty(odd, "message", { value: Object.create(null) });
  assert.equal(typeof toStoredError(odd).message, "string");
});

test("an error of another realm is an error too", () => {
  assert.equal(toStoredError(vm.runInNewContext("new TypeError('from there')")).message, "from there");
});
