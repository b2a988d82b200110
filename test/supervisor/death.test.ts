// Deaths of worker processes under a supervisor: seen, explained, recovered at once, and the place filled again.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { processIdentity, readProcessStat } from "../../src/platform/identity.ts";
import { describeProcess } from "../../src/stores/liveness.ts";
import { loose, poison, slow, transfer } from "../support/jobs.ts";
import { freezeOutsideOfAWrite, untilState, untilTrue } from "../support/processes.ts";
import { Fleet, KILL_AT, SHORT_LEASE } from "./fleet.ts";

test("a killed worker process is started again, its job runs again at once, and the report says how it died", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ env: { OUTLIVE_HEARTBEAT_INTERVAL: "30s", OUTLIVE_HEARTBEAT_LEASE: "90s" } });
  const [pid] = await supervised.working();
  await untilState(engine, id, "running");
  const victim = processOf(pid!);
  process.kill(pid!, "SIGKILL");
  await supervised.working(2);
  await untilAttempt(engine, id, 2);
  const [dead] = (await engine.report())!.deadWorkers;
  assert.deepEqual([dead?.pid, dead?.how, dead?.evidence], [pid, "gone", `killed by SIGKILL (${victim})`]);
  assert.equal((await engine.report())?.by, "supervisor", "the supervisor did it, before the next process was started");
  const [died] = await supervised.said(/ died after /);
  assert.match(died!.message, new RegExp(`^worker 1 \\(pid ${pid}\\) died after .*: killed by SIGKILL$`));
  await supervised.said(/^worker 1 restarts in 100 ms$/);
});

for (const { how, evidence, env } of [
  { how: "exit", evidence: /^exited with code 3 \(pid /, env: {} },
  { how: "rejection", evidence: /^exited with code 1: Error: left behind \(pid /, env: {} },
  {
    how: "oom",
    evidence: /^killed by SIG(ABRT|TRAP), out of memory: V8 reached its heap limit \(pid /,
    env: { NODE_OPTIONS: "--max-old-space-size=60" },
  },
] as const) {
  test(`the report names the evidence of a death by ${how}`, async (t) => {
    const fleet = new Fleet(t);
    const engine = await fleet.place.engine();
    await engine.enqueue(poison, { how });
    const supervised = fleet.work({ env });
    await supervised.said(/ died after /);
    // A pass that found the lock free before the exit was heard of knows nothing else; the news is added then.
    const report = await untilTrue(
      () => engine.report(),
      (found) => found !== null && !found.deadWorkers[0]!.evidence!.startsWith("its process is gone"),
      "there is a report with the evidence",
    );
    assert.match(report!.deadWorkers[0]!.evidence!, evidence);
  });
}

test("the evidence reaches the report also if another worker process recovered first", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  // Neighbours that probe a hundred times a second are often faster than the news of an exit.
  const supervised = fleet.work({ args: ["--processes", "3"], env: { OUTLIVE_HEARTBEAT_PROBE: "10ms" } });
  await supervised.working(3);
  // A third death would quarantine it.
  for (let round = 1; round <= 2; round++) {
    await untilState(engine, id, "running");
    const owner = (await engine.get(id))!.worker;
    const { pid } = (await engine.workers()).find((worker) => worker.id === owner)!;
    const victim = processOf(pid);
    process.kill(pid, "SIGKILL");
    await untilAttempt(engine, id, round + 1);
    const found = await untilTrue(
      () => engine.incidents().then(([latest]) => engine.report(latest?.id)),
      (report) => report?.deadWorkers[0]?.evidence?.startsWith("its process is gone") === false,
      "the incident has the supervisor's evidence",
    );
    assert.deepEqual(
      found!.deadWorkers.map((worker) => [worker.pid, worker.evidence]),
      [[pid, `killed by SIGKILL (${victim})`]],
    );
    t.diagnostic(`recovered by ${found!.by === "supervisor" ? "the supervisor" : "a neighbour"}`);
  }
});

test("a process that was taken for dead and lives on is noted by its newest worker", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const supervised = fleet.work({ env: { OUTLIVE_HEARTBEAT_INTERVAL: "200ms" } });
  const [pid] = await supervised.working();
  const [first] = await engine.workers();
  const db = new DatabaseSync(fleet.place.path, { timeout: 10_000 });
  db.prepare("UPDATE outlive_workers SET state = 'gone' WHERE id = ?").run(first!.id);
  db.close();
  const [second] = await untilTrue(
    () => engine.workers(),
    ([row]) => row?.state === "live",
    "it registers again",
  );
  assert.equal(second!.pid, pid);
  process.kill(pid!, "SIGKILL");
  await supervised.said(/^worker 1 restarts in /);
  const lastWords = new Map((await engine.workers({ which: "all" })).map(({ id, lastWord }) => [id, lastWord]));
  assert.equal(lastWords.get(first!.id), null);
  assert.match(lastWords.get(second!.id) ?? "", /^killed by SIGKILL/);
});

test("a worker process that is frozen inside a transaction is killed after a lease, and the store is free again", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  await fleet.place.ledger(engine);
  const { id } = await engine.enqueue(transfer, { n: 1 });
  const supervised = fleet.work({
    args: ["--import", KILL_AT],
    env: { ...SHORT_LEASE, OUTLIVE_KILL_AT: "before:INSERT INTO ledger", OUTLIVE_KILL_SIGNAL: "SIGSTOP" },
  });
  const [died] = await supervised.said(/ died after /);
  assert.match(died!.message, /killed by SIGKILL from its supervisor: it blocked the store for \d+(\.\d)? s$/);
  assert.equal((await engine.enqueue(slow, { ms: 1 })).created, true, "writing goes on");
  // Its silence may have been noticed first, by a recovery that then waited for the lock: what the supervisor knows is added. The next
  // process freezes in its turn: the first death is the one.
  const report = await untilTrue(
    async () => engine.report((await engine.incidents()).at(-1)?.id),
    (found) =>
      found?.deadWorkers[0]?.evidence?.includes("it blocked the store for") === true && found.recoveredJobs.length > 0,
    "its death is recovered, with the evidence",
  );
  assert.equal(report?.deadWorkers[0]?.pid, died!["pid"]);
  assert.deepEqual(await fleet.place.ledgerRows(engine), [], "what it had not committed is not there");
  assert.deepEqual(
    report?.recoveredJobs.map(({ jobId, decision }) => [jobId, decision]),
    [[id, "retry"]],
  );
});

test("a worker process that is frozen elsewhere loses its work after a lease, and then its life", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ env: SHORT_LEASE });
  const [pid] = await supervised.working();
  await untilState(engine, id, "running");
  await freezeOutsideOfAWrite(engine, pid!);
  await supervised.said(/died after .* it showed no sign of life for /);
  await untilAttempt(engine, id, 2);
  assert.equal((await engine.incidents()).at(-1)?.how, "silent");
});

/** What its evidence says of a process, while it lives. */
function processOf(pid: number): string {
  return describeProcess({ ...processIdentity(), pid, startTicks: readProcessStat(pid)!.startTicks });
}

/** It runs again. */
function untilAttempt(engine: Engine, id: string, attempt: number): Promise<unknown> {
  return untilTrue(
    () => engine.get(id),
    (job) => job?.state === "running" && job.attempt >= attempt,
    `attempt ${attempt} of ${id} runs`,
  );
}

test("a function that a handler left behind and that writes after its end does not end the worker process", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(loose, null);
  const supervised = fleet.work();
  const [pid] = await supervised.working();
  const [line] = await supervised.said(/^run\.progress of job /);
  assert.equal(line!.level, "warn");
  assert.match(
    line!.message,
    new RegExp(`^run\\.progress of job ${id} \\(loose\\) failed after the end of attempt 1: `),
  );
  const { id: next } = await engine.enqueue(slow, { ms: 1 });
  await untilState(engine, next, "succeeded");
  assert.deepEqual(supervised.pids, [pid]);
  assert.deepEqual(await engine.incidents(), []);
});
