// Jobs in PostgreSQL behind a transaction pooler, liveness in Redis: a host that is lost is found without waiting for its lease, and nothing that happens to
// Redis strands a job or makes a living worker dead. Both servers, the pooler and the kills are real.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { open } from "../../src/index.ts";
import { ErrorCode } from "../../src/job/errors.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { ownRedis } from "../support/redis.ts";
import { hidesSubscriptions, redisProxy } from "../support/redis-proxy.ts";
import { slow } from "./jobs.ts";
import { pgbouncer } from "./pgbouncer.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

/** A death that only the lease could show would be found long after this test has failed. */
const HEARTBEAT = { ...PATIENT, lease: "10m", contact: "1s" } as const;

/** Longer than a lost connection takes to be made again. */
const SELDOM = { ...HEARTBEAT, interval: "2s" } as const;

interface Lock {
  readonly id: string;
  readonly lock_name: string | null;
  readonly lock_identity: string;
}

function locksOf(place: PostgresPlace): Promise<Lock[]> {
  return place.query<Lock>("SELECT id, lock_name, lock_identity FROM outlive.fleet WHERE state = 'live' ORDER BY id");
}

async function beatsOf(place: PostgresPlace): Promise<readonly number[]> {
  const rows = await place.query<{ beats: number }>(
    "SELECT beats::int FROM outlive.fleet WHERE state = 'live' ORDER BY id",
  );
  return rows.map(({ beats }) => beats);
}

/** At most one whole interval of a heartbeat has passed since then, so at most two of them were sent. */
async function assertWithinOneHeartbeat(place: PostgresPlace, before: readonly number[]): Promise<void> {
  const sent = (await beatsOf(place)).map((beats, at) => beats - before[at]!);
  assert.ok(Math.max(...sent) <= 2, `heartbeats that were sent until the evidence was there again: ${sent.join()}`);
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
  const options = { url, heartbeat: SELDOM, liveness: redis.url() };
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
  const started = await beatsOf(place);
  const after = await untilLocks(place, has, "it is written again");
  await assertWithinOneHeartbeat(place, started);
  assert.deepEqual(
    after.map(({ id }) => id),
    before.map(({ id }) => id),
    "the same workers",
  );
  assert.notDeepEqual(after, before, "it names another run of Redis");

  const wire = await connect({ url: redis.url() });
  t.after(() => wire.close());
  await wire.call(["FLUSHALL"], 5_000);
  const flushed = await beatsOf(place);
  const changed = (locks: readonly Lock[]): boolean =>
    has(locks) && locks.every(({ lock_identity: identity }, at) => identity !== after[at]!.lock_identity);
  await untilLocks(place, changed, "after a flush each has new evidence");
  await assertWithinOneHeartbeat(place, flushed);
  const running = await engine.get(long);
  assert.deepEqual([running!.state, running!.attempt], ["running", 1]);
  assert.deepEqual(await engine.incidents(), []);
  await engine.cancel(long);
});

test("Redis is away for several leases: heartbeats in PostgreSQL decide, no worker is called dead, and all work ends", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const engine = await place.engine();
  const heartbeat = { ...PATIENT, lease: "3s", contact: "1s" } as const;
  const children = [1, 2].map(() => place.child({ heartbeat, liveness: redis.url(), elsewhere: true }));
  await Promise.all(children.map((child) => child.untilFact("working")));
  await untilLocks(place, (locks) => locks.length === 2 && locks.every(({ lock_name: name }) => name !== null), "both");
  await redis.kill();
  const killedAt = performance.now();
  const jobs = await Promise.all(Array.from({ length: 4 }, () => engine.enqueue(slow, { ms: 10_000 })));
  for (const { id } of jobs) await untilState(engine, id, "succeeded");
  assert.ok(performance.now() - killedAt > 9_000, "more than three leases");
  await redis.start();
  await untilLocks(
    place,
    (locks) => locks.length === 2 && locks.every(({ lock_name: name }) => name !== null),
    "again",
  );
  assert.deepEqual(await engine.incidents(), []);
  for (const { id } of jobs) assert.equal((await engine.get(id))!.attempt, 1);
});

test("a worker behind a proxy that hides subscriptions has no evidence in Redis, says so, and is not called dead while it lives", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const proxy = await redisProxy(t, redis, { sends: hidesSubscriptions });
  const url = await pgbouncer(t, place.url, "transaction");
  const engine = await place.engine();
  const options = { url, heartbeat: HEARTBEAT, elsewhere: true };
  const hidden = place.child({ ...options, liveness: proxy.url });
  const { worker } = (await hidden.untilFact("working")) as unknown as { worker: string };
  await hidden.until(
    ({ event }) => /do not see this worker's subscription/.test(String((event as { text?: string } | undefined)?.text)),
    "a notice that its subscription is hidden",
  );
  const { id } = await engine.enqueue(slow, { ms: 5_000 });
  await hidden.untilFact("started", { id });
  const watcher = place.child({ ...options, liveness: redis.url() });
  await watcher.untilFact("working");
  const locks = await untilLocks(place, (all) => all.some(({ lock_name: name }) => name !== null), "the watcher's");
  assert.equal(locks.find((lock) => lock.id === worker)!.lock_name, null);
  // It ends several times `contact` later.
  await untilState(engine, id, "succeeded");
  assert.deepEqual([(await engine.get(id))!.attempt, await engine.incidents()], [1, []]);
});

test("where the maintenance runs in the worker's own thread, evidence is withdrawn when Redis goes and written again when it is back", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const pool = new pg.Pool({ connectionString: place.url, password: () => "" });
  t.after(() => pool.end());
  await using engine = await open("postgres:", {
    jobs: [slow],
    logger: false,
    liveness: redis.url(),
    heartbeat: HEARTBEAT,
    postgres: { schema: place.schema, pool },
  });
  const worker = await engine.start();
  const has = ([lock]: readonly Lock[]): boolean => lock?.lock_name?.startsWith("o:{liveness-") === true;
  const [before] = await untilLocks(place, has, "it has its evidence");
  await redis.kill();
  await untilLocks(place, ([lock]) => lock!.lock_name === null, "it is withdrawn");
  await redis.start();
  const [after] = await untilLocks(place, has, "it is written again");
  assert.equal(after!.id, before!.id);
  assert.notEqual(after!.lock_identity, before!.lock_identity, "it names another run of Redis");
  await worker.stop();
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

test("outlive check says whether the Redis server of `liveness` replies, and whether it hides subscriptions", async (t) => {
  const place = await PostgresPlace.shared(t);
  const redis = await ownRedis(t);
  const proxy = await redisProxy(t, redis, { sends: hidesSubscriptions });
  const found = async (liveness: string): Promise<string> => {
    await using engine = await open(place.url, { logger: false, postgres: { schema: place.schema }, liveness });
    const findings = await engine.operator.advice();
    return findings.flatMap(({ level, text }) => (text.startsWith("liveness:") ? [`${level} ${text}`] : [])).join();
  };
  assert.match(await found(redis.url()), /^ok liveness: redis:\/\/127\.0\.0\.1:\d+ shows the subscriptions of workers/);
  assert.match(await found(proxy.url), /^warning liveness: .* does not show a subscription .* as behind a proxy/);
  await redis.kill();
  assert.match(await found(redis.url()), /^warning liveness: .* can't be reached: .*only heartbeats show/);
});

test("liveness in Redis is refused for a store that has its own", async () => {
  await assert.rejects(open("sqlite::memory:", { liveness: "redis://app:secret@host" }), {
    code: ErrorCode.optionInvalid,
    message: /`liveness` is redis:\/\/app:\[redacted\]@host, and a SQLite store/,
  });
});
