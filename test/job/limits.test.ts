// Holds the decision about jobs with keys: which of those that wait may run.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  admit,
  type Admission,
  gateFacts,
  gateRoom,
  type HeldCandidate,
  jobKey,
  type KeyFacts,
  NEW_RING,
  type RingMember,
  returnedMs,
  roomAt,
  startOf,
  takeTurns,
  throttleKey,
  throttleSettings,
} from "../../src/job/limits.ts";

interface Given extends Partial<Omit<KeyFacts, "id" | "limit">>, Partial<KeyFacts["limit"]> {}

function key(id: number, given: Given = {}): KeyFacts {
  const { running = null, intervalMs = null, burst = 1, strict = false } = given;
  const { taken = 0, unclaimed = 0, arrivalAt = 0, heldOffUntil = 0 } = given;
  return { id, limit: { running, intervalMs, burst, strict }, taken, unclaimed, arrivalAt, heldOffUntil };
}

/** The arrival time of a key after this many of its jobs were admitted and claimed at once. */
function claimed(facts: KeyFacts, count: number, now: number): number {
  let { arrivalAt } = facts;
  for (let i = 0; i < count; i++) ({ arrivalAt } = startOf({ ...facts, arrivalAt, unclaimed: count - i }, now));
  return arrivalAt;
}

/** Jobs 1, 2, ... that all have these keys and wait at the first. */
function jobs(count: number, ...keys: number[]): HeldCandidate[] {
  return Array.from({ length: count }, (_, i) => ({ job: i + 1, door: keys[0]!, keys }));
}

function decide(now: number, keys: readonly KeyFacts[], candidates: readonly HeldCandidate[]): Admission {
  return admit({ now, keys, candidates });
}

test("as many are admitted as the limit has left, the first of the door first, and time gives no more", () => {
  const { admitted, moved, due } = decide(1_000, [key(7, { running: 3, taken: 1 })], jobs(5, 7));
  assert.deepEqual([admitted, moved, [...due]], [[1, 2], [], []]);
});

test("a limit that was lowered below what runs admits nothing, and one without bounds everything", () => {
  assert.deepEqual(decide(0, [key(7, { running: 2, taken: 5 })], jobs(3, 7)).admitted, []);
  assert.deepEqual(decide(0, [key(7)], jobs(3, 7)).admitted, [1, 2, 3]);
});

test("as many are read at a door as its key admits now, and one of a key that admits none", () => {
  const now = 1_000;
  for (const running of [null, 3])
    for (const intervalMs of [null, 100])
      for (const burst of [1, 4])
        for (const taken of [0, 2, 5])
          for (const unclaimed of intervalMs === null ? [0] : [0, 1, 4])
            for (const arrivalAt of [0, 1_000, 1_001, 1_100, 1_101, 1_250, 2_000]) {
              const facts = key(7, { running, intervalMs, burst, taken, unclaimed, arrivalAt });
              const { admitted } = decide(now, [facts], jobs(10, 7));
              assert.equal(Math.min(10, roomAt(facts, now)), Math.max(1, admitted.length), JSON.stringify(facts));
            }
});

test("of each key its own: one that is full hides no other", () => {
  const full = { job: 1, door: 1, keys: [1] };
  const free = { job: 2, door: 2, keys: [2] };
  const { admitted } = decide(0, [key(1, { running: 1, taken: 1 }), key(2, { running: 1 })], [full, free]);
  assert.deepEqual(admitted, [2]);
});

test("a rate starts its burst at once and then one in each interval", () => {
  let arrivalAt = 0;
  const starts: number[] = [];
  for (let now = 10_000; now < 13_000; now += 50) {
    const facts = key(7, { intervalMs: 1_000, burst: 2, arrivalAt });
    const { admitted } = decide(now, [facts], jobs(5, 7));
    for (const _ of admitted) starts.push(now);
    arrivalAt = claimed(facts, admitted.length, now);
  }
  assert.deepEqual(starts, [10_000, 10_000, 11_000, 12_000]);
});

test("what is refused by a rate says when there is room, to the ms", () => {
  const facts = { intervalMs: 1_000, burst: 2, arrivalAt: 12_000 };
  assert.deepEqual([...decide(10_500, [key(7, facts)], jobs(1, 7)).due], [[7, 11_000]]);
  assert.deepEqual(decide(10_999, [key(7, facts)], jobs(1, 7)).admitted, []);
  assert.deepEqual(decide(11_000, [key(7, facts)], jobs(1, 7)).admitted, [1]);
});

test("after a long pause a key has its burst again and no more", () => {
  const facts = key(7, { intervalMs: 1_000, burst: 3, arrivalAt: 4_000 });
  assert.deepEqual(decide(9_000_000, [facts], jobs(9, 7)).admitted, [1, 2, 3]);
  assert.equal(claimed(facts, 3, 9_000_000), 9_003_000);
});

test("an interval that is not a whole number of ms: 3 in each second, not 4, for an hour", () => {
  const intervalMs = 1_000 / 3;
  let arrivalAt = 0;
  let next = 5_000;
  const starts: number[] = [];
  while (next < 5_000 + 3_600_000) {
    const { admitted } = decide(next, [key(7, { intervalMs, arrivalAt })], jobs(2, 7));
    assert.deepEqual(admitted, [1]);
    starts.push(next);
    const { arrivalAt: after, due } = startOf(key(7, { intervalMs, arrivalAt, unclaimed: 1 }), next);
    arrivalAt = after;
    assert.ok(due! > next, "the time that it says moves on");
    next = due!;
  }
  // Each start waits for a whole ms.
  assert.ok(starts.length <= 10_801 && starts.length > 10_750, `${starts.length} starts`);
  starts.forEach((at, i) => assert.ok((starts[i + 3] ?? Infinity) - at >= 999, `4 starts within a second of ${at}`));
});

test("a key with both a rate and a number that is full waits for the number, not for time", () => {
  const { due } = decide(100, [key(7, { running: 1, taken: 1, intervalMs: 1_000, arrivalAt: 900 })], jobs(1, 7));
  assert.deepEqual([...due], []);
});

test("strict: one at a time, and none while the first that has begun has not ended", () => {
  assert.deepEqual(decide(0, [key(7, { strict: true })], jobs(3, 7)).admitted, [1]);
  assert.deepEqual(decide(0, [key(7, { strict: true, running: 5 })], jobs(3, 7)).admitted, [1]);
  assert.deepEqual(decide(0, [key(7, { strict: true, taken: 1 })], jobs(3, 7)).admitted, []);
});

test("a job that is admitted and not claimed has its start set aside, however long it waits for a worker", () => {
  const facts = { intervalMs: 1_000, burst: 2, arrivalAt: 3_000, unclaimed: 1 };
  assert.deepEqual(decide(9_000_000, [key(7, facts)], jobs(3, 7)).admitted, [1]);
  const full = decide(9_000_000, [key(7, { ...facts, unclaimed: 2 })], jobs(3, 7));
  assert.deepEqual([full.admitted, [...full.due]], [[], []], "not time, but its claim gives room");
  assert.deepEqual(startOf(key(7, { ...facts, unclaimed: 2 }), 9_000_000), { arrivalAt: 9_001_000, due: 9_001_000 });
});

test("strict: the first keeps its place while another key has no room for it, and goes on before all others", () => {
  const strict = key(1, { strict: true });
  const first = { job: 1, door: 1, keys: [1, 2] };
  const second = { job: 2, door: 1, keys: [1] };
  const away = decide(0, [strict, key(2, { running: 1, taken: 1 })], [first, second]);
  assert.deepEqual([away.admitted, away.moved], [[], [{ job: 1, door: 2, keepsPlace: true }]]);
  const kept = { ...first, door: 2, keepsPlace: true };
  const still = decide(0, [key(1, { strict: true, taken: 1 }), key(2, { running: 1, taken: 1 })], [second, kept]);
  assert.deepEqual([still.admitted, still.moved], [[], []]);
  const then = decide(0, [key(1, { strict: true, taken: 1 }), key(2, { running: 1 })], [second, kept]);
  assert.deepEqual(then.admitted, [1]);
});

test("held off: nothing starts before the time, which is returned, and then everything that fits does", () => {
  const facts = { running: 2, heldOffUntil: 5_000 };
  const before = decide(4_999, [key(7, facts)], jobs(3, 7));
  assert.deepEqual([before.admitted, [...before.due]], [[], [[7, 5_000]]]);
  assert.deepEqual(decide(5_000, [key(7, facts)], jobs(3, 7)).admitted, [1, 2]);
});

test("of a hold-off and a rate the later time counts", () => {
  const facts = { intervalMs: 1_000, arrivalAt: 3_000, heldOffUntil: 2_000 };
  assert.deepEqual([...decide(0, [key(7, facts)], jobs(1, 7)).due], [[7, 3_000]]);
  assert.deepEqual([...decide(0, [key(7, { ...facts, heldOffUntil: 9_000 })], jobs(1, 7)).due], [[7, 9_000]]);
});

test("with two keys of which the other is full a job is moved there, and takes nothing of the first", () => {
  const keys = [key(1, { running: 1, intervalMs: 100 }), key(2, { running: 1, taken: 1 })];
  const alone = { job: 3, door: 1, keys: [1] };
  const { admitted, moved } = decide(1_000, keys, [...jobs(2, 1, 2), alone]);
  assert.deepEqual(admitted, [3]);
  assert.deepEqual(moved, [
    { job: 1, door: 2, keepsPlace: false },
    { job: 2, door: 2, keepsPlace: false },
  ]);
});

test("with two keys both are counted: the one that is used up first stops the rest", () => {
  const keys = [key(1, { running: 5 }), key(2, { running: 2 })];
  const { admitted, moved } = decide(0, keys, jobs(4, 1, 2));
  assert.deepEqual(
    [admitted, moved.map(({ job }) => job)],
    [
      [1, 2],
      [3, 4],
    ],
  );
});

test("a full key in front of a door does not stop the jobs behind it that do not have it", () => {
  const keys = [key(1, { running: 9 }), key(2, { running: 1, taken: 1 }), key(3, { running: 1 })];
  const candidates = [
    ...Array.from({ length: 200 }, (_, i) => ({ job: i + 1, door: 1, keys: [1, 2] })),
    { job: 500, door: 1, keys: [1, 3] },
  ];
  const { admitted, moved } = decide(0, keys, candidates);
  assert.deepEqual([admitted, moved.length], [[500], 200]);
});

test("a throttle is a rate of one start per period, known by its name alone", () => {
  const { limit, key: text } = throttleKey("mail", "acme", 60_000);
  assert.deepEqual(throttleSettings(limit), {
    name: limit,
    running: null,
    intervalMs: 60_000,
    burst: 1,
    strict: false,
  });
  assert.equal(text, "mail/acme");
  assert.equal(throttleSettings("tenant"), null);
});

test("the number of a key is whole, safe, the same every time, and another one for another key", () => {
  const ids = new Set<number>();
  for (let i = 0; i < 20_000; i++)
    for (const one of [jobKey("a", String(i)), jobKey("b", String(i)), jobKey(`a${i}`, "")]) {
      assert.ok(Number.isSafeInteger(one.id) && one.id >= 0);
      ids.add(one.id);
    }
  assert.equal(ids.size, 60_000);
  assert.equal(jobKey("tenant", "acme").id, jobKey("tenant", "acme").id);
  assert.notEqual(jobKey("ab", "c").id, jobKey("a", "bc").id);
});

/** A small generator, so that a failure comes again. */
function random(seed: number): (below: number) => number {
  let state = seed * 2_654_435_761 + 1;
  return (below) => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x297a2d39;
    return ((state ^ (state >>> 13)) >>> 0) % below;
  };
}

test("whatever the facts are: never more than a limit, and no job waits that has room", () => {
  const now = 100_000;
  for (let seed = 0; seed < 2_000; seed++) {
    const below = random(seed);
    const keys = Array.from({ length: 1 + below(4) }, (_, id) =>
      key(id, {
        running: below(3) === 0 ? null : 1 + below(4),
        taken: below(4),
        intervalMs: below(3) === 0 ? 100 + below(1_000) / 7 : null,
        burst: 1 + below(3),
        arrivalAt: below(2) === 0 ? 0 : now - 2_000 + below(4_000),
        strict: below(6) === 0,
        heldOffUntil: below(6) === 0 ? now - 500 + below(1_000) : 0,
      }),
    );
    const candidates = Array.from({ length: below(12) }, (_, i): HeldCandidate => {
      const own = keys.map(({ id }) => id).filter(() => below(2) === 0);
      const all = own.length === 0 ? [below(keys.length)] : own;
      return { job: i, door: all[below(all.length)]!, keys: all };
    });
    const { admitted, moved, due } = decide(now, keys, candidates);
    const taken = (id: number): number =>
      candidates.filter((one) => admitted.includes(one.job) && one.keys.includes(id)).length;
    for (const { id, limit, taken: before, arrivalAt, heldOffUntil } of keys) {
      const most = Math.min(limit.running ?? Infinity, limit.strict ? 1 : Infinity);
      assert.ok(taken(id) === 0 || before + taken(id) <= most, `seed ${seed}: key ${id} has too many`);
      assert.ok(taken(id) === 0 || heldOffUntil <= now, `seed ${seed}: key ${id} is held off`);
      if (limit.intervalMs === null) continue;
      const rated = limit.burst - Math.max(0, arrivalAt - now) / limit.intervalMs;
      assert.ok(taken(id) === 0 || taken(id) <= rated + 1e-6, `seed ${seed}: key ${id} starts too many`);
    }
    // What is true after all of them: the rooms only shrink from one candidate to the next.
    const after = keys.map((facts) => ({
      ...facts,
      taken: facts.taken + taken(facts.id),
      arrivalAt: claimed(facts, taken(facts.id), now),
    }));
    const left = candidates.filter(({ job }) => !admitted.includes(job));
    assert.deepEqual(decide(now, after, left).admitted, [], `seed ${seed}: somebody waits who has room`);
    for (const { job, door } of moved) {
      const { door: before, keys: own } = candidates.find((one) => one.job === job)!;
      assert.ok(own.includes(door) && door !== before, `seed ${seed}: job ${job} is moved to ${door}`);
    }
    for (const at of due.values()) assert.ok(at > now, `seed ${seed}: room was due before`);
  }
});

// ---- turns of keys

const held = (key: number, count: number, weight = 1): RingMember => ({
  key,
  weight,
  jobs: Array.from({ length: count }, (_, i) => ({ job: key * 100 + i, door: -1, keys: [key, -1] })),
});
const jobsOf = (turns: readonly HeldCandidate[]): number[] => turns.map(({ job }) => job);

test("keys take turns from where their ring stands, round after round, until nothing is left", () => {
  const members = [held(3, 2), held(1, 3), held(2, 1)];
  assert.deepEqual(jobsOf(takeTurns(-1, NEW_RING, members)), [100, 200, 300, 101, 301, 102]);
  assert.deepEqual(jobsOf(takeTurns(-1, { at: 1, served: 1 }, members)), [200, 300, 100, 301, 101, 102]);
  assert.deepEqual(jobsOf(takeTurns(-1, { at: 3, served: 1 }, members)), [100, 200, 300, 101, 301, 102]);
});

test("a visit that was cut short goes on, and a weight is what one visit takes", () => {
  const members = [held(1, 5, 3), held(2, 3)];
  assert.deepEqual(jobsOf(takeTurns(-1, { at: 1, served: 1 }, members)), [100, 101, 200, 102, 103, 104, 201, 202]);
  assert.deepEqual(jobsOf(takeTurns(-1, { at: 1, served: 3 }, members)), [200, 100, 101, 102, 201, 103, 104, 202]);
});

test("a ring stands after the last job that took its turn, also if a limit had no room for it, and not after one for which the worker had none", () => {
  const members = [held(1, 2), held(2, 2), held(3, 2)];
  const candidates = takeTurns(-1, NEW_RING, members);
  const free = { running: null, intervalMs: null, burst: 1, strict: false };
  const facts = (id: number, running: number | null): KeyFacts => ({
    id,
    limit: { ...free, running },
    taken: 0,
    unclaimed: 0,
    arrivalAt: 0,
    heldOffUntil: 0,
  });
  const keys = [gateFacts(-1, 2), facts(1, null), facts(2, 0), facts(3, null)];
  const { admitted, moved, rings } = admit({ now: 0, keys, candidates });
  assert.deepEqual(admitted, [100, 300]);
  assert.deepEqual(
    moved.map(({ job, door }) => [job, door]),
    [[200, 2]],
  );
  assert.deepEqual([...rings], [[-1, { at: 3, served: 1 }]]);
});

test("jobs of keys behind those that were read come last and move no ring", () => {
  const turns = takeTurns(-1, { at: 2, served: 1 }, [held(3, 1), held(9, 1), held(1, 1)], 3);
  assert.deepEqual(jobsOf(turns), [300, 900, 100]);
  assert.deepEqual(
    turns.map(({ visits = [] }) => visits.length),
    [1, 0, 0],
  );
});

test("a start that is returned gains none, whatever started meanwhile, and costs none if nothing did", () => {
  let seed = 7;
  const below = (most: number): number => (seed = (seed * 16_807) % 2_147_483_647) % most;
  const after = (intervalMs: number, starts: readonly number[]): number =>
    starts.reduce((arrivalAt, at) => Math.max(at, arrivalAt) + intervalMs, 0);
  for (let round = 0; round < 5_000; round++) {
    const intervalMs = 1 + below(1_000);
    const starts = Array.from({ length: 1 + below(8) }, () => 1 + below(3_000)).toSorted((a, b) => a - b);
    const returned = below(starts.length);
    const startedAt = starts[returned]!;
    const now = starts.at(-1)! + below(2_000);
    const alike = 1 + below(starts.filter((at) => at === startedAt).length);
    const arrivalAt = after(intervalMs, starts) - returnedMs(intervalMs, startedAt, alike, now);
    const without = after(intervalMs, starts.toSpliced(returned, 1));
    const told = JSON.stringify({ intervalMs, starts, startedAt, now });
    assert.ok(Math.max(now, arrivalAt) >= Math.max(now, without), `it gained a start: ${told}`);
    if (returned === 0 && starts.length === 1) assert.equal(Math.max(now, arrivalAt), now, `it cost a start: ${told}`);
  }
  assert.equal(returnedMs(1_000, 5_000, 3, 5_500), 1_000, "the last of three at one instant is returned whole");
  assert.equal(returnedMs(1_000, 5_000, 1, 5_500), 500);
  assert.equal(returnedMs(1_000, 5_000, 1, 9_000), 0);
});

test("a door of which only as many were read as its rate admits is due when the rate admits the next", () => {
  const facts = key(7, { intervalMs: 500, burst: 2, arrivalAt: 1_400 });
  const [first] = jobs(1, 7);
  const read = admit({ now: 1_000, keys: [facts], candidates: [first!], readFull: [7] });
  assert.deepEqual([read.admitted, [...read.due]], [[1], [[7, 1_400]]]);
  const whole = admit({ now: 1_000, keys: [facts], candidates: [first!] });
  assert.deepEqual([whole.admitted, [...whole.due]], [[1], []]);
});

test("a key that is paused without an end has no room and is not looked at by time", () => {
  const key = {
    id: 1,
    limit: { running: 5, intervalMs: null, burst: 1, strict: false },
    taken: 0,
    unclaimed: 0,
    arrivalAt: 0,
  };
  const candidates = [{ job: 1, door: 1, keys: [1] }];
  const paused = admit({ now: 10, keys: [{ ...key, heldOffUntil: Number.POSITIVE_INFINITY }], candidates });
  assert.deepEqual([paused.admitted, [...paused.due]], [[], []]);
  const ending = admit({ now: 10, keys: [{ ...key, heldOffUntil: 50 }], candidates });
  assert.deepEqual([ending.admitted, [...ending.due]], [[], [[1, 50]]]);
});

test("a gate has room for one round of the fleet while one key waits alone, and for the visiting worker while several do", () => {
  const quiet = { demand: 10, waiting: 0, keys: 1, running: 0, ready: 0 };
  assert.equal(gateRoom(quiet), 10, "nothing runs: what the visitor takes");
  assert.equal(gateRoom({ ...quiet, running: 70 }), 80, "one more for each that runs");
  assert.equal(gateRoom({ ...quiet, running: 70, ready: 65 }), 15, "less what was admitted before");
  assert.equal(gateRoom({ ...quiet, waiting: 3, running: 5 }), 45, "and what those take that wait for their visit");
  assert.equal(gateRoom({ ...quiet, ready: 12 }), 0, "enough is ready: nothing is admitted");
  assert.equal(
    gateRoom({ ...quiet, keys: 2, waiting: 3, running: 70, ready: 5 }),
    10,
    "several keys: no more than it takes",
  );
});
