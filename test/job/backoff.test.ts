// Holds the delays between attempts.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Backoff, backoffMs } from "../../src/job/job.ts";

const exponential: Backoff = { type: "exponential", baseMs: 1_000, maxMs: 3_600_000, jitter: 0 };
const linear: Backoff = { ...exponential, type: "linear" };

test("exponential delays double from the base", () => {
  assert.deepEqual(
    [1, 2, 3, 4, 5].map((failures) => backoffMs(exponential, failures, 0)),
    [1_000, 2_000, 4_000, 8_000, 16_000],
  );
});

test("linear delays grow by the base", () => {
  assert.deepEqual(
    [1, 2, 3, 4, 5].map((failures) => backoffMs(linear, failures, 0)),
    [1_000, 2_000, 3_000, 4_000, 5_000],
  );
});

test("no delay is longer than the cap", () => {
  assert.equal(backoffMs(exponential, 12, 0), 2_048_000);
  assert.equal(backoffMs(exponential, 13, 0), 3_600_000);
  assert.equal(backoffMs(linear, 3_600, 0), 3_600_000);
  assert.equal(backoffMs(linear, 3_601, 0), 3_600_000);
});

test("ten thousand failures still give the cap and not infinity", () => {
  const tenYears = 3_650 * 86_400_000;
  for (const type of ["exponential", "linear"] as const) {
    const backoff: Backoff = { type, baseMs: tenYears, maxMs: tenYears, jitter: 0.5 };
    assert.equal(backoffMs(backoff, 10_000, 0.999), Math.round(tenYears * (0.5 + 0.5 * 0.999)));
    assert.ok(Number.isSafeInteger(backoffMs(backoff, Number.MAX_SAFE_INTEGER, 0.5)));
  }
});

test("the random part takes at most its share away and adds nothing", () => {
  const jittered: Backoff = { ...exponential, jitter: 0.5 };
  assert.equal(backoffMs(jittered, 1, 0), 500);
  assert.equal(backoffMs(jittered, 1, 0.5), 750);
  for (let i = 0; i < 1_000; i++) {
    const delay = backoffMs(jittered, 3, i / 1_000);
    assert.ok(delay >= 2_000 && delay <= 4_000, `${delay}`);
  }
});

test("with full jitter a delay may be anything from zero to the whole", () => {
  const jittered: Backoff = { ...exponential, jitter: 1 };
  assert.equal(backoffMs(jittered, 1, 0), 0);
  assert.equal(backoffMs(jittered, 1, 0.9999), 1_000);
});

test("a delay is a whole number of milliseconds", () => {
  for (let i = 0; i < 100; i++) {
    assert.ok(Number.isInteger(backoffMs({ ...exponential, baseMs: 7, jitter: 0.3 }, 1 + (i % 9), i / 100)));
  }
});

test("no failures at all wait as long as one", () => {
  assert.equal(backoffMs(exponential, 0, 0), 1_000);
  assert.equal(backoffMs(linear, 0, 0), 1_000);
});
