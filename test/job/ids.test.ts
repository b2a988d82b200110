// Holds the ids that enqueuers make, and what may be an id, a key or a kind.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assertKey, assertKind, idSource } from "../../src/job/enqueue.ts";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { systemRandom } from "../../src/platform/clock.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { fixedRandom } from "../support/fixed-random.ts";

test("an id has 22 characters that need no escaping anywhere and can't be mistaken for one another", () => {
  const id = idSource(virtualClock(), systemRandom)();
  assert.match(id, /^[0-9a-hjkmnp-tv-z]{22}$/);
});

test("ids sort by time", async () => {
  const clock = virtualClock();
  const newId = idSource(clock, systemRandom);
  const ids: string[] = [];
  for (let i = 0; i < 500; i++) {
    ids.push(newId());
    await clock.advance(1);
  }
  assert.deepEqual(ids.toSorted(), ids);
});

test("ids of different centuries sort too", () => {
  const at = (iso: string): string => idSource(virtualClock(Date.parse(iso)), systemRandom)();
  const ids = ["1970-01-01T00:00:01Z", "2004-11-03T00:00:00Z", "2026-07-01T00:00:00Z", "2999-12-31T00:00:00Z"].map(at);
  assert.deepEqual(ids.toSorted(), ids);
  assert.ok(ids.every((id) => id.length === 22));
});

test("200,000 ids of one millisecond all differ and grow", () => {
  const newId = idSource(virtualClock(), systemRandom);
  let last = "";
  for (let i = 0; i < 200_000; i++) {
    const id = newId();
    assert.ok(id > last);
    last = id;
  }
});

test("200,000 ids of many sources in one millisecond do not collide", () => {
  const clock = virtualClock();
  const sources = Array.from({ length: 200 }, () => idSource(clock, systemRandom));
  const ids = new Set<string>();
  for (const newId of sources) for (let i = 0; i < 1_000; i++) ids.add(newId());
  assert.equal(ids.size, 200_000);
});

test("ids go on growing when the low half of the counter runs over", () => {
  const hex = ["00000000", "ffffffff"];
  const newId = idSource(virtualClock(), { next: () => 0, hex: () => hex.shift()! });
  const ids = [newId(), newId(), newId()];
  assert.deepEqual(ids.toSorted(), ids);
  assert.equal(new Set(ids).size, 3);
});

test("a wall clock that went back makes no id twice", () => {
  const clock = virtualClock();
  const newId = idSource(clock, fixedRandom());
  const before = newId();
  clock.jump(-1);
  newId();
  clock.jump(1);
  assert.notEqual(newId(), before);
});

const refused = (value: unknown, words: RegExp): void =>
  assert.throws(
    () => assertKey(value, "The id"),
    (thrown: unknown) => {
      assert.ok(thrown instanceof OutliveError);
      assert.equal(thrown.code, ErrorCode.keyInvalid);
      assert.match(thrown.message, words);
      return true;
    },
  );

test("a key has 1 to 255 characters", () => {
  assertKey("a", "The id");
  assertKey("a".repeat(255), "The id");
  refused("", /^The id is empty/);
  refused("a".repeat(256), /^The id has 256 characters, at most 255/);
});

test("a key may be written in any script", () => {
  for (const key of ["héllo", "日本語", "👩‍👩‍👧", "a b", "a/b:c", "'; DROP TABLE jobs --", "\u{10FFFF}"]) {
    assertKey(key, "The id");
  }
});

test("a key holds no NUL and no control character", () => {
  for (const key of ["a\0", "\0", "a\nb", "\t", "\u007f", "\u0085", "\u001b[31m", "\r"]) {
    refused(key, /^The id contains NUL or a control character/);
  }
});

test("a key holds no half of a surrogate pair", () => {
  for (const key of ["\ud800", "a\udc00b", "\udc00\ud800", "👍".slice(0, 1)]) {
    refused(key, /^The id contains half a surrogate pair/);
  }
});

test("a key is a text", () => {
  for (const key of [undefined, null, 5, 5n, {}, ["a"], Symbol("a")]) refused(key, /^The id is not a string but /);
});

test("a refused key is kept in the error's data only as far as 300 characters", () => {
  assert.throws(
    () => assertKey("x".repeat(1_000_000), "The id"),
    (thrown: unknown) => (thrown as OutliveError).data["value"] === "x".repeat(300),
  );
});

test("a kind is a name of letters, digits and . _ - : / that begins with a letter or digit", () => {
  for (const kind of ["mail", "Mail.send", "a", "0", "billing/invoice:v2", "a_b-c", "x".repeat(128)]) assertKind(kind);
  const wrong = [
    "",
    " mail",
    "mail ",
    "-mail",
    ".mail",
    "_mail",
    "/mail",
    "ma il",
    "maïl",
    "mail\n",
    "a'b",
    'a"b',
    "a%",
    "x".repeat(129),
    7,
    null,
  ];
  for (const kind of wrong) {
    assert.throws(
      () => assertKind(kind),
      (thrown: unknown) => thrown instanceof OutliveError && thrown.code === ErrorCode.keyInvalid,
      String(kind),
    );
  }
});
