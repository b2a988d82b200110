// What the port promises about `declare` and `enqueue`: nothing that resolved is lost, nothing is added twice, and a key belongs to
// one unfinished job of its kind.
import assert from "node:assert/strict";
import { draft, kind, names, TIMEOUT_MS } from "./drafts.ts";
import { idsOf, roomFor, SETTLE } from "./hand.ts";
import type { Specify } from "./scene.ts";

export function specifyEnqueue(specify: Specify): void {
  specify("an enqueue that resolved is in the store as it was said, and every connection sees it", async (scene) => {
    const said = { id: "a", input: '{"to":"ann"}', priority: 7, dedupeKey: "ann" };
    assert.deepEqual(await scene.enqueue(said), [{ id: "a", created: true }]);
    const other = await scene.connect();
    const job = await other.get("a");
    assert.ok(job);
    assert.deepEqual(job.input, { to: "ann" });
    const { id, kind: name, state, priority, dedupeKey, createdAt, runAt, fence, worker, lastOutcome } = job;
    assert.deepEqual(
      { id, name, state, priority, dedupeKey, createdAt, runAt, fence, worker, lastOutcome },
      {
        id: "a",
        name: "mail",
        state: "queued",
        priority: 7,
        dedupeKey: "ann",
        createdAt: scene.clock.now(),
        runAt: null,
        fence: 0,
        worker: null,
        lastOutcome: null,
      },
    );
    assert.deepEqual(job.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
  });

  specify("an enqueue of nothing answers with nothing", async (scene) => {
    assert.deepEqual(await scene.enqueue(), []);
  });

  specify(
    "a known id adds nothing, changes nothing and says so, in one call, in another and after its end",
    async (scene) => {
      const first = await scene.enqueue({ id: "a", input: "1" }, { id: "a", input: "2" });
      assert.deepEqual(
        first.map(({ created }) => created),
        [true, false],
      );
      assert.deepEqual(await scene.enqueue({ id: "a", kind: "sms", input: "3" }), [{ id: "a", created: false }]);
      const worker = await scene.worker("w");
      await worker.settle(SETTLE.succeed(await worker.next()));
      assert.deepEqual(await scene.enqueue({ id: "a", input: "4" }), [{ id: "a", created: false }]);
      const job = await scene.job("a");
      assert.deepEqual([job.kind, job.input, job.state], ["mail", 1, "succeeded"]);
    },
  );

  specify("a dedupe key that an unfinished job of the kind holds adds nothing and names the holder", async (scene) => {
    const key = { dedupeKey: "k" };
    const [first, second] = await scene.enqueue({ id: "a", ...key }, { id: "b", ...key });
    assert.deepEqual(
      [first, second],
      [
        { id: "a", created: true },
        { id: "a", created: false },
      ],
    );
    assert.deepEqual(await scene.enqueue({ id: "c", ...key }), [{ id: "a", created: false }], "in another call");
    const other = await scene.connect();
    assert.deepEqual(await other.enqueue([draft({ id: "d", ...key })]), [{ id: "a", created: false }], "elsewhere");
    const worker = await scene.worker("w");
    const job = await worker.next();
    assert.deepEqual(await scene.enqueue({ id: "e", ...key }), [{ id: "a", created: false }], "while it runs");
    await worker.settle(SETTLE.fail(job, 10_000));
    assert.deepEqual(await scene.enqueue({ id: "f", ...key }), [{ id: "a", created: false }], "while a retry waits");
    assert.deepEqual(await scene.states("b", "c", "d", "e", "f"), Array(5).fill("missing"));
  });

  specify("a dedupe key is one of its kind's: another kind has its own, and no key never clashes", async (scene) => {
    const enqueued = await scene.enqueue(
      { id: "a", dedupeKey: "k" },
      { id: "b", dedupeKey: "k", kind: "sms" },
      { id: "c" },
      { id: "d" },
    );
    assert.ok(enqueued.every(({ created }) => created));
  });

  specify("of two connections that enqueue the same key at once, one adds and the other is told", async (scene) => {
    const other = await scene.connect();
    const [[here], [there]] = await Promise.all([
      scene.store.enqueue([draft({ id: "a", dedupeKey: "k" })]),
      other.enqueue([draft({ id: "b", dedupeKey: "k" })]),
    ]);
    assert.equal(Number(here!.created) + Number(there!.created), 1);
    assert.equal(here!.id, there!.id);
  });

  for (const [how, end] of Object.entries(ENDS_OF_A_HOLDER)) {
    specify(`museum 20: the key of a job that ${how} is free again`, async (scene) => {
      await scene.declare(kind("mail", { limits: { errors: 3, timeouts: 3, crashes: 1 } }));
      await scene.enqueue({ id: "a", dedupeKey: "k" });
      await end(scene);
      assert.deepEqual(await scene.enqueue({ id: "b", dedupeKey: "k" }), [{ id: "b", created: true }]);
    });
  }

  specify("a draft of a kind that was never declared rejects its whole call, and nobody else's", async (scene) => {
    const [wrong, right] = await Promise.allSettled([
      scene.enqueue("a", { id: "b", kind: "never-declared" }),
      scene.enqueue("c"),
    ]);
    assert.equal(wrong.status, "rejected");
    assert.equal(right.status, "fulfilled");
    assert.deepEqual(await scene.states("a", "b", "c"), ["missing", "missing", "queued"]);
  });

  specify("a delayed job is claimed when it is due by the store's clock, and not before", async (scene) => {
    await scene.enqueue({ id: "a", delayMs: 5_000 }, { id: "b", runAt: scene.clock.now() + 8_000 });
    const worker = await scene.worker("w");
    const early = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(early.claimed), []);
    assert.equal(early.nextDueInMs, 5_000);
    await scene.clock.advance(4_999);
    assert.deepEqual(idsOf(await worker.claim(9)), []);
    await scene.clock.advance(1);
    const due = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(due.claimed), ["a"]);
    assert.equal(due.nextDueInMs, 3_000);
    await scene.clock.advance(3_000);
    const last = await worker.turn([], roomFor(9));
    assert.deepEqual(idsOf(last.claimed), ["b"]);
    assert.equal(last.nextDueInMs, null);
  });

  specify("a job whose moment has passed already when it is enqueued is claimed at once", async (scene) => {
    await scene.enqueue({ id: "a", runAt: scene.clock.now() - 1 });
    assert.deepEqual(idsOf(await (await scene.worker("w")).claim(9)), ["a"]);
  });

  specify("a thousand drafts of one call are there in their order", async (scene) => {
    const ids = names("j", 1_000);
    await scene.enqueue(...ids);
    const worker = await scene.worker("w");
    assert.deepEqual(idsOf(await worker.claim(1_000)), ids);
  });

  specify("a declaration replaces the settings of its kind, and neither its jobs nor its pause", async (scene) => {
    await scene.enqueue("a");
    await scene.store.setPaused("mail", true);
    const other = await scene.connect();
    await other.declare([kind("mail", { timeoutMs: 2 * TIMEOUT_MS })]);
    const counts = await scene.countsOf("mail");
    assert.deepEqual([counts.paused, counts.ready], [true, 1]);
    await scene.store.setPaused("mail", false);
    const job = await (await scene.worker("w")).next();
    assert.equal(job.deadlineInMs, 2 * TIMEOUT_MS);
  });
}

const ENDS_OF_A_HOLDER: Readonly<Record<string, (scene: Parameters<Parameters<Specify>[1]>[0]) => Promise<unknown>>> = {
  async succeeded(scene) {
    const worker = await scene.worker("w");
    await worker.settle(SETTLE.succeed(await worker.next()));
  },
  async died(scene) {
    const worker = await scene.worker("w");
    await worker.settle(SETTLE.failForGood(await worker.next()));
  },
  "was cancelled": (scene) => scene.store.cancel("a", "operator"),
  async "was quarantined"(scene) {
    const worker = await scene.worker("w");
    await worker.next();
    await scene.bury(worker);
    assert.deepEqual(await scene.states("a"), ["quarantined"]);
  },
};
