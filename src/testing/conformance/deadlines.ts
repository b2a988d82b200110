// What the port promises about time that runs out. Jobs past their deadline: when they are overdue, which worker learns
// of it, and that they are fenced out once. Silent workers: their counter stands still on the watcher's own clock; the
// clocks of two machines are never compared.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import type { ConfirmedTime } from "../../recovery/confirmed-time.ts";
import { FailureDetector } from "../../recovery/failure-detector.ts";
import type { Liveness } from "../../stores/liveness.ts";
import type { BeatAnswer } from "../../stores/port.ts";
import { virtualClock } from "../virtual-clock.ts";
import {
  answers,
  expireOnce,
  type Fixture,
  GRACE_MS,
  type TestWorker,
  kind,
  LEASE_MS,
  names,
  roomFor,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
} from "./fixture.ts";

const MARGIN_MS = 1_000;

export function specifyExpire(specify: Specify): void {
  specify("a job is fenced out when deadline, grace and margin have passed, and not before", async (fixture) => {
    const { worker, job } = await running(fixture);
    await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + MARGIN_MS);
    assert.deepEqual(await expireOnce(fixture.store, MARGIN_MS, 10), []);
    await fixture.clock.advance(1);
    const [overdue, ...more] = await expireOnce(fixture.store, MARGIN_MS, 10);
    assert.deepEqual([overdue?.jobId, overdue?.worker, overdue?.change.name, more], ["a", "w", "timeOut", []]);
    const after = await fixture.job("a");
    assert.deepEqual([after.state, after.lastOutcome, after.counters.timeouts], ["queued", "timed-out", 1]);
    assert.equal(after.history.at(-1)?.event, "timeOut");
    assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["stale"]);
    assert.deepEqual(await expireOnce(fixture.store, MARGIN_MS, 10), [], "once");
  });

  specify("the owner of a job that was fenced out goes on living and claiming", async (fixture) => {
    const { worker } = await running(fixture);
    await overdue(fixture);
    await expireOnce(fixture.store, 0, 10);
    const row = await worker.row();
    assert.deepEqual([row.state, row.heldCount], ["live", 0]);
    await fixture.enqueue("b");
    assert.equal((await worker.next()).lease.jobId, "b");
  });

  specify("a job without a timeout is never overdue", async (fixture) => {
    await fixture.declare(kind("endless", { timeoutMs: null }));
    await fixture.enqueue({ id: "a", kind: "endless" });
    const worker = await fixture.worker("w");
    await worker.next(roomFor(1, ["endless"]));
    await fixture.clock.advance(365 * 86_400_000);
    assert.deepEqual(await expireOnce(fixture.store, 0, 10), []);
    assert.equal((await fixture.store.beat("w", { loopLagMs: 0 })).overdueMs, null);
  });

  specify("a job whose timeouts are used up is dead, with its reason", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 1, crashes: 3 } }));
    await running(fixture);
    await overdue(fixture);
    await expireOnce(fixture.store, 0, 10);
    const job = await fixture.job("a");
    assert.deepEqual([job.state, job.error?.name], ["dead", "Timeout"]);
  });

  specify("known bug 22: an overdue job whose cancel was asked for ends cancelled", async (fixture) => {
    await running(fixture);
    await fixture.store.operate.cancel("a", "operator");
    await overdue(fixture);
    await expireOnce(fixture.store, 0, 10);
    assert.deepEqual(await fixture.states("a"), ["cancelled"]);
  });

  specify("an expiry takes at most its limit, those that are overdue longest first", async (fixture) => {
    await fixture.enqueue(...names("j", 5));
    const worker = await fixture.worker("w");
    for (let n = 0; n < 5; n++) {
      await worker.next();
      await fixture.clock.advance(10);
    }
    await overdue(fixture);
    const ids = async (): Promise<readonly string[]> =>
      (await expireOnce(fixture.store, 0, 2)).map(({ jobId }) => jobId);
    assert.deepEqual(await ids(), ["j0001", "j0002"]);
    assert.deepEqual(await ids(), ["j0003", "j0004"]);
    assert.deepEqual(await ids(), ["j0005"]);
  });

  specify(
    "with a confirmed time a job is fenced out when that has passed its deadline, grace and margin",
    async (fixture) => {
      await running(fixture);
      await fixture.clock.advance(10 * TIMEOUT_MS);
      const startedAt = (await fixture.job("a")).startedAt!;
      const ends = startedAt + TIMEOUT_MS + GRACE_MS + MARGIN_MS;
      const expire = async (asOf: number, steadyMs: number): Promise<number> =>
        (await expireOnce(fixture.store, MARGIN_MS, 10, { asOf, steadyMs })).length;
      assert.equal(await expire(ends, 100 * TIMEOUT_MS), 0, "its clock was stepped");
      assert.equal(
        await expire(ends + 1_000_000, TIMEOUT_MS + GRACE_MS + MARGIN_MS),
        0,
        "it was not watched for this long",
      );
      assert.equal(await expire(ends + 1, TIMEOUT_MS + GRACE_MS + MARGIN_MS + 1), 1);
    },
  );

  specify("the store's own clock decides where a confirmed time is ahead of it", async (fixture) => {
    await running(fixture);
    const ahead = { asOf: Number.MAX_SAFE_INTEGER, steadyMs: Number.MAX_SAFE_INTEGER };
    assert.deepEqual(await expireOnce(fixture.store, 0, 10, ahead), []);
  });

  specify(
    "a heartbeat says the store's clock, and reports as overdue what the confirmed time confirms",
    async (fixture) => {
      await running(fixture);
      const startedAt = (await fixture.job("a")).startedAt!;
      await fixture.clock.advance(10 * TIMEOUT_MS);
      const ends = startedAt + TIMEOUT_MS + GRACE_MS;
      const beat = (confirmed: ConfirmedTime): Promise<BeatAnswer> =>
        fixture.store.beat("w", { loopLagMs: 0, confirmed });
      const allowedMs = TIMEOUT_MS + GRACE_MS;
      assert.equal((await beat({ asOf: ends, steadyMs: 100 * TIMEOUT_MS })).overdueMs, null);
      assert.equal((await beat({ asOf: ends + 1_000_000, steadyMs: allowedMs })).overdueMs, null);
      const { now, overdueMs, overdueJobId } = await beat({ asOf: ends + 7, steadyMs: allowedMs + 1 });
      assert.deepEqual([now - startedAt, overdueMs, overdueJobId], [10 * TIMEOUT_MS, 7, "a"]);
    },
  );

  specify("known bug 4: when a settlement and an expiry meet, one of them decides", async (fixture) => {
    const { worker, job } = await running(fixture);
    await overdue(fixture);
    const other = await fixture.connect();
    const [[settled], expired] = await Promise.all([worker.settle(SETTLE.succeed(job)), expireOnce(other, 0, 10)]);
    assert.equal(Number(settled!.is === "applied") + expired.length, 1);
    assert.deepEqual(await fixture.states("a"), [expired.length === 1 ? "queued" : "succeeded"]);
  });
}

async function running(fixture: Fixture): Promise<{ worker: TestWorker; job: ClaimedJob }> {
  await fixture.enqueue("a");
  const worker = await fixture.worker("w");
  return { worker, job: await worker.next() };
}

function overdue(fixture: Fixture): Promise<void> {
  return fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
}

// What a watcher can learn from a store's rows.

const CHECK_MS = LEASE_MS / 10;
const BEAT = { loopLagMs: 0 };

/** Proves nothing: only heartbeats count. */
const noLocks: Liveness = {
  take: () => assert.fail("a watcher takes no lock"),
  probe: async () => "unknown",
  clean: async () => false,
};

export function specifyLiveness(specify: Specify): void {
  specify("a worker that does not beat for one lease is silent, one that does is not", async (fixture) => {
    await fixture.worker("mute");
    await fixture.worker("well");
    const watcher = new Watcher(fixture);
    for (let pass = 0; pass < 10; pass++) {
      assert.deepEqual(await watcher.check(), []);
      await fixture.store.beat("well", BEAT);
    }
    assert.deepEqual(await watcher.check(), ["mute"]);
  });

  specify("known bug 5: a job that runs for many leases is not taken from a worker that beats", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    const watcher = new Watcher(fixture);
    for (let pass = 0; pass < 50; pass++) {
      await fixture.store.beat("w", BEAT);
      assert.deepEqual(await watcher.check(), []);
    }
    assert.deepEqual(await fixture.states("a"), ["running"]);
  });

  specify(
    "known bug 17: a watcher whose wall clock is days away from the store's judges as any other",
    async (fixture) => {
      const watchers = [-3, 0, 3].map((days) => new Watcher(fixture, days * 86_400_000));
      await fixture.worker("mute");
      await fixture.worker("well");
      for (let pass = 0; pass < 10; pass++) {
        for (const watcher of watchers) assert.deepEqual(await watcher.check(), []);
        await fixture.store.beat("well", BEAT);
      }
      for (const watcher of watchers) assert.deepEqual(await watcher.check(), ["mute"]);
    },
  );

  specify("known bug 17: a wall clock that jumps kills no worker: the watch starts again", async (fixture) => {
    await fixture.worker("w");
    const watcher = new Watcher(fixture);
    for (let pass = 0; pass < 9; pass++) assert.deepEqual(await watcher.check(), []);
    watcher.clock.jump(3_600_000);
    for (let pass = 0; pass < 10; pass++) assert.deepEqual(await watcher.check(), []);
    assert.deepEqual(await watcher.check(), ["w"]);
  });

  specify(
    "known bug 18: a watcher that was asleep itself takes no worker for dead: the watch starts again",
    async (fixture) => {
      await fixture.worker("w");
      const watcher = new Watcher(fixture);
      assert.deepEqual(await watcher.check(), []);
      await watcher.clock.advance(10 * LEASE_MS);
      assert.deepEqual(await watcher.check(), []);
      await fixture.store.beat("w", BEAT);
      for (let pass = 0; pass < 10; pass++) assert.deepEqual(await watcher.check(), []);
    },
  );
}

/** Another process that checks the workers' rows now and then, by its own clock. */
class Watcher {
  readonly clock = virtualClock();
  readonly #fixture: Fixture;
  readonly #detector: FailureDetector;

  constructor(fixture: Fixture, aheadMs = 0) {
    this.#fixture = fixture;
    this.clock.jump(aheadMs);
    this.#detector = new FailureDetector({
      clock: this.clock,
      liveness: noLocks,
      processState: () => "unknown",
      bootId: "boot-1",
    });
  }

  /** Checks, then waits until the next check is due. Returns which workers are dead. */
  async check(): Promise<readonly string[]> {
    const dead = await this.#detector.check(await this.#fixture.store.workers({}), CHECK_MS);
    await this.clock.advance(CHECK_MS);
    return dead.map(({ worker }) => worker.id);
  }
}
