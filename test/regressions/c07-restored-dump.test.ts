// C7: a dump is restored while workers run. It brings back the row that said whether the server may have forgotten something, the epoch
// and the sequence of the workers' numbers, so the same (epoch, fence, number) was given again, and what a worker of the time before
// settled, beat and released counted.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { idSource } from "../../src/job/enqueue.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import { release, succeed } from "../../src/job/transitions.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Room, Settlement, Store } from "../../src/stores/port.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { postgresStore } from "../../src/stores/postgres/store.ts";
import { draft, kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { slow } from "../postgres/jobs.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { freshSchema } from "../support/postgres.ts";
import { WAYS } from "./dumps.ts";

const ONE: Room = { total: 1, kinds: [{ kind: "mail", room: 1 }] };
const NONE: Room = { total: 0, kinds: [] };

interface Stage {
  readonly url: string;
  readonly schema: string;
  /** As another process would have one. */
  readonly connect: () => Promise<Store>;
  readonly query: (text: string) => Promise<Record<string, unknown>[]>;
}

/** A schema with one queued job, "a". */
async function stage(t: TestContext): Promise<Stage> {
  const stores: Store[] = [];
  t.after(async () => {
    for (const store of stores) await store.close();
  });
  const { url, schema, query } = await freshSchema(t);
  const connect = async (): Promise<Store> => {
    const connection = await Connection.open({ url, schema });
    const store = postgresStore({ connection, clock: systemClock, newId: idSource(systemClock, systemRandom) });
    stores.push(store);
    return store;
  };
  const store = await connect();
  await store.declare([kind("mail")]);
  await store.upkeep.raiseEpoch();
  await store.enqueue([draft("a")]);
  return { url, schema, connect, query: (text) => query(text.replaceAll("outlive.", `"${schema}".`)) };
}

async function claimOne(store: Store, worker: string): Promise<ClaimedJob> {
  const [job] = (await store.turn(worker, [], ONE)).claimed;
  assert.ok(job, `there is a job for ${worker}`);
  return job;
}

const view = ({ lease, counters }: ClaimedJob) => ({ id: lease.jobId, state: "running", counters }) as const;
const success = (job: ClaimedJob): Settlement => ({ lease: job.lease, change: succeed(view(job), null) });
const released = (job: ClaimedJob): Settlement => ({ lease: job.lease, change: release(view(job), "it shut down") });

for (const [way, makeDump] of Object.entries(WAYS))
  test(`C7: after a restore by ${way} no epoch is issued that was issued before`, async (t) => {
    const { connect, ...place } = await stage(t);
    const restore = await makeDump(t, place);
    const before = await connect();
    await before.register(workerRecord("old"));
    const first = await claimOne(before, "old");
    await restore();
    const after = await connect();
    await after.register(workerRecord("young"));
    const second = await claimOne(after, "young");
    assert.deepEqual([second.lease.jobId, second.lease.fence], [first.lease.jobId, first.lease.fence]);
    assert.ok(
      second.lease.epoch > first.lease.epoch,
      `the epoch is ${second.lease.epoch}, and ${first.lease.epoch} was issued before`,
    );
  });

test("C7: a settlement from before the restore is refused, also if it comes before anything was claimed again", async (t) => {
  const { connect, ...place } = await stage(t);
  const old = await connect();
  await old.register(workerRecord("old"));
  const job = await claimOne(old, "old");
  const restore = await WAYS["DROP SCHEMA and psql"]!(t, place);
  // The work of "old" is taken and done by another worker, and then the rows say again that "old" runs it.
  await place.query(`UPDATE outlive.fleet SET state = 'gone' WHERE id = 'old'`);
  await restore();
  const { settled } = await old.turn("old", [success(job)], NONE);
  assert.equal(settled[0]?.is, "stale");
  const { state, history } = (await old.inspect.get("a"))!;
  assert.equal(state, "running");
  assert.deepEqual(
    history.map(({ event }) => event),
    ["write.rejected"],
    "the refusal is kept",
  );
});

test("C7: a worker from before the restore settles and releases nothing that a new worker with its number runs", async (t) => {
  const { connect, ...place } = await stage(t);
  const restore = await WAYS["DROP SCHEMA and psql"]!(t, place);
  const old = await connect();
  await old.register(workerRecord("old"));
  const disowned = await claimOne(old, "old");
  await restore();
  const young = await connect();
  await young.register(workerRecord("young"));
  const owned = await claimOne(young, "young");
  for (const settlement of [released(disowned), success(disowned)]) {
    const { settled } = await old.turn("old", [settlement], NONE);
    assert.equal(settled[0]?.is, "stale", settlement.change.name);
  }
  assert.equal((await young.inspect.get("a"))?.state, "running");
  assert.equal((await young.turn("young", [success(owned)], NONE)).settled[0]?.is, "applied");
});

test("C7: a worker from before the restore neither beats in the row of a new worker with its number nor claims under it", async (t) => {
  const { connect, ...place } = await stage(t);
  const restore = await WAYS["DROP SCHEMA and psql"]!(t, place);
  const old = await connect();
  await old.register(workerRecord("old"));
  await restore();
  const young = await connect();
  await young.register(workerRecord("young"));
  const { live, held } = await old.beat("old", { loopLagMs: 0 });
  assert.deepEqual([live, held.count], [false, 0]);
  const { live: mayClaim, claimed } = await old.turn("old", [], ONE);
  assert.deepEqual([mayClaim, claimed], [false, []]);
  assert.equal(await old.leave("old"), false);
  assert.deepEqual(
    (await young.workers({})).map(({ id, state, beats }) => [id, state, beats]),
    [["young", "live", 0]],
  );
});

test("C7: workers under which a dump was restored stop at once and say why, and the next worker goes on", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 600_000 }, { delay: "300ms" });
  const restore = await WAYS["DROP SCHEMA and psql"]!(t, place);
  const workers = [place.child(), place.child()];
  await Promise.all(workers.map((worker) => worker.untilFact("working")));
  const running = await Promise.race(workers.map((worker) => worker.untilFact("started", { id })));
  await restore();
  const ends = await Promise.all(
    workers.map((worker) =>
      worker.until(
        ({ fact, event }) =>
          fact === "event" && ["store.replaced", "worker.disowned"].includes((event as { name: string }).name),
        "it notices",
      ),
    ),
  );
  assert.deepEqual(
    ends.map(({ event }) => (event as { name: string }).name),
    ["store.replaced", "store.replaced"],
  );
  for (const { event } of ends) assert.match(String((event as { why: string }).why), /restored|no row|belongs to/);
  const next = place.child();
  const again = await next.untilFact("started", { id });
  const [before, after] = [running, again].map((fact) => fact["fence"] as { epoch: number; number: number });
  assert.equal(after!.number, before!.number, "the job has forgotten its first attempt");
  assert.ok(after!.epoch > before!.epoch, `the epoch is ${after!.epoch}, and ${before!.epoch} was issued before`);
});
