// Holds the worker's loop against a store that responds as the test says: late, wrongly, not at all.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunnableKind } from "../../src/job/contract.ts";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { type Lease, leaseHash } from "../../src/job/lease.ts";
import type { SomeVerbs } from "../../src/stores/observed.ts";
import { APPLIED, type HeldLease, type Room, type Settlement, type TurnAnswer } from "../../src/stores/port.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import type { Attempt } from "../../src/worker/attempt.ts";
import type { Concurrency } from "../../src/worker/executor.ts";
import { Loop } from "../../src/worker/loop.ts";
import type { CommitForm } from "../../src/worker/run.ts";
import { aClaim, aContext, aKind, aLease, aTurn, counted, fakeStore, held, Recorder } from "../support/samples.ts";

const form: CommitForm<unknown, "sync"> = { store: "fake", mode: "sync" };

interface Turn {
  readonly settlements: readonly Settlement[];
  readonly room: Room;
  readonly at: number;
  readonly answer: (given?: Partial<TurnAnswer>) => Promise<void>;
  readonly fail: (message?: string) => Promise<void>;
}

/** A worker of the kinds mail and report whose turns stay open until the test resolves them. */
function worker(
  given: {
    concurrency?: Partial<Concurrency>;
    store?: SomeVerbs;
    kind?: Partial<RunnableKind>;
    trustedUntil?: () => number;
    inContact?: () => boolean;
  } = {},
) {
  const clock = virtualClock();
  const events = new Recorder();
  const started = clock.mono();
  const turns: Turn[] = [];
  const told: string[] = [];
  const runs = new Map<string, { run: Attempt; end: PromiseWithResolvers<unknown> }>();
  const handler = (_input: never, run: Attempt): Promise<unknown> => {
    const end = held<unknown>();
    runs.set(run.id, { run, end });
    return end.promise;
  };
  const store = fakeStore({
    turn: (_worker, settlements, room) => {
      const answer = held<TurnAnswer>();
      turns.push({
        settlements,
        room,
        at: clock.mono() - started,
        answer: async (change) => {
          answer.resolve(aTurn(settlements.length, change));
          await clock.settle();
        },
        fail: async (message = "the answer was lost") => {
          answer.reject(new Error(message));
          await clock.settle();
        },
      });
      return answer.promise;
    },
    ...given.store,
  });
  const kind = { settings: aKind(), parse: null, delayMs: null, handler, ...given.kind } as RunnableKind;
  const kinds = new Map([
    ["mail", kind],
    ["report", { ...kind, settings: aKind({ name: "report" }) }],
  ]);
  const trust = {
    get inContact() {
      return given.inContact?.() ?? true;
    },
    get untilMono() {
      return given.trustedUntil?.() ?? Number.POSITIVE_INFINITY;
    },
  };
  const made = new Loop(
    aContext({ store, clock, events, kinds, trust }),
    {
      disowned: () => void told.push("disowned"),
      replaced: (why) => void told.push(`replaced: ${why}`),
      compareSoon: (leases) => void told.push(leases ? "compareLeases" : "compareSoon"),
    },
    { concurrency: { total: 3, perKind: new Map(), ...given.concurrency }, pollMs: 1_000 },
  );
  /** The handler of this job ends. */
  const end = async (id: string, value?: unknown): Promise<void> => {
    runs.get(id)!.end.resolve(value);
    await clock.settle();
  };
  const start = async (): Promise<Turn> => {
    made.start();
    await clock.settle();
    return turns[0]!;
  };
  return { worker: made, clock, events, turns, told, runs, end, start };
}

const claims = (...ids: string[]) => ids.map((id) => aClaim({ id }));
const ids = (settlements: readonly Settlement[]): string[] => settlements.map(({ lease }) => lease.jobId);

test("a worker asks as soon as it starts, with all its room, and polls when there was nothing", async () => {
  const { clock, turns, start } = worker();
  const first = await start();
  assert.deepEqual(first.room, {
    total: 3,
    kinds: [
      { kind: "mail", room: 3 },
      { kind: "report", room: 3 },
    ],
  });
  await first.answer();
  await clock.advance(999);
  assert.equal(turns.length, 1);
  await clock.advance(1);
  assert.equal(turns.length, 2);
});

test("a worker without its session asks for nothing, and settles what it runs", async () => {
  let there = true;
  const { clock, turns, end, start } = worker({ inContact: () => there });
  const first = await start();
  there = false;
  await first.answer({ claimed: claims("a", "b") });
  await end("a");
  const [, second] = turns;
  assert.deepEqual(ids(second!.settlements), ["a"]);
  assert.deepEqual([second!.room.total, second!.room.kinds], [0, []]);
  there = true;
  await second!.answer();
  await end("b");
  assert.equal(turns.at(-1)!.room.total, 3, "its session is back");
  await clock.settle();
});

test("it sleeps until the next delayed job is due, if that is sooner than the poll", async () => {
  const { clock, turns, start } = worker();
  await (await start()).answer({ nextDueInMs: 120 });
  await clock.advance(119);
  assert.equal(turns.length, 1);
  await clock.advance(1);
  assert.equal(turns.length, 2);
  await turns[1]!.answer({ nextDueInMs: 0 });
  await clock.advance(1);
  assert.equal(turns.length, 3);
});

const NOTHING = { now: false, nextInMs: null };

test("heartbeats that poll and find nothing take the place of polls, until one does not come", async () => {
  const { worker: loop, clock, turns, start } = worker();
  await (await start()).answer();
  for (let i = 0; i < 5; i++) {
    await clock.advance(900);
    loop.polled(clock.mono(), NOTHING);
  }
  await clock.advance(1_999);
  assert.equal(turns.length, 1);
  await clock.advance(1);
  assert.equal(turns.length, 2);
});

test("heartbeats that poll less often than the worker do not delay its next poll", async () => {
  const { worker: loop, clock, turns, start } = worker();
  await (await start()).answer();
  await clock.advance(600);
  loop.polled(clock.mono(), NOTHING);
  await clock.advance(999);
  assert.equal(turns.length, 1);
  await clock.advance(1);
  assert.equal(turns.length, 2);
});

test("a heartbeat that finds something, or knows when there will be something, leads to a turn", async () => {
  const { worker: loop, clock, turns, start } = worker();
  await (await start()).answer();
  await clock.advance(900);
  loop.polled(clock.mono(), NOTHING);
  await clock.advance(900);
  loop.polled(clock.mono(), { now: true, nextInMs: null });
  await clock.settle();
  assert.equal(turns.length, 2);
  await turns[1]!.answer();
  loop.polled(clock.mono(), { now: false, nextInMs: 300 });
  await clock.advance(299);
  assert.equal(turns.length, 2);
  await clock.advance(1);
  assert.equal(turns.length, 3);
});

test("what a turn has left, because it is paused or of other kinds, leads to no more turns than polls of its own", async () => {
  const { worker: loop, clock, turns, start } = worker();
  await (await start()).answer();
  let answered = 1;
  for (let i = 0; i < 40; i++) {
    await clock.advance(250);
    loop.polled(clock.mono(), { now: true, nextInMs: null });
    await clock.settle();
    for (; answered < turns.length; answered++) await turns[answered]!.answer();
  }
  assert.equal(turns.length, 11, "one at its start, and one a second");
});

test("a heartbeat that was sent before a turn had ended does not delay the next poll, nor what that turn expects", async () => {
  const { worker: loop, clock, turns, start } = worker();
  const first = await start();
  const sentAtMono = clock.mono();
  await clock.advance(5);
  await first.answer();
  await clock.advance(500);
  loop.polled(sentAtMono, NOTHING);
  await clock.advance(500);
  assert.equal(turns.length, 2);
  await turns[1]!.answer({ nextDueInMs: 400 });
  await clock.advance(100);
  loop.polled(clock.mono(), NOTHING);
  await clock.advance(300);
  assert.equal(turns.length, 3);
});

test("turns do not fall into step with heartbeats: one that polled while a turn was under way still takes the place of the next poll", async () => {
  const { worker: loop, clock, turns, start } = worker();
  await (await start()).answer();
  await clock.advance(900);
  loop.polled(clock.mono(), NOTHING);
  await clock.advance(1_000);
  assert.equal(turns.length, 2);
  const sentAtMono = clock.mono();
  await clock.advance(5);
  await turns[1]!.answer();
  loop.polled(sentAtMono, NOTHING);
  await clock.advance(1_994);
  assert.equal(turns.length, 2);
  await clock.advance(1);
  assert.equal(turns.length, 3);
});

test("how many jobs have ended and are not settled is known, those of a turn that is under way included", async () => {
  const { worker: loop, turns, end, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b", "c") });
  assert.deepEqual([loop.heldCount, loop.unsettledCount], [3, 0]);
  await end("a");
  assert.deepEqual([loop.heldCount, loop.unsettledCount], [3, 1]);
  await end("b");
  assert.deepEqual([loop.heldCount, loop.unsettledCount], [3, 2]);
  await turns[1]!.answer();
  assert.deepEqual([loop.heldCount, loop.unsettledCount], [2, 1], "the next turn settles what ended meanwhile");
});

test("what finishes in one turn of the event loop is settled in one call, with the claim of what follows", async () => {
  const { clock, turns, runs, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b") });
  runs.get("a")!.end.resolve(1);
  runs.get("b")!.end.resolve(2);
  await clock.settle();
  const last = turns.at(-1)!;
  assert.deepEqual(ids(last.settlements), ["a", "b"]);
  assert.equal(last.room.total, 3);
});

test("a slot is free only when its settlement is durable", async () => {
  const { worker: made, turns, end, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b") });
  await end("a");
  assert.equal(made.heldCount, 2);
  await turns.at(-1)!.answer();
  assert.equal(made.heldCount, 1);
});

test("after a lost answer the very same settlements are sent again, before anything newer, and what is held is compared", async () => {
  const { clock, turns, events, told, end, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b") });
  await end("a", "result");
  const sent = turns.at(-1)!;
  assert.deepEqual(ids(sent.settlements), ["a"]);
  await sent.fail();
  assert.deepEqual(told, ["compareSoon"]);
  assert.deepEqual(
    events.of("store.failed").map(({ doing, error, retryInMs }) => [doing, error.message, retryInMs]),
    [["settling and claiming", "the answer was lost", 50]],
  );
  await end("b");
  const before = turns.length;
  await clock.advance(49);
  assert.equal(turns.length, before);
  await clock.advance(1);
  assert.equal(turns.length, before + 1);
  const again = turns.at(-1)!;
  assert.equal(again.settlements[0], sent.settlements[0]);
  assert.deepEqual(ids(again.settlements), ["a", "b"]);
  await again.answer({ settled: [{ is: "repeated" }, APPLIED] });
  assert.deepEqual(
    events.of("job.succeeded").map(({ jobId }) => jobId),
    ["a", "b"],
  );
});

test("while the store fails the delays double up to five seconds, and no work of its own wakes the worker sooner", async () => {
  const { worker: made, clock, turns, events, start } = worker();
  await start();
  const delays: number[] = [];
  for (let failure = 0; failure < 9; failure++) {
    await turns.at(-1)!.fail();
    const { retryInMs } = events.of("store.failed").at(-1)!;
    delays.push(retryInMs);
    const before = turns.length;
    made.wake();
    await clock.advance(retryInMs - 1);
    assert.equal(turns.length, before);
    await clock.advance(1);
    assert.equal(turns.length, before + 1);
  }
  assert.deepEqual(delays, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
  await turns.at(-1)!.answer();
  await clock.advance(1_000);
  await turns.at(-1)!.fail();
  assert.equal(events.of("store.failed").at(-1)!.retryInMs, 50);
});

test("a wake-up may mean that the store is back: it is tried half a second after the failure, however many wake-ups there are", async () => {
  const { worker: made, clock, turns, start } = worker();
  await start();
  for (let failure = 0; failure < 8; failure++) {
    await turns.at(-1)!.fail();
    if (failure < 7) await clock.advance(5_000);
  }
  const before = turns.length;
  await clock.advance(100);
  for (let times = 0; times < 5; times++) {
    made.heard("wake");
    await clock.advance(50);
  }
  assert.equal(turns.length, before);
  await clock.advance(149);
  assert.equal(turns.length, before);
  await clock.advance(1);
  assert.equal(turns.length, before + 1);
  await turns.at(-1)!.fail();
  await clock.advance(2_000);
  made.heard("wake");
  await clock.advance(0);
  assert.equal(turns.length, before + 2, "later than that: at once");
});

test("a turn that was due when the store failed waits for the next try, and after it the worker wakes as ever", async () => {
  const { worker: made, clock, turns, start } = worker();
  const first = await start();
  made.wake();
  void first.fail();
  await clock.advance(49);
  assert.equal(turns.length, 1);
  await clock.advance(1);
  assert.equal(turns.length, 2);
  await turns.at(-1)!.answer();
  made.heard("wake");
  await clock.advance(0);
  assert.equal(turns.length, 3, "a wake-up is heard");
});

/** What a heartbeat that asked for a list of leases brings. */
const listed = (leases: readonly HeldLease[]) => ({ held: { count: leases.length, digest: 0 }, leases });
/** What any other one brings. */
const summed = (...leases: Lease[]) => ({
  held: { count: leases.length, digest: leases.reduce((sum, lease) => sum + leaseHash(lease), 0) },
});

/** When a list was asked for: after everything that was looked at before. */
let asked = 1e9;
const later = (): number => ++asked;

test("lists that were requested before the first of them was processed accuse no job twice: a blocked loop gets many at once", async () => {
  const { worker: made, clock, turns, told, start } = worker();
  await (await start()).answer();
  const stranger = { lease: aLease({ jobId: "x", fence: 4 }), counters: counted() };
  for (const agoMs of [300, 200, 100, 0]) made.compare(listed([stranger]), clock.mono() - agoMs);
  await clock.settle();
  assert.equal(turns.length, 1);
  assert.deepEqual(told, Array(4).fill("compareLeases"), "but it is asked again");
});

test("a claim that this worker does not remember is released only when two comparisons in a row have shown it", async () => {
  const { worker: made, clock, turns, events, told, start } = worker();
  await (await start()).answer();
  const stranger = { lease: aLease({ jobId: "x", fence: 4 }), counters: counted({ errors: 1 }) };
  made.compare(listed([stranger]), later());
  await clock.settle();
  assert.deepEqual(told, ["compareLeases"]);
  assert.equal(turns.length, 1);
  made.compare(listed([stranger]), later());
  await clock.settle();
  assert.equal(turns.length, 2);
  const [release] = turns[1]!.settlements;
  assert.deepEqual(release!.lease, stranger.lease);
  assert.equal(release!.change.name, "release");
  assert.deepEqual(release!.change.add, { interruptions: 1 });
  assert.deepEqual(
    events.of("job.released").map(({ jobId }) => jobId),
    ["x"],
  );
});

test("a stranger that was gone at one comparison, or has another fence, is looked at twice again", async () => {
  const { worker: made, clock, turns, start } = worker();
  await (await start()).answer();
  const stranger = (fence: number) => ({ lease: aLease({ jobId: "x", fence }), counters: counted() });
  made.compare(listed([stranger(4)]), later());
  made.compare(listed([]), later());
  made.compare(listed([stranger(4)]), later());
  made.compare(listed([stranger(5)]), later());
  await clock.settle();
  assert.equal(turns.length, 1);
});

test("during a turn no stranger is released: the answer that explains it may be on its way", async () => {
  const { worker: made, turns, told, start } = worker();
  await start();
  const claimed = aClaim({ id: "a" });
  const stranger = { lease: claimed.lease, counters: counted() };
  made.compare(listed([stranger]), later());
  made.compare(listed([stranger]), later());
  made.compare(listed([stranger]), later());
  assert.deepEqual(told, Array(3).fill("compareLeases"));
  await turns[0]!.answer({ claimed: [claimed] });
  made.compare(listed([stranger]), later());
  assert.equal(turns.flatMap(({ settlements }) => settlements).length, 0);
});

test("what it runs and the store does not know at two comparisons in a row is aborted with a lost lease", async () => {
  const { worker: made, runs, start } = worker();
  const [known, forgotten, fresh] = [aClaim({ id: "known" }), aClaim({ id: "forgotten" }), aClaim({ id: "fresh" })];
  await (await start()).answer({ claimed: [known, forgotten, fresh] });
  const held = { lease: known.lease, counters: counted() };
  made.compare(listed([held, { lease: fresh.lease, counters: counted() }]), later());
  assert.equal(runs.get("forgotten")!.run.abortedBy, undefined, "a settlement may have landed since the list was read");
  made.compare(listed([held]), later());
  assert.deepEqual(
    ["known", "forgotten", "fresh"].map((id) => runs.get(id)!.run.abortedBy),
    [undefined, "lease-lost", undefined],
  );
});

test("what the store does not know is given up after the grace, also when it was aborted before with a lost lease", async () => {
  let trusted = true;
  const trustedUntil = () => (trusted ? Number.POSITIVE_INFINITY : -1);
  const { worker: made, clock, turns, runs, start } = worker({ trustedUntil });
  const claim = aClaim({ id: "a", deadlineInMs: 3_600_000 });
  await (await start()).answer({ claimed: [claim] });
  trusted = false;
  await clock.advance(100);
  trusted = true;
  assert.equal(runs.get("a")!.run.abortedBy, "lease-lost");
  const held = { lease: claim.lease, counters: counted() };
  for (let beat = 0; beat < 3; beat++) made.compare(listed([held]), later());
  const settled = () => turns.flatMap(({ settlements }) => ids(settlements));
  await clock.advance(10_000);
  await turns.at(-1)!.answer();
  assert.deepEqual(settled(), []);
  for (let beat = 0; beat < 2; beat++) made.compare(listed([]), later());
  await clock.advance(5_100);
  await turns.at(-1)!.answer();
  assert.deepEqual(settled(), ["a"]);
});

test("the first fence of a later epoch takes the place of an attempt that the store has forgotten", async () => {
  const { worker: made, clock, turns, runs, start } = worker();
  const first = aClaim({ id: "a", lease: aLease({ jobId: "a", epoch: 7, fence: 1 }) });
  await (await start()).answer({ claimed: [first] });
  const { run: zombie, end } = runs.get("a")!;
  made.wake();
  await clock.settle();
  await turns.at(-1)!.answer({ claimed: [aClaim({ id: "a", lease: aLease({ jobId: "a", epoch: 8, fence: 1 }) })] });
  assert.equal(made.heldCount, 1);
  assert.equal(zombie.abortedBy, "lease-lost");
  end.resolve(1);
  await clock.settle();
  assert.deepEqual(
    turns.flatMap(({ settlements }) => settlements),
    [],
    "what the zombie returns is nobody's end",
  );
});

test("what it runs is not a stranger", async () => {
  const { worker: made, told, start } = worker();
  await (await start()).answer({ claimed: claims("a") });
  const mine = { lease: aLease({ jobId: "a" }), counters: counted() };
  made.compare(listed([mine]), later());
  made.compare(listed([mine]), later());
  assert.deepEqual(told, []);
});

test("a heartbeat whose count and digest are what is held asks for nothing, also when the order of claims was another", async () => {
  const { worker: made, told, start } = worker();
  const [a, b] = [aLease({ jobId: "a", row: 1 }), aLease({ jobId: "b", row: 2 })];
  await (await start()).answer({ claimed: [aClaim({ lease: a }), aClaim({ lease: b })] });
  made.compare(summed(b, a), later());
  assert.deepEqual(told, []);
});

test("the list of leases is asked for if the store holds more, less, another job or another fence", async () => {
  const [a, b] = [aLease({ jobId: "a", row: 1 }), aLease({ jobId: "b", row: 4 })];
  const [c, d] = [aLease({ jobId: "c", row: 2 }), aLease({ jobId: "d", row: 3 })];
  for (const held of [[a, b, c], [a], [a, c], [c, d], [a, { ...b, fence: 2 }], [a, { ...b, epoch: 8 }], []]) {
    const { worker: made, told, start } = worker();
    await (await start()).answer({ claimed: [aClaim({ lease: a }), aClaim({ lease: b })] });
    made.compare(summed(...held), later());
    assert.deepEqual(told, ["compareLeases"], JSON.stringify(held));
  }
});

test("what the store showed before the latest turns is what was held after one of them: a busy worker is compared, too", async () => {
  const { worker: made, clock, turns, told, end, start } = worker();
  const [a, b] = [aLease({ jobId: "a", row: 1 }), aLease({ jobId: "b", row: 2 })];
  await (await start()).answer({ claimed: [aClaim({ lease: a })] });
  await clock.advance(10);
  const askedAt = clock.mono();
  await clock.advance(10);
  made.wake();
  await clock.settle();
  await turns.at(-1)!.answer({ claimed: [aClaim({ lease: b })] });
  await end("a");
  await turns.at(-1)!.answer();
  for (const held of [[a], [a, b], [b]]) made.compare(summed(...held), askedAt);
  assert.deepEqual(told, []);
  made.compare(summed(), askedAt);
  made.compare(summed(a), clock.mono() + 1);
  assert.deepEqual(told, ["compareLeases", "compareLeases"], "neither before it was asked nor now");
});

test("what the store shows during a turn is compared at its end: it may be what the turn brings", async () => {
  const [a, stranger] = [aLease({ jobId: "a", row: 1 }), aLease({ jobId: "x", row: 9 })];
  for (const [held, asks] of [
    [[a], []],
    [[], []],
    [[a, stranger], ["compareLeases"]],
  ] as const) {
    const { worker: made, clock, told, start } = worker();
    const claiming = await start();
    made.compare(summed(...held), clock.mono());
    assert.deepEqual(told, []);
    await claiming.answer({ claimed: [aClaim({ lease: a })] });
    assert.deepEqual(told, asks);
  }
});

test("a claim whose answer was lost shows in the next heartbeat, and an equal one between two lists forgets what the first one showed", async () => {
  const { worker: made, clock, turns, told, start } = worker();
  await (await start()).fail();
  assert.deepEqual(told, ["compareSoon"]);
  const stranger = { lease: aLease({ jobId: "x", row: 9 }), counters: counted() };
  made.compare(summed(stranger.lease), later());
  assert.deepEqual(told, ["compareSoon", "compareLeases"]);
  made.compare(listed([stranger]), later());
  made.compare(summed(), later());
  made.compare(listed([stranger]), later());
  await clock.settle();
  assert.equal(turns.length, 1, "it was not shown twice in a row");
  made.compare(listed([stranger]), later());
  await clock.advance(50);
  assert.deepEqual(ids(turns[1]!.settlements), ["x"]);
});

test("a commit changes what is held like a turn", async () => {
  const [a, b] = [aLease({ jobId: "a", row: 1 }), aLease({ jobId: "b", row: 2 })];
  const {
    worker: made,
    clock,
    told,
    runs,
    start,
  } = worker({
    store: {
      transactions: {
        commit: async (_settlement, body) => ({ answer: APPLIED, value: (await body({})) as never, enqueued: 0 }),
      },
    },
  });
  await (await start()).answer({ claimed: [aClaim({ lease: a }), aClaim({ lease: b })] });
  await clock.advance(10);
  const askedAt = clock.mono();
  await clock.advance(10);
  await runs.get("a")!.run.commit(form, () => 1);
  for (const held of [[a, b], [b]]) made.compare(summed(...held), askedAt);
  assert.deepEqual(told, []);
});

test("woken during a turn, it takes another one: something may have become ready after the claim", async () => {
  const { worker: made, clock, turns, start } = worker();
  await start();
  made.wake();
  await clock.settle();
  made.heard("wake");
  await clock.settle();
  assert.equal(turns.length, 1);
  await turns[0]!.answer();
  assert.equal(turns.length, 2);
  await turns[1]!.answer();
  assert.equal(turns.length, 2);
});

test("there is never more than one turn at a time", async () => {
  const { worker: made, clock, turns, end, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b") });
  await end("a");
  const open = turns.length;
  await end("b");
  made.heard("wake");
  await clock.advance(5_000);
  assert.equal(turns.length, open);
});

test("a full worker does not query the store for each wake-up, but polls with the next tick", async () => {
  const { worker: made, clock, turns, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b", "c") });
  for (const turn of turns.slice(1)) await turn.answer();
  const before = turns.length;
  for (let at = 0; at < 1_000; at++) made.heard("wake");
  await clock.settle();
  assert.equal(turns.length, before);
  await clock.advance(100);
  assert.equal(turns.length, before + 1);
  assert.equal(turns.at(-1)!.room.total, 0);
});

test("a worker with room asks at once when a wake-up comes", async () => {
  const { worker: made, clock, turns, start } = worker();
  await (await start()).answer({ claimed: claims("a") });
  const before = turns.length;
  made.heard("wake");
  made.heard("wake");
  await clock.settle();
  assert.equal(turns.length, before + 1);
  assert.equal(turns.at(-1)!.room.total, 2);
});

test("a worker says how many suspects it holds, without those that it settles with the claim", async () => {
  const { worker: made, clock, turns, end, start } = worker();
  const suspects = [aClaim({ id: "a", together: 5 }), aClaim({ id: "b", together: 3 })];
  const first = await start();
  assert.equal(first.room.suspects, undefined);
  await first.answer({ claimed: suspects });
  made.heard("wake");
  await clock.settle();
  assert.deepEqual(turns.at(-1)!.room.suspects, { count: 2, together: 3, oldestFirst: false });
  await turns.at(-1)!.answer();
  await end("b");
  assert.deepEqual(turns.at(-1)!.room.suspects, { count: 1, together: 5, oldestFirst: false });
  await turns.at(-1)!.answer();
  await end("a");
  assert.deepEqual(turns.at(-1)!.room.suspects, { count: 0, together: null, oldestFirst: true }, "it alternates");
});

test("while work is done apart, no suspect is claimed, and what must be alone begins when none is held or on its way", async () => {
  const { worker: loop, clock, turns, end, start } = worker();
  const first = await start();
  const did: string[] = [];
  const done = held<void>();
  const stop = new AbortController();
  const next = loop.apart(
    false,
    async () => {
      did.push("next to suspects");
      await done.promise;
    },
    stop.signal,
  );
  const alone = loop.apart(true, async () => void did.push("alone"), stop.signal);
  const early = new AbortController();
  const calledOff = loop.apart(true, async () => void did.push("called off"), early.signal);
  await clock.settle();
  assert.deepEqual(did, ["next to suspects"], "the turn that is under way may bring a suspect");
  await first.answer({ claimed: [aClaim({ id: "a", together: 5 })] });
  loop.wake();
  await clock.settle();
  assert.deepEqual(turns.at(-1)!.room.suspects, { count: 4, together: 1, oldestFirst: false });
  early.abort();
  assert.equal(await calledOff, null);
  await turns.at(-1)!.answer();
  assert.ok(loop.holdsSuspects);
  assert.deepEqual(did, ["next to suspects"]);
  await end("a");
  while (loop.holdsSuspects) await turns.at(-1)!.answer();
  await alone;
  assert.deepEqual([did.at(-1), loop.holdsSuspects], ["alone", false], "after it was settled");
  done.resolve();
  await next;
  for (let n = 0; n < 3; n++) {
    loop.wake();
    await clock.settle();
    await turns.at(-1)!.answer();
  }
  assert.equal(turns.at(-1)!.room.suspects?.together ?? null, null, "suspects are claimed again");
  const late = loop.apart(true, async () => void did.push("closed"), stop.signal);
  loop.close();
  await late;
  assert.equal(did.at(-1), "closed", "nothing waits for a worker that has ended");
});

test("a kind's own limit is free for the claim that settles the job before, and not sooner", async () => {
  const { worker: made, clock, turns, end, start } = worker({ concurrency: { perKind: new Map([["mail", 1]]) } });
  const first = await start();
  assert.deepEqual(first.room.kinds[0], { kind: "mail", room: 1 });
  await first.answer({ claimed: claims("a") });
  made.heard("wake");
  await clock.settle();
  assert.deepEqual(turns.at(-1)!.room.kinds, [{ kind: "report", room: 2 }]);
  await turns.at(-1)!.answer();
  await end("a");
  assert.deepEqual(ids(turns.at(-1)!.settlements), ["a"]);
  assert.deepEqual(turns.at(-1)!.room.kinds[0], { kind: "mail", room: 1 });
  await turns.at(-1)!.fail();
  await clock.advance(50);
  assert.deepEqual(turns.at(-1)!.room.kinds[0], { kind: "mail", room: 1 });
  await turns.at(-1)!.answer({ claimed: claims("b") });
  made.heard("wake");
  await clock.settle();
  assert.deepEqual(turns.at(-1)!.room.kinds, [{ kind: "report", room: 2 }]);
});

test("a job that was fenced out and claimed again here takes one slot and not two", async () => {
  const { worker: made, turns, runs, end, clock, start } = worker({ concurrency: { perKind: new Map([["mail", 2]]) } });
  await (await start()).answer({ claimed: [aClaim({ id: "a", lease: aLease({ jobId: "a", fence: 1 }) })] });
  const old = runs.get("a")!;
  made.heard("wake");
  await clock.settle();
  await turns.at(-1)!.answer({ claimed: [aClaim({ lease: aLease({ jobId: "a", fence: 2 }) })] });
  assert.equal(made.heldCount, 1);
  assert.equal(old.run.abortedBy, "lease-lost");
  old.end.resolve("too late");
  await end("a");
  const settling = turns.at(-1)!;
  assert.deepEqual(
    settling.settlements.map(({ lease }) => lease.fence),
    [2],
  );
  await settling.answer();
  made.heard("wake");
  await clock.settle();
  assert.deepEqual(turns.at(-1)!.room.kinds[0], { kind: "mail", room: 2 });
});

test("cancels that the store tells of reach the handlers", async () => {
  const { worker: made, clock, turns, runs, start } = worker();
  await (await start()).answer({ claimed: claims("a", "b") });
  made.heard("wake");
  await clock.settle();
  await turns.at(-1)!.answer({ cancels: ["b", "nobody"] });
  assert.equal(runs.get("a")!.run.abortedBy, undefined);
  assert.equal(runs.get("b")!.run.abortedBy, "cancelled");
});

test("a worker whose row is not live any more says so and asks for nothing else", async () => {
  const { clock, turns, told, start } = worker();
  await (await start()).answer({ live: false });
  await clock.advance(60_000);
  assert.deepEqual(told, ["disowned"]);
  assert.equal(turns.length, 1);
});

test("a worker whose store is another one says why and asks for nothing else, whether the turn returns that or fails with it", async () => {
  const returned = worker();
  await (await returned.start()).answer({ live: false, replaced: "it was moved" });
  const error = new OutliveError(ErrorCode.storeReplaced, "It is another file.", "", { why: "it was moved" });
  const failed = worker({ store: { turn: () => Promise.reject(error) } });
  failed.worker.start();
  for (const { clock, told, events, turns } of [returned, failed]) {
    await clock.advance(60_000);
    assert.deepEqual(told, ["replaced: it was moved"]);
    assert.ok(turns.length <= 1);
    assert.deepEqual(events.of("store.failed"), []);
  }
});

test("a draining worker claims nothing more and is done when what it holds is durably settled", async () => {
  const { worker: made, clock, turns, end, start } = worker();
  await (await start()).answer({ claimed: claims("a") });
  let empty = false;
  void made.drain().then(() => (empty = true));
  await clock.settle();
  await turns.at(-1)!.answer();
  await end("a");
  const settling = turns.at(-1)!;
  assert.equal(settling.room.total, 0);
  assert.equal(empty, false);
  await settling.answer();
  assert.equal(empty, true);
  const before = turns.length;
  await clock.advance(60_000);
  assert.equal(turns.length, before);
});

test("a worker that is drained while a claim is under way is not done before its answer, and what it brings is finished", async () => {
  const { worker: made, turns, clock, end, start } = worker();
  const claiming = await start();
  let empty = false;
  void made.drain().then(() => (empty = true));
  await clock.settle();
  assert.equal(empty, false);
  await claiming.answer({ claimed: claims("a") });
  await turns.at(-1)!.answer();
  assert.equal(empty, false);
  await end("a");
  await turns.at(-1)!.answer();
  assert.equal(empty, true);
});

test("an idle worker is drained at once", async () => {
  const { worker: made, start } = worker();
  await (await start()).answer();
  await made.drain();
});

test("a closed worker requests nothing, whatever wakes it, ends or is answered", async () => {
  const { worker: made, clock, turns, runs, start } = worker();
  await (await start()).answer({ claimed: claims("a") });
  made.heard("wake");
  await clock.settle();
  const open = turns.at(-1)!;
  const draining = made.drain();
  made.close();
  await draining;
  await open.answer({ claimed: claims("b") });
  runs.get("a")!.end.resolve(1);
  made.heard("wake");
  await clock.advance(60_000);
  assert.equal(runs.has("b"), false);
  assert.equal(turns.at(-1), open);
  assert.equal(clock.nextTimerInMs(), null);
  assert.equal(runs.get("a")!.run.ended, true);
});

test("a small write goes to the store under the attempt's lease, and a refused one is reported", async () => {
  const written: unknown[] = [];
  let stale = false;
  const lease = aLease({ jobId: "a" });
  const { events, runs, start } = worker({
    store: {
      write: (writes) => {
        written.push(...writes);
        const refusal = { lease, tried: "progress", state: "queued" as const, worker: null, epoch: 7, fence: 2 };
        return Promise.resolve([stale ? { is: "stale" as const, stale: refusal } : APPLIED]);
      },
    },
  });
  await (await start()).answer({ claimed: claims("a") });
  const { run } = runs.get("a")!;
  await run.progress(1);
  assert.deepEqual(written, [{ lease, write: { type: "progress", value: "1" } }]);
  stale = true;
  await assert.rejects(run.progress(2), /^OutliveError: Refused/);
  assert.equal(events.of("write.rejected").length, 1);
  assert.equal(run.abortedBy, "lease-lost");
});

test("a commit ends the attempt with the callback's value, frees its slot, and the handler's own end adds nothing", async () => {
  const commits: Settlement[] = [];
  const {
    worker: made,
    events,
    turns,
    runs,
    end,
    start,
  } = worker({
    store: {
      transactions: {
        commit: async (settlement, body, encode) => {
          commits.push(settlement);
          const value = await body({});
          assert.equal(encode(value), '{"n":1}');
          return { answer: APPLIED, value, enqueued: 0 };
        },
      },
    },
  });
  await (await start()).answer({ claimed: claims("a") });
  assert.deepEqual(await runs.get("a")!.run.commit(form, () => ({ n: 1 })), { n: 1 });
  assert.equal(commits[0]!.change.to, "succeeded");
  assert.equal(made.heldCount, 0);
  assert.deepEqual(events.names(), ["job.succeeded"]);
  await end("a", "something else");
  assert.equal(turns.flatMap(({ settlements }) => settlements).length, 0);
  await assert.rejects(runs.get("a")!.run.progress(1), /has ended/);
});

test("a commit that is refused throws, and the job is not held any more", async () => {
  const lease = aLease({ jobId: "a" });
  const stale = { lease, tried: "succeed", state: "running" as const, worker: "w2", epoch: 7, fence: 2 };
  const {
    worker: made,
    events,
    runs,
    start,
  } = worker({
    store: {
      transactions: {
        commit: () => Promise.resolve({ answer: { is: "stale", stale }, value: undefined, enqueued: 0 }),
      },
    },
  });
  await (await start()).answer({ claimed: claims("a") });
  const { run } = runs.get("a")!;
  await assert.rejects(
    run.commit(form, () => 1),
    (thrown: unknown) => thrown instanceof OutliveError && thrown.code === ErrorCode.stale,
  );
  assert.equal(made.heldCount, 0);
  assert.deepEqual(events.names(), ["write.rejected"]);
});

test("a commit that fails leaves the attempt to its handler", async () => {
  const { turns, runs, end, start } = worker({
    store: { transactions: { commit: () => Promise.reject(new Error("disk is full")) } },
  });
  await (await start()).answer({ claimed: claims("a") });
  await assert.rejects(
    runs.get("a")!.run.commit(form, () => 1),
    /disk is full/,
  );
  await end("a", 1);
  assert.deepEqual(ids(turns.at(-1)!.settlements), ["a"]);
});

test("a commit in the form of another store is refused before anything happens", async () => {
  const { runs, start } = worker();
  await (await start()).answer({ claimed: claims("a") });
  await assert.rejects(
    runs.get("a")!.run.commit({ store: "postgres", mode: "async" }, async () => 1),
    (thrown: unknown) => thrown instanceof OutliveError && thrown.code === ErrorCode.commitForm,
  );
});

test("a worker that was silent for too long asks for a heartbeat and claims nothing until one got through", async () => {
  let trusted = 0;
  const { worker: made, clock, turns, told } = worker({ trustedUntil: () => trusted });
  made.start();
  await clock.settle();
  assert.deepEqual([turns.length, turns[0]!.room.total, told], [1, 0, ["compareSoon"]]);
  await turns[0]!.answer();
  trusted = Number.POSITIVE_INFINITY;
  made.compare(listed([]), later());
  await clock.settle();
  assert.deepEqual([turns.length, turns[1]!.room.total, told], [2, 3, ["compareSoon"]]);
});

test("ends of requests are gathered: one turn for half of what is held, or for what ended within a moment", async () => {
  const concurrency = { total: 6, perKind: new Map([["mail", 6]]), gathered: new Set(["mail"]) };
  const { clock, turns, end, start } = worker({ concurrency });
  await (await start()).answer({ claimed: claims("a", "b", "c", "d", "e", "f") });
  await end("a");
  await end("b");
  assert.equal(turns.length, 1, "two of six wait for others");
  await end("c");
  assert.deepEqual(ids(turns[1]!.settlements), ["a", "b", "c"], "half of them do not");
  await turns[1]!.answer();
  await end("d");
  assert.equal(turns.length, 2);
  await clock.advance(8);
  assert.deepEqual(ids(turns[2]!.settlements), ["d"], "nor does one for longer than a moment");
  await turns[2]!.answer();
  await end("e");
  assert.deepEqual(ids(turns[3]!.settlements), ["e"], "one of two is half of them");
});
