// C13: on the user's own pool commits can't deadlock, and waiting for a connection is charged to no job.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { job, open } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { PATIENT } from "../postgres/place.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";
import { chained } from "./commit-jobs.ts";
import { comes, commitPlace } from "./commit-place.ts";
import { attemptOf } from "../support/former-names.ts";

test("C13: four commits that enqueue by the engine on a pool of four connections all succeed", async (t) => {
  const place = await commitPlace(t);
  const { engine } = place;
  const worker = place.child({ pool: { max: 4 } });
  await worker.untilFact("working");
  const ids = await Promise.all(Array.from({ length: 4 }, async () => (await engine.enqueue(chained, {})).id));
  const ended = Promise.all(ids.map((id) => untilState(engine, id, "succeeded")));
  assert.ok(await comes(25_000, ended), "no commit waits for a connection that another commit has");
  const counters = await Promise.all(ids.map(async (id) => (await engine.get(id))!.counters));
  assert.ok(counters.every(({ errors, timeouts }) => errors + timeouts === 0));
});

test("C13: a commit that gets no connection until the deadline costs the job neither an error nor a timeout, and runs again", async (t) => {
  const { url, schema } = await freshSchema(t);
  const pool = new pg.Pool({ connectionString: url, max: 2 });
  t.after(() => pool.end());
  const begun = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const refused = Promise.withResolvers<unknown>();
  const pay = job<object>("pay", { timeout: "1s", grace: "5s" });
  pay.handle(async (_, run) => {
    begun.resolve();
    await mayCommit.promise;
    await run
      .commit(postgres, async () => {})
      .catch((thrown: unknown) => {
        refused.resolve(thrown);
        throw thrown;
      });
  });
  await using engine = await open("postgres:", {
    jobs: [pay],
    logger: false,
    heartbeat: PATIENT,
    postgres: { schema, pool },
  });
  await engine.start();
  const { id } = await engine.enqueue(pay, {});
  await begun.promise;
  const taken = await Promise.all([pool.connect(), pool.connect()]);
  mayCommit.resolve();
  const wasRefused = await comes(8_000, refused.promise);
  for (const client of taken) client.release();
  assert.ok(wasRefused, "its wait has an end");
  assert.equal(((await refused.promise) as { code: string }).code, "STORE_BUSY");
  await untilState(engine, id, "succeeded");
  const ended = (await engine.get(id))!;
  const { counters } = ended;
  assert.deepEqual([counters.errors, counters.timeouts, counters.interruptions, attemptOf(ended)], [0, 0, 1, 2]);
});
