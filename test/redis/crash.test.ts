// Deaths on Redis, by real kills of real processes: the kernel proves who died on this host, a missing subscription ends contact with another one, and
// what a worker writes after its work was taken is refused.
import assert from "node:assert/strict";
import { test } from "node:test";
import { kinds } from "../support/jobs.ts";
import { polledForAll } from "../support/polled.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { tagOf } from "../../src/stores/redis/connection.ts";
import { connect } from "../../src/stores/redis/driver.ts";
import { messageOf, wakeupChannel } from "../../src/stores/redis/wakeup.ts";
import { type Child, untilState, untilTrue } from "../support/processes.ts";
import { RedisPlace, SHORT } from "./place.ts";

const { slow, stepped, tick } = kinds;

test("at default settings a killed worker's job runs again in another process", async (t) => {
  const place = await RedisPlace.shared(t);
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
  t.diagnostic(`it took ${Math.round(performance.now() - killedAt)} ms`);
  assert.equal(again["attempt"], 2);
  const report = await untilTrue(
    () => engine.report(),
    (found) => found !== null && found.recoveredJobs[0]?.resumedAt !== null,
    "the report says when it ran again",
  );
  assert.equal(report!.deadWorkers[0]!.how, "gone");
  await engine.cancel(id);
});

test("a worker of another host that dies is found by its missing subscription, and no job is blamed at once", async (t) => {
  const place = await RedisPlace.shared(t);
  const engine = await place.engine();
  const far = place.child({ elsewhere: true });
  await far.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await far.untilFact("started", { id });
  const other = place.child();
  await other.untilFact("working");
  far.kill();
  await other.untilFact("started", { id, attempt: 2 });
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "lost");
  assert.equal((await engine.get(id))!.counters.crashes, 0);
  await engine.cancel(id);
});

test("a worker frozen past its lease loses its work, and when it wakes it works again under a new id", async (t) => {
  const place = await RedisPlace.shared(t);
  const engine = await place.engine();
  const frozen = place.child({ heartbeat: SHORT });
  await frozen.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await frozen.untilFact("started", { id });
  frozen.kill("SIGSTOP");
  const other = place.child();
  await other.untilFact("started", { id, attempt: 2 });
  assert.equal((await engine.incidents())[0]!.how, "silent");
  frozen.kill("SIGCONT");
  await frozen.untilEvent("worker.disowned");
  await engine.cancel(id);
});

test("a frozen process that checks all workers of its host is replaced within seconds of the next write, although it had half a minute", async (t) => {
  const place = await RedisPlace.shared(t);
  const engine = await place.engine();
  const address = redisAddress(place.url);
  const wire = await connect(address.wire);
  t.after(() => wire.close());
  const [key, children] = [`${tagOf(address.name)}detector`, new Map<string, Child>()];
  for (let n = 0; n < 2; n++) {
    const child = place.child({ heartbeat: {} });
    const { worker } = await child.untilFact("working");
    children.set(String(worker), child);
  }
  await untilTrue(
    () => wire.call(["PTTL", key], 5_000),
    (left) => Number(left) > 25_000,
    "nothing needs it, and it says so seldom",
  );
  const holder = async (): Promise<string | undefined> => {
    const value = String(await wire.call(["GET", key], 5_000));
    return [...children.keys()].find((worker) => value.includes(worker));
  };
  const first = (await holder())!;
  children.get(first)!.kill("SIGSTOP");
  const frozenAt = performance.now();
  await engine.enqueue(tick, { n: 1 });
  const next = await untilTrue(
    holder,
    (worker) => worker !== undefined && worker !== first,
    "another one has the place",
  );
  const tookMs = Math.round(performance.now() - frozenAt);
  t.diagnostic(`it took ${tookMs} ms`);
  assert.ok(tookMs < 15_000, `the place was free after ${tookMs} ms`);
  children.get(first)!.kill("SIGCONT");
  const proofs: string[] = [];
  await wire.subscribe(wakeupChannel(tagOf(address.name)), (text) => proofs.push(text));
  await untilTrue(
    () => Promise.resolve(proofs.filter((text) => messageOf(text).is === "proof").length),
    (count) => count >= 2,
    "the process that checks all workers says so",
  );
  assert.equal(await holder(), next, "the one that was frozen does not take it back");
});

test("what a dead attempt has finished is kept, and a shutdown by SIGTERM costs no attempt", async (t) => {
  const place = await RedisPlace.shared(t);
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
  const { id: long } = await engine.enqueue(slow, { ms: 600_000 });
  await second.untilFact("started", { id: long });
  second.kill("SIGTERM");
  await second.untilFact("stopped");
  const job = await engine.get(long);
  assert.deepEqual([job!.state, job!.counters.crashes, job!.counters.errors], ["queued", 0, 0]);
});

for (const kills of [false, true])
  test(`a job whose process was killed before its wake-up starts soon${kills ? ", also if the process that polls for all was killed" : ""}`, async (t) => {
    const place = await RedisPlace.shared(t);
    const start = (kind: string, poll: "1h" | "1s") => place.child({ heartbeat: {}, only: [kind], poll });
    return polledForAll(t, { url: place.url, start }, kills);
  });
