// Holds JSON as the only form in which anything of the user's is kept: limits, forbidden values, and the round trip.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, OutliveError } from "../../src/job/errors.ts";
import { decodeJson, encodeJson, MAX_JSON_BYTES, MAX_JSON_DEPTH } from "../../src/job/json.ts";

function refused(value: unknown, found: RegExp, path?: string): void {
  assert.throws(
    () => encodeJson(value, "The input"),
    (thrown: unknown) => {
      assert.ok(thrown instanceof OutliveError);
      assert.equal(thrown.code, ErrorCode.notJson);
      assert.match(thrown.message, /^The input (?:has|contains) /);
      const { found: named } = thrown.data;
      assert.match(typeof named === "string" ? named : thrown.message, found);
      if (path !== undefined) assert.equal(thrown.data["path"], path);
      return true;
    },
  );
}

function nested(levels: number): unknown {
  let value: unknown = 1;
  for (let level = 0; level < levels; level++) value = level % 2 ? [value] : { a: value };
  return value;
}

test("the limits are one mebibyte and 64 levels", () => {
  assert.equal(MAX_JSON_BYTES, 1_048_576);
  assert.equal(MAX_JSON_DEPTH, 64);
});

test("exactly one mebibyte is kept, one byte more is refused", () => {
  assert.equal(encodeJson("x".repeat(MAX_JSON_BYTES - 2), "The input").length, MAX_JSON_BYTES);
  refused("x".repeat(MAX_JSON_BYTES - 1), /has 1048577 bytes of JSON, at most 1048576/);
});

test("bytes are counted, not characters", () => {
  for (const [character, bytes] of [
    ["é", 2],
    ["日", 3],
    ["👍", 4],
  ] as const) {
    const most = Math.floor((MAX_JSON_BYTES - 2) / bytes);
    const filled = character.repeat(most) + "x".repeat(MAX_JSON_BYTES - 2 - most * bytes);
    assert.equal(Buffer.byteLength(encodeJson(filled, "The input")), MAX_JSON_BYTES);
    refused(`${filled}x`, /has 1048577 bytes/);
  }
});

test("what JSON escapes counts as it is written", () => {
  encodeJson("\u0001".repeat(174_762), "The input");
  refused("\u0001".repeat(174_763), /has 1048580 bytes/);
});

test("64 levels are kept, 65 are refused", () => {
  const deepest = nested(64);
  assert.deepEqual(decodeJson(encodeJson(deepest, "The input"), "The input"), deepest);
  refused(nested(65), /more than 64 levels of nesting/);
});

test("a value a hundred thousand levels deep is refused and does not end the process", () => {
  refused(nested(100_000), /more than 64 levels of nesting/);
});

test("cycles are refused", () => {
  const object: Record<string, unknown> = {};
  object["a"] = { b: object, c: object };
  refused(object, /more than 64 levels of nesting/);
  const array: unknown[] = [];
  array.push(array, array);
  refused(array, /more than 64 levels of nesting/);
});

test("the same object twice is not a cycle", () => {
  const shared = { n: 1 };
  assert.equal(encodeJson([shared, shared], "The input"), '[{"n":1},{"n":1}]');
});

test("what JSON would drop or bend is refused, and the error says what and where", () => {
  class Money {
    readonly cents = 5;
  }
  refused(new Date(0), /^a Date$/, "$");
  refused({ at: new Date(0) }, /^a Date$/, "$.at");
  refused([1, [Buffer.from("x")]], /^a Buffer$/, "$[1][0]");
  refused(new Uint8Array(2), /^a Uint8Array$/);
  refused({ a: [{ b: 1n }] }, /^a bigint$/, "$.a[0].b");
  refused(Number.NaN, /^NaN$/);
  refused({ a: Number.POSITIVE_INFINITY }, /^Infinity$/, "$.a");
  refused(Number.NEGATIVE_INFINITY, /^-Infinity$/);
  refused(new Map([["a", 1]]), /^a Map$/);
  refused(new Set([1]), /^a Set$/);
  refused({ price: new Money() }, /^a Money$/, "$.price");
  refused(new Error("x"), /^a Error$/);
  refused(/x/, /^a RegExp$/);
  refused(Promise.resolve(1), /^a Promise$/);
  refused({ f: () => 1 }, /^a function$/, "$.f");
  refused([Symbol("x")], /^a symbol$/, "$[0]");
  refused(undefined, /^a undefined$/);
  refused([1, undefined], /^a undefined$/, "$[1]");
  // oxlint-disable-next-line no-sparse-arrays
  refused([1, , 3], /^a undefined$/, "$[1]");
  refused(new String("x"), /^a String$/);
  refused(Object.create({ inherited: 1 }), /^a Object$/);
});

test("an object that would write itself in another way is refused", () => {
  refused({ toJSON: () => 1 }, /^a function$/, "$.toJSON");
});

test("a long path is cut in the error", () => {
  let value: unknown = 1n;
  for (let level = 0; level < 60; level++) value = { ["k".repeat(50)]: value };
  assert.throws(
    () => encodeJson(value, "The input"),
    (thrown: unknown) => String((thrown as OutliveError).data["path"]).length <= 201,
  );
});

test("a key named __proto__ is refused on the way in", () => {
  refused(JSON.parse('{"__proto__":{"admin":true}}'), /^a key named __proto__$/, "$");
  refused(JSON.parse('{"a":[{"__proto__":1}]}'), /^a key named __proto__$/, "$.a[0]");
});

test("a key named __proto__ is refused on the way out, however the text writes it", () => {
  for (const text of [
    '{"__proto__":{"admin":true}}',
    '[{"a":{"__proto__":null}}]',
    '{"\\u005f_proto__":{"admin":true}}',
    '{"__pr\\u006Fto__":{"admin":true}}',
  ]) {
    assert.throws(
      () => decodeJson(text, "The input"),
      (thrown: unknown) => thrown instanceof OutliveError && thrown.code === ErrorCode.notJson,
      text,
    );
  }
});

test("the word __proto__ is harmless as a value", () => {
  const value = { a: "__proto__", b: ["x __proto__ y"], __proto: 1 };
  assert.deepEqual(decodeJson(encodeJson(value, "The input"), "The input"), value);
});

test("a stored text that is not JSON is reported as such, with its cause", () => {
  for (const text of ["", "{", "undefined", "NaN", "'a'", "{a:1}", "[1,]", "\u0000"]) {
    assert.throws(
      () => decodeJson(text, "The input of job 7"),
      (thrown: unknown) => {
        assert.ok(thrown instanceof OutliveError);
        assert.equal(thrown.code, ErrorCode.notJson);
        assert.match(thrown.message, /^The input of job 7 is stored as a text that is not JSON/);
        assert.ok(thrown.cause instanceof SyntaxError);
        return true;
      },
    );
  }
});

test("a stored number that JavaScript reads as Infinity is refused, however it is written", () => {
  for (const number of ["1e400", "-1E+400", "1e0309", "1".repeat(310), `${"9".repeat(220)}e90`, `${"1".repeat(400)}.5`])
    for (const text of [number, `{"a":[${number}]}`])
      assert.throws(
        () => decodeJson(text, "The input"),
        (thrown: unknown) => thrown instanceof OutliveError && /contains -?Infinity at \$/.test(thrown.message),
        text,
      );
  for (const text of [
    "1.7976931348623157e+308",
    "5e-324",
    `"${"1".repeat(400)} and 1e400"`,
    `0.${"1".repeat(400)}`,
    "1e0",
  ])
    assert.deepEqual(decodeJson(text, "The input"), JSON.parse(text));
});

test("members that are undefined are omitted, as JSON does", () => {
  assert.equal(encodeJson({ a: undefined, b: 1, c: { d: undefined } }, "The input"), '{"b":1,"c":{}}');
});

test("objects without a prototype are plain objects", () => {
  const bare = Object.assign(Object.create(null) as object, { a: 1 });
  assert.equal(encodeJson({ bare }, "The input"), '{"bare":{"a":1}}');
});

test("what goes in comes out the same", () => {
  const values: unknown[] = [
    null,
    true,
    false,
    0,
    -1.5,
    5e-324,
    Number.MAX_VALUE,
    Number.MAX_SAFE_INTEGER,
    "",
    "\0\u0001\u001f\u007f\u2028\u2029",
    "\ud800 alone",
    "👍 日本語",
    [],
    {},
    [[], {}, [null]],
    { "": 1, " ": 2, constructor: 3, prototype: 4, toString: 5, hasOwnProperty: 6 },
    { a: { b: { c: [1, "2", null, true] } } },
  ];
  for (const value of values) {
    const text = encodeJson(value, "The input");
    assert.deepEqual(decodeJson(text, "The input"), value);
    assert.equal(encodeJson(decodeJson(text, "The input"), "The input"), text);
  }
});
