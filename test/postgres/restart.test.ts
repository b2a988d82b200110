// The database restarts in the middle of work: nothing is lost, nothing runs twice, no worker is called dead, and work goes on soon
// after it is back. Each test has a server of its own.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine } from "../../src/index.ts";
import { ownServer } from "../support/postgres.ts";
import { type Child, untilTrue } from "../support/processes.ts";
import { slow, transfer } from "./jobs.ts";
import { PostgresPlace } from "./place.ts";

/** Longer than any outage here: only locks, not silence, could call a worker dead. */
const heartbeat = { interval: "1s", lease: "20s", probe: "100ms", sweep: "1s" } as const;

const succeeded = async (engine: Engine): Promise<number> =>
  (await engine.counts().catch(() => [])).reduce((sum, kind) => sum + kind.succeeded, 0);

const deaths = (children: readonly Child[]): unknown[] =>
  children.flatMap(({ facts }) =>
    facts.filter(({ event }) => ["worker.gone", "worker.disowned"].includes((event as { name?: string })?.name ?? "")),
  );

for (const [how, end] of [
  ["is killed with all its processes", "kill"],
  ["is stopped and started", "stop"],
] as const) {
  test(`known bug 19: the database ${how}, all connection-bound locks vanish, and nothing runs twice`, async (t) => {
    const server = await ownServer(t);
    const place = await PostgresPlace.on(t, server.url());
    const engine = await place.engine({ heartbeat });
    const children = [place.child({ heartbeat }), place.child({ heartbeat })];
    await Promise.all(children.map((child) => child.untilFact("working")));
    const { id: long } = await engine.enqueue(slow, { ms: 9_000 });
    await Promise.any(children.map((child) => child.untilFact("started", { id: long })));
    const JOBS = 400;
    await engine.enqueueMany(
      transfer,
      Array.from({ length: JOBS }, (_, n) => ({ n })),
    );
    await untilTrue(
      () => succeeded(engine),
      (done) => done > 10,
      "some are done",
    );
    await server[end]();
    await server.start();
    const before = await untilTrue(
      () => succeeded(engine),
      (done) => done > 0,
      "the server answers",
    );
    const backAt = performance.now();
    await untilTrue(
      () => succeeded(engine),
      (done) => done > before || done >= JOBS,
      "work goes on",
    );
    t.diagnostic(`it went on ${Math.round(performance.now() - backAt)} ms after the server answered`);
    await untilTrue(
      () => succeeded(engine),
      (done) => done === JOBS + 1,
      "all is done",
    );
    assert.deepEqual(deaths(children), [], "nobody was called dead");
    assert.deepEqual(await engine.incidents(), []);
    const ledger = await place.ledgerRows();
    assert.equal(ledger.size, JOBS);
    assert.ok([...ledger.values()].every((times) => times === 1));
    assert.deepEqual([...place.effects()], [[`slow ${long} attempt 1`, 1]]);
  });
}

test("a worker that dies while the database is away is recovered as soon as it is back: the kernel of its host proves the death", async (t) => {
  const server = await ownServer(t);
  const place = await PostgresPlace.on(t, server.url());
  const engine = await place.engine({ heartbeat });
  const dead = place.child({ heartbeat });
  await dead.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await dead.untilFact("started", { id });
  const other = place.child({ heartbeat });
  await other.untilFact("working");
  await server.stop();
  dead.kill();
  await dead.exited;
  await server.start();
  await other.untilFact("started", { id, attempt: 2 });
  // The hold is for workers of which nothing but their session was known.
  await other.untilEvent("recovery.held");
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "gone");
});

test("a server that is frozen for 20 s costs time and nothing else", async (t) => {
  const server = await ownServer(t);
  const place = await PostgresPlace.on(t, server.url());
  const engine = await place.engine({ heartbeat });
  const children = [place.child({ heartbeat }), place.child({ heartbeat })];
  await Promise.all(children.map((child) => child.untilFact("working")));
  const ids = await Promise.all([1, 2, 3, 4].map(async () => (await engine.enqueue(slow, { ms: 1_000 })).id));
  await Promise.all(ids.map((id) => Promise.any(children.map((child) => child.untilFact("started", { id })))));
  server.freeze();
  await new Promise((resolve) => setTimeout(resolve, 20_000));
  server.thaw();
  await untilTrue(
    () => succeeded(engine),
    (done) => done === ids.length,
    "all are done",
  );
  assert.deepEqual(await engine.incidents(), []);
  assert.ok([...place.effects().values()].every((times) => times === 1));
});
