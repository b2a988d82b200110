// What the port promises to those who look: whole jobs, pages without gaps, counts that are right, incidents as they were written.
import assert from "node:assert/strict";
import { kind, names } from "./drafts.ts";
import { roomFor, SETTLE } from "./hand.ts";
import type { Scene, Specify } from "./scene.ts";
import type { JobFilter, KindCounts } from "../../core/store.ts";

export function specifyInspect(specify: Specify): void {
  specify("a job that is not there is null, and so is an incident", async (scene) => {
    assert.equal(await scene.store.get("none"), null);
    assert.equal(await scene.store.incident("none"), null);
    assert.deepEqual(await scene.store.incidents(10, null), []);
    assert.deepEqual(await scene.store.latestRecovery(), []);
  });

  specify(
    "a list shows the newest first, in pages without a gap or a repetition, also while jobs are added",
    async (scene) => {
      const ids = names("j", 7);
      await scene.enqueue(...ids);
      const seen: string[] = [];
      let after: string | null = null;
      do {
        const page = await scene.store.list({}, 3, after);
        assert.ok(page.jobs.length <= 3);
        seen.push(...page.jobs.map(({ id }) => id));
        await scene.enqueue(`new-${seen.length}`);
        after = page.next;
      } while (after !== null);
      assert.deepEqual(seen, ids.toReversed());
    },
  );

  specify("a page that ends with the last job says that it was all", async (scene) => {
    await scene.enqueue("a", "b");
    assert.equal((await scene.store.list({}, 2, null)).next, null);
    assert.equal((await scene.store.list({}, 3, null)).next, null);
  });

  specify(
    "a list is filtered by state, by kind and by text in id, key and error, and by all of them at once",
    async (scene) => {
      await scene.enqueue("a-1", { id: "b-1", kind: "sms" }, { id: "c-1", dedupeKey: "for-ann" }, "d-1");
      const worker = await scene.worker("w");
      const [first] = await worker.claim(roomFor(1, ["mail"]));
      await worker.settle(SETTLE.failForGood(first!));
      const listed = async (filter: JobFilter): Promise<readonly string[]> =>
        (await scene.store.list(filter, 10, null)).jobs.map(({ id }) => id);
      assert.deepEqual(await listed({ state: "dead" }), ["a-1"]);
      assert.deepEqual(await listed({ state: "queued" }), ["d-1", "c-1", "b-1"]);
      assert.deepEqual(await listed({ kind: "sms" }), ["b-1"]);
      assert.deepEqual(await listed({ kind: "never-seen" }), []);
      assert.deepEqual(await listed({ text: "for-ann" }), ["c-1"]);
      assert.deepEqual(await listed({ text: "on fire" }), ["a-1"]);
      assert.deepEqual(await listed({ text: "%" }), [], "a text is no pattern");
      assert.deepEqual(await listed({ text: "-1", state: "queued", kind: "mail" }), ["d-1", "c-1"]);
    },
  );

  specify("a list is filtered by the time of the enqueue", async (scene) => {
    const at = scene.clock.now();
    for (const id of ["a", "b", "c"]) {
      await scene.enqueue(id);
      await scene.clock.advance(1_000);
    }
    const listed = async (filter: JobFilter): Promise<readonly string[]> =>
      (await scene.store.list(filter, 10, null)).jobs.map(({ id }) => id);
    assert.deepEqual(await listed({ createdBefore: at + 1_500 }), ["b", "a"]);
    assert.deepEqual(await listed({ createdAfter: at + 500 }), ["c", "b"]);
    assert.deepEqual(await listed({ createdAfter: at + 500, createdBefore: at + 1_500 }), ["b"]);
  });

  specify("counts are right after every change of state, and after a redrive and a purge", async (scene) => {
    await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await scene.enqueue(...names("j", 7), { id: "later", delayMs: 100 });
    const counted = async (): Promise<Partial<KindCounts>> => {
      const { kind: _, paused: __, oldestReadyMs: ___, ...numbers } = await scene.countsOf("mail");
      return Object.fromEntries(Object.entries(numbers).filter(([, n]) => n !== 0));
    };
    assert.deepEqual(await counted(), { ready: 7, delayed: 1 });
    const killed = await scene.worker("killed");
    await killed.next();
    await scene.bury(killed);
    assert.deepEqual(await counted(), { ready: 6, delayed: 1, quarantined: 1 });
    const worker = await scene.worker("w");
    const [a, b, c, d] = await worker.claim(5);
    assert.deepEqual(await counted(), { ready: 1, delayed: 1, running: 5, quarantined: 1 });
    await worker.settle(SETTLE.succeed(a!), SETTLE.succeed(b!), SETTLE.failForGood(c!), SETTLE.endCancelled(d!));
    const ended = { succeeded: 2, dead: 1, cancelled: 1, quarantined: 1 };
    assert.deepEqual(await counted(), { ready: 1, delayed: 1, running: 1, ...ended });
    await scene.store.retry(a!.lease.jobId, "operator");
    assert.deepEqual(await counted(), { ready: 2, delayed: 1, running: 1, ...ended, succeeded: 1 });
    await scene.clock.advance(50);
    await scene.store.purge({ finishedOlderThanMs: 1, incidentsOlderThanMs: 1_000, limit: 100 });
    assert.deepEqual(await counted(), { ready: 2, delayed: 1, running: 1 });
    await scene.clock.advance(50);
    await worker.claim(9);
    assert.deepEqual(await counted(), { running: 4 });
  });

  specify("a kind is counted from its declaration on, also before its first job", async (scene) => {
    const { ready, running, succeeded, oldestReadyMs } = await scene.countsOf("sms");
    assert.deepEqual([ready, running, succeeded, oldestReadyMs], [0, 0, 0, null]);
  });

  specify("the oldest ready job tells since when it could have been claimed", async (scene) => {
    await scene.enqueue("a");
    await scene.clock.advance(1_000);
    await scene.enqueue("b");
    await scene.clock.advance(500);
    assert.equal((await scene.countsOf("mail")).oldestReadyMs, 1_500);
    await (await scene.worker("w")).next();
    assert.equal((await scene.countsOf("mail")).oldestReadyMs, 500);
  });

  specify(
    "what is ahead of a ready job is what would be claimed before it; of one that is not ready nothing is said",
    async (scene) => {
      await scene.enqueue("a", { id: "b", priority: 5 }, "c", { id: "d", kind: "sms" }, { id: "later", delayMs: 10 });
      const ahead = await Promise.all(["a", "b", "c", "d", "later", "none"].map((id) => scene.store.ahead(id)));
      assert.deepEqual(ahead, [1, 0, 2, 0, null, null]);
      await (await scene.worker("w")).next();
      assert.deepEqual([await scene.store.ahead("b"), await scene.store.ahead("a")], [null, 0]);
    },
  );

  specify(
    "an incident keeps who died and how, what it held, the last step and decision of each, and when it ran again",
    async (scene) => {
      await scene.enqueue("a", "b");
      const worker = await scene.worker("w", { host: "host-9", pid: 99, version: "7.8.9" });
      const startedAt = scene.clock.now();
      const [a] = await worker.claim(2);
      await worker.record(a!, { type: "step", name: "one", result: "1" }, { type: "step", name: "two", result: "2" });
      await scene.clock.advance(100);
      await scene.store.beat("w", { loopLagMs: 42 });
      const heartbeatAt = scene.clock.now();
      await scene.clock.advance(900);
      const diedAt = scene.clock.now();
      const death = { how: "gone", lastSeenAliveAt: diedAt - 5, detectedAt: diedAt, evidence: "SIGKILL" } as const;
      const recovery = { id: "pass-1", startedAt: diedAt, by: "w2", integrity: "ok", walFrames: 3 };
      const { incident: id } = await scene.bury(worker, { death, recovery });
      await scene.clock.advance(10);
      const next = await scene.worker("next");
      await next.next();
      const incident = await scene.store.incident(id!);
      assert.ok(incident);
      const { jobs, ...rest } = incident;
      assert.deepEqual(rest, {
        id,
        recovery: "pass-1",
        worker: "w",
        how: "gone",
        resolution: null,
        detectedAt: diedAt,
        completedAt: diedAt,
        jobCount: 2,
        host: "host-9",
        pid: 99,
        version: "7.8.9",
        workerStartedAt: startedAt,
        lastHeartbeatAt: heartbeatAt,
        lastSeenAliveAt: diedAt - 5,
        loopLagMs: 42,
        evidence: "SIGKILL",
        startedAt: diedAt,
        by: "w2",
        integrity: "ok",
        walFrames: 3,
        heldAtDeath: 2,
      });
      assert.deepEqual(
        jobs.map((job) => [
          job.jobId,
          job.kind,
          job.decision,
          job.fence,
          job.limit,
          job.counters.crashes,
          job.lastStep,
        ]),
        [
          ["a", "mail", "retry", 1, 3, 1, "two"],
          ["b", "mail", "retry", 1, 3, 1, null],
        ],
      );
      assert.deepEqual(
        jobs.map((job) => job.resumedAt),
        [diedAt + 10, null],
      );
    },
  );

  specify("incidents come newest first, in pages, and the latest recovery is all of its pass", async (scene) => {
    const ids: string[] = [];
    for (const pass of ["p1", "p2", "p2"]) ids.push((await death(scene, pass)).incident!);
    const page = await scene.store.incidents(2, null);
    assert.deepEqual(
      page.map(({ id }) => id),
      [ids[2], ids[1]],
    );
    const rest = await scene.store.incidents(2, page.at(-1)!.id);
    assert.deepEqual(
      rest.map(({ id }) => id),
      [ids[0]],
    );
    const latest = await scene.store.latestRecovery();
    assert.deepEqual(
      latest.map(({ id }) => id),
      [ids[1], ids[2]],
    );
    assert.ok(latest.every((incident) => incident.recovery === "p2" && incident.jobCount === incident.jobs.length));
  });

  specify("a store that works says that it is well", async (scene) => {
    assert.equal((await scene.store.health()).ok, true);
    assert.ok(scene.store.name.length > 0);
  });

  specify("the bell rings in the connection that made work ready, and no more once nobody listens", async (scene) => {
    let rings = 0;
    const stop = scene.store.onBell(() => rings++);
    await scene.enqueue("a");
    assert.ok(rings > 0);
    stop();
    const heard = rings;
    await scene.enqueue("b");
    assert.equal(rings, heard);
  });
}

let dead = 0;

async function death(scene: Scene, pass: string): ReturnType<Scene["bury"]> {
  await scene.clock.advance(1);
  const worker = await scene.worker(`dead-${++dead}`);
  const startedAt = scene.clock.now();
  return scene.bury(worker, { recovery: { id: pass, startedAt, by: "test", integrity: "NOT_CHECKED", walFrames: 0 } });
}
