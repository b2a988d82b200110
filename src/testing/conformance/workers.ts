// What the port promises about the rows of workers: registering, beating, leaving, listing, and the epoch under which they claim.
import assert from "node:assert/strict";
import { processIsGone } from "../../core/incident.ts";
import { GRACE_MS, LEASE_MS, names, TIMEOUT_MS, workerRecord } from "./drafts.ts";
import { roomFor, SETTLE } from "./hand.ts";
import type { Specify } from "./scene.ts";

const BEAT = { loopLagMs: 0 };

export function specifyWorkers(specify: Specify): void {
  specify("a worker that registers is live, with everything that it said of itself", async (scene) => {
    const lock = { name: "w.lock", identity: "7:42" };
    await scene.worker("w", { host: "host-1", pid: 12, concurrency: 3, kinds: ["mail"], lock });
    const rows = await (await scene.connect()).workers({});
    assert.deepEqual(rows, [
      {
        ...workerRecord("w", { host: "host-1", pid: 12, concurrency: 3, kinds: ["mail"], lock }),
        state: "live",
        startedAt: scene.clock.now(),
        heartbeatAt: scene.clock.now(),
        beats: 0,
        loopLagMs: 0,
        heldCount: 0,
        lastWord: null,
      },
    ]);
  });

  specify("an id that is over is never live again: it can't register a second time", async (scene) => {
    await scene.worker("w");
    await scene.store.deregister("w");
    await assert.rejects(scene.store.register(workerRecord("w")));
    assert.deepEqual(await scene.store.workers({}), []);
  });

  specify(
    "the epoch grows with every raise, is at least the store's time, and new workers claim under it",
    async (scene) => {
      const first = await scene.store.raiseEpoch();
      assert.ok(first >= scene.clock.now());
      const second = await (await scene.connect()).raiseEpoch();
      assert.ok(second > first);
      await scene.clock.advance(60_000);
      const third = await scene.store.raiseEpoch();
      assert.ok(third > second && third >= scene.clock.now());
      await scene.enqueue("a");
      const worker = await scene.worker("w");
      assert.equal(worker.epoch, third);
      assert.equal((await worker.next()).lease.epoch, third);
    },
  );

  specify("the fence of a job never falls, also when the epoch is raised while its worker lives", async (scene) => {
    await scene.store.raiseEpoch();
    await scene.enqueue("a");
    const old = await scene.worker("old");
    const raised = await scene.store.raiseEpoch();
    const young = await scene.worker("young");
    const first = await young.next();
    assert.deepEqual([first.lease.epoch, first.lease.fence], [raised, 1]);
    await young.settle(SETTLE.release(first));
    const second = await old.next();
    assert.deepEqual([second.lease.epoch >= raised, second.lease.fence], [true, 2]);
  });

  specify("FR-034 a beat is one step of the counter, and keeps the instant and the lag of the loop", async (scene) => {
    const worker = await scene.worker("w");
    await scene.clock.advance(5_000);
    assert.equal((await scene.store.beat("w", { loopLagMs: 17 })).live, true);
    await scene.store.beat("w", { loopLagMs: 18 });
    const row = await worker.row();
    assert.deepEqual([row.beats, row.heartbeatAt, row.loopLagMs], [2, scene.clock.now(), 18]);
  });

  specify(
    "FR-035 FR-036 a beat answers what the store says is held, with the lease and the counters of each",
    async (scene) => {
      await scene.enqueue("a", "b", "c");
      const worker = await scene.worker("w");
      const [a, b] = await worker.claim(2);
      await worker.settle(SETTLE.fail(a!));
      const again = await worker.next();
      const { held, schemaVersion } = await scene.store.beat("w", BEAT);
      assert.deepEqual(
        held.toSorted((x, y) => x.lease.jobId.localeCompare(y.lease.jobId)),
        [
          { lease: again.lease, counters: { ...again.counters, errors: 1 } },
          { lease: b!.lease, counters: b!.counters },
        ],
      );
      assert.ok(schemaVersion > 0);
      await scene.worker("other");
      assert.deepEqual((await scene.store.beat("other", BEAT)).held, []);
    },
  );

  specify("a beat names the job that is most overdue, once deadline and grace are over", async (scene) => {
    await scene.enqueue("a", "b");
    const worker = await scene.worker("w");
    await worker.next();
    await scene.clock.advance(100);
    await worker.next();
    await scene.clock.advance(TIMEOUT_MS + GRACE_MS - 100);
    const inTime = await scene.store.beat("w", BEAT);
    assert.deepEqual([inTime.overdueMs, inTime.overdueJobId], [null, null]);
    await scene.clock.advance(150);
    const late = await scene.store.beat("w", BEAT);
    assert.deepEqual([late.overdueMs, late.overdueJobId], [150, "a"]);
  });

  specify(
    "museum 14: a beat of a worker that is being recovered, gone, stopped or unknown says that it is not live",
    async (scene) => {
      await scene.enqueue("a", "b");
      const recovering = await scene.worker("recovering");
      await recovering.claim(2);
      await scene.recover(recovering, { limit: 1 });
      await scene.bury(await scene.worker("gone"));
      await scene.worker("stopped");
      await scene.store.deregister("stopped");
      for (const id of ["recovering", "gone", "stopped", "unknown"]) {
        assert.equal((await scene.store.beat(id, BEAT)).live, false, id);
      }
      const rows = await scene.store.workers({ which: "all" });
      assert.deepEqual(
        rows.map(({ id, state, beats }) => [id, state, beats]),
        [
          ["gone", "gone", 0],
          ["recovering", "recovering", 0],
          ["stopped", "stopped", 0],
        ],
      );
    },
  );

  specify(
    "museum 2: a worker that drains and beats stays live and settles what it holds, for many leases",
    async (scene) => {
      await scene.enqueue("a", "b");
      const worker = await scene.worker("w");
      const job = await worker.next();
      for (let beat = 0; beat < 10; beat++) {
        await scene.clock.advance(LEASE_MS / 2);
        const { live, held } = await scene.store.beat("w", BEAT);
        assert.deepEqual([live, held.length], [true, 1]);
      }
      const turn = await worker.turn([SETTLE.succeed(job)], roomFor(0));
      assert.deepEqual([turn.live, turn.settled[0]?.is, turn.claimed], [true, "applied", []]);
      assert.equal(await scene.store.deregister("w"), true);
    },
  );

  specify("a worker that holds jobs can't leave: it stays live, and recovery finds what it left", async (scene) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    const job = await worker.next();
    assert.equal(await scene.store.deregister("w"), false);
    assert.equal((await worker.row()).state, "live");
    await worker.settle(SETTLE.release(job));
    assert.equal(await scene.store.deregister("w"), true);
    assert.equal((await worker.row()).state, "stopped");
    assert.equal(await scene.store.deregister("w"), false, "once");
    assert.equal(await scene.store.deregister("unknown"), false);
  });

  specify(
    "workers are listed by id, from any id on and not more than asked; who is over only if asked",
    async (scene) => {
      const ids = names("w", 5);
      for (const id of ids.toReversed()) await scene.worker(id);
      await scene.store.deregister("w0002");
      const listed = async (query: Parameters<typeof scene.store.workers>[0]): Promise<readonly string[]> =>
        (await scene.store.workers(query)).map(({ id }) => id);
      assert.deepEqual(await listed({}), ["w0001", "w0003", "w0004", "w0005"]);
      assert.deepEqual(await listed({ which: "all" }), ids);
      assert.deepEqual(await listed({ after: "w0001", limit: 2 }), ["w0003", "w0004"]);
      assert.deepEqual(await listed({ after: "w0005" }), []);
      assert.deepEqual(await listed({ limit: 1 }), ["w0001"]);
    },
  );

  specify("a last word stays in the worker's row for recovery to read", async (scene) => {
    const worker = await scene.worker("w");
    await scene.store.note("w", "killed itself: job 7 was overdue");
    assert.equal((await worker.row()).lastWord, "killed itself: job 7 was overdue");
    await scene.bury(worker);
    assert.equal((await worker.row()).lastWord, "killed itself: job 7 was overdue");
  });

  specify("a last word that comes after the recovery is added to the incident", async (scene) => {
    const worker = await scene.worker("w");
    const { incident } = await scene.bury(worker);
    await scene.store.note("w", "exited with SIGKILL");
    assert.match((await scene.store.incident(incident!))?.evidence ?? "", /SIGKILL/);
  });

  specify(
    "a last word replaces evidence that only says that the process is gone, whichever is there first",
    async (scene) => {
      const evidence = processIsGone({ pid: 7, startTicks: "42", namespace: "pid:[1]" });
      const death = { how: "gone", lastSeenAliveAt: null, detectedAt: scene.clock.now(), evidence } as const;
      const before = await scene.worker("before");
      await scene.store.note("before", "killed by SIGKILL (pid 7)");
      const after = await scene.worker("after");
      const incidents = [await scene.bury(before, { death }), await scene.bury(after, { death })];
      await scene.store.note("after", "killed by SIGKILL (pid 7)");
      for (const { incident } of incidents)
        assert.equal((await scene.store.incident(incident!))?.evidence, "killed by SIGKILL (pid 7)");
      await scene.store.note("after", "killed by SIGKILL (pid 7); core dumped");
      assert.equal(
        (await scene.store.incident(incidents[1]!.incident!))?.evidence,
        "killed by SIGKILL (pid 7); core dumped",
      );
    },
  );

  specify("a last word is added once to evidence that says how contact was lost", async (scene) => {
    const worker = await scene.worker("w");
    const evidence = "no heartbeat for 3000 ms";
    const death = { how: "silent", lastSeenAliveAt: null, detectedAt: scene.clock.now(), evidence } as const;
    const { incident } = await scene.bury(worker, { death });
    for (let times = 0; times < 2; times++) await scene.store.note("w", "exited with code 1");
    assert.equal((await scene.store.incident(incident!))?.evidence, `${evidence}; exited with code 1`);
  });
}
