// What a claim on Redis takes beyond what every store must: the port allows a store to claim fewer jobs ahead than it could.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Fixture, kind, names } from "../../src/testing/conformance/fixture.ts";
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
