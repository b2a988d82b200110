// What the port promises about `declare` and `enqueue`: nothing that resolved is lost, nothing is added twice, and a key belongs to
// one unfinished job of its kind.
import assert from "node:assert/strict";
import type { Enqueued } from "../../job/job.ts";
import { draft, idsOf, kind, names, roomFor, SETTLE, type Specify, TIMEOUT_MS } from "./fixture.ts";

export function specifyEnqueue(specify: Specify): void {
  specify(
    "an enqueue that resolved is in the store as it was passed, and every connection sees it",
    async (fixture) => {
      const said = { id: "a", input: '{"to":"ann"}', priority: 7, dedupeKey: "ann" };
      assert.deepEqual(await fixture.enqueue(said), [{ id: "a", created: true }]);
      const other = await fixture.connect();
      const job = await other.inspect.get("a");
      assert.ok(job);
      assert.deepEqual(job.input, { to: "ann" });
      const { id, kind: name, state, priority, dedupeKey, createdAt, runAt, attempt, worker, lastOutcome } = job;
      assert.deepEqual(
        { id, name, state, priority, dedupeKey, createdAt, runAt, attempt, worker, lastOutcome },
        {
          id: "a",
          name: "mail",
          state: "queued",
          priority: 7,
          dedupeKey: "ann",
          createdAt: fixture.clock.now(),
          runAt: null,
          attempt: 0,
          worker: null,
          lastOutcome: null,
        },
      );
      assert.deepEqual(job.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
    },
  );

  specify(
    "the trace of an enqueue stays with its job, also through a rerun, and is not given to a job that was there",
    async (fixture) => {
      const rerun = { dedupeKey: "key", dedupe: { then: "rerun" } } as const;
      await fixture.enqueue({ id: "plain" }, { id: "traced", trace: "t1", ...rerun }, { id: "child", trace: "t2" });
      const trace = async (id: string): Promise<string | undefined> => (await fixture.job(id)).trace;
      assert.deepEqual([await trace("plain"), await trace("traced"), await trace("child")], [undefined, "t1", "t2"]);
      await fixture.enqueue({ id: "plain", trace: "t3" });
      assert.equal(await trace("plain"), undefined);
      const worker = await fixture.worker("w");
      const { claimed } = await worker.turn([], roomFor(3));
      const job = claimed.find(({ lease }) => lease.jobId === "traced")!;
      await fixture.enqueue({ id: "again", trace: "t4", ...rerun });
      await worker.settle(SETTLE.succeed(job));
      // What follows an end may be left to the next turns.
      for (let turns = 0; turns < 5 && (await fixture.store.inspect.get("again")) === null; turns++)
        await worker.turn([], roomFor(0));
      assert.equal(await trace("again"), "t4");
    },
  );

  specify("an enqueue of nothing returns nothing", async (fixture) => {
    assert.deepEqual(await fixture.enqueue(), []);
  });

  specify(
    "a known id adds nothing, changes nothing and says so, in one call, in another and after its end",
    async (fixture) => {
      const first = await fixture.enqueue({ id: "a", input: "1" }, { id: "a", input: "2" });
      assert.deepEqual(
        first.map(({ created }) => created),
        [true, false],
      );
      assert.deepEqual(await fixture.enqueue({ id: "a", kind: "sms", input: "3" }), [{ id: "a", created: false }]);
      const worker = await fixture.worker("w");
      await worker.settle(SETTLE.succeed(await worker.next()));
      assert.deepEqual(await fixture.enqueue({ id: "a", input: "4" }), [{ id: "a", created: false }]);
      const job = await fixture.job("a");
      assert.deepEqual([job.kind, job.input, job.state], ["mail", 1, "succeeded"]);
    },
  );

  specify(
    "a dedupe key that an unfinished job of the kind holds adds nothing and names the holder",
    async (fixture) => {
      const key = { dedupeKey: "k" };
      const [first, second] = await fixture.enqueue({ id: "a", ...key }, { id: "b", ...key });
      assert.deepEqual(
        [first, second],
        [
          { id: "a", created: true },
          { id: "a", created: false },
        ],
      );
      assert.deepEqual(await fixture.enqueue({ id: "c", ...key }), [{ id: "a", created: false }], "in another call");
      const other = await fixture.connect();
      assert.deepEqual(await other.enqueue([draft({ id: "d", ...key })]), [{ id: "a", created: false }], "elsewhere");
      const worker = await fixture.worker("w");
      const job = await worker.next();
      assert.deepEqual(await fixture.enqueue({ id: "e", ...key }), [{ id: "a", created: false }], "while it runs");
      await worker.settle(SETTLE.fail(job, 10_000));
      assert.deepEqual(
        await fixture.enqueue({ id: "f", ...key }),
        [{ id: "a", created: false }],
        "while a retry waits",
      );
      assert.deepEqual(await fixture.states("b", "c", "d", "e", "f"), Array(5).fill("missing"));
    },
  );

  specify(
    "duplicates that come again and again name the jobs that hold their keys, also with new jobs among them",
    async (fixture) => {
      await fixture.declare(kind("mail"));
      const batch = (call: string, keys: readonly string[]): Promise<readonly Enqueued[]> =>
        fixture.store.enqueue(keys.map((key) => draft({ id: `${call}-${key}`, dedupeKey: key })));
      await batch("first", ["a", "b", "c"]);
      const held = ["a", "b", "c"].map((key) => ({ id: `first-${key}`, created: false }));
      for (const call of ["second", "third"]) assert.deepEqual(await batch(call, ["a", "b", "c"]), held);
      assert.deepEqual(await batch("fourth", ["a", "new", "new", "c"]), [
        held[0],
        { id: "fourth-new", created: true },
        { id: "fourth-new", created: false },
        held[2],
      ]);
      const worker = await fixture.worker("w");
      const first = (await worker.claim(1))[0]!;
      await worker.settle(SETTLE.succeed(first));
      assert.deepEqual(await batch("fifth", ["a", "b", "c"]), [{ id: "fifth-a", created: true }, held[1], held[2]]);
    },
  );

  specify("a dedupe key is one of its kind's: another kind has its own, and no key never clashes", async (fixture) => {
    const enqueued = await fixture.enqueue(
      { id: "a", dedupeKey: "k" },
      { id: "b", dedupeKey: "k", kind: "sms" },
      { id: "c" },
      { id: "d" },
    );
    assert.ok(enqueued.every(({ created }) => created));
  });

  specify(
    "of two connections that enqueue the same key at once, one adds and the other learns of it",
    async (fixture) => {
      const other = await fixture.connect();
      const [[here], [there]] = await Promise.all([
        fixture.store.enqueue([draft({ id: "a", dedupeKey: "k" })]),
        other.enqueue([draft({ id: "b", dedupeKey: "k" })]),
      ]);
      assert.equal(Number(here!.created) + Number(there!.created), 1);
      assert.equal(here!.id, there!.id);
    },
  );

  for (const [how, end] of Object.entries(ENDS_OF_A_HOLDER)) {
    specify(`known bug 20: the key of a job that ${how} is free again`, async (fixture) => {
      await fixture.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
      await fixture.enqueue({ id: "a", dedupeKey: "k" });
      await end(fixture);
      assert.deepEqual(await fixture.enqueue({ id: "b", dedupeKey: "k" }), [{ id: "b", created: true }]);
    });
  }

  specify("a draft of a kind that was never declared rejects its whole call, and no other", async (fixture) => {
    const [wrong, right] = await Promise.allSettled([
      fixture.enqueue("a", { id: "b", kind: "never-declared" }),
      fixture.enqueue("c"),
    ]);
    assert.equal(wrong.status, "rejected");
    assert.equal(right.status, "fulfilled");
    assert.deepEqual(await fixture.states("a", "b", "c"), ["missing", "missing", "queued"]);
  });

  specify("a delayed job is claimed when it is due by the store's clock, and not before", async (fixture) => {
    await fixture.enqueue({ id: "a", delayMs: 5_000 }, { id: "b", runAt: fixture.clock.now() + 8_000 });
    const worker = await fixture.worker("w");
    const early = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(early.claimed), []);
    assert.equal(early.nextDueInMs, 5_000);
    await fixture.clock.advance(4_999);
    assert.deepEqual(idsOf(await worker.claim(9)), []);
    await fixture.clock.advance(1);
    const due = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(due.claimed), ["a"]);
    assert.equal(due.nextDueInMs, 3_000);
    await fixture.clock.advance(3_000);
    const last = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(last.claimed), ["b"]);
    assert.equal(last.nextDueInMs, null);
  });

  specify("a job whose moment has passed already when it is enqueued is claimed at once", async (fixture) => {
    await fixture.enqueue({ id: "a", runAt: fixture.clock.now() - 1 });
    assert.deepEqual(idsOf(await (await fixture.worker("w")).claim(9)), ["a"]);
  });

  specify("a thousand drafts of one call are there in their order", async (fixture) => {
    const ids = names("j", 1_000);
    await fixture.enqueue(...ids);
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await worker.claim(1_000)), ids);
  });

  specify(
    "a known id among many new ones adds nothing, also one that is twice in the same call, and all others are added in their order",
    async (fixture) => {
      const ids = names("j", 100);
      await fixture.enqueue(ids[40]!);
      const drafts = [...ids, ids[70]!];
      const answers = await fixture.enqueue(...drafts);
      assert.deepEqual(
        answers,
        drafts.map((id, i) => ({ id, created: i !== 40 && i !== 100 })),
      );
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await worker.claim(200)), [ids[40], ...ids.filter((_, i) => i !== 40)]);
      assert.equal((await fixture.countsOf("mail")).running, 100);
    },
  );

  specify("a declaration replaces the settings of its kind, and neither its jobs nor its pause", async (fixture) => {
    await fixture.enqueue("a");
    await fixture.store.operate.setPaused("mail", true);
    const other = await fixture.connect();
    await other.declare([kind("mail", { timeoutMs: 2 * TIMEOUT_MS })]);
    const counts = await fixture.countsOf("mail");
    assert.deepEqual([counts.paused, counts.ready], [true, 1]);
    await fixture.store.operate.setPaused("mail", false);
    const job = await (await fixture.worker("w")).next();
    assert.equal(job.deadlineInMs, 2 * TIMEOUT_MS);
  });
}

const ENDS_OF_A_HOLDER: Readonly<Record<string, (fixture: Parameters<Parameters<Specify>[1]>[0]) => Promise<unknown>>> =
  {
    async succeeded(fixture) {
      const worker = await fixture.worker("w");
      await worker.settle(SETTLE.succeed(await worker.next()));
    },
    async died(fixture) {
      const worker = await fixture.worker("w");
      await worker.settle(SETTLE.failForGood(await worker.next()));
    },
    "was cancelled": (fixture) => fixture.store.operate.cancel("a", "operator"),
    async "was quarantined"(fixture) {
      for (const id of ["first", "second"]) {
        const worker = await fixture.worker(id);
        await worker.next();
        await fixture.recoverAll(worker);
      }
      assert.deepEqual(await fixture.states("a"), ["quarantined"]);
    },
  };
