// A PostgreSQL store that was restored under an engine, which goes on with it: its worker stops, a new one can be started, and what the
// restored rows call running is taken at once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, job, OutliveError } from "../../src/index.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { stepped } from "./jobs.ts";
import { PostgresPlace } from "./place.ts";

const untilAborted = job("until-aborted");
untilAborted.handle(
  (_input, run) => new Promise<void>((resolve) => run.signal.addEventListener("abort", () => resolve())),
);

test("after a restore the worker stops with STORE_REPLACED, and the same engine can start the next one", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine({ poll: "100ms", jobs: [stepped, untilAborted] });
  const worker = await engine.start();
  const { id } = await engine.enqueue(untilAborted, {});
  await untilTrue(
    () => worker.held,
    (held) => held === 1,
    "it runs",
  );
  // What a restore does to a row: another transaction has written it.
  await place.query("UPDATE outlive.meta SET value = value WHERE key = 'epoch'");
  await assert.rejects(
    worker.stopped,
    (thrown) =>
      thrown instanceof OutliveError && thrown.code === ErrorCode.storeReplaced && /restored/.test(thrown.message),
  );
  await engine.start({ only: [stepped] });
  const { id: next } = await engine.enqueue(stepped, {});
  await untilState(engine, next, "succeeded");
  await untilState(engine, id, "queued");
  const [incident] = await engine.incidents();
  const report = await engine.report(incident!.id);
  assert.match(report?.deadWorkers[0]?.evidence ?? "", /restored from a backup/);
});

test("recover --restored is refused while workers are alive on the store, and names each process to stop", async (t) => {
  const place = await PostgresPlace.shared(t);
  const workers = [place.child(), place.child()];
  const ids = await Promise.all(workers.map(async (worker) => String((await worker.untilFact("working"))["worker"])));
  const engine = await place.engine();
  await assert.rejects(engine.operator.recover({ restored: true }), (thrown) => {
    assert.ok(thrown instanceof OutliveError && thrown.code === ErrorCode.wrongState, String(thrown));
    for (const [at, id] of ids.entries())
      assert.ok(thrown.message.includes(`${id} (pid ${workers[at]!.pid} on `), thrown.message);
    return true;
  });
});
