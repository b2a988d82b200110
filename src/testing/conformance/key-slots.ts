// How the slots of keys were lost, doubled or hidden elsewhere (known-bugs.ts, 27 to 35), and that none of it happens here.
import assert from "node:assert/strict";
import { NO_COUNTERS } from "../../job/job.ts";
import { jobKey } from "../../job/limits.ts";
import { type Draft, type Fixture, idsOf, kind, names, SETTLE, type Specify } from "./fixture.ts";
import { limit, take } from "./keys.ts";

const of = (key: string, id: string): Draft => ({ id, keys: [jobKey("tenant", key)] });

/** A kind of which each tenant has so many running, and jobs of one tenant. */
async function declareAndFill(fixture: Fixture, running: number, count: number): Promise<void> {
  await fixture.declare(kind("mail", { keyed: [limit("tenant", { running })] }));
  await fixture.enqueue(...names("a", count).map((id) => of("acme", id)));
}

export function specifyKeySlots(specify: Specify): void {
  specify(
    "known bug 27: recovery and the zombie both end an attempt, and the key gets one slot back",
    async (fixture) => {
      await declareAndFill(fixture, 1, 12);
      const zombie = await fixture.worker("zombie");
      const [job] = await take(zombie, 10);
      await fixture.recoverAll(zombie);
      const worker = await fixture.worker("w");
      const running = [...(await take(worker, 10))];
      for (let again = 0; again < 3; again++) {
        assert.equal((await zombie.settle(SETTLE.succeed(job!)))[0]?.is, "stale");
        running.push(...(await take(worker, 10)));
      }
      assert.deepEqual(idsOf(running), ["a0001"]);
    },
  );

  specify(
    "known bug 28: a reclaim frees the slot: a tenant at capacity goes on after the death of its worker",
    async (fixture) => {
      await declareAndFill(fixture, 3, 6);
      const dead = await fixture.worker("dead");
      assert.equal((await take(dead, 10)).length, 3);
      await fixture.recoverAll(dead);
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001", "a0002", "a0003"]);
    },
  );

  specify(
    "known bug 29: a claim whose answer was lost holds its slot only until its worker is recovered",
    async (fixture) => {
      await declareAndFill(fixture, 1, 2);
      const lost = await fixture.worker("lost");
      // The answer never arrives.
      assert.equal((await take(lost, 10)).length, 1);
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await take(worker, 10)), []);
      await fixture.recoverAll(lost);
      assert.deepEqual(idsOf(await take(worker, 10)), ["a0001"]);
    },
  );

  specify("known bug 30: what one process found held, any other admits", async (fixture) => {
    await declareAndFill(fixture, 1, 3);
    const first = await fixture.worker("v", { store: await fixture.connect() });
    const [job] = await take(first, 10);
    assert.deepEqual(idsOf(await take(first, 10)), [], "it has looked at the key, and found it full");
    await first.settle(SETTLE.succeed(job!));
    await first.store.leave(first.id);
    const second = await fixture.worker("w", { store: await fixture.connect() });
    assert.deepEqual(idsOf(await take(second, 10)), ["a0002"]);
  });

  specify(
    "known bug 31: room is a count, not a position: jobs that end out of order never make it more",
    async (fixture) => {
      await declareAndFill(fixture, 2, 8);
      const worker = await fixture.worker("w");
      let running = [...(await take(worker, 10))];
      for (let ended = 0; ended < 6; ended++) {
        // The youngest ends first.
        await worker.settle(SETTLE.succeed(running.at(-1)!));
        running = [...running.slice(0, -1), ...(await take(worker, 10))];
        assert.equal(running.length, 2, `${idsOf(running).join(", ")} run`);
      }
      assert.equal(idsOf(running)[0], "a0001");
    },
  );

  specify("known bug 32: a job that is enqueued while the last one of its key ends is not stuck", async (fixture) => {
    await declareAndFill(fixture, 1, 1);
    const worker = await fixture.worker("w");
    const [job] = await take(worker, 10);
    const other = await fixture.connect();
    for (let round = 0; round < 20; round++) {
      const [next] = round === 0 ? [job] : await take(worker, 10);
      assert.ok(next, `round ${round}`);
      const draft = { kind: "mail", input: "{}", priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
      await Promise.all([
        worker.settle(SETTLE.succeed(next)),
        other.enqueue([{ ...draft, ...of("acme", `next-${round}`) }]),
      ]);
    }
    assert.deepEqual(idsOf(await take(worker, 10)), ["next-19"]);
  });

  specify(
    "known bug 33: keys that are full in front hide none behind them, however many there are",
    async (fixture) => {
      await fixture.declare(kind("mail", { keyed: [limit("tenant", { running: 1 })] }));
      const tenants = names("t", 300);
      await fixture.enqueue(...tenants.flatMap((tenant) => [of(tenant, `${tenant}-1`), of(tenant, `${tenant}-2`)]));
      const worker = await fixture.worker("w");
      assert.equal((await take(worker, 1_000)).length, 300);
      await fixture.enqueue(of("last", "last"));
      assert.deepEqual(idsOf(await take(worker, 1_000)), ["last"]);
    },
  );

  specify(
    "known bug 34: a job that waits for room is not claimed and released: nothing of it is counted",
    async (fixture) => {
      await declareAndFill(fixture, 1, 2);
      const worker = await fixture.worker("w");
      await take(worker, 10);
      for (let turns = 0; turns < 20; turns++) await take(worker, 10);
      const { attempt, counters, history } = await fixture.job("a0002");
      assert.deepEqual([attempt, counters, history], [0, NO_COUNTERS, []]);
    },
  );

  specify(
    "known bug 35: several recoveries of one worker and the workers that start meanwhile keep to the limit",
    async (fixture) => {
      await declareAndFill(fixture, 2, 10);
      const dead = await fixture.worker("dead");
      await take(dead, 10);
      const stores = await Promise.all([fixture.connect(), fixture.connect(), fixture.connect()]);
      const starting = await Promise.all(stores.map((store, i) => fixture.worker(`w${i}`, { store })));
      const [claims] = await Promise.all([
        Promise.all(starting.map((worker) => worker.claim(5))),
        ...stores.map((by) => fixture.recoverAll(dead, { by })),
      ]);
      const running = claims.flat();
      for (const worker of starting) running.push(...(await take(worker, 5)));
      assert.equal(running.length, 2, idsOf(running).join(", "));
    },
  );
}
