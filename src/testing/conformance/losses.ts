// What the port promises about contact that was lost without a proof of death: the work is taken and nothing is counted, the loss
// resolves once, and only a loss that turned out to be a death counts, unless the job has moved on.
import assert from "node:assert/strict";
import type { WorkerRow } from "../../core/liveness.ts";
import { LossJudge, type Resolution } from "../../core/losses.ts";
import { virtualClock } from "../virtual-clock.ts";
import { kind } from "./drafts.ts";
import { answers, type Hand, idsOf, roomFor, SETTLE } from "./hand.ts";
import { recoverOnce, type Scene, type Specify } from "./scene.ts";

export function specifyLosses(specify: Specify): void {
  specify(
    "C2: contact with a worker is lost: its job is queued again, fenced, and nothing is counted",
    async (scene) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      const job = await worker.next();
      const { jobs } = await lose(scene, worker);
      assert.deepEqual(
        jobs.map(({ jobId, decision }) => [jobId, decision]),
        [["a", "lost"]],
      );
      const { state, counters, lastOutcome, history } = await scene.job("a");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["queued", 0, 0, 1]);
      assert.deepEqual([lastOutcome, history.at(-1)?.event], ["lost", "lose"]);
      assert.deepEqual(answers(await worker.settle(SETTLE.succeed(job))), ["stale"]);
      assert.deepEqual(
        (await scene.store.losses()).map(({ worker: lost, resolution }) => [lost?.id, resolution]),
        [["w", null]],
      );
    },
  );

  for (const how of ["lost", "silent"] as const) {
    specify(
      `C2: a worker taken for ${how} that has beaten, or taken another lock, since is left alone`,
      async (scene) => {
        await scene.enqueue("a", "b");
        const [beats, locks] = [await scene.worker("beats"), await scene.worker("locks")];
        const job = await beats.next();
        await locks.next();
        const request = await scene.recovery(beats, { death: { ...DEATH, how } });
        await scene.store.beat("beats", { loopLagMs: 0 });
        assert.deepEqual(await recoverOnce(scene.store, request), {
          incident: null,
          opened: false,
          jobs: [],
          done: true,
        });
        const other = await scene.recovery(locks, { death: { ...DEATH, how } });
        const relocked: WorkerRow = { ...other.worker, lock: { ...other.worker.lock, identity: "another" } };
        assert.equal((await recoverOnce(scene.store, { ...other, worker: relocked })).incident, null);
        assert.deepEqual(answers(await beats.settle(SETTLE.succeed(job))), ["applied"]);
      },
    );
  }

  specify(
    "C2: three losses of workers that returned leave no mark on the job, and quarantine nothing",
    async (scene) => {
      await scene.enqueue("a");
      let predecessor: string | null = null;
      for (const life of ["w1", "w2", "w3", "w4", "w5"]) {
        const worker = await scene.worker(life, { predecessor });
        await judge(scene);
        await worker.next();
        await lose(scene, worker);
        predecessor = life;
      }
      await scene.worker("w6", { predecessor });
      await judge(scene);
      const { state, counters } = await scene.job("a");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["queued", 0, 0, 0]);
      assert.deepEqual(await scene.store.losses(), []);
    },
  );

  for (const resolution of ["died", "away"] as const) {
    specify(`a loss that resolves as ${resolution} counts as the crash that it was`, async (scene) => {
      await scene.enqueue("a", "b", "c");
      const [together, alone] = [await scene.worker("together"), await scene.worker("alone")];
      await together.claim(2);
      await alone.next();
      await lose(scene, together);
      await lose(scene, alone);
      await resolve(scene, together, resolution);
      await resolve(scene, alone, resolution);
      const counted = await Promise.all(["a", "b", "c"].map(async (id) => (await scene.job(id)).counters));
      assert.deepEqual(
        counted.map(({ crashes, blamed, losses }) => [crashes, blamed, losses]),
        [
          [1, 0, 0],
          [1, 0, 0],
          [1, 1, 0],
        ],
      );
      assert.deepEqual(await scene.store.losses(), []);
      const [incident] = await scene.incidentsOf(alone);
      assert.equal((await scene.store.incident(incident!))?.resolution, resolution);
    });
  }

  specify("a loss resolves once: a worker that returns later changes nothing", async (scene) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    await worker.next();
    await lose(scene, worker);
    assert.equal(await scene.store.resolveLoss("w", "died"), "died");
    assert.equal(await scene.store.resolveLoss("w", "returned"), "died");
    await scene.worker("again", { predecessor: "w" });
    await judge(scene);
    await judge(scene);
    assert.deepEqual((await scene.job("a")).counters.crashes, 1);
    assert.equal(await scene.store.resolveLoss("w", "away"), null, "it is closed");
  });

  specify(
    "a job that wrote a newer step, ended, or was retried by hand since is not charged with the loss",
    async (scene) => {
      await scene.enqueue("steps", "ends", "retried", "one", "two", "three");
      const worker = await scene.worker("w");
      await worker.claim(6);
      await lose(scene, worker);
      const next = await scene.worker("next");
      const claimed = await next.claim(3);
      const [steps, ends, retried] = claimed;
      await next.record(steps!, { type: "step", name: "render", result: "1" });
      await next.settle(SETTLE.release(steps!), SETTLE.succeed(ends!), SETTLE.succeed(retried!));
      await scene.store.retry("retried", "ann");
      await resolve(scene, worker, "died");
      for (const id of ["steps", "ends", "retried"]) {
        const { crashes, blamed, losses } = (await scene.job(id)).counters;
        assert.deepEqual([crashes, blamed], [0, 0], id);
        if (id !== "ends") assert.equal(losses, 0, id);
      }
      assert.deepEqual(await scene.store.losses(), []);
    },
  );

  specify("a job with as many unresolved losses as its crash limit waits until they are resolved", async (scene) => {
    await scene.enqueue("killer", "other");
    const lost = await loseThrice(scene, "killer");
    const { waitsForResolution, runAt, state } = await scene.job("killer");
    assert.deepEqual([state, waitsForResolution, runAt], ["queued", true, null]);
    const idle = await scene.worker("idle");
    assert.deepEqual(idsOf(await idle.claim(9)), ["other"], "it is not claimed");
    await scene.clock.advance(1_000_000);
    assert.deepEqual(idsOf(await idle.claim(9)), [], "at no time");
    await resolve(scene, lost[0]!, "returned");
    assert.equal((await scene.job("killer")).waitsForResolution, false);
    assert.deepEqual(idsOf(await (await scene.worker("fresh")).claim(9)), ["killer"]);
  });

  specify(
    "a job that killed its workers where no death could be proved ends in quarantine, not in a loop",
    async (scene) => {
      await scene.enqueue("killer");
      for (const worker of await loseThrice(scene, "killer")) await resolve(scene, worker, "away");
      const { state, counters, history } = await scene.job("killer");
      assert.deepEqual([state, counters.crashes, counters.blamed, counters.losses], ["quarantined", 3, 3, 0]);
      assert.deepEqual([history.at(-1)?.event, history.at(-1)?.to], ["countLoss", "quarantined"]);
    },
  );

  specify(
    "a loss that turns out to be a death is counted on a job that runs elsewhere, and its attempt goes on",
    async (scene) => {
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      await worker.next();
      await lose(scene, worker);
      const next = await scene.worker("next");
      const again = await next.next();
      await resolve(scene, worker, "died");
      const { state, counters } = await scene.job("a");
      assert.deepEqual([state, counters.crashes, counters.losses], ["running", 1, 0]);
      assert.deepEqual(answers(await next.settle(SETTLE.fail(again))), ["applied"]);
      const after = await scene.job("a");
      assert.deepEqual([after.counters.errors, after.counters.crashes, after.counters.losses], [1, 1, 0]);
    },
  );

  specify("a job is quarantined for a loss only after its present attempt has ended", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 10, timeouts: 10, crashes: 2 } }));
    await scene.enqueue("a");
    const first = await scene.worker("first");
    await first.next();
    await scene.bury(first);
    const second = await scene.worker("second");
    await second.next();
    await lose(scene, second);
    const third = await scene.worker("third");
    const job = await third.next();
    await resolve(scene, second, "died");
    assert.equal((await scene.job("a")).state, "running");
    assert.equal((await scene.store.losses()).length, 1, "it is judged later");
    assert.deepEqual(answers(await third.settle(SETTLE.fail(job))), ["applied"]);
    await judge(scene);
    assert.equal((await scene.job("a")).state, "quarantined");
  });

  specify("deaths elsewhere are resolved deaths: a worker that only lost contact acquits no job", async (scene) => {
    await scene.enqueue("killer");
    for (const id of ["away-1", "away-2", "away-3", "away-4"]) {
      const idle = await scene.worker(id);
      await lose(scene, idle);
    }
    for (let death = 1; death <= 3; death++) {
      const worker = await scene.worker(`w${death}`);
      assert.deepEqual(idsOf(await worker.claim(roomFor(1))), ["killer"]);
      await scene.bury(worker);
    }
    assert.equal((await scene.job("killer")).state, "quarantined");
  });

  specify("what a kind says about crashes, and a cancel, hold for a loss of contact, too", async (scene) => {
    await scene.declare(kind("mail", { onCrash: "pending" }), kind("sms", { onCrash: "fail" }), kind("fax"));
    await scene.enqueue("pending", { id: "fails", kind: "sms" }, { id: "cancelled", kind: "fax" });
    const worker = await scene.worker("w", { kinds: ["mail", "sms", "fax"] });
    await worker.claim(roomFor(3, ["mail", "sms", "fax"]));
    await scene.store.cancel("cancelled", "ann");
    await lose(scene, worker);
    assert.deepEqual(await scene.states("pending", "fails", "cancelled"), ["queued", "dead", "cancelled"]);
    assert.equal((await scene.job("pending")).counters.losses, 0);
  });
}

const DEATH = { lastSeenAliveAt: null, detectedAt: 0, evidence: null } as const;

function lose(scene: Scene, worker: Hand) {
  return scene.bury(worker, { death: { ...DEATH, how: "lost", detectedAt: scene.clock.now() } });
}

/** Three workers take the job one after the other, and contact with each is lost. */
async function loseThrice(scene: Scene, id: string): Promise<readonly Hand[]> {
  const lost: Hand[] = [];
  for (const name of ["lost-1", "lost-2", "lost-3"]) {
    const worker = await scene.worker(name);
    assert.deepEqual(idsOf(await worker.claim(roomFor(1))), [id]);
    await lose(scene, worker);
    lost.push(worker);
  }
  return lost;
}

async function resolve(scene: Scene, worker: Hand, resolution: Resolution): Promise<void> {
  assert.equal(await scene.store.resolveLoss(worker.id, resolution), resolution);
  await judge(scene);
}

/** One pass of a watcher that can prove nothing itself. */
async function judge(scene: Scene): Promise<void> {
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
  const { store } = scene;
  await new LossJudge({ store, liveness, processState: () => "unknown", clock: virtualClock(), events }).pass(1_000);
  assert.deepEqual(failed, []);
}
