// Holds the one way to write a duration, and how people see it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { type Duration, durationMs, humanMs } from "../../src/job/time.ts";

test("every unit is understood, with and without a fraction", () => {
  const cases: [Duration, number][] = [
    ["0ms", 0],
    ["250ms", 250],
    ["30s", 30_000],
    ["5m", 300_000],
    ["12h", 43_200_000],
    ["7d", 604_800_000],
    ["1.5h", 5_400_000],
    ["0.25s", 250],
    ["007s", 7_000],
  ];
  for (const [text, ms] of cases) assert.equal(durationMs(text, "x"), ms, text);
});

test("a fraction of a millisecond is rounded to a whole one", () => {
  assert.equal(durationMs("0.4ms", "x"), 0);
  assert.equal(durationMs("1.5ms", "x"), 2);
  assert.equal(durationMs("0.0014s", "x"), 1);
});

test("ten years are the most", () => {
  assert.equal(durationMs("3650d", "x"), 315_360_000_000);
  for (const text of ["3650.1d", "315360000001ms", "99999999999999999999999h"] as const) {
    assert.throws(() => durationMs(text, "x"), OutliveError, text);
  }
});

test("anything that is not a number and a unit is refused, and the error names the option and the value", () => {
  const garbage: unknown[] = [
    "",
    "5",
    "s",
    "5 s",
    " 5s",
    "5s ",
    "5s\n",
    "-5s",
    "+5s",
    "1e3s",
    "0x10s",
    ".5s",
    "5.s",
    "1,5s",
    "5S",
    "5w",
    "5min",
    "5s5s",
    "NaNs",
    "Infinityms",
    "٣s",
    5_000,
    null,
    undefined,
    {},
    ["5s"],
    new Date(0),
  ];
  for (const value of garbage) {
    assert.throws(
      () => durationMs(value as Duration, "heartbeat.interval"),
      (thrown: unknown) => {
        assert.ok(thrown instanceof OutliveError, String(value));
        assert.equal(thrown.code, ErrorCode.optionInvalid);
        assert.match(thrown.message, /^heartbeat\.interval is /);
        assert.deepEqual(thrown.data, { option: "heartbeat.interval", value });
        return true;
      },
    );
  }
});

test("people read the largest unit that fits, with one decimal at most", () => {
  const cases: [number, string][] = [
    [0, "0ms"],
    [0.4, "0ms"],
    [999, "999ms"],
    [1_000, "1s"],
    [1_234, "1.2s"],
    [59_900, "59.9s"],
    [60_000, "1m"],
    [120_000, "2m"],
    [300_000, "5m"],
    [3_600_000, "1h"],
    [5_400_000, "1.5h"],
    [86_400_000, "1d"],
    [604_800_000, "7d"],
    [3_650 * 86_400_000, "3650d"],
  ];
  for (const [ms, text] of cases) assert.equal(humanMs(ms), text);
});
