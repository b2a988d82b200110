// What this store does not have: it says so, and jobs that ask for it run all the same where they can.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { ErrorCode } from "../../src/job/errors.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { AttemptWrite, Store } from "../../src/stores/port.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { Connection } from "../../src/stores/redis/connection.ts";
import { redisStore } from "../../src/stores/redis/store.ts";
import { draft, kind, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { freshName } from "../support/redis.ts";

async function freshStore(t: TestContext): Promise<Store> {
  const { url, name } = await freshName(t);
  const address = redisAddress(`${url}?store=${name}`);
  const connection = new Connection({ address, random: systemRandom, clock: systemClock });
  const store = redisStore({ connection, clock: systemClock, wakeups: null });
  t.after(() => store.close());
  return store;
}

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
