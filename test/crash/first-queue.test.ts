// What the first queue (seed 004) asked of a recovery, seen from outside after real deaths: the log, the events, the history and the report.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import type { Engine, EngineEvent } from "../../src/index.ts";
import { poison, slow, transfer } from "../support/jobs.ts";
import { cliOn } from "../support/cli.ts";
import { Place, untilState } from "../support/processes.ts";

const FAR = { ms: 60_000 };

/** A log that keeps its lines. */
function keepingLog() {
  const lines: { level: string; text: string; data: Record<string, unknown> }[] = [];
  const take =
    (level: string) =>
    (text: string, data: object = {}): void =>
      void lines.push({ level, text, data: data as Record<string, unknown> });
  return { lines, logger: { info: take("info"), warn: take("warn"), error: take("error") } };
}

test("FR-003 FR-020 FR-046 FR-047 FR-050 NFR-007 AC-014 a recovery at the open logs and tells who died, each job's decision and what was cleaned up", async (t) => {
  const place = new Place(t);
  const first = await place.engine();
  const { id } = await first.enqueue(slow, FAR);
  const victim = place.child();
  const { worker } = (await victim.untilFact("working")) as unknown as { worker: string };
  await victim.untilFact("started", { id });
  await first.close();
  victim.kill();
  await victim.exited;

  const { lines, logger } = keepingLog();
  const events: EngineEvent[] = [];
  await place.engine({ logger, onEvent: (event) => void events.push(event) });
  assert.deepEqual(
    events.map(({ name }) => name).filter((name) => /^(recovery|worker|job)\./.test(name)),
    ["recovery.started", "worker.gone", "job.recovered", "worker.cleaned", "recovery.completed"],
  );
  const text = lines.map((line) => line.text).join("\n");
  for (const part of [worker, id, "retry"]) assert.ok(text.includes(part), `${part} is not in the log:\n${text}`);
  for (const name of ["worker.gone", "recovery.completed"]) assert.ok(events.some((event) => event.name === name));
  assert.ok(
    lines.some(({ level, text: line }) => level === "warn" && line.includes(worker)),
    text,
  );
});

test("FR-018 FR-019 FR-021 FR-022 FR-023 what recovery did to a job is in its history: from, to, by system/recovery, and why", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, FAR);
  const victim = place.child();
  await victim.untilFact("started", { id });
  victim.kill();
  await victim.exited;
  await engine.operator.recover();
  const job = await engine.get(id);
  assert.equal(job?.state, "queued");
  assert.equal(job?.counters.crashes, 1);
  const entry = job?.history.at(-1);
  assert.deepEqual([entry?.from, entry?.to, entry?.actor], ["running", "queued", "system/recovery"]);
  assert.match(entry?.reason ?? "", /crash 1/);
  const report = await engine.report();
  assert.deepEqual(
    report?.recoveredJobs.map(({ jobId, decision, success }) => [jobId, decision, success]),
    [[id, "retry", true]],
  );
});

test("FR-010 NFR-005 a transaction that was open when its process died has left nothing, and its work is done once", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const { id } = await engine.enqueue(transfer, { n: 7 });
  const victim = place.child({ killAt: "before:INSERT INTO ledger" });
  await victim.exited;
  assert.deepEqual(await place.ledgerRows(engine), []);
  const heir = place.child();
  await untilState(engine, id, "succeeded");
  heir.kill("SIGTERM");
  assert.deepEqual(await place.ledgerRows(engine), [{ job: id, n: 7 }]);
});

test("FR-016 FR-017 FR-027 AC-004 AC-005 IT-004 after one crash too many the job has failed: the report names it and the limit", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(poison, { how: "SIGKILL" });
  for (let deaths = 0; (await engine.get(id))?.state !== "quarantined"; deaths++) {
    assert.ok(deaths < 6, "it goes on killing");
    const victim = place.child({ concurrency: 1 });
    await victim.exited;
    await engine.operator.recover();
  }
  const report = await engine.report();
  assert.match(report?.text ?? "", new RegExp(`${id}: (failed|quarantined)`));
  const job = await engine.get(id);
  assert.deepEqual([job?.counters.crashes, job?.counters.blamed], [4, 3], "the first crash is not blamed on it");
});

/** A dead worker that held two jobs, and the ids of both. */
async function twoOrphans(
  t: TestContext,
): Promise<{ place: Place; engine: Engine; ids: [string, string]; worker: string }> {
  const place = new Place(t);
  const engine = await place.engine();
  const ids: [string, string] = [(await engine.enqueue(slow, FAR)).id, (await engine.enqueue(slow, FAR)).id];
  const victim = place.child();
  const { worker } = (await victim.untilFact("working")) as unknown as { worker: string };
  for (const id of ids) await victim.untilFact("started", { id });
  victim.kill();
  await victim.exited;
  return { place, engine, ids, worker };
}

test("FR-026 FR-027 a job whose own row can't be written is in the report with the reason, and the others are recovered", async (t) => {
  const { place, engine, ids, worker } = await twoOrphans(t);
  const db = new DatabaseSync(place.path);
  t.after(() => db.close());
  db.exec(
    `CREATE TRIGGER stuck BEFORE UPDATE ON outlive_jobs WHEN old.id = '${ids[0]}' BEGIN SELECT RAISE(ABORT, 'the row is stuck'); END`,
  );
  const first = await engine.operator.recover();
  const told = (report: typeof first): unknown =>
    report?.recoveredJobs.map(({ jobId, decision, success, error }) => [jobId, decision, success, error]);
  assert.deepEqual(told(first), [
    [ids[0], "none", false, "the row is stuck"],
    [ids[1], "retry", true, null],
  ]);
  assert.match(first!.text, new RegExp(`^  - ${ids[0]}: not recovered \\(the row is stuck\\)$`, "m"));
  assert.deepEqual([(await engine.get(ids[0]))?.state, (await engine.get(ids[1]))?.state], ["running", "queued"]);
  db.exec("DROP TRIGGER stuck");
  const second = await engine.operator.recover();
  assert.deepEqual(second?.incidents, first?.incidents, "one death is one incident");
  assert.deepEqual(told(second), [
    [ids[0], "retry", true, null],
    [ids[1], "retry", true, null],
  ]);
  assert.deepEqual(
    second?.deadWorkers.map(({ workerId }) => workerId),
    [worker],
  );
});

test("FR-027 a worker whose recovery failed as a whole is in the report of that pass, also if nothing else was recovered", async (t) => {
  const { place, engine, ids, worker } = await twoOrphans(t);
  const db = new DatabaseSync(place.path);
  t.after(() => db.close());
  db.exec("CREATE TRIGGER stuck BEFORE INSERT ON outlive_incidents BEGIN SELECT RAISE(ABORT, 'no incident fits'); END");
  const report = await engine.operator.recover();
  assert.deepEqual([report?.by, report?.incidents, report?.recoveredJobs], ["recover", [], []]);
  assert.deepEqual(
    report?.failedRecoveries.map(({ workerId }) => workerId),
    [worker],
  );
  assert.match(report.failedRecoveries[0]!.error, /no incident fits/);
  assert.match(
    report.text,
    new RegExp(`^Failed Recoveries: 1\\n  - ${worker}: .*no incident fits.*; the next recovery tries again$`, "m"),
  );
  const { stdout } = await cliOn(t, place.url).run("recover");
  assert.match(stdout, /^Failed Recoveries: 1$/m);
  db.exec("DROP TRIGGER stuck");
  const next = await engine.operator.recover();
  assert.deepEqual([next?.recoveredJobs.length, next?.failedRecoveries], [2, []]);
  assert.equal((await engine.get(ids[0]))?.state, "queued");
});
