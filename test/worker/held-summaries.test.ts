// Holds the summary of what a worker holds: the same for the same leases, another for any other, and known for a while.
import assert from "node:assert/strict";
import { test } from "node:test";
import { leaseHash } from "../../src/job/lease.ts";
import { HeldSummaries } from "../../src/worker/executor.ts";
import { aLease } from "../support/samples.ts";

const lease = (row: number, fence = 1, epoch = 1_763_348_400_000) => aLease({ row, fence, epoch });
const NOTHING = { count: 0, digest: 0 };

test("a worker that holds nothing has held nothing from its beginning on", () => {
  const held = new HeldSummaries();
  assert.equal(held.has(NOTHING, 0), true);
  assert.equal(held.has({ count: 1, digest: 0 }, 0), false);
});

test("what is added and removed again leaves nothing behind, in whatever order", () => {
  const held = new HeldSummaries();
  const leases = Array.from({ length: 1_000 }, (_, i) => lease(1 + i * 977, 1 + (i % 5)));
  for (const one of leases) held.add(one);
  held.mark(10);
  const digest = leases.toReversed().reduce((sum, one) => sum + leaseHash(one), 0);
  assert.equal(held.has({ count: 1_000, digest }, 10), true);
  for (const one of leases) held.remove(one);
  held.mark(20);
  assert.equal(held.has(NOTHING, 20), true);
});

test("what is held between two marks is not what a store can show", () => {
  const held = new HeldSummaries();
  held.add(lease(1));
  assert.equal(held.has({ count: 1, digest: leaseHash(lease(1)) }, 0), false);
});

test("a summary counts from its mark to the next one", () => {
  const held = new HeldSummaries();
  const one = { count: 1, digest: leaseHash(lease(1)) };
  held.add(lease(1));
  held.mark(10);
  held.remove(lease(1));
  held.mark(20);
  assert.deepEqual(
    [0, 10, 19, 20, 21].map((mono) => held.has(one, mono)),
    [true, true, true, true, false],
  );
});

test("what was so too many marks ago is not known any more", () => {
  const held = new HeldSummaries();
  const one = { count: 1, digest: leaseHash(lease(1)) };
  held.add(lease(1));
  held.mark(1);
  held.remove(lease(1));
  for (let mono = 2; mono <= 1_024; mono++) held.mark(mono);
  assert.equal(held.has(one, 0), true);
  held.mark(1_025);
  assert.equal(held.has(one, 0), false);
});

test("sets of leases that differ in one lease, one fence or two rows with the same sum have other digests", () => {
  const rows = Array.from({ length: 2_000 }, (_, i) => i + 1);
  assert.equal(new Set(rows.map((row) => leaseHash(lease(row)))).size, rows.length);
  const digests = new Set<number>();
  for (let a = 1; a <= 40; a++)
    for (let b = a + 1; b <= 40; b++) digests.add(leaseHash(lease(a)) + leaseHash(lease(b)));
  assert.equal(digests.size, (40 * 39) / 2);
  const fences = rows.map((fence) => leaseHash(lease(7, fence)));
  assert.equal(new Set(fences).size, fences.length);
  assert.notEqual(leaseHash(lease(7)), leaseHash(lease(7, 1, 1_763_348_400_001)));
});

test("a hash is an exact whole number, also of rows beyond 32 bits", () => {
  for (const row of [1, 2 ** 31, 2 ** 32 + 5, 2 ** 40 + 3]) {
    const x = (BigInt(row) * 40_503_021n + 1_763_348_400_000n * 15_485_863n + 22_695_477n) % 2n ** 26n;
    assert.equal(BigInt(leaseHash(lease(row))), (x * x) >> 20n);
  }
});
