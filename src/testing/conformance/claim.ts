// What the port promises about claims: which jobs, in which order, how many, for whom, and what is written in the same step.
import assert from "node:assert/strict";
import type { ClaimedJob } from "../../job/job.ts";
import { AHEAD_BOUND_MS, type Room } from "../../stores/port.ts";
import { answers, type TestWorker, idsOf, kind, names, roomFor, SETTLE, type Specify, TIMEOUT_MS } from "./fixture.ts";

export function specifyClaim(specify: Specify): void {
  specify(
    "a claim takes the highest priority first and the oldest among equals, within a kind and across kinds",
    async (fixture) => {
      await fixture.enqueue(
        { id: "low", priority: -5 },
        { id: "old" },
        { id: "urgent", priority: 9, kind: "sms" },
        { id: "young", kind: "sms" },
        { id: "high", priority: 5 },
        { id: "youngest" },
      );
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await worker.claim(roomFor(3, ["mail"]))), ["high", "old", "youngest"]);
      assert.deepEqual(idsOf(await worker.claim(9)), ["urgent", "young", "low"]);
    },
  );

  specify("known bug 16: a claim never takes more than its limit, of one kind or of several", async (fixture) => {
    await fixture.enqueue(...names("m", 20), ...names("s", 20).map((id) => ({ id, kind: "sms" })));
    const worker = await fixture.worker("w");
    assert.equal((await worker.claim(roomFor(3, ["mail"]))).length, 3);
    assert.equal((await worker.claim(roomFor(5))).length, 5);
    assert.equal((await worker.claim(roomFor(0))).length, 0);
    assert.equal((await worker.row()).heldCount, 8);
  });

  specify(
    "a claim takes of each kind no more than that kind has room for, and none of a kind without room",
    async (fixture) => {
      await fixture.enqueue(...names("m", 5), ...names("s", 5).map((id) => ({ id, kind: "sms" })));
      const worker = await fixture.worker("w");
      const kinds = [
        { kind: "mail", room: 1 },
        { kind: "sms", room: 3 },
      ];
      const claimed = await worker.claim({ total: 10, kinds });
      assert.deepEqual(idsOf(claimed), ["m0001", "s0001", "s0002", "s0003"]);
      const full = await worker.claim({ total: 10, kinds: kinds.map((room) => ({ ...room, room: 0 })) });
      assert.deepEqual(idsOf(full), []);
      const one = await worker.claim({ total: 10, kinds: [{ kind: "mail", room: 2 }] });
      assert.equal(one.length, 2);
    },
  );

  specify(
    "known bug 8: a kind that no worker knows stays queued and is counted, and hides no other",
    async (fixture) => {
      await fixture.declare(kind("of-the-next-release"));
      await fixture.enqueue(...names("n", 50).map((id) => ({ id, kind: "of-the-next-release", priority: 9 })), "a");
      const worker = await fixture.worker("w");
      assert.deepEqual(idsOf(await worker.claim(9)), ["a"]);
      assert.equal((await fixture.countsOf("of-the-next-release")).ready, 50);
      const job = await fixture.job("n0001");
      assert.deepEqual([job.state, job.attempt, job.history], ["queued", 0, []]);
    },
  );

  specify(
    "known bug 33: of forty kinds the first jobs are claimed, whatever is in front of them: foreign, paused or full kinds",
    async (fixture) => {
      const many = names("k", 40);
      await fixture.declare(kind("foreign"), kind("paused"), kind("full"), ...many.map((name) => kind(name)));
      await fixture.store.operate.setPaused("paused", true);
      const inFront = (name: string, count: number): { id: string; kind: string; priority: number }[] =>
        names(name, count).map((id) => ({ id, kind: name, priority: 9 }));
      await fixture.enqueue(...inFront("foreign", 200), ...inFront("paused", 200), ...inFront("full", 200));
      for (let round = 1; round <= 3; round++)
        await fixture.enqueue(...many.map((name) => ({ id: `${name}-${round}`, kind: name })));
      await fixture.enqueue({ id: "urgent", kind: "k0040", priority: 1 });
      const worker = await fixture.worker("w");
      const room = (total: number, each: number): Room => ({
        total,
        kinds: ["paused", ...many].map((name) => ({ kind: name, room: each })).concat({ kind: "full", room: 1 }),
      });
      // The first turn meets them in front, the next one knows of them, and the order is the same.
      const first = many.map((name) => `${name}-1`);
      assert.deepEqual(idsOf(await worker.claim(room(6, 6))), ["full0001", "urgent", ...first.slice(0, 4)]);
      await fixture.store.operate.setPaused("full", true);
      assert.deepEqual(idsOf(await worker.claim(room(6, 1))), first.slice(4, 10));
      const oneOfEach = [...first.slice(10), ...many.slice(0, 10).map((name) => `${name}-2`)];
      assert.deepEqual(idsOf(await worker.claim(room(80, 1))), oneOfEach);
    },
  );

  specify(
    "of three hundred kinds with a job each, a turn takes as many as it has room for, in order",
    async (fixture) => {
      const many = names("k", 300);
      await fixture.declare(...many.map((name) => kind(name)));
      await fixture.enqueue(...many.map((name) => ({ id: `${name}-1`, kind: name })));
      const worker = await fixture.worker("w", { kinds: many });
      const ids = many.map((name) => `${name}-1`);
      assert.deepEqual(idsOf(await worker.claim(roomFor(270, many))), ids.slice(0, 270));
      const kinds = many.map((name) => ({ kind: name, room: 4, ahead: true }));
      const claimed = idsOf(await worker.claim({ total: 4, kinds, ahead: 20 }));
      assert.ok(claimed.length >= 4);
      assert.deepEqual(claimed, ids.slice(270, 270 + claimed.length));
    },
  );

  for (const foreign of [0, 150])
    specify(
      `of forty kinds next to ${foreign} others, a claim follows each change of what is first: cancelled, queued again, paused for a while, a suspect`,
      async (fixture) => {
        const many = names("k", 40);
        const others = names("foreign", foreign);
        await fixture.declare(...[...many, ...others].map((name) => kind(name)));
        await fixture.enqueue(...others.map((name) => ({ id: `${name}-1`, kind: name, priority: 9 })));
        for (const name of many) await fixture.enqueue(...names(`${name}-`, 3).map((id) => ({ id, kind: name })));
        const worker = await fixture.worker("w", { kinds: many });
        const { operate } = fixture.store;
        const job = (k: number, n: number): string => `${many[k - 1]}-000${n}`;
        const room = (total: number, each = total): Room => ({
          total,
          kinds: many.map((name) => ({ kind: name, room: each })),
        });
        await operate.cancel(job(1, 1), "operator");
        const first = await take(worker, room(4));
        assert.deepEqual(idsOf(first), [job(1, 2), job(1, 3), job(2, 1), job(2, 2)]);
        await operate.retry(job(1, 1), "operator");
        await worker.settle(SETTLE.release(first[3]!));
        assert.deepEqual(idsOf(await take(worker, room(3))), [job(1, 1), job(2, 2), job(2, 3)]);
        const forAMinute = { actor: "ann", reason: null, untilAt: null, forMs: 60_000 };
        await operate.setPaused(many[2]!, true, forAMinute);
        assert.deepEqual(idsOf(await take(worker, room(2))), [job(4, 1), job(4, 2)]);
        await fixture.clock.advance(60_000);
        assert.deepEqual(idsOf(await take(worker, room(5, 2))), [
          job(3, 1),
          job(3, 2),
          job(4, 3),
          job(5, 1),
          job(5, 2),
        ]);
        // What a dead worker held comes first in its order, whatever is known of the first jobs.
        const dying = await fixture.worker("dying", { kinds: many });
        assert.deepEqual(idsOf(await take(dying, room(1))), [job(3, 3)]);
        await fixture.recoverAll(dying);
        assert.deepEqual(idsOf(await take(worker, room(2))), [job(3, 3), job(5, 3)]);
        const shares = (name: string): Room["kinds"][number] => ({ kind: name, room: 2, shares: name !== many[39] });
        const shared = idsOf(await take(worker, { total: 9, kinds: many.map(shares) }));
        assert.deepEqual(shared, [job(6, 1), job(6, 2), job(40, 1), job(40, 2)], "39 of them share a room");
        const left = many.slice(6, 39).flatMap((name) => names(`${name}-`, 3));
        assert.deepEqual(idsOf(await take(worker, room(300))), [job(6, 3), ...left, job(40, 3)]);
        assert.deepEqual(idsOf(await take(worker, room(300))), []);
      },
    );

  specify(
    "what is claimed ahead comes after the free slots, in order, and has as much more time as it may wait",
    async (fixture) => {
      await fixture.enqueue(...names("m", 8), { id: "urgent", priority: 5 });
      const worker = await fixture.worker("w");
      const ahead = (total: number, count: number): Room => ({
        total,
        kinds: [{ kind: "mail", room: Math.max(1, total), ahead: true }],
        ahead: count,
      });
      const claimed = await worker.claim(ahead(2, 3));
      assert.deepEqual(idsOf(claimed), ["urgent", "m0001", "m0002", "m0003", "m0004"]);
      assert.deepEqual(new Set(claimed.map(({ deadlineInMs }) => deadlineInMs)), new Set([TIMEOUT_MS]));
      const { deadlineAt, startedAt } = await fixture.job("m0004");
      assert.equal(deadlineAt! - startedAt!, TIMEOUT_MS + AHEAD_BOUND_MS);
      assert.deepEqual(idsOf(await worker.claim(ahead(0, 2))), ["m0005", "m0006"]);
      const none = { total: 0, kinds: [{ kind: "mail", room: 1 }], ahead: 2 };
      assert.deepEqual(idsOf(await worker.claim(none)), [], "its jobs may not wait");
    },
  );

  specify("nothing is claimed ahead of a job that may not wait, nor while a suspect waits", async (fixture) => {
    await fixture.enqueue("a", { id: "b", kind: "sms" }, "c");
    const room = (total: number): Room => ({
      total,
      kinds: [
        { kind: "mail", room: 9, ahead: true },
        { kind: "sms", room: 9 },
      ],
      ahead: 5,
    });
    const first = await fixture.worker("w1");
    const taken = idsOf(await first.claim(room(1)));
    assert.ok(taken[0] === "a" && taken.length === 1, `${taken.join()} were claimed, and b may not wait`);
    await fixture.recoverAll(first);
    const second = await fixture.worker("w2");
    assert.deepEqual(idsOf(await second.claim(room(0))), [], "the suspect a waits for a free slot");
    assert.deepEqual(idsOf(await second.claim(room(1))), ["a"]);
    assert.deepEqual(idsOf(await second.claim(room(1)))[0], "b");
  });

  for (const [title, others] of [
    ["two kinds", 1],
    ["twenty kinds", 19],
  ] as const)
    specify(
      `of ${title}, one of which may not wait, what is claimed ahead is the next in the order of all, up to the first of that kind`,
      async (fixture) => {
        const waiting = names("fast", others);
        await fixture.declare(kind("slow"), ...waiting.map((name) => kind(name)));
        const order = Array.from({ length: 40 }, (_, at) => (at % 8 === 6 ? "slow" : waiting[at % waiting.length]!));
        await fixture.enqueue(
          ...order.map((name, at) => ({ id: `${String(at).padStart(2, "0")} ${name}`, kind: name })),
        );
        const worker = await fixture.worker("w");
        const kinds = [...waiting.map((name) => ({ kind: name, room: 9, ahead: true })), { kind: "slow", room: 1 }];
        const left = order.map((name, at) => ({ at, isSlow: name === "slow" }));
        for (let turns = 0; left.length > 0; turns++) {
          assert.ok(turns < 100, "every turn with a free slot claims something");
          const total = turns % 4;
          const ids = idsOf(await worker.claim({ total, kinds, ahead: 5 }));
          // A kind with room for one job may leave its second one behind, and then nothing is claimed ahead of that.
          const slots = ids.slice(0, total).map((id) => Number(id.slice(0, 2)));
          const free = left.filter(({ isSlow }, n) => !isSlow || left.findIndex((one) => one.isSlow) === n);
          assert.deepEqual(
            slots,
            free
              .slice(0, total)
              .map(({ at }) => at)
              .slice(0, slots.length),
            "the free slots",
          );
          assert.equal(slots.length, Math.min(total, free.length));
          for (const { at } of free.slice(0, slots.length))
            left.splice(
              left.findIndex((one) => one.at === at),
              1,
            );
          const ahead = ids.slice(total);
          assert.ok(ahead.length <= 5);
          assert.deepEqual(
            ahead,
            left.slice(0, ahead.length).map(({ at }) => `${String(at).padStart(2, "0")} ${order[at]}`),
          );
          assert.ok(!ahead.some((id) => id.endsWith("slow")), `${ahead.join()} were claimed ahead`);
          left.splice(0, ahead.length);
        }
      },
    );

  specify("a worker may ask for a kind that no program has declared yet: it gets the others", async (fixture) => {
    await fixture.enqueue("a");
    const worker = await fixture.worker("w");
    assert.deepEqual(idsOf(await worker.claim(roomFor(9, ["never-declared", "mail"]))), ["a"]);
  });

  specify(
    "a paused kind is claimed by no worker, at once and by every connection, until it is resumed",
    async (fixture) => {
      await fixture.enqueue("a", { id: "b", kind: "sms" });
      const other = await fixture.connect();
      const here = await fixture.worker("here");
      const there = await fixture.worker("there", { store: other });
      assert.equal(await fixture.store.operate.setPaused("mail", true), true);
      assert.deepEqual(idsOf(await there.claim(9)), ["b"]);
      assert.deepEqual(idsOf(await here.claim(roomFor(9, ["mail"]))), []);
      assert.equal(await other.operate.setPaused("mail", false), true);
      assert.deepEqual(idsOf(await here.claim(9)), ["a"]);
    },
  );

  specify("a claim writes owner, epoch, fence, start and deadline in the same step", async (fixture) => {
    await fixture.store.upkeep.raiseEpoch();
    await fixture.enqueue({ id: "a", input: '{"n":1}' });
    await fixture.clock.advance(1_000);
    const worker = await fixture.worker("w");
    const claimed = await worker.next();
    assert.deepEqual(
      { ...claimed, lease: { ...claimed.lease, row: 0 } },
      {
        lease: { jobId: "a", kind: "mail", row: 0, worker: "w", epoch: worker.epoch, fence: 1 },
        kind: "mail",
        input: '{"n":1}',
        counters: { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 },
        deadlineInMs: TIMEOUT_MS,
        together: null,
        lastOutcome: null,
        steps: [],
      },
    );
    const { state, worker: owner, epoch, attempt, startedAt, deadlineAt } = await fixture.job("a");
    const now = fixture.clock.now();
    assert.deepEqual(
      { state, owner, epoch, attempt, startedAt, deadlineAt },
      { state: "running", owner: "w", epoch: worker.epoch, attempt: 1, startedAt: now, deadlineAt: now + TIMEOUT_MS },
    );
  });

  specify(
    "known bug 15: a job that waited for hours has its whole time from its start, and is not overdue",
    async (fixture) => {
      await fixture.enqueue("a", { id: "b", delayMs: 3_600_000 });
      await fixture.clock.advance(7_200_000);
      const worker = await fixture.worker("w");
      const claimed = await worker.claim(9);
      assert.deepEqual(
        claimed.map((job) => job.deadlineInMs),
        [TIMEOUT_MS, TIMEOUT_MS],
      );
      await fixture.clock.advance(3_000);
      assert.deepEqual((await fixture.store.heldBy({ overdue: { marginMs: 0 }, limit: 10 })).jobs, []);
      assert.equal((await fixture.store.beat("w", { loopLagMs: 0 })).overdueMs, null);
    },
  );

  specify("a job of a kind without a timeout has no deadline", async (fixture) => {
    await fixture.declare(kind("endless", { timeoutMs: null }));
    await fixture.enqueue({ id: "a", kind: "endless" });
    const worker = await fixture.worker("w");
    assert.equal((await worker.next(roomFor(1, ["endless"]))).deadlineInMs, null);
    assert.equal((await fixture.job("a")).deadlineAt, null);
  });

  specify(
    "the fence grows with every claim of a job, whichever worker claims and however the attempt before ended",
    async (fixture) => {
      await fixture.enqueue("a");
      const first = await fixture.worker("w1");
      const second = await fixture.worker("w2");
      for (const [fence, worker] of [first, second, first, second].entries()) {
        const job = await worker.next();
        assert.equal(job.lease.fence, fence + 1);
        await worker.settle(fence % 2 === 0 ? SETTLE.release(job) : SETTLE.fail(job));
      }
      const { lease } = await first.next();
      await fixture.recoverAll(first);
      assert.equal((await second.next()).lease.fence, lease.fence + 1);
    },
  );

  specify(
    "a later attempt gets the counters, the last outcome and the steps in the order of writing",
    async (fixture) => {
      await fixture.enqueue("a");
      const worker = await fixture.worker("w");
      const first = await worker.next();
      await worker.record(first, { type: "step", name: "z", result: "1" }, { type: "step", name: "b", result: null });
      await worker.settle(SETTLE.fail(first));
      const second = await worker.next();
      await worker.record(second, { type: "step", name: "a", result: '"x"' });
      await worker.settle(SETTLE.release(second));
      const { counters, lastOutcome, steps } = await worker.next();
      assert.deepEqual(counters, { errors: 1, crashes: 0, blamed: 0, timeouts: 0, interruptions: 1, losses: 0 });
      assert.equal(lastOutcome, "released");
      assert.deepEqual(
        steps.map(({ name, result }) => [name, result]),
        [
          ["z", "1"],
          ["b", null],
          ["a", '"x"'],
        ],
      );
    },
  );

  specify(
    "workers on several connections that claim at once never get the same job, and together get all",
    async (fixture) => {
      const ids = names("j", 60);
      await fixture.enqueue(...ids);
      const workers = await Promise.all(
        names("w", 4).map(async (id) => fixture.worker(id, { store: await fixture.connect() })),
      );
      const claims = await Promise.all([...workers, ...workers].map((worker) => worker.claim(10)));
      assert.deepEqual(claims.flatMap(idsOf).toSorted(), ids);
    },
  );

  specify(
    "a worker that was never registered, or whose row is not live, claims nothing and learns why",
    async (fixture) => {
      await fixture.enqueue("a");
      const stopped = await fixture.worker("stopped");
      assert.equal(await fixture.store.leave("stopped"), true);
      const gone = await fixture.worker("gone");
      await fixture.recoverAll(gone);
      for (const id of ["nobody", stopped.id, gone.id]) {
        const { live, claimed } = await fixture.store.turn(id, [], roomFor(1));
        assert.deepEqual([live, claimed], [false, []], id);
      }
      assert.deepEqual(await fixture.states("a"), ["queued"]);
    },
  );

  specify(
    "a worker that is being recovered claims nothing, and settles only what has not been taken from it yet",
    async (fixture) => {
      await fixture.enqueue("a", "b", "c");
      const worker = await fixture.worker("w");
      const [a, b] = await worker.claim(2);
      assert.equal((await fixture.recover(worker, { limit: 1 })).done, false);
      const turn = await worker.turn([SETTLE.succeed(a!), SETTLE.succeed(b!)], roomFor(9));
      assert.deepEqual(answers(turn.settled), ["stale", "applied"]);
      assert.deepEqual([turn.live, turn.claimed], [false, []]);
      assert.deepEqual(await fixture.states("a", "b", "c"), ["queued", "succeeded", "queued"]);
    },
  );
}

/** What a worker's next turns claim: one that had to look past other kinds may say that the next follows at once. */
async function take(worker: TestWorker, room: Room): Promise<readonly ClaimedJob[]> {
  for (;;) {
    const { claimed, nextDueInMs } = await worker.turn([], room);
    if (claimed.length > 0 || nextDueInMs !== 0) return claimed;
  }
}
