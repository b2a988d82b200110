// How the room of a kind is divided among the queues of its open collections.
import assert from "node:assert/strict";
import { test } from "node:test";
import { QueueShares } from "../../src/collections/queue-shares.ts";

const named = (count: number): string[] => Array.from({ length: count }, (_, n) => `c${n}`);

test("whatever is open, parts and headers of all queues together are within the room", () => {
  for (const room of [2, 3, 16, 256])
    for (const open of [0, 1, 2, 7, 8, 9, 300]) {
      const shares = new QueueShares(room);
      for (let round = 0; round < 5; round++) {
        const { ids, parts, headers } = shares.next(named(open), () => round % 2 === 0);
        assert.ok(ids.length * (parts + headers) <= room, `${open} collections in a room of ${room}`);
        assert.ok(parts >= 1 && headers >= 1);
        assert.equal(ids.length > 0, open > 0);
      }
    }
});

test("collections that do not fit take turns, and each has one", () => {
  const shares = new QueueShares(8);
  const open = named(10);
  const seen: string[] = [];
  for (let round = 0; round < 3; round++) {
    const { ids, areMore } = shares.next(open, () => false);
    assert.equal(ids.length, 4);
    assert.equal(areMore, true);
    seen.push(...ids);
  }
  assert.deepEqual([...new Set(seen)].toSorted(), open.toSorted());
});

test("one that brings messages keeps its place, but not while others wait without an end", () => {
  const shares = new QueueShares(4);
  const rounds = Array.from({ length: 200 }, () => shares.next(named(5), (id) => id === "c0" || id === "c1").ids);
  assert.deepEqual(rounds[0], ["c0", "c1"]);
  assert.deepEqual(rounds[1], ["c0", "c1"]);
  for (const id of named(5))
    assert.ok(
      rounds.some((ids) => ids.includes(id)),
      `${id} has its turn`,
    );
});

test("a share does not change with each collection that comes or ends", () => {
  const shares = new QueueShares(256);
  const parts = Array.from({ length: 100 }, (_, n) => shares.next(named(n + 1), () => true).parts);
  assert.ok(new Set(parts).size <= 8, `it had the values ${[...new Set(parts)].join(", ")}`);
});
