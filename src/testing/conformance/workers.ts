// What the port promises about worker rows: registering, heartbeats, leaving, listing, and the epoch under which
// workers claim.
import assert from "node:assert/strict";
import { type HeldSummary, type Lease, leaseHash } from "../../job/lease.ts";
import { processIsGone } from "../../recovery/incident.ts";
import {
  expireOnce,
  type Fixture,
  GRACE_MS,
  LEASE_MS,
  names,
  roomFor,
  SETTLE,
  type Specify,
  TIMEOUT_MS,
  workerRecord,
} from "./fixture.ts";

const BEAT = { loopLagMs: 0 };
const LEASES = { ...BEAT, leases: true };

/** The summary of what a worker holds, as the store computes it and as the worker does. */
const beaten = async (fixture: Fixture, worker = "w"): Promise<HeldSummary> =>
  (await fixture.store.beat(worker, BEAT)).held;
const summaryOf = (jobs: readonly { readonly lease: Lease }[]): HeldSummary => ({
  count: jobs.length,
  digest: jobs.reduce((sum, { lease }) => sum + leaseHash(lease), 0),
});

export function specifyWorkers(specify: Specify): void {
  specify("a worker that registers is live, with everything that it said of itself", async (fixture) => {
    const lock = { name: "w.lock", identity: "7:42" };
    await fixture.worker("w", { host: "host-1", pid: 12, concurrency: 3, kinds: ["mail"], lock });
    const rows = await (await fixture.connect()).workers({});
    assert.deepEqual(rows, [
      {
        ...workerRecord("w", { host: "host-1", pid: 12, concurrency: 3, kinds: ["mail"], lock }),
        state: "live",
        startedAt: fixture.clock.now(),
        heartbeatAt: fixture.clock.now(),
        beats: 0,
        loopLagMs: 0,
        heldCount: 0,
        lastWord: null,
      },
    ]);
  });

  specify("HR-15 an id that has ended is never live again: it can't register a second time", async (fixture) => {
    await fixture.worker("w");
    await fixture.store.leave("w");
    await assert.rejects(fixture.store.register(workerRecord("w")));
    assert.deepEqual(await fixture.store.workers({}), []);
  });

  specify(
    "the epoch grows with every raise, is at least the store's time, and new workers claim under it",
    async (fixture) => {
      const first = await fixture.store.upkeep.raiseEpoch();
      assert.ok(first >= fixture.clock.now());
      const second = await (await fixture.connect()).upkeep.raiseEpoch();
      assert.ok(second > first);
      await fixture.clock.advance(60_000);
      const third = await fixture.store.upkeep.raiseEpoch();
      assert.ok(third > second && third >= fixture.clock.now());
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      assert.equal(worker.epoch, third);
      assert.equal((await worker.next()).lease.epoch, third);
    },
  );

  specify("the fence of a job never falls, also when the epoch is raised while its worker lives", async (fixture) => {
    await fixture.store.upkeep.raiseEpoch();
    await fixture.enqueue("a");
    const old = await fixture.worker("old");
    const raised = await fixture.store.upkeep.raiseEpoch();
    const young = await fixture.worker("young");
    const first = await young.next();
    assert.deepEqual([first.lease.epoch, first.lease.fence], [raised, 1]);
    await young.settle(SETTLE.release(first));
    const second = await old.next();
    assert.deepEqual([second.lease.epoch >= raised, second.lease.fence], [true, 2]);
  });

  specify(
    "FR-034 a beat is one step of the counter, and keeps the instant and the lag of the loop",
    async (fixture) => {
      const worker = await fixture.worker("w");
      await fixture.clock.advance(5_000);
      assert.equal((await fixture.store.beat("w", { loopLagMs: 17 })).live, true);
      await fixture.store.beat("w", { loopLagMs: 18 });
      const row = await worker.row();
      assert.deepEqual([row.beats, row.heartbeatAt, row.loopLagMs], [2, fixture.clock.now(), 18]);
    },
  );

  specify(
    "FR-035 FR-036 a beat that asks for it returns what the store says is held, with the lease and the counters of each",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const [a, b] = await worker.claim(2);
      await worker.settle(SETTLE.fail(a!));
      const again = await worker.next();
      const { leases, schemaVersion } = await fixture.store.beat("w", LEASES);
      assert.deepEqual(
        leases?.toSorted((x, y) => x.lease.jobId.localeCompare(y.lease.jobId)),
        [
          { lease: again.lease, counters: { ...again.counters, errors: 1 } },
          { lease: b!.lease, counters: b!.counters },
        ],
      );
      assert.ok(schemaVersion > 0);
      await fixture.worker("other");
      assert.deepEqual((await fixture.store.beat("other", LEASES)).leases, []);
    },
  );

  specify(
    "HR-11 HR-19 a beat returns the count and the digest of what the worker holds, which are its own as long as both know the same leases",
    async (fixture) => {
      await fixture.enqueue(...Array.from({ length: 40 }, (_, i) => `j${i}`));
      const worker = await fixture.worker("w");
      await fixture.worker("other");
      const claimed = [...(await worker.claim(20)), ...(await worker.claim(5))];
      const held = await beaten(fixture);
      assert.deepEqual(held, summaryOf(claimed), "whatever the order of claims and rows");
      assert.deepEqual(await beaten(fixture, "other"), { count: 0, digest: 0 });
      await worker.turn([SETTLE.succeed(claimed[3]!), SETTLE.fail(claimed[7]!)], roomFor(0));
      const left = claimed.filter((_, i) => i !== 3 && i !== 7);
      assert.deepEqual(await beaten(fixture), summaryOf(left));
      const { leases } = await fixture.store.beat("w", LEASES);
      assert.deepEqual(summaryOf(leases!), summaryOf(left), "the list says the same");
      assert.equal(
        "leases" in (await fixture.store.beat("w", BEAT)),
        false,
        "the list comes only when it is asked for",
      );
    },
  );

  specify(
    "a claim whose answer was lost shows in the beat's count and digest until it is released",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      const known = await worker.next();
      const lost = await worker.next();
      const held = await beaten(fixture);
      assert.notDeepEqual(held, summaryOf([known]));
      assert.deepEqual(held, summaryOf([known, lost]));
      await worker.settle(SETTLE.release(lost));
      assert.deepEqual(await beaten(fixture), summaryOf([known]));
      const again = await worker.next();
      assert.equal(again.lease.jobId, lost.lease.jobId);
      const second = await beaten(fixture);
      assert.notDeepEqual(second, summaryOf([known, lost]), "the same job under another fence is another lease");
      assert.deepEqual(second, summaryOf([known, again]));
    },
  );

  specify("a job that was taken from its worker is missing in the beat's count and digest", async (fixture) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    const taken = await worker.next();
    await fixture.clock.advance(TIMEOUT_MS + GRACE_MS + 1);
    const kept = await worker.next();
    await expireOnce(fixture.store, 0, 10);
    assert.deepEqual(await beaten(fixture), summaryOf([kept]));
    assert.notDeepEqual(await beaten(fixture), summaryOf([kept, taken]));
  });

  specify("workers are listed with the ids of what they hold, as many as were asked for", async (fixture) => {
    await fixture.enqueue("a", "b", "c");
    const worker = await fixture.worker("busy");
    await fixture.worker("idle");
    await worker.claim(3);
    const shown = async (heldIds?: number): Promise<unknown[]> =>
      (await fixture.store.workers(heldIds === undefined ? {} : { heldIds })).map((row) => [row.id, row.heldIds]);
    assert.deepEqual(await shown(2), [
      ["busy", ["a", "b"]],
      ["idle", []],
    ]);
    assert.deepEqual(await shown(), [
      ["busy", undefined],
      ["idle", undefined],
    ]);
  });

  specify("a beat names the job that is most overdue, once deadline and grace have passed", async (fixture) => {
    await fixture.enqueue("a", "b");
    const worker = await fixture.worker("w");
    await worker.next();
    await fixture.clock.advance(100);
    await worker.next();
    await fixture.clock.advance(TIMEOUT_MS + GRACE_MS - 100);
    const inTime = await fixture.store.beat("w", BEAT);
    assert.deepEqual([inTime.overdueMs, inTime.overdueJobId], [null, null]);
    await fixture.clock.advance(150);
    const late = await fixture.store.beat("w", BEAT);
    assert.deepEqual([late.overdueMs, late.overdueJobId], [150, "a"]);
  });

  specify(
    "known bug 14: a beat of a worker that is being recovered, gone, stopped or unknown says that it is not live",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const recovering = await fixture.worker("recovering");
      await recovering.claim(2);
      await fixture.recover(recovering, { limit: 1 });
      await fixture.recoverAll(await fixture.worker("gone"));
      await fixture.worker("stopped");
      await fixture.store.leave("stopped");
      for (const id of ["recovering", "gone", "stopped", "unknown"]) {
        assert.equal((await fixture.store.beat(id, BEAT)).live, false, id);
      }
      const rows = await fixture.store.workers({ which: "all" });
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
    "known bug 2: a worker that drains and beats stays live and settles what it holds, for many leases",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      for (let beat = 0; beat < 10; beat++) {
        await fixture.clock.advance(LEASE_MS / 2);
        const { live, held } = await fixture.store.beat("w", BEAT);
        assert.deepEqual([live, held.count], [true, 1]);
      }
      const turn = await worker.turn([SETTLE.succeed(job)], roomFor(0));
      assert.deepEqual([turn.live, turn.settled[0]?.is, turn.claimed], [true, "applied", []]);
      assert.equal(await fixture.store.leave("w"), true);
    },
  );

  specify("a worker that holds jobs can't leave: it stays live, and recovery finds what it left", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    const job = await worker.next();
    assert.equal(await fixture.store.leave("w"), false);
    assert.equal((await worker.row()).state, "live");
    await worker.settle(SETTLE.release(job));
    assert.equal(await fixture.store.leave("w"), true);
    assert.equal((await worker.row()).state, "stopped");
    assert.equal(await fixture.store.leave("w"), false, "once");
    assert.equal(await fixture.store.leave("unknown"), false);
  });

  specify(
    "workers are listed by id, from any id on and not more than asked; ended ones only if asked",
    async (fixture) => {
      const ids = names("w", 5);
      for (const id of ids.toReversed()) await fixture.worker(id);
      await fixture.store.leave("w0002");
      const listed = async (query: Parameters<typeof fixture.store.workers>[0]): Promise<readonly string[]> =>
        (await fixture.store.workers(query)).map(({ id }) => id);
      assert.deepEqual(await listed({}), ["w0001", "w0003", "w0004", "w0005"]);
      assert.deepEqual(await listed({ which: "all" }), ids);
      assert.deepEqual(await listed({ after: "w0001", limit: 2 }), ["w0003", "w0004"]);
      assert.deepEqual(await listed({ after: "w0005" }), []);
      assert.deepEqual(await listed({ limit: 1 }), ["w0001"]);
    },
  );

  specify("a last word stays in the worker's row for recovery to read", async (fixture) => {
    const worker = await fixture.worker("w");
    await fixture.store.beat("w", { loopLagMs: 0, lastWord: "killed itself: job 7 was overdue" });
    assert.equal((await worker.row()).lastWord, "killed itself: job 7 was overdue");
    await fixture.recoverAll(worker);
    assert.equal((await worker.row()).lastWord, "killed itself: job 7 was overdue");
  });

  specify("a worker that was taken for dead keeps its last word, and its incident shows it", async (fixture) => {
    const worker = await fixture.worker("w");
    const { incident } = await fixture.recoverAll(worker);
    const beat = await fixture.store.beat("w", { loopLagMs: 0, lastWord: "killed itself: job 7 was overdue" });
    assert.equal(beat.live, false);
    assert.match((await fixture.store.inspect.incident(incident!))?.evidence ?? "", /killed itself/);
  });

  specify("a last word that comes after the recovery is added to the incident", async (fixture) => {
    const worker = await fixture.worker("w");
    const { incident } = await fixture.recoverAll(worker);
    await fixture.store.operate.noteDeath("w", "exited with SIGKILL");
    assert.match((await fixture.store.inspect.incident(incident!))?.evidence ?? "", /SIGKILL/);
  });

  specify(
    "a last word replaces evidence that only says that the process is gone, whichever is there first",
    async (fixture) => {
      const evidence = processIsGone({ pid: 7, startTicks: "42", namespace: "pid:[1]" });
      const death = { how: "gone", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence } as const;
      const before = await fixture.worker("before");
      await fixture.store.operate.noteDeath("before", "killed by SIGKILL (pid 7)");
      const after = await fixture.worker("after");
      const incidents = [await fixture.recoverAll(before, { death }), await fixture.recoverAll(after, { death })];
      await fixture.store.operate.noteDeath("after", "killed by SIGKILL (pid 7)");
      for (const { incident } of incidents)
        assert.equal((await fixture.store.inspect.incident(incident!))?.evidence, "killed by SIGKILL (pid 7)");
      await fixture.store.operate.noteDeath("after", "killed by SIGKILL (pid 7); core dumped");
      assert.equal(
        (await fixture.store.inspect.incident(incidents[1]!.incident!))?.evidence,
        "killed by SIGKILL (pid 7); core dumped",
      );
    },
  );

  specify("a last word is added once to evidence that says how contact was lost", async (fixture) => {
    const worker = await fixture.worker("w");
    const evidence = "no heartbeat for 3000 ms";
    const death = { how: "silent", lastSeenAliveAt: null, detectedAt: fixture.clock.now(), evidence } as const;
    const { incident } = await fixture.recoverAll(worker, { death });
    for (let times = 0; times < 2; times++) await fixture.store.operate.noteDeath("w", "exited with code 1");
    assert.equal((await fixture.store.inspect.incident(incident!))?.evidence, `${evidence}; exited with code 1`);
  });
}
