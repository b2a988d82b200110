// What the port promises about contact lost without a proof of death: the work is taken and nothing is counted, the
// loss resolves once, and only a loss that turned out to be a death counts, unless the job has moved on.
import assert from "node:assert/strict";
import { LossJudge, type Resolution } from "../../recovery/losses.ts";
import type { WorkerRow } from "../../stores/liveness.ts";
import { virtualClock } from "../virtual-clock.ts";
import {
  answers,
  type TestWorker,
  idsOf,
  kind,
  recoverOnce,
  roomFor,
  type Fixture,
  SETTLE,
  type Specify,
} from "./fixture.ts";

export function specifyLosses(specify: Specify): void {
  specify(
    "C2: contact with a worker is lost: its job is queued again, fenced, and nothing is counted",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      const { jobs } = await lose(fixture, worker);
      assert.deepEqual(
        jobs.map(({ jobId, decision }) => [jobId, decision]),
        [["a", "lost"]],
      );
      const { state, counters, lastOutcome, history } = await fixture.job("a");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["queued", 0, 0, 1]);
      assert.deepEqual([lastOutcome, history.at(-1)?.event], ["lost", "lose"]);
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["stale"]);
      assert.deepEqual(
        (await fixture.store.losses.open()).map(({ worker: lost, resolution }) => [lost?.id, resolution]),
        [["w", null]],
      );
    },
  );

  for (const how of ["lost", "silent"] as const) {
    specify(
      `C2: a worker taken for ${how} that has beaten, or taken another lock, since is left alone`,
      async (fixture) => {
        await fixture.enqueue("a", "b");
        const [beats, locks] = [await fixture.worker("beats"), await fixture.worker("locks")];
        const job = await beats.next();
        await locks.next();
        const request = await fixture.recovery(beats, { death: { ...DEATH, how } });
        await fixture.store.beat("beats", { loopLagMs: 0 });
        assert.deepEqual(await recoverOnce(fixture.store, request), {
          incident: null,
          opened: false,
          jobs: [],
          done: true,
        });
        const other = await fixture.recovery(locks, { death: { ...DEATH, how } });
        const relocked: WorkerRow = { ...other.worker, lock: { ...other.worker.lock, identity: "another" } };
        assert.equal((await recoverOnce(fixture.store, { ...other, worker: relocked })).incident, null);
        assert.deepEqual(answers(await beats.settle(SETTLE.succeed(job))), ["applied"]);
      },
    );
  }

  specify(
    "C2: three losses of workers that returned leave no mark on the job, and quarantine nothing",
    async (fixture) => {
      await fixture.enqueue("a");
      let predecessor: string | null = null;
      for (const life of ["w1", "w2", "w3", "w4", "w5"]) {
        const worker = await fixture.worker(life, { predecessor });
        await judge(fixture);
        await worker.next();
        await lose(fixture, worker);
        predecessor = life;
      }
      await fixture.worker("w6", { predecessor });
      await judge(fixture);
      const { state, counters } = await fixture.job("a");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["queued", 0, 0, 0]);
      assert.deepEqual(await fixture.store.losses.open(), []);
    },
  );

  for (const resolution of ["died", "away"] as const) {
    specify(`a loss that resolves as ${resolution} counts as the crash that it was`, async (fixture) => {
      await fixture.enqueue("suspect");
      const first = await fixture.worker("first");
      await first.next();
      await fixture.recoverAll(first);
      await fixture.enqueue("a", "b");
      const [together, alone] = [await fixture.worker("together"), await fixture.worker("alone")];
      assert.deepEqual(idsOf(await alone.claim(1)), ["suspect"]);
      await together.claim(2);
      await lose(fixture, together);
      await lose(fixture, alone);
      await resolve(fixture, together, resolution);
      await resolve(fixture, alone, resolution);
      const counted = await Promise.all(["a", "b", "suspect"].map(async (id) => (await fixture.job(id)).counters));
      assert.deepEqual(
        counted.map(({ crashes, blamed, losses }) => [crashes, blamed, losses]),
        [
          [1, 0, 0],
          [1, 0, 0],
          [2, 1, 0],
        ],
      );
      assert.deepEqual(await fixture.store.losses.open(), []);
      const [incident] = await fixture.incidentsOf(alone);
      assert.equal((await fixture.store.inspect.incident(incident!))?.resolution, resolution);
    });
  }

  specify("a loss resolves once: a worker that returns later changes nothing", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    await worker.next();
    await lose(fixture, worker);
    assert.equal(await fixture.store.losses.resolve("w", "died"), "died");
    assert.equal(await fixture.store.losses.resolve("w", "returned"), "died");
    await fixture.worker("again", { predecessor: "w" });
    await judge(fixture);
    await judge(fixture);
    assert.deepEqual((await fixture.job("a")).counters.crashes, 1);
    assert.equal(await fixture.store.losses.resolve("w", "away"), null, "it is closed");
  });

  specify("a quarantine is not undone when the workers that were lost before it return", async (fixture) => {
    await fixture.enqueue("a");
    for (const life of ["w1", "w2"]) {
      const worker = await fixture.worker(life);
      await worker.next();
      await lose(fixture, worker);
    }
    // Proven deaths while it ran alone, up to the limit, and more than the deaths of workers without it.
    for (const life of ["d1", "d2", "d3"]) {
      const worker = await fixture.worker(life);
      await worker.next();
      await fixture.recover(worker);
    }
    assert.equal((await fixture.job("a")).state, "quarantined");
    for (const life of ["w1", "w2"]) await fixture.worker(`${life}-again`, { predecessor: life });
    await judge(fixture);
    const { state, counters } = await fixture.job("a");
    assert.deepEqual([state, counters.crashes, counters.blamed], ["quarantined", 3, 3]);
    assert.deepEqual(await fixture.store.losses.open(), [], "both losses are resolved");
  });

  specify(
    "a job that wrote a newer step, ended, or was retried by hand since is not charged with the loss",
    async (fixture) => {
      await fixture.enqueue("steps", "ends", "retried", "one", "two", "three");
      const worker = await fixture.worker("w");
      await worker.claim(6);
      await lose(fixture, worker);
      const next = await fixture.worker("next");
      const claimed = await next.claim(3);
      const [steps, ends, retried] = claimed;
      await next.record(steps!, { type: "step", name: "render", result: "1" });
      await next.settle(SETTLE.release(steps!), SETTLE.succeed(ends!), SETTLE.succeed(retried!));
      await fixture.store.operate.retry("retried", "ann");
      await resolve(fixture, worker, "died");
      for (const id of ["steps", "ends", "retried"]) {
        const { crashes, blamed, losses } = (await fixture.job(id)).counters;
        assert.deepEqual([crashes, blamed], [0, 0], id);
        if (id !== "ends") assert.equal(losses, 0, id);
      }
      assert.deepEqual(await fixture.store.losses.open(), []);
    },
  );

  specify("a job with as many unresolved losses as its crash limit waits until they are resolved", async (fixture) => {
    await fixture.enqueue("killer", "other");
    const lost = await loseThrice(fixture, "killer");
    const { waitsForResolution, runAt, state } = await fixture.job("killer");
    assert.deepEqual([state, waitsForResolution, runAt], ["queued", true, null]);
    const idle = await fixture.worker("idle");
    assert.deepEqual(idsOf(await idle.claim(9)), ["other"], "it is not claimed");
    await fixture.clock.advance(1_000_000);
    assert.deepEqual(idsOf(await idle.claim(9)), [], "at no time");
    await resolve(fixture, lost[0]!, "returned");
    assert.equal((await fixture.job("killer")).waitsForResolution, false);
    assert.deepEqual(idsOf(await (await fixture.worker("fresh")).claim(9)), ["killer"]);
  });

  specify(
    "a job that killed its workers where no death could be proved ends in quarantine, not in a loop",
    async (fixture) => {
      await fixture.enqueue("killer");
      for (const worker of await loseThrice(fixture, "killer")) await resolve(fixture, worker, "away");
      const again = await fixture.worker("again");
      assert.deepEqual(idsOf(await again.claim(1)), ["killer"], "the first of them was not a death alone");
      await lose(fixture, again);
      await resolve(fixture, again, "away");
      const { state, counters, history } = await fixture.job("killer");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["quarantined", 4, 3, 0]);
      assert.deepEqual([history.at(-1)?.event, history.at(-1)?.to], ["countLoss", "quarantined"]);
    },
  );

  specify(
    "a loss that turns out to be a death is counted on a job that runs elsewhere, and its attempt goes on",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      await worker.next();
      await lose(fixture, worker);
      const next = await fixture.worker("next");
      const again = await next.next();
      await resolve(fixture, worker, "died");
      const { state, counters } = await fixture.job("a");
      assert.deepEqual([state, counters.crashes, counters.losses], ["running", 1, 0]);
      assert.deepEqual(answers(await next.settle(SETTLE.fail(again))), ["applied"]);
      const after = await fixture.job("a");
      assert.deepEqual([after.counters.errors, after.counters.crashes, after.counters.losses], [1, 1, 0]);
    },
  );

  specify("a job is quarantined for a loss only after its present attempt has ended", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 10, timeouts: 10, crashes: 2 } }));
    await fixture.enqueue("a");
    for (const id of ["first", "second"]) {
      const worker = await fixture.worker(id);
      await worker.next();
      await fixture.recoverAll(worker);
    }
    const lost = await fixture.worker("lost");
    await lost.next();
    await lose(fixture, lost);
    const last = await fixture.worker("last");
    const job = await last.next();
    await resolve(fixture, lost, "died");
    assert.equal((await fixture.job("a")).state, "running");
    assert.equal((await fixture.store.losses.open()).length, 1, "it is judged later");
    assert.deepEqual(answers(await last.settle(SETTLE.fail(job))), ["applied"]);
    await judge(fixture);
    assert.equal((await fixture.job("a")).state, "quarantined");
  });

  specify("deaths elsewhere are resolved deaths: a worker that only lost contact acquits no job", async (fixture) => {
    await fixture.enqueue("killer");
    for (const id of ["away-1", "away-2", "away-3", "away-4"]) {
      const idle = await fixture.worker(id);
      await lose(fixture, idle);
    }
    for (let death = 1; death <= 4; death++) {
      const worker = await fixture.worker(`w${death}`);
      assert.deepEqual(idsOf(await worker.claim(roomFor(1))), ["killer"]);
      await fixture.recoverAll(worker);
    }
    assert.equal((await fixture.job("killer")).state, "quarantined");
  });

  specify("what a kind says about crashes, and a cancel, hold for a loss of contact, too", async (fixture) => {
    await fixture.declare(kind("mail", { onCrash: "requeue" }), kind("sms", { onCrash: "fail" }), kind("fax"));
    await fixture.enqueue("requeue", { id: "fails", kind: "sms" }, { id: "cancelled", kind: "fax" });
    const worker = await fixture.worker("w", { kinds: ["mail", "sms", "fax"] });
    await worker.claim(roomFor(3, ["mail", "sms", "fax"]));
    await fixture.store.operate.cancel("cancelled", "ann");
    await lose(fixture, worker);
    assert.deepEqual(await fixture.states("requeue", "fails", "cancelled"), ["queued", "dead", "cancelled"]);
    assert.equal((await fixture.job("requeue")).counters.losses, 0);
  });
}

const DEATH = { lastSeenAliveAt: null, detectedAt: 0, evidence: null } as const;

export function lose(fixture: Fixture, worker: TestWorker) {
  return fixture.recoverAll(worker, { death: { ...DEATH, how: "lost", detectedAt: fixture.clock.now() } });
}

/** Three workers claim the job one after another, and contact with each is lost. */
async function loseThrice(fixture: Fixture, id: string): Promise<readonly TestWorker[]> {
  const lost: TestWorker[] = [];
  for (const name of ["lost-1", "lost-2", "lost-3"]) {
    const worker = await fixture.worker(name);
    assert.deepEqual(idsOf(await worker.claim(roomFor(1))), [id]);
    await lose(fixture, worker);
    lost.push(worker);
  }
  return lost;
}

export async function resolve(fixture: Fixture, worker: TestWorker, resolution: Resolution): Promise<void> {
  assert.equal(await fixture.store.losses.resolve(worker.id, resolution), resolution);
  await judge(fixture);
}

/** One pass of a watcher that can't prove anything itself. */
async function judge(fixture: Fixture): Promise<void> {
  const liveness = {
    take: () => Promise.reject(new Error("not asked")),
    probe: () => Promise.resolve("unknown" as const),
    clean: () => Promise.resolve(false),
  };
  const failed: unknown[] = [];
  const events = {
    has: () => true,
    emit: (name: string, event: unknown) => void (name === "recovery.failed" && failed.push(event)),
  };
  const { store } = fixture;
  await new LossJudge({ store, liveness, processState: () => "unknown", clock: virtualClock(), events }).pass(1_000);
  assert.deepEqual(failed, []);
}
