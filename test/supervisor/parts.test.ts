// The parts of the supervisor that need no process: delays, evidence, and who blocks the store.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Ending, evidenceOf } from "../../src/cli/supervisor/child.ts";
import { RestartDelay, StopSignals, StoreWatch } from "../../src/cli/supervisor/supervisor.ts";

test("the delay doubles from 100 ms to 30 s, and a minute of good running sets it back", () => {
  const delay = new RestartDelay();
  const delays = Array.from({ length: 11 }, () => delay.next(500));
  assert.deepEqual(delays, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
  assert.equal(delay.next(59_999), 30_000);
  assert.equal(delay.next(60_000), 100);
  assert.equal(delay.next(1), 200);
});

const ending: Ending = { code: null, signal: "SIGKILL", lastWords: "", oomKills: null, killedBecause: null };

test("signals within 500 ms of the first are the same one; a later one ends at once", () => {
  const signals = new StopSignals();
  assert.deepEqual(
    [1_000, 1_000, 1_499, 1_500, 1_501].map((mono) => signals.heard(mono)),
    ["first", "same", "same", "again", "again"],
  );
});

test("the evidence names signal or code, and what speaks for a lack of memory", () => {
  assert.equal(evidenceOf(ending), "killed by SIGKILL");
  assert.equal(evidenceOf({ ...ending, code: 3, signal: null }), "exited with code 3");
  assert.equal(
    evidenceOf({ ...ending, code: 1, signal: null, lastWords: "  at x\nTypeError: no\n    at y\n\nNode.js v24\n" }),
    "exited with code 1: TypeError: no",
  );
  assert.match(
    evidenceOf({ ...ending, signal: "SIGABRT", lastWords: "FATAL ERROR: Reached heap limit Allocation failed - " }),
    /^killed by SIGABRT, out of memory/,
  );
  assert.match(evidenceOf({ ...ending, oomKills: { before: 2, after: 3 } }), /out of memory: .*\(oom_kill 2 -> 3\)$/);
  assert.equal(evidenceOf({ ...ending, oomKills: { before: 3, after: 3 } }), "killed by SIGKILL");
  assert.equal(
    evidenceOf({ ...ending, killedBecause: "it blocked the store for 1 s" }),
    "killed by SIGKILL from its supervisor: it blocked the store for 1 s",
  );
});

test("who holds the lock at every look for a lease, without a heartbeat, blocks the store", () => {
  const watch = new StoreWatch(1_000);
  const check = (mono: number, holder: number | null, beats = 0): ReturnType<StoreWatch["check"]> =>
    watch.check({ holder, beats: new Map([[7, beats]]), mono });
  assert.equal(check(0, 7), null);
  assert.equal(check(999, 7), null);
  assert.deepEqual(check(1_000, 7), { pid: 7, forMs: 1_000 });
});

test("who lets go, is another one, or beats meanwhile, blocks nothing", () => {
  const watch = new StoreWatch(1_000);
  const check = (mono: number, holder: number | null, beats = 0): ReturnType<StoreWatch["check"]> =>
    watch.check({ holder, beats: new Map([[7, beats]]), mono });
  check(0, 7);
  check(500, null);
  assert.equal(check(1_000, 7), null, "it had let go");
  assert.equal(check(1_900, 8), null, "another one");
  assert.equal(check(2_000, 7, 1), null);
  assert.equal(check(2_900, 7, 2), null, "it beats: it only writes a lot");
  assert.equal(check(3_800, 7, 2), null);
  assert.deepEqual(check(3_900, 7, 2), { pid: 7, forMs: 1_000 });
});
