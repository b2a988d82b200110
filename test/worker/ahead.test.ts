// Holds what a worker claims beyond its slots: when it starts, what becomes of it if it does not, and that only one thread decides.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunnableKind } from "../../src/job/contract.ts";
import { leaseHash } from "../../src/job/lease.ts";
import { AheadCells, BLOCKED_WAIT_MS, MAX_WAIT_MS, releaseWaiting } from "../../src/recovery/ahead-cells.ts";
import { APPLIED, type Room, type Settlement, type TurnAnswer } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { Ahead, MAX_AHEAD } from "../../src/worker/ahead.ts";
import type { Attempt } from "../../src/worker/attempt.ts";
import { Loop } from "../../src/worker/loop.ts";
import { aClaim, aContext, aKind, aLease, aTurn, counted, fakeStore, held, Recorder } from "../support/samples.ts";

interface Turn {
  readonly settlements: readonly Settlement[];
  readonly room: Room;
  readonly answer: (given?: Partial<TurnAnswer>) => Promise<void>;
}

/** A worker with two slots that claims `ahead` more. `mail` may wait, `once` ends on a crash. */
function worker(ahead: number | undefined = 3) {
  const clock = virtualClock();
  const events = new Recorder();
  const turns: Turn[] = [];
  const runs = new Map<string, { run: Attempt; end: PromiseWithResolvers<unknown> }>();
  const handler = (_input: never, run: Attempt): Promise<unknown> => {
    const end = held<unknown>();
    runs.set(run.id, { run, end });
    return end.promise;
  };
  const store = fakeStore({
    turn: (_worker, settlements, room) => {
      const reply = held<TurnAnswer>();
      const answer = async (change?: Partial<TurnAnswer>): Promise<void> => {
        reply.resolve(aTurn(settlements.length, change));
        await clock.settle();
      };
      turns.push({ settlements, room, answer });
      return reply.promise;
    },
  });
  const kind = {
    settings: aKind({ timeoutMs: 10_000 }),
    parse: null,
    delayMs: null,
    handler,
  } as unknown as RunnableKind;
  const kinds = new Map([
    ["mail", kind],
    ["once", { ...kind, settings: aKind({ name: "once", onCrash: "fail" }) }],
  ]);
  const cells = new AheadCells();
  const owner = { disowned: () => {}, replaced: () => {}, compareSoon: () => {} };
  const options = {
    concurrency: { total: 2, perKind: new Map() },
    pollMs: 1_000,
    ...(ahead !== undefined && { claimsAhead: ahead }),
  };
  const loop = new Loop(aContext({ store, clock, events, kinds }), owner, options, cells);
  const begin = async (...claimed: string[]): Promise<void> => {
    loop.start();
    await clock.settle();
    await turns[0]!.answer({ claimed: claimed.map((id) => aClaim({ lease: leaseOf(id), deadlineInMs: 10_000 })) });
  };
  const end = async (id: string): Promise<void> => {
    runs.get(id)!.end.resolve(undefined);
    await clock.settle();
  };
  return { loop, clock, events, turns, runs, cells, begin, end, running: () => [...runs.keys()] };
}

/** Each job has a row of its own. */
const leaseOf = (jobId: string) => aLease({ jobId, row: jobId.charCodeAt(0) });
const ends = (settlements: readonly Settlement[]): string[] =>
  settlements.map(({ lease, change }) => `${lease.jobId} ${change.name}`);

test("a worker asks for its slots and for some more, and says of which kinds", async () => {
  const { loop, clock, turns } = worker();
  loop.start();
  await clock.settle();
  assert.deepEqual(turns[0]!.room, {
    total: 2,
    kinds: [
      { kind: "mail", room: 2, ahead: true },
      { kind: "once", room: 2 },
    ],
    ahead: 3,
  });
});

test("what was claimed ahead starts when a handler has ended, before that is durable", async () => {
  const { turns, begin, end, running } = worker();
  await begin("a", "b", "c", "d");
  assert.deepEqual(running(), ["a", "b"]);
  await end("a");
  assert.deepEqual(running(), ["a", "b", "c"], "the turn that settles a is still under way");
  assert.deepEqual(ends(turns.at(-1)!.settlements), ["a succeed"]);
  assert.equal(turns.at(-1)!.room.total, 0);
});

test("the time of a job begins with its handler, not with its claim", async () => {
  const { clock, turns, begin, end, runs } = worker();
  await begin("a", "b", "c");
  await clock.advance(200);
  await end("a");
  await turns.at(-1)!.answer();
  await clock.advance(9_900);
  assert.equal(runs.get("b")!.run.abortedBy, "timeout");
  assert.equal(runs.get("c")!.run.abortedBy, undefined);
  await clock.advance(300);
  assert.equal(runs.get("c")!.run.abortedBy, "timeout");
});

test("a suspect and a job that a crash would end start at once, whatever waits", async () => {
  const { loop, clock, turns, running } = worker();
  loop.start();
  await clock.settle();
  const claimed = [aClaim({ id: "a" }), aClaim({ id: "b" }), aClaim({ id: "c" })];
  await turns[0]!.answer({
    claimed: [...claimed, aClaim({ id: "suspect", together: 4 }), aClaim({ id: "once", kind: "once" })],
  });
  assert.deepEqual(running(), ["a", "b", "suspect", "once"]);
});

test("what has not started in time is released, and so is what waits when the worker stops", async () => {
  const late = worker();
  await late.begin("a", "b", "c");
  await late.clock.advance(MAX_WAIT_MS + 100);
  assert.deepEqual(ends(late.turns.at(-1)!.settlements), ["c release"]);
  const stopped = worker();
  await stopped.begin("a", "b", "c");
  void stopped.loop.drain();
  await stopped.clock.settle();
  assert.deepEqual(ends(stopped.turns.at(-1)!.settlements), ["c release"]);
  assert.deepEqual(stopped.running(), ["a", "b"]);
});

test("a cancel reaches a job that waits: it never starts", async () => {
  const { turns, begin, end, running } = worker();
  await begin("a", "b", "c", "d");
  await end("a");
  await turns.at(-1)!.answer({ cancels: ["d"] });
  await end("b");
  assert.deepEqual(running(), ["a", "b", "c"]);
  assert.ok(turns.some(({ settlements }) => ends(settlements).includes("d release")));
});

test("the maintenance releases what waits behind a blocked loop, and the loop does not start it any more", async () => {
  const { clock, turns, begin, end, running, cells, events } = worker();
  await begin("a", "b", "c", "d");
  const leases = ["a", "b", "c", "d"].map((id) => ({ lease: leaseOf(id), counters: counted() }));
  const released: Settlement[] = [];
  const store = fakeStore({
    beat: async () => ({
      live: true,
      now: 0,
      held: { count: 4, digest: leases.reduce((sum, { lease }) => sum + leaseHash(lease), 0) },
      leases,
      overdueMs: null,
      overdueJobId: null,
      schemaVersion: 1,
    }),
    turn: async (_worker, settlements) => {
      released.push(...settlements);
      return aTurn(settlements.length, { settled: settlements.map(() => APPLIED) });
    },
  });
  // The thread's clock goes on while the loop stands still.
  const ofThread = { ...clock, mono: () => clock.mono() + BLOCKED_WAIT_MS + 1 };
  await releaseWaiting({ store, clock: ofThread, events }, "w", cells, 1_000);
  assert.deepEqual(ends(released), ["c release", "d release"]);
  await end("a");
  await end("b");
  assert.deepEqual(running(), ["a", "b"]);
  assert.deepEqual(ends(turns.at(-1)!.settlements).toSorted(), ["a succeed", "c release", "d release"]);
  await releaseWaiting({ store, clock: ofThread, events }, "w", cells, 1_000);
  assert.equal(released.length, 2, "nothing is left to release");
});

test("a cell that was taken, or is used again, is not released for the job that was in it", () => {
  const cells = new AheadCells();
  cells.put(7, leaseOf("a"), 0);
  const [found] = cells.waitingSince(1).values();
  assert.equal(cells.take(7), true);
  cells.put(7, leaseOf("b"), 0);
  assert.equal(cells.release(found!), false);
  assert.deepEqual([...cells.waitingSince(1).keys()], ["98 7 1"]);
  assert.equal(cells.take(7), true);
  assert.equal(cells.take(7), false);
});

test("about 20 ms of work are claimed ahead, within the bounds, and nothing of slow kinds", () => {
  const ahead = new Ahead(new AheadCells());
  assert.equal(ahead.room(), 0, "nothing is known yet");
  assert.equal(ahead.isFast("mail"), false);
  ahead.fed(0);
  for (let turn = 1; turn < 50; turn++) {
    ahead.turned(10, turn);
    ahead.ended("mail", 5, 100);
    ahead.ended("report", 90, 100);
  }
  assert.ok(Math.abs(ahead.room() - 200) < 5, `${ahead.room()} at ten jobs per ms`);
  assert.deepEqual([ahead.isFast("mail"), ahead.isFast("report")], [true, false]);
  for (let turn = 50; turn < 100; turn++) ahead.turned(100, turn);
  assert.equal(ahead.room(), MAX_AHEAD);
  for (let turn = 0; turn < 50; turn++) ahead.ended("mail", 5, 100_000);
  assert.ok(ahead.room() <= 21, `${ahead.room()} of 200 KB each`);
  for (let turn = 100; turn < 150; turn++) ahead.turned(1, turn * 1_000);
  assert.equal(ahead.room(), 0, "one job a second");
});

test("the time in which a worker has nothing to run does not count: what a slow store gives is run as fast", () => {
  const ahead = new Ahead(new AheadCells());
  ahead.turned(0, 1_000);
  for (let turn = 1; turn < 50; turn++) {
    ahead.fed(turn * 1_000 + 30);
    ahead.starved(turn * 1_000 + 35);
    ahead.starved(turn * 1_000 + 39);
    ahead.turned(50, turn * 1_000 + 39);
    assert.equal(ahead.room(), 200, "50 jobs in 5 ms of each second, from the first turn on");
  }
  for (let turn = 50; turn < 100; turn++) {
    ahead.fed(turn * 1_000 + 30);
    ahead.turned(50, turn * 1_000 + 130);
    ahead.starved(turn * 1_000 + 230);
  }
  assert.equal(ahead.room(), 5, "50 jobs in 200 ms, half of them while a turn is under way");
});

test("after a job has waited too long, nothing is claimed ahead until others have ended", () => {
  const ahead = new Ahead(new AheadCells());
  ahead.fed(0);
  ahead.turned(50, 5);
  assert.equal(ahead.room(), 200);
  const waiting = { claimedMono: 5, job: aClaim({ id: "late" }), cell: -1 } as unknown as Attempt;
  ahead.add(waiting);
  assert.deepEqual(ahead.takeOverdue(5), []);
  assert.deepEqual(ahead.takeOverdue(6), [{ attempt: waiting, ours: true }]);
  assert.equal(ahead.room(), 0);
  ahead.turned(0, 10);
  assert.equal(ahead.room(), 0);
  ahead.turned(10, 11);
  assert.equal(ahead.room(), 200);
});
