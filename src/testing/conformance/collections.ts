// What the port promises about collections: a part is kept once and counts once, a collection becomes complete when its set is, however its parts came,
// and each change of state succeeds for one of those who try.
import assert from "node:assert/strict";
import {
  type CollectionDraft,
  type CollectionRow,
  decideCollection,
  followOf,
  jobKind,
  jobOf,
  type Part,
  rangesText,
  STEPS,
} from "../../job/collections.ts";
import type { Collections } from "../../stores/port.ts";
import { type Fixture, kind, type Specify } from "./fixture.ts";

/** The kind whose collections these are. Its job follows the last part. */
const KIND = "mail";
const ALL: Readonly<Record<string, number | null>> = { files: 3, notes: 1 };

function draftOf(id: string, expected = ALL, more: Partial<CollectionDraft> = {}): CollectionDraft {
  return {
    id,
    kind: KIND,
    input: '{"share":"x"}',
    series: Object.entries(expected).map(([name, count]) => ({ name, expected: count })),
    idleMs: 1_000,
    totalMs: 10_000,
    keepMs: 5_000,
    follow: [jobOf({ id, kind: KIND }, "request")],
    ...more,
  };
}

function part(collection: string, series: string, ordinal: number, content = "same"): Part {
  const blob = `${collection}/${series}/${ordinal}-${content}`;
  return { collection, series, ordinal, blob, bytes: 10, sha256: `${content}-${ordinal}` };
}

function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

/** What is not there before each of these, which are in order. */
function rangesBetween(ordinals: readonly number[]): [number, number][] {
  return ordinals.flatMap((ordinal, i) => {
    const before = ordinals[i - 1] ?? 0;
    return ordinal > before + 1 ? [[before + 1, ordinal - 1] as [number, number]] : [];
  });
}

interface On {
  readonly fixture: Fixture;
  readonly collections: Collections;
  get(id: string): Promise<CollectionRow>;
  /** Ends what is due, as the maintenance does. Returns the ids that it ended. */
  tend(): Promise<string[]>;
}

async function endBy(by: Collections, row: CollectionRow, now: number): Promise<boolean> {
  const decision = decideCollection(row, now);
  if (decision === null) return false;
  const { to } = decision;
  const why = to === "abandoned" ? decision.why : null;
  const ifDue = to === "abandoned" ? ({ ifDue: true } as const) : {};
  return by.step({ collection: row.id, from: STEPS[to], to, why, ...ifDue, follow: followOf(row, to) });
}

export function specifyCollections(specify: Specify): void {
  const onCollections = (title: string, body: (on: On) => Promise<void>): void =>
    specify(title, async (fixture) => {
      const { collections } = fixture.store;
      if (collections === undefined) return fixture.t.skip("this store has no collections");
      for (const job of ["request", "notify", "ended", "clean-up"] as const)
        await fixture.declare(kind(jobKind(KIND, job)));
      await body({
        fixture,
        collections,
        async get(id) {
          const [row] = await collections.get([id]);
          assert.ok(row, `collection ${id} is in the store`);
          return row;
        },
        async tend() {
          const { ids, now } = await collections.due(100);
          const ended: string[] = [];
          for (const row of await collections.get(ids)) if (await endBy(collections, row, now)) ended.push(row.id);
          return ended;
        },
      });
    });

  onCollections("an opened collection is what its draft says, and its request is a job", async (on) => {
    const { fixture, collections } = on;
    const { follow: _, ...asked } = draftOf("c");
    const { created, collection } = await collections.open(draftOf("c"));
    const now = fixture.clock.now();
    assert.deepEqual(
      [created, collection],
      [
        true,
        {
          ...asked,
          state: "requested",
          series: [
            { name: "files", expected: 3, have: 0, bytes: 0 },
            { name: "notes", expected: 1, have: 0, bytes: 0 },
          ],
          createdAt: now,
          activeAt: now,
          transitions: [{ state: "requested", at: now }],
          why: null,
          parked: 0,
        },
      ],
    );
    assert.deepEqual(await collections.get(["x", "c", "y"]), [collection]);
    assert.equal((await fixture.store.inspect.get("c:request"))?.state, "queued");
    const again = await collections.open(draftOf("c", { files: 7 }));
    assert.deepEqual([again.created, again.collection], [false, collection]);
  });

  onCollections("an undeclared kind is refused, and nothing is written", async ({ collections }) => {
    await assert.rejects(collections.open(draftOf("c", ALL, { kind: "unheard", follow: [] })), {
      code: "KIND_UNKNOWN",
    });
    assert.deepEqual(await collections.get(["c"]), []);
  });

  onCollections("each part has its answer: accepted, duplicate, conflict, closed, unknown", async (on) => {
    const { collections } = on;
    await collections.open(draftOf("c"));
    await collections.open(draftOf("d"));
    assert.ok(
      await collections.step({ collection: "d", from: STEPS.cancelled, to: "cancelled", why: "asked", follow: [] }),
    );
    assert.deepEqual(
      await collections.put([
        part("c", "files", 1),
        part("c", "files", 1),
        part("c", "files", 1, "other"),
        part("c", "files", 4),
        part("d", "files", 1),
        part("x", "files", 1),
        part("c", "others", 1),
        part("c", "notes", 1),
      ]),
      ["accepted", "duplicate", "conflict", "conflict", "closed", "unknown", "unknown", "accepted"],
    );
    assert.deepEqual(await collections.put([part("c", "files", 1), part("c", "files", 1, "other")]), [
      "duplicate",
      "conflict",
    ]);
    const { state, series } = await on.get("c");
    assert.deepEqual(
      [state, series.map(({ have, bytes }) => [have, bytes])],
      [
        "collecting",
        [
          [1, 10],
          [1, 10],
        ],
      ],
    );
    assert.deepEqual(await collections.known([part("c", "files", 1), part("c", "no", 1), part("x", "files", 1)]), [
      { kind: KIND, state: "collecting", series: { expected: 3 }, sha256: "same-1" },
      { kind: KIND, state: "collecting", series: null, sha256: null },
      null,
    ]);
  });

  onCollections("the same parts from two processes at once are kept once, and counted once", async (on) => {
    const { fixture, collections } = on;
    const other = (await fixture.connect()).collections!;
    await collections.open(draftOf("c", { files: 40, notes: 0 }));
    const parts = Array.from({ length: 40 }, (_, at) => part("c", "files", at + 1));
    const answers = await Promise.all(
      [collections, other].flatMap((by) => [by.put(parts.slice(0, 25)), by.put(parts.slice(15).toReversed())]),
    );
    assert.deepEqual(
      [
        answers.flat().filter((one) => one === "accepted").length,
        answers.flat().filter((one) => one === "duplicate").length,
      ],
      [40, 60],
    );
    assert.deepEqual((await on.get("c")).series[0], { name: "files", expected: 40, have: 40, bytes: 400 });
    await collections.due(10);
    assert.deepEqual((await on.get("c")).series[0], { name: "files", expected: 40, have: 40, bytes: 400 }, "added up");
  });

  onCollections(
    "a collection is complete when its set is, and it and its jobs come once, however many processes look",
    async (on) => {
      const { fixture, collections } = on;
      const other = (await fixture.connect()).collections!;
      await collections.open(draftOf("c"));
      await collections.put([part("c", "files", 3), part("c", "notes", 1), part("c", "files", 1)]);
      assert.deepEqual(await on.tend(), []);
      await collections.put([part("c", "files", 2)]);
      const { now } = await collections.due(10);
      const row = await on.get("c");
      const ended = await Promise.all([collections, other, collections, other].map((by) => endBy(by, row, now)));
      assert.deepEqual(ended.filter(Boolean).length, 1);
      const { state, transitions } = await on.get("c");
      assert.deepEqual(
        [state, transitions.map((one) => one.state)],
        ["complete", ["requested", "collecting", "complete"]],
      );
      assert.equal((await fixture.store.inspect.get("c:done"))?.kind, KIND);
      assert.equal((await fixture.store.inspect.get("c:notify"))?.state, "queued");
      assert.deepEqual(await on.tend(), []);
    },
  );

  onCollections("parts that are put at once by many are found complete after the last commit", async (on) => {
    const { fixture, collections } = on;
    const other = (await fixture.connect()).collections!;
    for (let round = 0; round < 5; round++) {
      const id = `c${round}`;
      await collections.open(draftOf(id, { files: 8 }));
      await Promise.all(
        Array.from({ length: 8 }, (_, at) => (at % 2 ? collections : other).put([part(id, "files", at + 1)])),
      );
      assert.deepEqual(await on.tend(), [id]);
    }
  });

  onCollections(
    "more parts than announced do not make a set, and a set that is not whole is not complete",
    async (on) => {
      const { collections } = on;
      await collections.open(draftOf("c", { files: 2 }));
      await collections.put([part("c", "files", 1)]);
      const step = { collection: "c", from: STEPS.complete, to: "complete" as const, why: null, follow: [] };
      assert.equal(await collections.step(step), false);
      await collections.open(draftOf("d", { files: null }));
      await collections.put([part("d", "files", 1), part("d", "files", 2)]);
      assert.equal(await collections.step({ ...step, collection: "d" }), false, "not announced");
    },
  );

  onCollections("an announcement is taken as a whole or not at all, before and after parts", async (on) => {
    const { collections } = on;
    await collections.open(draftOf("c", { files: null, notes: null }));
    await collections.put([part("c", "files", 7)]);
    const refused = await collections.announce("c", { notes: 1, files: 6 });
    assert.deepEqual(
      [refused.is, (await on.get("c")).series.map(({ expected }) => expected)],
      ["contradicts", [null, null]],
    );
    assert.deepEqual(await collections.announce("c", { files: 7 }), { is: "announced" });
    assert.deepEqual(await collections.announce("c", { files: 7 }), { is: "announced" });
    assert.equal((await collections.announce("c", { files: 8 })).is, "contradicts");
    assert.deepEqual(await collections.announce("c", { others: 1 }), { is: "unknown", series: "others" });
    assert.deepEqual(await collections.announce("x", { files: 1 }), { is: "unknown", series: null });
    assert.deepEqual(await collections.announce("c", { notes: 0 }), { is: "announced" });
    await collections.step({ collection: "c", from: STEPS.cancelled, to: "cancelled", why: null, follow: [] });
    assert.deepEqual(await collections.announce("c", { notes: 0 }), { is: "announced" }, "a repetition");
  });

  onCollections("an announcement that comes last makes the collection complete", async (on) => {
    const { collections } = on;
    await collections.open(draftOf("c", { files: null }));
    await collections.put([part("c", "files", 1)]);
    assert.deepEqual(await on.tend(), []);
    await collections.announce("c", { files: 1 });
    assert.deepEqual(await on.tend(), ["c"]);
  });

  onCollections(
    "what is missing is ranges, also with a million ordinals, and up to the highest of what was not announced",
    async (on) => {
      const { collections } = on;
      await collections.open(draftOf("c", { files: 1_000_000, notes: null }));
      await collections.put([2, 4, 5, 900_000].map((ordinal) => part("c", "files", ordinal)));
      await collections.put([part("c", "notes", 3)]);
      const missing = async (series: string, limit = 10) => rangesText(await collections.missing("c", series, limit));
      assert.equal(await missing("files"), "1, 3, 6-899999, 900001-1000000");
      assert.equal(await missing("files", 2), "1, 3, ...");
      assert.equal(await missing("notes"), "1-2");
      assert.equal(await missing("none"), "");
    },
  );

  onCollections(
    "what is missing of many parts is found wherever it is, before and after sums were made, and when parts are deleted",
    async (on) => {
      const { collections } = on;
      await collections.open(draftOf("c", { files: 10_000, notes: null }));
      const gone = new Set([1, 64, 65, 128, 129, 192, 4_096, 4_097, 5_000, ...range(300, 500)]);
      const there = range(1, 6_000).filter((ordinal) => !gone.has(ordinal));
      // In an order that fills no page at once; the last of them come later.
      const early = there.filter((ordinal) => ordinal % 7 !== 0);
      const late = there.filter((ordinal) => ordinal % 7 === 0);
      await collections.put(early.map((ordinal) => part("c", "files", ordinal)));
      assert.equal((await collections.missing("c", "files", 5_000)).ranges.length, rangesBetween(early).length + 1);
      await on.tend();
      await collections.put([...late, ...early.slice(0, 100)].map((ordinal) => part("c", "files", ordinal)));
      const expected = [...rangesBetween(there), [6_001, 10_000]];
      assert.deepEqual((await collections.missing("c", "files", 5_000)).ranges, expected);
      await on.tend();
      assert.deepEqual((await collections.missing("c", "files", 5_000)).ranges, expected);
      assert.deepEqual(await collections.missing("c", "files", 3), { ranges: expected.slice(0, 3), cut: true });
      await collections.step({ collection: "c", from: STEPS.cancelled, to: "cancelled", why: null, follow: [] });
      assert.ok(await collections.remove("c", 1_000));
      const { ranges } = await collections.missing("c", "files", 10_000);
      const count = ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);
      assert.ok(count >= gone.size + 4_000 + 1_000, `${count} are missing now`);
    },
  );

  onCollections("parts come back in order, by pages", async ({ collections }) => {
    await collections.open(draftOf("c"));
    await collections.put([part("c", "files", 3), part("c", "files", 1), part("c", "files", 2), part("c", "notes", 1)]);
    const first = await collections.parts("c", "files", 0, 2);
    assert.deepEqual(first, [part("c", "files", 1), part("c", "files", 2)]);
    assert.deepEqual(await collections.parts("c", "files", 2, 2), [part("c", "files", 3)]);
  });

  onCollections(
    "without a part for this long it is abandoned, and a part moves that time, up to its total age",
    async (on) => {
      const { fixture, collections } = on;
      await collections.open(draftOf("c"));
      await fixture.clock.advance(900);
      await collections.put([part("c", "files", 1)]);
      await fixture.clock.advance(900);
      assert.deepEqual(await on.tend(), [], "a part came meanwhile");
      const { now } = await collections.due(10);
      await fixture.clock.advance(200);
      const row = await on.get("c");
      // Decided, and then a part comes before it is written.
      await collections.put([part("c", "files", 2)]);
      assert.equal(await endBy(collections, row, now + 200), false);
      await fixture.clock.advance(1_000);
      assert.deepEqual(await on.tend(), ["c"]);
      const { state, why } = await on.get("c");
      assert.deepEqual([state, why], ["abandoned", "no part of it came for 1000 ms"]);
      assert.equal((await fixture.store.inspect.get("c:ended"))?.state, "queued");
      assert.equal((await fixture.store.inspect.get("c:clean-up"))?.state, "queued");
      await collections.open(draftOf("d", { files: 100 }));
      for (let at = 1; at <= 11; at++) {
        await fixture.clock.advance(950);
        await collections.put([part("d", "files", at)]);
      }
      assert.deepEqual(await on.tend(), ["d"]);
      assert.match((await on.get("d")).why!, /not complete 10000 ms after/);
    },
  );

  onCollections("a step is taken from its states only, once, and what follows comes with it", async (on) => {
    const { fixture, collections } = on;
    await collections.open(draftOf("c", { files: 0 }));
    const row = await on.get("c");
    const step = (to: keyof typeof STEPS): Promise<boolean> =>
      collections.step({ collection: "c", from: STEPS[to], to, why: null, follow: followOf(row, to) });
    assert.equal(await step("notified"), false);
    assert.equal(await step("collecting"), true);
    assert.equal(await step("collecting"), false);
    assert.equal(await step("complete"), true);
    assert.equal(await step("abandoned"), false);
    assert.equal(await step("cancelled"), false);
    assert.equal(await step("notified"), true);
    assert.equal(await step("notified"), false);
    assert.equal((await fixture.store.inspect.get("c:clean-up"))?.state, "queued");
    assert.equal(
      await collections.step({ collection: "x", from: STEPS.cancelled, to: "cancelled", why: null, follow: [] }),
      false,
    );
  });

  onCollections("collections are listed newest first, by kind and state, and counted", async (on) => {
    const { collections } = on;
    for (const id of ["a", "b", "c"]) await collections.open(draftOf(id));
    await collections.step({ collection: "b", from: STEPS.cancelled, to: "cancelled", why: null, follow: [] });
    const ids = async (...asked: Parameters<Collections["list"]>) =>
      (await collections.list(...asked)).map(({ id }) => id);
    assert.deepEqual(await ids({}, 2, null), ["c", "b"]);
    assert.deepEqual(await ids({}, 2, "b"), ["a"]);
    assert.deepEqual(await ids({ state: "requested", kind: KIND }, 10, null), ["c", "a"]);
    assert.deepEqual(await ids({ kind: "none" }, 10, null), []);
    assert.deepEqual(await collections.counts(), [
      { kind: KIND, state: "requested", count: 2 },
      { kind: KIND, state: "cancelled", count: 1 },
    ]);
  });

  onCollections("a parked message is kept once, shown with its collection, and forgotten when asked", async (on) => {
    const { fixture, collections } = on;
    await collections.open(draftOf("c"));
    const one = {
      id: "p1",
      kind: KIND,
      collection: "c",
      series: "files",
      ordinal: 2,
      reason: "too large",
      // Its name says what the message announces.
      blob: "parked/x/0a.total-160",
      bytes: 7,
    };
    const bare = { ...one, id: "p2", collection: null, series: null, ordinal: null, blob: null };
    await collections.park([one, bare, one]);
    await collections.park([one]);
    const at = fixture.clock.now();
    assert.deepEqual(await collections.parked({}, 10, null), [
      { ...one, at },
      { ...bare, at },
    ]);
    assert.deepEqual(await collections.parked({ collection: "c" }, 10, null), [{ ...one, at }]);
    assert.deepEqual(await collections.parked({ kind: KIND }, 10, "p1"), [{ ...bare, at }]);
    assert.equal((await on.get("c")).parked, 1);
    await collections.unpark(["p1", "p3"]);
    assert.deepEqual([(await on.get("c")).parked, (await collections.parked({}, 10, null)).length], [0, 1]);
  });

  onCollections("an ended collection is deleted in pieces, an open one is not", async (on) => {
    const { collections } = on;
    await collections.open(draftOf("c"));
    await collections.open(draftOf("d"));
    await collections.put([1, 2, 3].map((ordinal) => part("c", "files", ordinal)));
    await collections.put([part("d", "files", 1)]);
    assert.equal(await collections.remove("c", 2), false);
    assert.equal((await collections.parts("c", "files", 0, 10)).length, 3, "nothing of an open one was touched");
    await collections.step({ collection: "c", from: STEPS.cancelled, to: "cancelled", why: null, follow: [] });
    assert.equal(await collections.remove("c", 2), true);
    assert.equal(await collections.remove("c", 2), false);
    assert.deepEqual(await collections.get(["c"]), []);
    assert.equal((await collections.parts("d", "files", 0, 10)).length, 1);
    assert.deepEqual(await collections.put([part("c", "files", 1)]), ["unknown"]);
  });
}
