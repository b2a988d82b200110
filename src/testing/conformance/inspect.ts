// What the port promises to readers: whole jobs, pages without gaps, correct counts, incidents as they were written.
import assert from "node:assert/strict";
import { ErrorCode } from "../../job/errors.ts";
import type { JobFilter, KindCounts, Pending } from "../../stores/port.ts";
import { kind, names, roomFor, type Fixture, SETTLE, type Specify } from "./fixture.ts";

export function specifyInspect(specify: Specify): void {
  specify("a job that is not there is null, and so is an incident", async (fixture) => {
    assert.equal(await fixture.store.inspect.get("none"), null);
    assert.equal(await fixture.store.inspect.incident("none"), null);
    assert.deepEqual(await fixture.store.inspect.incidents(10, null), []);
    assert.deepEqual(await fixture.store.inspect.latestRecovery(), []);
  });

  specify(
    "a list shows the newest first, in pages without a gap or a repetition, also while jobs are added",
    async (fixture) => {
      const ids = names("j", 7);
      await fixture.enqueue(...ids);
      const seen: string[] = [];
      let after: string | null = null;
      do {
        const page = await fixture.store.inspect.list({}, 3, after);
        assert.ok(page.jobs.length <= 3);
        seen.push(...page.jobs.map(({ id }) => id));
        await fixture.enqueue(`new-${seen.length}`);
        after = page.next;
      } while (after !== null);
      assert.deepEqual(seen, ids.toReversed());
    },
  );

  specify("a cursor that the store did not make is refused, and reads nothing", async (fixture) => {
    await fixture.enqueue("a", "b");
    for (const after of ["", "x", "-1", "12", "1; DROP TABLE jobs"])
      await assert.rejects(fixture.store.inspect.list({}, 2, after), { code: ErrorCode.optionInvalid });
  });

  specify("a page that ends with the last job says that it was all", async (fixture) => {
    await fixture.enqueue("a", "b");
    assert.equal((await fixture.store.inspect.list({}, 2, null)).next, null);
    assert.equal((await fixture.store.inspect.list({}, 3, null)).next, null);
  });

  specify(
    "a list is filtered by state, by kind and by text in id, key and error, and by all of them at once",
    async (fixture) => {
      await fixture.enqueue("a-1", { id: "b-1", kind: "sms" }, { id: "c-1", dedupeKey: "for-ann" }, "d-1");
      const worker = await fixture.worker("w");
      const [first] = await worker.claim(roomFor(1, ["mail"]));
      await worker.settle(SETTLE.failForGood(first!));
      const listed = async (filter: JobFilter): Promise<readonly string[]> =>
        (await fixture.store.inspect.list(filter, 10, null)).jobs.map(({ id }) => id);
      assert.deepEqual(await listed({ state: "dead" }), ["a-1"]);
      assert.deepEqual(await listed({ state: "queued" }), ["d-1", "c-1", "b-1"]);
      assert.deepEqual(await listed({ kind: "sms" }), ["b-1"]);
      assert.deepEqual(await listed({ kind: "never-seen" }), []);
      assert.deepEqual(await listed({ text: "for-ann" }), ["c-1"]);
      assert.deepEqual(await listed({ text: "on fire" }), ["a-1"]);
      assert.deepEqual(await listed({ text: "%" }), [], "a text is not a pattern");
      assert.deepEqual(await listed({ text: "-1", state: "queued", kind: "mail" }), ["d-1", "c-1"]);
    },
  );

  specify("a list is filtered by the time of the enqueue", async (fixture) => {
    const at = fixture.clock.now();
    for (const id of ["a", "b", "c"]) {
      await fixture.enqueue(id);
      await fixture.clock.advance(1_000);
    }
    const listed = async (filter: JobFilter): Promise<readonly string[]> =>
      (await fixture.store.inspect.list(filter, 10, null)).jobs.map(({ id }) => id);
    assert.deepEqual(await listed({ createdBefore: at + 1_500 }), ["b", "a"]);
    assert.deepEqual(await listed({ createdAfter: at + 500 }), ["c", "b"]);
    assert.deepEqual(await listed({ createdAfter: at + 500, createdBefore: at + 1_500 }), ["b"]);
  });

  specify("counts are right after every change of state, and after a redrive and a purge", async (fixture) => {
    await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
    await fixture.enqueue(...names("j", 7), { id: "later", delayMs: 100 });
    const counted = async (): Promise<Partial<KindCounts>> => {
      const { kind: _, paused: __, oldestReadyMs: ___, ...numbers } = await fixture.countsOf("mail");
      return Object.fromEntries(Object.entries(numbers).filter(([, n]) => n !== 0));
    };
    assert.deepEqual(await counted(), { ready: 7, delayed: 1 });
    for (const id of ["first", "second"]) {
      const killed = await fixture.worker(id);
      await killed.next();
      await fixture.recoverAll(killed);
    }
    assert.deepEqual(await counted(), { ready: 6, delayed: 1, quarantined: 1 });
    const worker = await fixture.worker("w");
    const [a, b, c, d] = await worker.claim(5);
    assert.deepEqual(await counted(), { ready: 1, delayed: 1, running: 5, quarantined: 1 });
    await worker.settle(SETTLE.succeed(a!), SETTLE.succeed(b!), SETTLE.failForGood(c!), SETTLE.endCancelled(d!));
    const ended = { succeeded: 2, dead: 1, cancelled: 1, quarantined: 1 };
    assert.deepEqual(await counted(), { ready: 1, delayed: 1, running: 1, ...ended });
    await fixture.store.operate.retry(a!.lease.jobId, "operator");
    assert.deepEqual(await counted(), { ready: 2, delayed: 1, running: 1, ...ended, succeeded: 1 });
    await fixture.clock.advance(50);
    await fixture.store.purge({ finishedOlderThanMs: 1, incidentsOlderThanMs: 1_000, limit: 100 });
    assert.deepEqual(await counted(), { ready: 2, delayed: 1, running: 1 });
    await fixture.clock.advance(50);
    await worker.claim(9);
    assert.deepEqual(await counted(), { running: 4 });
  });

  specify("a kind is counted from its declaration on, also before its first job", async (fixture) => {
    const { ready, running, succeeded, oldestReadyMs } = await fixture.countsOf("sms");
    assert.deepEqual([ready, running, succeeded, oldestReadyMs], [0, 0, 0, null]);
  });

  specify("the oldest ready job tells since when it could have been claimed", async (fixture) => {
    await fixture.enqueue("a");
    await fixture.clock.advance(1_000);
    await fixture.enqueue("b");
    await fixture.clock.advance(500);
    assert.equal((await fixture.countsOf("mail")).oldestReadyMs, 1_500);
    await (await fixture.worker("w")).next();
    assert.equal((await fixture.countsOf("mail")).oldestReadyMs, 500);
  });

  specify(
    "what is ahead of a ready job is what would be claimed before it; of one that is not ready it is not known",
    async (fixture) => {
      await fixture.enqueue("a", { id: "b", priority: 5 }, "c", { id: "d", kind: "sms" }, { id: "later", delayMs: 10 });
      const ahead = await Promise.all(
        ["a", "b", "c", "d", "later", "none"].map((id) => fixture.store.inspect.ahead(id)),
      );
      assert.deepEqual(ahead, [1, 0, 2, 0, null, null]);
      await (await fixture.worker("w")).next();
      assert.deepEqual([await fixture.store.inspect.ahead("b"), await fixture.store.inspect.ahead("a")], [null, 0]);
    },
  );

  specify(
    "an incident keeps who died and how, what it held, the last step and decision of each, and when it ran again",
    async (fixture) => {
      await fixture.enqueue("a", "b");
      const worker = await fixture.worker("w", { host: "host-9", pid: 99, version: "7.8.9" });
      const startedAt = fixture.clock.now();
      const [a] = await worker.claim(2);
      await worker.record(a!, { type: "step", name: "one", result: "1" }, { type: "step", name: "two", result: "2" });
      await fixture.clock.advance(100);
      await fixture.store.beat("w", { loopLagMs: 42 });
      const heartbeatAt = fixture.clock.now();
      await fixture.clock.advance(900);
      const diedAt = fixture.clock.now();
      const death = { how: "gone", lastSeenAliveAt: diedAt - 5, detectedAt: diedAt, evidence: "SIGKILL" } as const;
      const recovery = { id: "pass-1", startedAt: diedAt, by: "w2", integrity: "ok", summary: null };
      const { incident: id } = await fixture.recoverAll(worker, { death, recovery });
      await fixture.clock.advance(10);
      const next = await fixture.worker("next");
      await next.next();
      const incident = await fixture.store.inspect.incident(id!);
      assert.ok(incident);
      // What a store reports about its own open differs between stores.
      const { jobs, summary: _, ...rest } = incident;
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

  specify("incidents come newest first, in pages, and the latest recovery is all of its pass", async (fixture) => {
    const ids: string[] = [];
    for (const pass of ["p1", "p2", "p2"]) ids.push((await death(fixture, pass)).incident!);
    const page = await fixture.store.inspect.incidents(2, null);
    assert.deepEqual(
      page.map(({ id }) => id),
      [ids[2], ids[1]],
    );
    const rest = await fixture.store.inspect.incidents(2, page.at(-1)!.id);
    assert.deepEqual(
      rest.map(({ id }) => id),
      [ids[0]],
    );
    const latest = await fixture.store.inspect.latestRecovery();
    assert.deepEqual(
      latest.map(({ id }) => id),
      [ids[1], ids[2]],
    );
    assert.ok(latest.every((incident) => incident.recovery === "p2" && incident.jobCount === incident.jobs.length));
  });

  specify("a store that works says that it is well, and what it is", async (fixture) => {
    const { ok, summary } = await fixture.store.inspect.health();
    assert.equal(ok, true);
    assert.ok(summary[0].length > 0 && summary.every((text) => !/undefined|NaN|\[object/.test(text)), summary.join());
    assert.ok(fixture.store.name.length > 0);
  });

  specify(
    "what a worker of some kinds could act on is pending: ready jobs that are not paused, jobs that are due, requested cancels",
    async (fixture) => {
      const { upkeep, operate } = fixture.store;
      // A store that can't say has every worker poll.
      if (!upkeep.pending) return;
      const isPending = async (kinds = ["mail"]): Promise<boolean> => (await upkeep.pending!(kinds)).now;
      const empty = await upkeep.pending(["mail"]);
      assert.deepEqual([empty.now, empty.nextInMs], [false, null]);
      await fixture.enqueue("a");
      assert.deepEqual([await isPending(), await isPending(["sms"]), await isPending([])], [true, false, false]);
      await operate.setPaused("mail", true);
      assert.equal(await isPending(), false);
      await operate.setPaused("mail", false);
      assert.equal(await isPending(), true);
      const worker = await fixture.worker("w");
      await worker.claim(roomFor(1, ["mail"]));
      assert.equal(await isPending(), false);
      await operate.cancel("a", "ann");
      assert.equal(await isPending(), true);
      await worker.claim(roomFor(0, []));
      await fixture.enqueue({ id: "later", kind: "sms", delayMs: 60_000 });
      const { nextInMs } = await upkeep.pending(["mail"]);
      assert.ok(nextInMs !== null && nextInMs > 0 && nextInMs <= 60_000, `in ${nextInMs} ms`);
      await fixture.clock.advance(60_001);
      assert.equal(await isPending(), true);
    },
  );

  specify(
    "what a heartbeat of an idle worker finds, if it polls: ready jobs of any kind, jobs that are due, wakes, cancels",
    async (fixture) => {
      const { store, clock } = fixture;
      const polled = async (id = "other", pollMs = 1_000): ReturnType<typeof store.beat> =>
        store.beat(id, { loopLagMs: 0, pollMs });
      const worker = await fixture.worker("w");
      await fixture.worker("other");
      assert.equal((await polled()).pending !== undefined, fixture.polls, "as its tests declare");
      if (!fixture.polls) return;
      const poll = async (): Promise<Pending> => (await polled()).pending!;
      const isPending = async (): Promise<boolean> => (await poll()).now;
      assert.deepEqual(await poll(), { now: false, nextInMs: null });
      await fixture.enqueue("a");
      assert.equal(await isPending(), true);
      await store.operate.setPaused("mail", true);
      assert.equal(await isPending(), true, "it costs less to find out by a turn");
      await store.operate.setPaused("mail", false);
      const [a] = await worker.claim(roomFor(1, ["mail"]));
      assert.equal(await isPending(), false);
      assert.equal((await polled("w")).pending, undefined, "it holds a job");
      assert.equal((await polled("nobody")).pending, undefined);
      assert.equal((await store.beat("other", { loopLagMs: 0 })).pending, undefined, "it was not asked to poll");
      await store.operate.cancel("a", "ann");
      assert.equal(await isPending(), true);
      await worker.turn([SETTLE.succeed(a!)], roomFor(0, []));
      await worker.claim(roomFor(0, []));
      assert.equal(await isPending(), false);
      await fixture.enqueue({ id: "later", kind: "sms", delayMs: 60_000 });
      const { nextInMs } = await poll();
      assert.ok(nextInMs !== null && nextInMs > 0 && nextInMs <= 60_000, `in ${nextInMs} ms`);
      await clock.advance(60_001);
      assert.equal(await isPending(), true);
    },
  );

  specify("what is sent to all who listen reaches this connection, too", async (fixture) => {
    const { store } = fixture;
    const heard: string[] = [];
    const stop = store.onWakeup((what) => heard.push(what));
    store.notify?.("wake");
    stop();
    if (store.notify) assert.ok(heard.includes("wake"));
  });

  specify("the connection that made work ready wakes its listeners, until they stop listening", async (fixture) => {
    let woken = 0;
    const stop = fixture.store.onWakeup(() => woken++);
    await fixture.enqueue("a");
    assert.ok(woken > 0);
    stop();
    const heard = woken;
    await fixture.enqueue("b");
    assert.equal(woken, heard);
  });
}

let dead = 0;

async function death(fixture: Fixture, pass: string): ReturnType<Fixture["recoverAll"]> {
  await fixture.clock.advance(1);
  const worker = await fixture.worker(`dead-${++dead}`);
  const startedAt = fixture.clock.now();
  return fixture.recoverAll(worker, {
    recovery: { id: pass, startedAt, by: "test", integrity: "NOT_CHECKED", summary: null },
  });
}
