// What `--json` prints of instants, durations, and of what users have stored.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jsonText } from "../../src/cli/terminal.ts";

const AT = Date.UTC(2026, 10, 16, 22, 45, 31);
const ISO = "2026-11-16T22:45:31.000Z";

test("every instant is ISO 8601, at any depth; durations, counts and null stay as they are", () => {
  const value = { at: AT, jobs: [{ createdAt: AT, runAt: null, oldestReadyMs: 5, heldCount: 2 }], next: null };
  assert.deepEqual(JSON.parse(jsonText(value)), {
    at: ISO,
    jobs: [{ createdAt: ISO, runAt: null, oldestReadyMs: 5, heldCount: 2 }],
    next: null,
  });
  assert.deepEqual(JSON.parse(jsonText({ startedAt: ISO })), { startedAt: ISO }, "what is ISO already stays");
});

test("what users have stored is printed as it is", () => {
  const value = {
    input: { startedAt: AT, at: 1 },
    result: [{ at: AT }],
    progress: { doneAt: 7 },
    steps: [{ name: "load", result: { readAt: AT }, at: AT }],
  };
  assert.deepEqual(JSON.parse(jsonText(value)), { ...value, steps: [{ ...value.steps[0], at: ISO }] });
});
