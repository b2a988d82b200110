// Holds for how long a worker may trust what it holds.
import assert from "node:assert/strict";
import { test } from "node:test";
import { leaseMarginMs, sameAttempt, trustedUntil } from "../../src/job/lease.ts";
import { aLease } from "../support/samples.ts";

test("the margin is a tenth of the lease, at least 50 ms, and never more than half of it", () => {
  assert.equal(leaseMarginMs(90_000), 9_000);
  assert.equal(leaseMarginMs(500), 50);
  assert.equal(leaseMarginMs(300), 50);
  assert.equal(leaseMarginMs(100), 50);
  assert.equal(leaseMarginMs(60), 30);
});

test("a worker trusts itself until its lease, counted from when the heartbeat was sent, expires, less the margin", () => {
  assert.equal(trustedUntil(1_000, 90_000), 1_000 + 81_000);
  assert.equal(trustedUntil(0, 60), 30);
});

test("a worker stops trusting itself before anybody may take its work", () => {
  for (const leaseMs of [1, 60, 100, 150, 500, 1_000, 30_000, 90_000, 86_400_000]) {
    const trusted = trustedUntil(0, leaseMs);
    assert.ok(trusted > 0 && trusted < leaseMs, `${leaseMs}: ${trusted}`);
  }
});

test("an attempt is named by epoch and fence together", () => {
  const lease = aLease({ epoch: 7, fence: 3 });
  assert.equal(sameAttempt(lease, { epoch: 7, fence: 3 }), true);
  assert.equal(sameAttempt(lease, { epoch: 8, fence: 3 }), false);
  assert.equal(sameAttempt(lease, { epoch: 7, fence: 4 }), false);
});
