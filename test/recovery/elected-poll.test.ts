// When the elected process polls again, by what it has found.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ElectedPoll } from "../../src/recovery/elected-poll.ts";
import type { Store } from "../../src/stores/port.ts";

const EVERY_MS = 200;

async function nextPoll(found: { readonly now: boolean; readonly nextInMs: number | null }): Promise<unknown> {
  const told: unknown[] = [];
  const store = { upkeep: { pending: async () => found }, notify: (what: unknown) => told.push(what) };
  const clock = { mono: () => 1_000 };
  const inMs = await new ElectedPoll({ store: store as unknown as Store, clock: clock as never }, EVERY_MS).pass([]);
  return { inMs, woke: told.includes("wake") };
}

test("what is due next sets the time of the next poll, at most the usual pause", async () => {
  assert.deepEqual(await nextPoll({ now: false, nextInMs: 3 }), { inMs: 3, woke: false });
  assert.deepEqual(await nextPoll({ now: false, nextInMs: 0 }), { inMs: 1, woke: false });
  assert.deepEqual(await nextPoll({ now: false, nextInMs: null }), { inMs: EVERY_MS, woke: false });
  assert.deepEqual(await nextPoll({ now: false, nextInMs: 9_000 }), { inMs: EVERY_MS, woke: false });
});

test("when all workers have been woken, each learns what is due next: the next poll waits for 50 ms, however soon that is", async () => {
  assert.deepEqual(await nextPoll({ now: true, nextInMs: 3 }), { inMs: 50, woke: true });
  assert.deepEqual(await nextPoll({ now: true, nextInMs: 120 }), { inMs: 120, woke: true });
  assert.deepEqual(await nextPoll({ now: true, nextInMs: null }), { inMs: EVERY_MS, woke: true });
});
