// What a claim on Redis takes beyond what every store must: the port allows a store to claim fewer jobs ahead than it could.
import assert from "node:assert/strict";
import { test } from "node:test";
import { leaseHash } from "../../src/job/lease.ts";
import {
  draft,
  Fixture,
  GRACE_MS,
  kind,
  names,
  roomFor,
  SETTLE,
  TIMEOUT_MS,
} from "../../src/testing/conformance/fixture.ts";
import { redisStores } from "../conformance/redis-stores.ts";

for (const [title, others] of [
  ["one other kind", 1],
  ["many other kinds", 20],
] as const)
  test(`a worker that serves a kind that may not wait claims jobs of ${title} ahead`, async (t) => {
    const fixture = await Fixture.set(t, redisStores);
    const waiting = names("fast", others);
    await fixture.declare(kind("slow", { fair: true }), ...waiting.map((name) => kind(name)));
    const kinds = [{ kind: "slow", room: 2 }, ...waiting.map((name) => ({ kind: name, room: 2, ahead: true }))];
    const fair = { id: 7, limit: "tenant", key: "acme" };
    await fixture.enqueue({ id: "turn", kind: "slow", keys: [fair], fair: fair.id });
    await fixture.enqueue(...names("a", 30).map((id, at) => ({ id, kind: waiting[at % others]! })));
    const worker = await fixture.worker("w");
    const claimed = async (total: number): Promise<number> =>
      (await worker.claim({ total, kinds, ahead: 6 })).filter(({ kind: name }) => name !== "slow").length;
    assert.equal(await claimed(0), 0, "the next free slot is for the job at the gate");
    assert.equal(await claimed(2), 7, "it has its slot, and none of its kind is left that may not wait");
    assert.equal(await claimed(2), 8);
    assert.equal(await claimed(0), 6);
  });

test("a heartbeat of a worker that holds thousands lists what it holds, in pieces, and of fewer only if it is asked to", async (t) => {
  const fixture = await Fixture.set(t, redisStores);
  const { store } = fixture;
  const ids = names("held", 4_200);
  for (let from = 0; from < ids.length; from += 250)
    await store.enqueue(ids.slice(from, from + 250).map((id) => draft(id)));
  const worker = await fixture.worker("w");
  const claimed = await worker.claim(roomFor(ids.length));
  const digest = (held: typeof claimed): number => held.reduce((sum, { lease }) => sum + leaseHash(lease), 0);
  const all = await store.beat("w", { loopLagMs: 0 });
  assert.deepEqual(all.held, { count: ids.length, digest: digest(claimed) });
  assert.deepEqual(
    new Map(all.leases!.map(({ lease }) => [lease.jobId, lease])),
    new Map(claimed.map(({ lease }) => [lease.jobId, lease])),
  );
  const [left, ended] = [claimed.slice(0, 1_200), claimed.slice(1_200)];
  await worker.settle(...ended.map((job) => SETTLE.succeed(job)));
  const fewer = await store.beat("w", { loopLagMs: 0 });
  assert.deepEqual([fewer.held, fewer.leases], [{ count: left.length, digest: digest(left) }, undefined]);
  const asked = await store.beat("w", { loopLagMs: 0, leases: true });
  assert.deepEqual([asked.held, asked.leases?.length], [fewer.held, left.length]);
  await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1_000);
  const late = await store.beat("w", { loopLagMs: 0, leases: true });
  assert.deepEqual([late.overdueMs, (await store.beat("w", { loopLagMs: 0 })).overdueMs], [1_000, 1_000]);
  await worker.settle(...left.map((job) => SETTLE.succeed(job)));
});
