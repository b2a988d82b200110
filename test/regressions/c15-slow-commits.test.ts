// C15: many slow commits on few connections fail neither attempts nor turns. The limit of 10 s to waiting for a connection is made
// short by a pool whose own limit is shorter.
import assert from "node:assert/strict";
import { test } from "node:test";
import { untilState } from "../support/processes.ts";
import { hold, nap } from "./commit-jobs.ts";
import { comes, commitPlace } from "./commit-place.ts";
import { attemptOf } from "../support/former-names.ts";

test("C15: ten slow commits on four connections fail no attempt and no turn", async (t) => {
  const place = await commitPlace(t);
  const { engine } = place;
  const worker = place.child({ pool: { max: 4, connectionTimeoutMillis: 1_000 } });
  await worker.untilFact("working");
  const ids = await Promise.all(Array.from({ length: 10 }, async () => (await engine.enqueue(hold, { ms: 1_200 })).id));
  await Promise.all(ids.map((id) => untilState(engine, id, "succeeded")));
  const ended = await Promise.all(ids.map(async (id) => (await engine.get(id))!));
  assert.deepEqual(
    ended.map((job) => [job.counters.errors, attemptOf(job)]),
    ids.map(() => [0, 1]),
    "every first attempt succeeded",
  );
  const failed = worker.facts.filter(({ event }) => (event as { name?: string } | undefined)?.name === "store.failed");
  assert.deepEqual(failed, []);
});

test("C15: at default settings a worker goes on with other jobs while commits have every connection that they may have", async (t) => {
  const place = await commitPlace(t);
  const { engine } = place;
  const worker = place.child();
  await worker.untilFact("working");
  const slow = await Promise.all(
    Array.from({ length: 4 }, async () => (await engine.enqueue(hold, { ms: 600_000 })).id),
  );
  await Promise.all(slow.map((id) => worker.untilFact("started", { id })));
  await Promise.any(slow.map((id) => worker.untilFact("inside", { id })));
  const { id } = await engine.enqueue(nap, { ms: 0 });
  assert.ok(await comes(8_000, untilState(engine, id, "succeeded")), "a connection is left for its turns");
});
