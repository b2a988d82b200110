// What this store does not have: it says so, and jobs that ask for it run all the same where they can.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { ErrorCode } from "../../src/job/errors.ts";
import { FAIR, jobKey } from "../../src/job/limits.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { AttemptWrite, Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, idsOf, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { freshName } from "../support/redis.ts";

async function freshStore(t: TestContext): Promise<Store> {
  const { url, name } = await freshName(t);
  const address = redisAddress(`${url}?store=${name}`);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return store;
}

test("jobs of a fair kind run, by priority and age, and the kind counts as limited", async (t) => {
  const store = await freshStore(t);
  await store.declare([kind("mail", { fair: true }), kind("sms")]);
  assert.deepEqual(await Promise.all(["mail", "sms", "none"].map((name) => store.inspect.isLimited(name))), [
    true,
    false,
    false,
  ]);
  const by = (tenant: string) => ({ keys: [jobKey(FAIR, tenant)], fair: jobKey(FAIR, tenant).id });
  await store.enqueue([
    draft({ id: "a1", ...by("acme") }),
    draft({ id: "a2", ...by("acme") }),
    draft({ id: "b1", ...by("bolt") }),
    draft({ id: "b2", ...by("bolt"), priority: 5 }),
  ]);
  await store.register(workerRecord("w"));
  const ran: string[] = [];
  for (let jobs = 0; jobs < 4; jobs++) {
    const { claimed } = await store.turn("w", [], roomFor(1));
    ran.push(...idsOf(claimed));
    await store.turn(
      "w",
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  assert.deepEqual(ran, ["b2", "a1", "a2", "b1"]);
});

test("rows of a batch are refused before anything is written", async (t) => {
  const store = await freshStore(t);
  assert.equal(store.batches, undefined);
  await store.declare([kind("mail")]);
  await store.enqueue([draft("a")]);
  await store.register(workerRecord("w"));
  const [job] = (await store.turn("w", [], roomFor(1))).claimed;
  const { lease } = job!;
  const ends = { succeeded: [0], failed: [], outputs: [] };
  const refused: readonly AttemptWrite[] = [
    { type: "rows", ends },
    { type: "rowBegins", row: 0 },
  ];
  for (const write of refused) {
    const both = store.write([
      { lease, write: { type: "progress", value: "1" } },
      { lease, write },
    ]);
    await assert.rejects(both, { code: ErrorCode.optionInvalid, message: /no batches/ });
  }
  const { change } = SETTLE.succeed(job!);
  await assert.rejects(store.turn("w", [{ lease, change: { ...change, rows: ends } }], roomFor(0)), /no batches/);
  const { state, progress } = (await store.inspect.get("a"))!;
  assert.deepEqual([state, progress], ["running", null]);
});

test("a weight of a key is refused, and the rest of its limit with it", async (t) => {
  const store = await freshStore(t);
  const key = jobKey("tenant", "acme");
  await assert.rejects(store.operate.setLimit(key, { running: 2, weight: 3 }), {
    code: ErrorCode.optionInvalid,
    message: /acme .* weight/,
  });
  assert.deepEqual(["pauseKey" in store.operate, "keys" in store.inspect], [false, false]);
});
