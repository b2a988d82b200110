// A key with a rate is read to what the rate admits, however many jobs wait behind it. Each job that is read is locked, and a lock leaves its mark on the row.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jobKey, throttleKey } from "../../src/job/limits.ts";
import { draft, idsOf, kind, SETTLE, TestWorker, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema } from "../support/postgres.ts";

const KEYS = {
  "a limit with a rate": { key: jobKey("host", "a.example"), burst: 3 },
  "a throttle, which no program declares": { key: throttleKey("mail", "a", 3_600_000), burst: 1 },
};

for (const [name, { key, burst }] of Object.entries(KEYS))
  test(`${name}: of 200 jobs that wait, those are read that may start, and the next one`, async (t) => {
    const fresh = await freshSchema(t);
    const store = await openStore(fresh);
    t.after(() => store.close());
    await store.declare([kind("mail", { keyed: [limit("host", { intervalMs: 3_600_000, burst: 3 })] })]);
    const { epoch } = await store.register(workerRecord("w"));
    const worker = new TestWorker(store, "w", epoch);
    await store.enqueue(Array.from({ length: 200 }, (_, n) => draft({ id: `j${n}`, keys: [key] })));
    const claimed = [...(await worker.claim(10)), ...(await worker.claim(10))];
    assert.deepEqual(
      idsOf(claimed),
      Array.from({ length: burst }, (_, n) => `j${n}`),
    );
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
    assert.deepEqual(idsOf(await worker.claim(10)), []);
    const [read] = await fresh.query(
      `SELECT count(*)::int AS n FROM "${fresh.schema}".jobs WHERE lane = 3 AND xmax <> 0`,
    );
    assert.deepEqual(read, { n: 1 });
  });
