// A process is killed with SIGKILL where the keys of a fair kind take turns, and where a key is paused: before and after the commit. Turns go on where the
// ring stands, a pause is there or it is not, and no job is lost, doubled or stuck.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Engine } from "../../src/index.ts";
import * as onPostgres from "../postgres/jobs.ts";
import { PostgresPlace } from "../postgres/place.ts";
import * as onSqlite from "../support/jobs.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";

const CONCURRENCY = 2;

interface TestedStore {
  readonly place: (t: TestContext) => Place | Promise<PostgresPlace>;
  readonly pauser: typeof onSqlite.pauser;
  /** The statements by which the ring moves, and a key is paused. */
  readonly ring: string;
  readonly pause: string;
  /** Who waits when the worker dies. */
  readonly tenants: readonly string[];
  /** How many jobs of other tenants may come before that of a new one, after the death of the only worker. */
  readonly ahead: number;
}

const STORES: Readonly<Record<string, TestedStore>> = {
  sqlite: {
    place: (t) => new Place(t),
    pauser: onSqlite.pauser,
    ring: String.raw`INSERT INTO outlive_keys \(id, name, key, ring_at`,
    pause: String.raw`INSERT INTO outlive_keys \(id, name, key, paused_at`,
    tenants: ["large"],
    // What the dead worker had claimed.
    ahead: CONCURRENCY,
  },
  postgres: {
    place: (t) => PostgresPlace.shared(t),
    pauser: onPostgres.pauser,
    ring: String.raw`own AS \(INSERT INTO .*\(id, name, key, arrival_at, due_at, ring_at`,
    pause: String.raw`INSERT INTO .*\(id, name, key, paused_at`,
    // A tenant that waits alone is claimed without the ring (migrations/open-gates.ts).
    tenants: ["large", "larger"],
    // The same, and one job of each of the two.
    ahead: CONCURRENCY + 2,
  },
};
const { share } = onSqlite;

function enqueue(engine: Engine, tenant: string, count: number): Promise<unknown> {
  return engine.enqueueMany(
    share,
    Array.from({ length: count }, (_, n) => ({ tenant, n })),
  );
}

function ended(engine: Engine, count: number): Promise<unknown> {
  return untilTrue(
    async () => (await engine.counts()).find(({ kind }) => kind === share.name)!,
    ({ succeeded }) => succeeded === count,
    `${count} jobs have succeeded`,
  );
}

for (const [store, { place: placeOf, pauser, ring, pause, tenants, ahead: allowed }] of Object.entries(STORES)) {
  for (const when of ["before", "after"] as const)
    test(`${store}: killed ${when} the commit that moves the ring, a worker costs no tenant its turn`, async (t) => {
      const place = await placeOf(t);
      const engine = await place.engine();
      for (const tenant of tenants) await enqueue(engine, tenant, 30);
      // By the third turn some jobs have ended, and some run.
      const child = place.child({ killAt: `${when}:${ring}#3`, concurrency: CONCURRENCY, only: [share.name] });
      assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");
      const before = place.effects().size;
      await enqueue(engine, "small", 1);
      place.child({ concurrency: CONCURRENCY, only: [share.name] });
      const all = tenants.length * 30 + 1;
      await ended(engine, all);
      const effects = [...place.effects()];
      const ahead = effects.slice(before).findIndex(([line]) => line === "share small 0");
      // What was held when the first worker died may run again, in its old line.
      assert.ok(ahead >= 0 && ahead <= allowed, `${ahead} jobs of other tenants came before: ${effects.join(" ")}`);
      assert.equal(effects.length, all);
      for (const [line, times] of effects) assert.ok(times <= 2, `${line} ran ${times} times`);
    });

  for (const when of ["before", "after"] as const)
    test(`${store}: a process that is killed ${when} the commit of a pause ${when === "before" ? "has paused nothing" : "has paused the key for all others"}`, async (t) => {
      const place = await placeOf(t);
      const engine = await place.engine();
      await engine.enqueue(pauser, { tenant: "large" });
      const child = place.child({ killAt: `${when}:${pause}`, only: [pauser.name] });
      assert.equal((await child.exited).signal, "SIGKILL", "the child died at the point");
      await enqueue(engine, "large", 5);
      await enqueue(engine, "small", 5);
      place.child({ only: [share.name] });
      if (when === "after") {
        await ended(engine, 5);
        assert.equal((await engine.limits.get("fair", "large")).paused?.reason, "a test");
        assert.deepEqual(
          [...place.effects().keys()].filter((line) => line.includes("large")),
          [],
        );
        await engine.limits.resume("fair", "large");
      }
      await ended(engine, 10);
      assert.deepEqual(
        [...place.effects().values()],
        Array.from({ length: 10 }, () => 1),
      );
    });

  test(`${store}: a job whose worker dies while its key is paused does not start again before the key is resumed`, async (t) => {
    const place = await placeOf(t);
    const engine = await place.engine();
    const { id } = await engine.enqueue(share, { tenant: "large", n: 0, hangs: true });
    const child = place.child({ only: [share.name] });
    await child.untilFact("started", { id, attempt: 1 });
    await engine.limits.pause("fair", "large", { reason: "a test" });
    assert.equal((await engine.get(id))!.state, "running", "running jobs continue");
    child.kill();
    await child.exited;
    const next = place.child({ only: [share.name] });
    await untilState(engine, id, "queued");
    await enqueue(engine, "small", 3);
    await ended(engine, 3);
    assert.equal((await engine.why(id))?.because, "key-paused");
    assert.equal(place.effects().get("share large 0"), 1);
    await engine.limits.resume("fair", "large");
    await next.untilFact("started", { id, attempt: 2 });
    await untilState(engine, id, "succeeded");
  });
}
