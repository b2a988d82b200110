// Jobs in PostgreSQL behind a transaction pooler, liveness in Redis: a host that is lost is found without waiting for its lease, and nothing that happens to
// Redis strands a job or makes a living worker dead. Both servers, the pooler and the kills are real.
import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { ErrorCode } from "../../src/job/errors.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { ownRedis } from "../support/redis.ts";
import { slow } from "./jobs.ts";
import { pgbouncer } from "./pgbouncer.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

/** A death that only the lease could show would be found long after this test has failed. */
const HEARTBEAT = { ...PATIENT, lease: "10m", contact: "1s" } as const;

interface Lock {
  readonly id: string;
  readonly lock_name: string | null;
  readonly lock_identity: string;
}

function locksOf(place: PostgresPlace): Promise<Lock[]> {
  return place.query<Lock>("SELECT id, lock_name, lock_identity FROM outlive.fleet WHERE state = 'live' ORDER BY id");
}

const untilLocks = (place: PostgresPlace, are: (locks: readonly Lock[]) => boolean, what: string): Promise<Lock[]> =>
  untilTrue(() => locksOf(place), are, what);

test("a worker of another host behind a pooler is found by its missing subscription, and no job is blamed", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const url = await pgbouncer(t, place.url, "transaction");
  const engine = await place.engine();
  const options = { url, heartbeat: HEARTBEAT, liveness: redis.url() };
  const far = place.child({ ...options, elsewhere: true });
  await far.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await far.untilFact("started", { id });
  const other = place.child(options);
  await other.untilFact("working");
  await untilLocks(place, (locks) => locks.length === 2 && locks.every(({ lock_name: name }) => name !== null), "both");
  far.kill();
  const killedAt = performance.now();
  await other.untilFact("started", { id, attempt: 2 });
  t.diagnostic(`it took ${Math.round(performance.now() - killedAt)} ms, with a lease of 10 minutes`);
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "lost");
  assert.equal((await engine.get(id))!.counters.crashes, 0);
  await engine.cancel(id);
});

test("Redis is killed while workers work on PostgreSQL: their evidence is withdrawn at once, all work ends, no worker is called dead, and it is there again afterwards", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const url = await pgbouncer(t, place.url, "transaction");
  const engine = await place.engine();
  const options = { url, heartbeat: HEARTBEAT, liveness: redis.url() };
  const children = [place.child({ ...options, elsewhere: true }), place.child({ ...options, elsewhere: true })];
  await Promise.all(children.map((child) => child.untilFact("working")));
  const has = (locks: readonly Lock[]): boolean =>
    locks.length === 2 && locks.every(({ lock_name: name }) => name?.startsWith("o:{liveness-") === true);
  const before = await untilLocks(place, has, "both have their evidence");
  const { id: long } = await engine.enqueue(slow, { ms: 600_000 });
  await Promise.race(
    children.map((child) => child.untilFact("started", { id: long }).catch(() => new Promise(() => {}))),
  );

  await redis.kill();
  await untilLocks(place, (locks) => locks.every(({ lock_name: name }) => name === null), "it is withdrawn");
  const jobs = await Promise.all(Array.from({ length: 40 }, () => engine.enqueue(slow, { ms: 500 })));
  // They end without Redis, and together they take longer than `contact`.
  for (const { id } of jobs) await untilState(engine, id, "succeeded");
  await redis.start();
  const after = await untilLocks(place, has, "it is written again");
  assert.deepEqual(
    after.map(({ id }) => id),
    before.map(({ id }) => id),
    "the same workers",
  );
  assert.notDeepEqual(after, before, "it names another run of Redis");

  const wire = await connect({ url: redis.url() });
  t.after(() => wire.close());
  await wire.call(["FLUSHALL"], 5_000);
  const changed = (locks: readonly Lock[]): boolean =>
    has(locks) && locks.every(({ lock_identity: identity }, at) => identity !== after[at]!.lock_identity);
  await untilLocks(place, changed, "after a flush each has new evidence within a heartbeat");
  const running = await engine.get(long);
  assert.deepEqual([running!.state, running!.attempt], ["running", 1]);
  assert.deepEqual(await engine.incidents(), []);
  await engine.cancel(long);
});

test("a Redis server that is not there when a worker starts keeps no worker from working", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  await redis.kill();
  const worker = place.child({ heartbeat: HEARTBEAT, liveness: redis.url() });
  await worker.untilFact("working");
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await untilState(engine, id, "succeeded");
  await redis.start();
  await untilLocks(place, ([lock]) => lock?.lock_name?.startsWith("o:{liveness-") === true, "its evidence follows");
});

test("liveness in Redis is refused for a store that has its own", async () => {
  await assert.rejects(open("sqlite::memory:", { liveness: "redis://app:secret@host" }), {
    code: ErrorCode.optionInvalid,
    message: /`liveness` is redis:\/\/app:\[redacted\]@host, and a SQLite store/,
  });
});
