// The jobs of a key that waits alone at the gate of its kind are claimed there, as plain jobs are: blocks of the only batch. What closes this way, and that
// nothing is passed or forgotten because of it. That keys take turns is in the conformance suite.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { FAIR, jobKey } from "../../src/job/limits.ts";
import type { Store } from "../../src/stores/port.ts";
import {
  draft,
  TestWorker,
  idsOf,
  kind,
  roomFor,
  SETTLE,
  workerRecord,
} from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, type FreshSchema } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const ACME = jobKey(FAIR, "acme");

interface Here {
  readonly store: Store;
  readonly worker: TestWorker;
  readonly query: FreshSchema["query"];
}

/** A store with so many jobs of one key of the fair kind `mail`, and a worker. */
async function withJobs(t: TestContext, count: number): Promise<Here> {
  const fresh = await freshSchema(t);
  const store = await openStore(fresh);
  t.after(() => store.close());
  await store.declare([kind("mail", { fair: true }), kind("sms")]);
  await store.enqueue(
    Array.from({ length: count }, (_, n) =>
      draft({ id: `a${String(n).padStart(3, "0")}`, keys: [ACME], fair: ACME.id }),
    ),
  );
  const { epoch } = await store.register(workerRecord("w"));
  const query: FreshSchema["query"] = (text, values) =>
    fresh.query(text.replaceAll("outlive.", `"${fresh.schema}".`), values);
  return { store, worker: new TestWorker(store, "w", epoch), query };
}

const room = roomFor(10, ["mail", "sms"]);

test("a turn settles jobs of a key that waits alone and claims the next ones, with no visit of the gate and no wake", async (t) => {
  const { worker, query } = await withJobs(t, 30);
  let claimed = await worker.claim(room);
  for (let turn = 0; turn < 2; turn++) {
    assert.equal(claimed.length, 10);
    const answer = await worker.turn(
      claimed.map((job) => SETTLE.succeed(job)),
      room,
    );
    claimed = [...answer.claimed];
  }
  assert.deepEqual(
    idsOf(claimed),
    Array.from({ length: 10 }, (_, n) => `a0${20 + n}`),
  );
  const [left] =
    await query(`SELECT (SELECT count(*)::int FROM outlive.keys) AS visits, (SELECT count(*)::int FROM outlive.key_wakes) AS wakes,
    (SELECT count(*)::int FROM outlive.extras WHERE door IS NOT NULL) AS held, (SELECT count(*)::int FROM outlive.extras WHERE place = 2) AS taken`);
  assert.deepEqual(left, { visits: 0, wakes: 0, held: 0, taken: 10 });
});

test("a pause closes the gate until the key is resumed", async (t) => {
  const { store, worker } = await withJobs(t, 30);
  assert.equal((await worker.claim(room)).length, 10);
  await store.operate.pauseKey!(ACME, { reason: "maintenance", forMs: null });
  assert.deepEqual(await worker.claim(room), []);
  await store.operate.pauseKey!(ACME, null);
  assert.equal((await worker.claim(room)).length, 10);
});

test("a limit that is set while jobs run holds the other, and an end that wrote no wake for it costs a second", async (t) => {
  const { store, worker, query } = await withJobs(t, 2);
  const [first] = await worker.claim(roomFor(1, ["mail", "sms"]));
  await store.operate.setLimit(ACME, { running: 1 });
  // The first moves the other to the door of its key, the next looks there, and then nothing is left to wake anything.
  for (let turn = 0; turn < 3; turn++) assert.deepEqual(await worker.claim(room), [], "one runs");
  assert.deepEqual(await query("SELECT key FROM outlive.key_wakes"), []);
  const doors = await query("SELECT door FROM outlive.extras WHERE door IS NOT NULL");
  assert.deepEqual(
    doors.map(({ door }) => Number(door)),
    [ACME.id],
    "no longer at the gate",
  );
  // The end as a turn writes it that does not see the limit yet.
  await query(
    `WITH notes AS MATERIALIZED (SELECT set_config('outlive_tx.notes', 'ends', true)),
      own AS (UPDATE outlive.extras e SET ended = true, place = 0 FROM outlive.jobs j WHERE j.seq = e.job AND j.id = $1)
    UPDATE outlive.jobs SET state = 2, outcome = 0, finished_at = outlive.now_ms() FROM notes WHERE id = $1`,
    [first!.lease.jobId],
  );
  await untilTrue(
    () => worker.claim(room),
    ({ length }) => length === 1,
    "the next one is admitted",
  );
});

test("a suspect is not passed by the others of its key", async (t) => {
  const { worker, query } = await withJobs(t, 100);
  await query("UPDATE outlive.jobs SET crashes = 1 WHERE id = 'a003'");
  const ids: string[] = [];
  while (!ids.includes("a003") && ids.length < 40) {
    const claimed = await worker.claim(room);
    ids.push(...idsOf(claimed));
    await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
  }
  assert.ok(ids.includes("a003"), `within ${ids.length} of 100`);
});
