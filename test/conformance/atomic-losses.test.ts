// What is special about a store whose calls are scripts: one that fails has written nothing, because nothing is rolled back, and after the
// latest scripts were lost no fence is issued twice and no worker of the former run is believed.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { AtomicServer } from "../../proof/sim/stores/atomic-server.ts";
import { atomicStore } from "../../proof/sim/stores/atomic-store.ts";
import { SeededRandom } from "../../proof/sim/world/random.ts";
import { ErrorCode } from "../../src/job/errors.ts";
import type { ClaimedJob } from "../../src/job/job.ts";
import { recoverBatch } from "../../src/recovery/recover.ts";
import type { Settlement, Store } from "../../src/stores/port.ts";
import { draft, kind, NO_ROOM, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { virtualClock } from "../../src/testing/index.ts";
import { within } from "./atomic-stores.ts";

/** A failover takes its time. */
const FAILOVER_MS = 1_000;

async function begun() {
  const clock = virtualClock();
  const server = new AtomicServer(clock);
  const store = atomicStore(server);
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  const claim = async (worker = "w", by: Store = store): Promise<ClaimedJob> => {
    const { claimed } = await by.turn(worker, [], roomFor(1));
    assert.ok(claimed[0], `there is a job for ${worker}`);
    return claimed[0];
  };
  const settle = async (settlement: Settlement) => (await store.turn("w", [settlement], NO_ROOM)).settled[0]!;
  const lose = async (scripts: number): Promise<void> => {
    server.loseSuffix(scripts);
    await clock.advance(FAILOVER_MS);
  };
  return { clock, server, store, claim, settle, lose };
}

test("the conformance suite leaves out nothing but what needs a commit, a transaction of the user's, or collections", async () => {
  const file = fileURLToPath(new URL("atomic.test.ts", import.meta.url));
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const { stdout } = await promisify(execFile)(process.execPath, ["--test", "--test-reporter=tap", file], {
    env,
    maxBuffer: 2 ** 26,
  });
  const skipped = [...stdout.matchAll(/ # SKIP (.*)$/gm)].map(([, why]) => why);
  assert.ok(skipped.length > 0);
  const reasons = [
    "this store has no commit",
    "a transaction of this store can't be left open",
    "this store has no collections",
  ];
  assert.deepEqual(new Set(skipped), new Set(reasons));
  assert.doesNotMatch(stdout, /^ *not ok/m);
});

test("the server rolls nothing back: a script that throws after a write has written it, and is remembered", () => {
  const server = new AtomicServer(virtualClock());
  assert.throws(() =>
    server.eval("half", (keys) => {
      keys.set("table", "field", "text");
      throw new Error("too late");
    }),
  );
  assert.deepEqual([server.dump(), server.torn], [{ table: { field: "text" } }, ["half"]]);
});

test("a script that refuses one part of what it was given has written none of it", async () => {
  const { server, store, claim } = await begun();
  await store.enqueue([draft("a"), draft("b"), draft("lost")]);
  const job = await claim();
  const other = await claim();
  const wrong = { ...SETTLE.succeed(other), change: { ...SETTLE.fail(other).change, add: { errors: Number.NaN } } };
  const never = draft({ id: "never", kind: "never-declared" });
  const progress = { lease: job.lease, write: { type: "progress", value: "1" } } as const;
  const lost = { id: "lost", row: 3, state: "queued", epoch: 0, fence: 0, alone: false, movedOn: false } as const;
  const counters = job.counters;
  const verdict = { job: { ...lost, counters, kind: kind("mail"), deathsElsewhere: 0 }, decision: "retry" } as const;
  const before = server.dump();
  const calls: Readonly<Record<string, () => Promise<unknown>>> = {
    enqueue: () => store.enqueue([draft("c"), never]),
    write: () => store.write([progress, { lease: job.lease, write: { type: "enqueue", drafts: [draft("c"), never] } }]),
    turn: () => store.turn("w", [SETTLE.succeed(job), wrong], roomFor(9)),
    judge: () => store.losses.judge("none", [{ ...verdict, change: wrong.change }]),
    register: () => store.register(workerRecord("w", { predecessor: "other" })),
    list: () => store.inspect.list({}, 10, "no cursor"),
  };
  for (const [name, call] of Object.entries(calls)) {
    await assert.rejects(call(), name);
    assert.deepEqual(server.dump(), before, name);
  }
  assert.deepEqual(server.torn, []);
});

test("a write for a stale lease is stale, whatever else is wrong with it", async () => {
  const { store, claim, settle } = await begun();
  await store.enqueue([draft("a")]);
  const job = await claim();
  await settle(SETTLE.succeed(job));
  const drafts = [draft({ id: "never", kind: "never-declared" })];
  const [answer] = await store.write([{ lease: job.lease, write: { type: "enqueue", drafts } }]);
  assert.equal(answer?.is, "stale");
});

test("a verdict that can't be written is refused for its own job, and the others are taken", async () => {
  const { server, store, clock } = await begun();
  await store.enqueue([draft("a"), draft("b")]);
  await store.turn("w", [], roomFor(2));
  const [worker] = await store.workers({});
  const now = clock.now();
  const death = { how: "gone", lastSeenAliveAt: null, detectedAt: now, evidence: null } as const;
  const recovery = { id: "r", startedAt: now, by: "test", integrity: "ok", summary: null };
  const condemned = await store.condemn({ worker: worker!, death, recovery, incident: "i" });
  assert.ok(condemned !== null && condemned !== "locked");
  const { jobs } = await store.heldBy({ condemned, limit: 9 });
  const verdicts = jobs.map((job) => {
    const { change } = SETTLE.release({ lease: { jobId: job.id }, counters: job.counters } as ClaimedJob);
    const written = job.id === "a" ? { ...change, to: "nowhere" as "queued" } : change;
    return { job, alone: false, decision: "retry", change: written, error: null } as const;
  });
  const { taken } = await store.takeBack({ verdicts, of: condemned, last: true });
  assert.deepEqual(taken, [{ refused: "nowhere is not a state" }, "taken"]);
  assert.deepEqual(server.torn, []);
});

test("nothing is shared with the caller: neither what went in nor what came out", async () => {
  const { store } = await begun();
  const said = { ...draft("a"), input: "1" };
  await store.enqueue([said]);
  said.input = "2";
  const job = (await store.inspect.get("a"))!;
  (job.counters as { errors: number }).errors = 7;
  const again = await store.inspect.get("a");
  assert.deepEqual([again?.input, again?.counters.errors], [1, 0]);
});

test("after scripts were lost the epoch is higher before the first claim, and the store says so once", async () => {
  const { server, store, claim, lose } = await begun();
  await store.enqueue([draft("a")]);
  const before = await claim();
  await lose(1);
  assert.equal((await store.inspect.get("a"))?.state, "queued", "the claim was lost");
  const other = atomicStore(server);
  assert.match((await store.upkeep.noticeRestore?.()) ?? "", /run 2 after run 1.*1 write\(s\) behind/);
  assert.equal(await other.upkeep.noticeRestore?.(), null);
  const { epoch } = await other.register(workerRecord("new"));
  assert.ok(epoch > before.lease.epoch);
  const after = await claim("new", other);
  assert.deepEqual([after.lease.fence, after.lease.epoch], [before.lease.fence, epoch]);
});

test("epochs that were raised and lost are not issued again, also while the clock stands still", async () => {
  const { server, store } = await begun();
  const issued: number[] = [];
  for (let times = 1; times <= 5; times++) {
    for (let raises = 0; raises < times; raises++) issued.push(await store.upkeep.raiseEpoch());
    server.loseSuffix(times);
    // A worker that got their results says so when it is the first in the new run.
    issued.push((await store.register(workerRecord(`after loss ${times}`))).epoch);
  }
  assert.deepEqual(
    [...new Set(issued)].toSorted((a, b) => a - b),
    issued,
  );
});

test("workers of the former run get an error that the store was replaced, whether their rows survived or not", async () => {
  const { store, claim, lose } = await begun();
  await store.enqueue([draft("a"), draft("b")]);
  const job = await claim();
  await store.register(workerRecord("late"));
  await lose(1);
  for (const [id, why] of [
    ["w", /started again/],
    ["late", /no row/],
  ] as const) {
    const turn = await store.turn(id, [], roomFor(1));
    assert.deepEqual([turn.live, turn.claimed], [false, []], id);
    assert.match(turn.replaced ?? "", why);
    const beat = await store.beat(id, { loopLagMs: 0 });
    assert.deepEqual([beat.live, typeof beat.replaced, beat.held.count], [false, "string", 0], id);
  }
  const [written] = await store.write([{ lease: job.lease, write: { type: "progress", value: "1" } }]);
  assert.equal(written?.is, "stale");
  const [row] = await store.workers({});
  assert.deepEqual([row?.id, row?.restored, row?.heldCount], ["w", true, 1], "recovery finds what it holds");
});

test("a settlement that is repeated after a loss is repeated if it survived, and stale if it did not", async () => {
  const { store, claim, settle, lose, clock } = await begun();
  await store.enqueue([draft("kept"), draft("lost"), draft("unclaimed")]);
  const kept = await claim();
  const lost = await claim();
  assert.equal((await settle(SETTLE.succeed(kept))).is, "applied");
  const unclaimed = await claim();
  assert.equal((await settle(SETTLE.succeed(lost))).is, "applied");
  await lose(2);
  assert.equal((await settle(SETTLE.succeed(kept))).is, "repeated");
  const answers = [await settle(SETTLE.succeed(lost)), await settle(SETTLE.succeed(unclaimed))];
  assert.deepEqual(
    answers.map((answer) => (answer.is === "stale" ? [answer.stale.state, answer.stale.worker] : answer.is)),
    [
      ["running", "w"],
      ["queued", null],
    ],
  );
  // What was lost runs again: its worker of the former run is recovered as dead.
  const [worker] = await store.workers({});
  const now = clock.now();
  const death = { how: "gone", lastSeenAliveAt: null, detectedAt: now, evidence: null } as const;
  const recovery = { id: "r", startedAt: now, by: "test", integrity: "ok", summary: null };
  await recoverBatch(store, { worker: worker!, death, recovery, incident: "i" }, 10);
  await store.register(workerRecord("new"));
  const { claimed } = await store.turn("new", [], roomFor(9));
  assert.deepEqual(claimed.map(({ lease }) => lease.jobId).toSorted(), ["lost", "unclaimed"]);
  assert.equal((await settle(SETTLE.succeed(lost))).is, "stale", "it stays so while another attempt runs");
});

test("a settlement of a job whose enqueue was lost is stale and says that the job is missing", async () => {
  const { store, claim, settle, lose } = await begun();
  await store.enqueue([draft("a")]);
  const job = await claim();
  await lose(2);
  await store.enqueue([draft("b")]);
  const answer = await settle(SETTLE.succeed(job));
  assert.ok(answer.is === "stale" && answer.stale.state === "missing");
  const b = await store.inspect.get("b");
  assert.deepEqual([b?.state, b?.history], ["queued", []], "another job has its row, and is left alone");
  assert.deepEqual(await store.enqueue([draft("a")]), [{ id: "a", created: true }], "the same id is added again");
});

test("an undeclared kind names its error also in the first call of a run", async () => {
  const { server, store, lose } = await begun();
  await lose(0);
  const call = store.enqueue([draft({ id: "a", kind: "never-declared" })]);
  await assert.rejects(call, { code: ErrorCode.kindUnknown });
  assert.deepEqual(server.torn, []);
});

for (let seed = 1; seed <= 20; seed++)
  test(`whatever is lost, no fence is issued twice and fences only grow (seed ${seed})`, async () => {
    const random = new SeededRandom(`lost scripts ${seed}`);
    const { clock, server, lose } = await begun();
    const stores = [atomicStore(server), atomicStore(server), atomicStore(server)];
    const running: { readonly store: Store; readonly worker: string; readonly job: ClaimedJob }[] = [];
    const latest = new Map<string, readonly [epoch: number, fence: number]>();
    let workers: { readonly store: Store; readonly id: string }[] = [];
    let highest = 0;
    let losses = 0;
    for (let move = 0; move < 300; move++) {
      const store = stores[random.below(stores.length)]!;
      const chance = random.next();
      if (chance < 0.06 && server.scripts > 0) {
        await lose(random.below(Math.min(20, server.scripts + 1)));
        losses = highest;
      } else if (chance < 0.1) {
        await store.upkeep.raiseEpoch();
      } else if (chance < 0.3) {
        await store.declare([kind("mail")]);
        await store.enqueue([draft(`job ${random.below(30)}`)]);
      } else if (chance < 0.45 || workers.length === 0) {
        workers.push({ store, id: `worker ${move}` });
        await store.register(workerRecord(`worker ${move}`));
      } else if (chance < 0.75) {
        const worker = workers[random.below(workers.length)]!;
        const { claimed, live } = await worker.store.turn(worker.id, [], roomFor(1 + random.below(3)));
        if (!live) workers = workers.filter((one) => one !== worker);
        for (const job of claimed) {
          const { jobId, epoch, fence } = job.lease;
          const [lastEpoch, lastFence] = latest.get(jobId) ?? [0, 0];
          assert.ok(epoch > lastEpoch || (epoch === lastEpoch && fence > lastFence), `${jobId}: ${epoch}/${fence}`);
          assert.ok(epoch > losses, "higher than every epoch that was issued before the loss");
          latest.set(jobId, [epoch, fence]);
          highest = Math.max(highest, epoch);
          running.push({ ...worker, worker: worker.id, job });
        }
      } else if (running.length > 0) {
        const one = running[random.below(running.length)]!;
        await one.store.turn(one.worker, [SETTLE.release(one.job)], NO_ROOM);
      }
      await clock.advance(random.below(3));
    }
    assert.ok(latest.size > 5);
    assert.deepEqual(server.torn, []);
    within(server, (data) => assert.deepEqual(data.wrongIndexes(), []));
  });
