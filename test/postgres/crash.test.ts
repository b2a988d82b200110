// Deaths on PostgreSQL, by real kills of real processes: who died is found by its lock, who is frozen or cut off by its silence, and
// what they write afterwards is refused.
import assert from "node:assert/strict";
import { test } from "node:test";
import { withClient } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { slow, stepped, transfer, compute, block } from "./jobs.ts";
import { PostgresPlace, SHORT } from "./place.ts";

test("at default settings a killed worker's job runs again in another process, found by its lock and not by its silence", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const first = place.child({ heartbeat: {} });
  await first.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await first.untilFact("started", { id });
  const second = place.child({ heartbeat: {} });
  await second.untilFact("working");
  first.kill();
  const killedAt = performance.now();
  const again = await second.untilFact("started", { id });
  // How long is a matter of the torture rig and the bench, which measure many.
  t.diagnostic(`it took ${Math.round(performance.now() - killedAt)} ms`);
  assert.equal(again["attempt"], 2);
  const report = await untilTrue(
    () => engine.report(),
    (found) => found?.recoveredJobs[0]?.resumedAt !== null && found !== null,
    "the report says when it ran again",
  );
  assert.equal(report!.deadWorkers[0]!.how, "gone");
  await engine.cancel(id);
});

test("when the detector itself dies, another one finds its death", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const children = [place.child(), place.child(), place.child()];
  await Promise.all(children.map((child) => child.untilFact("working")));
  for (let round = 0; round < 2; round++) {
    const { id } = await engine.enqueue(slow, { ms: 600_000 });
    const runs = (from: typeof children): Promise<(typeof children)[number]> =>
      Promise.any(from.map((child) => child.untilFact("started", { id }).then(() => child)));
    const owner = await runs(children);
    owner.kill();
    const killedAt = performance.now();
    children.splice(children.indexOf(owner), 1);
    await runs(children);
    t.diagnostic(`round ${round}: ${Math.round(performance.now() - killedAt)} ms`);
    await engine.cancel(id);
  }
  assert.deepEqual(
    (await engine.incidents()).map(({ how }) => how),
    ["gone", "gone"],
  );
});

test("all workers killed at once are recovered by the next that starts", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const children = [place.child(), place.child()];
  await Promise.all(children.map((child) => child.untilFact("working")));
  const ids = await Promise.all([1, 2, 3].map(async () => (await engine.enqueue(slow, { ms: 600_000 })).id));
  await Promise.all(ids.map((id) => Promise.any(children.map((child) => child.untilFact("started", { id })))));
  for (const child of children) child.kill();
  await Promise.all(children.map((child) => child.exited));
  const next = place.child();
  await Promise.all(ids.map((id) => next.untilFact("started", { id, attempt: 2 })));
});

for (const how of ["killed", "frozen"] as const)
  test(`FR-048 FR-049 FR-050 what a ${how} worker left on the server is gone, and that is an event and a line of the log`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const lines: string[] = [];
    const log = (line: string): void => void lines.push(line);
    const engine = await place.engine({ logger: { info: log, warn: log, error: log } });
    const cleaned: unknown[] = [];
    engine.on("worker.cleaned", (event) => void cleaned.push(event));
    const child = place.child({ heartbeat: SHORT });
    const { worker } = await child.untilFact("working");
    const { id } = await engine.enqueue(slow, { ms: 600_000 });
    await child.untilFact("started", { id });
    const [row] = await engine.workers();
    child.kill(how === "killed" ? "SIGKILL" : "SIGSTOP");
    await untilTrue(
      async () => (await engine.operator.recover(), cleaned),
      (told) => told.length > 0,
      "it is recovered and cleaned up",
    );
    assert.deepEqual(cleaned, [{ worker, lock: row!.lock.name }]);
    assert.notEqual(row!.lock.name, null);
    assert.ok(lines.includes(`cleaned up after worker ${String(worker)}`), lines.join("\n"));
    const locks = await place.query(
      "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND ((classid::bigint << 32) | objid::bigint) = $1::bigint",
      [row!.lock.name],
    );
    assert.deepEqual(locks, []);
  });

test("a worker frozen past its lease loses its work, its sessions are ended, and what it writes when it wakes is refused", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const frozen = place.child({ heartbeat: SHORT });
  await frozen.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await frozen.untilFact("started", { id });
  frozen.kill("SIGSTOP");
  const other = place.child();
  await other.untilFact("started", { id, attempt: 2 });
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "silent");
  frozen.kill("SIGCONT");
  await frozen.untilEvent("worker.disowned");
  await frozen.until(
    (told) =>
      told.fact === "event" &&
      (told["event"] as { name: string }).name === "worker.started" &&
      frozen.facts.indexOf(told) > 3,
    "it works again under a new id",
  );
});

test("a worker frozen in the middle of its commit holds up no other beyond its lease, and its rows are not there", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const frozen = place.child({ heartbeat: SHORT });
  await frozen.untilFact("working");
  const { id } = await engine.enqueue(transfer, { n: 1, idleMs: 600_000 });
  await frozen.untilFact("inside", { id });
  const other = place.child();
  await other.untilFact("working");
  frozen.kill("SIGSTOP");
  await other.untilFact("started", { id, attempt: 2 });
  await untilState(engine, id, "succeeded");
  assert.deepEqual([...(await place.ledgerRows())], [[id, 1]]);
});

test("a handler that blocks the loop for many leases is not taken for dead", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const child = place.child({ heartbeat: SHORT });
  await child.untilFact("working");
  const other = place.child({ heartbeat: SHORT });
  await other.untilFact("working");
  const { id } = await engine.enqueue(compute, { ms: 4_000 });
  await untilState(engine, id, "succeeded");
  assert.deepEqual([...place.effects()], [[`compute ${id} attempt 1`, 1]]);
  assert.deepEqual(await engine.incidents(), []);
});

test("a handler that blocks the loop beyond its deadline costs its process, not the fleet", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(block, { ms: 600_000 });
  await child.untilFact("started", { id });
  assert.equal((await child.exited).signal, "SIGKILL");
  // The server may still believe in its session for a moment.
  const report = await untilTrue(
    () => engine.operator.recover().then(() => engine.report()),
    (found) => found !== null,
    "its death is recovered",
  );
  assert.match(report!.deadWorkers[0]!.evidence!, /killed itself/);
});

test("what a dead attempt has finished is kept, and a shutdown by SIGTERM costs no attempt", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const first = place.child();
  await first.untilFact("working");
  const { id } = await engine.enqueue(stepped, { stopAt: "between" });
  await first.untilFact("waiting", { id });
  first.kill();
  await first.exited;
  const second = place.child();
  await untilState(engine, id, "succeeded");
  assert.equal(place.effects().get(`first ${id}`), 1);
  assert.equal(place.effects().get(`between ${id}`), 2);
  const { id: long } = await engine.enqueue(slow, { ms: 600_000 });
  await second.untilFact("started", { id: long });
  second.kill("SIGTERM");
  await second.untilFact("stopped");
  const job = await engine.get(long);
  assert.deepEqual([job!.state, job!.counters.crashes, job!.counters.errors], ["queued", 0, 0]);
});

test("a killed worker whose session still waits for a frozen one's lock is recovered at once", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const killed = place.child({ concurrency: 1 });
  await killed.untilFact("working");
  await withClient(place.url, async (blocker) => {
    // Another program's transaction, which stands for a frozen worker's.
    await blocker.query("BEGIN");
    await blocker.query(`LOCK TABLE "${place.schema}".ledger IN ACCESS EXCLUSIVE MODE`);
    const { id } = await engine.enqueue(transfer, { n: 1 });
    await killed.untilFact("started", { id });
    await untilTrue(
      () =>
        place.query<{ n: number }>(
          "SELECT count(*)::int AS n FROM pg_locks WHERE relation = 'outlive.ledger'::regclass AND NOT granted",
        ),
      ([row]) => row!.n === 1,
      "its commit waits",
    );
    const other = place.child({ concurrency: 1 });
    await other.untilFact("working");
    killed.kill();
    await other.untilFact("started", { id, attempt: 2 });
    await blocker.query("ROLLBACK");
    await untilState(engine, id, "succeeded");
    assert.deepEqual([...(await place.ledgerRows())], [[id, 1]]);
  });
});
