// `csv` and `ndjson` with nasty inputs, cut at every byte: rows with their lines, or an error that names line and column.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { csv, type CsvOptions, type FileRow, ndjson, type NdjsonOptions } from "../../src/files.ts";
import { isRows } from "../../src/files/rows.ts";
import { ErrorCode } from "../../src/index.ts";
import { says } from "../engine/engines.ts";

async function* chunks(data: Buffer | string, size: number): AsyncGenerator<Uint8Array> {
  const bytes = Buffer.from(data);
  // One buffer for all, as a source may have it.
  const buffer = Buffer.alloc(size);
  for (let at = 0; at < bytes.length; at += size) {
    const length = bytes.copy(buffer, 0, at, at + size);
    yield buffer.subarray(0, length);
    buffer.fill(0);
  }
}

/** The rows, whichever way the bytes are cut. */
async function everywhere<T>(data: Buffer | string, read: (source: AsyncIterable<Uint8Array>) => AsyncIterable<T>) {
  const whole = await Array.fromAsync(read(chunks(data, 1_000_000)));
  for (const size of [1, 2, 3, 5, 7, 64])
    assert.deepEqual(await Array.fromAsync(read(chunks(data, size))), whole, `by ${size}`);
  return whole;
}

const csvRows = (data: Buffer | string, options?: CsvOptions) => everywhere(data, (source) => csv(source, options));
const jsonRows = (data: Buffer | string, options?: NdjsonOptions) =>
  everywhere(data, (source) => ndjson(source, options));
const shown = (rows: readonly FileRow<unknown>[]) =>
  rows.map(({ line, input, error }) => [line, input, error?.data["column"]]);

test("csv: quotes, doubled quotes, delimiters and newlines inside quotes, CRLF, blank lines, BOM, no last newline", async () => {
  const text = '\uFEFFid,text\r\n1,plain\r\n2,"a ""b"", c"\r\n3,"two\r\nlines\nand three"\r\n\r\n\r\n4,ü€😀\r\n5,';
  assert.deepEqual(shown(await csvRows(text)), [
    [2, { id: "1", text: "plain" }, undefined],
    [3, { id: "2", text: 'a "b", c' }, undefined],
    [4, { id: "3", text: "two\r\nlines\nand three" }, undefined],
    [9, { id: "4", text: "ü€😀" }, undefined],
    [10, { id: "5", text: "" }, undefined],
  ]);
});

test("csv: NUL and control characters are what they are", async () => {
  assert.deepEqual(shown(await csvRows("a,b\n\0,\u0001\n")), [[2, { a: "\0", b: "\u0001" }, undefined]]);
});

test("csv: columns that were given, another delimiter, a header alone, nothing at all", async () => {
  assert.deepEqual(shown(await csvRows("1;2\n3;4\n", { columns: ["a", "b"], delimiter: ";" })), [
    [1, { a: "1", b: "2" }, undefined],
    [2, { a: "3", b: "4" }, undefined],
  ]);
  assert.deepEqual(await csvRows("a,b\n"), []);
  assert.deepEqual(await csvRows(""), []);
  assert.deepEqual(await csvRows("\n\n"), []);
});

test("csv: a record with too many or too few fields is bad alone", async () => {
  const rows = await csvRows("a,b\n1,2\n3\n4,5,6\n7,8\n");
  assert.deepEqual(shown(rows), [
    [2, { a: "1", b: "2" }, undefined],
    [3, "3", 2],
    [4, "4,5,6", 3],
    [5, { a: "7", b: "8" }, undefined],
  ]);
  says(ErrorCode.fileMalformed, "line 4, column 3", "3 fields instead of 2")(rows[2]!.error);
});

for (const [what, text, line, says_] of [
  [
    "a quote that is never closed",
    'a,b\n1,2\n3,"open\nfoo,bar\n',
    3,
    'line 3, column "b": it begins a record with a quote that is never closed',
  ],
  ["a quote inside a field", 'a,b\n1,2\n3,x"y\n5,6\n', 3, 'line 3, column "b": it has a quote inside a field'],
  ["a quote inside quotes", 'a,b\n1,2\n3,"x"y"\n5,6\n', 3, 'line 3, column "b": it has a quote inside quotes'],
  [
    "bytes that are not UTF-8",
    Buffer.from("a,b\n1,2\n3,\xff\n5,6\n", "latin1"),
    3,
    "line 3: it holds bytes that are not UTF-8",
  ],
  [
    "a character cut off by the end",
    Buffer.from("a,b\n1,2\n3,€").subarray(0, -1),
    3,
    "line 3: it holds bytes that are not UTF-8",
  ],
  ["two columns of one name", "a,a\n1,2\n", 1, 'line 1: it is the header, but two fields have the name "a"'],
  ["a column without a name", "a,\n1,2\n", 1, "line 1: it is the header, but field 2 has no name"],
  ["__proto__ as a column", "__proto__\n1\n", 1, "__proto__"],
  ["UTF-16", Buffer.from("\uFEFFa,b\n", "utf16le"), 1, "it is UTF-16"],
] as const)
  test(`csv: ${what} ends the iteration with line and column`, async () => {
    for (const size of [1_000, 3, 2]) {
      const rows: number[] = [];
      await assert.rejects(
        async () => {
          for await (const row of csv(chunks(text, size))) rows.push(row.line);
        },
        (thrown) => {
          says(ErrorCode.fileMalformed, says_)(thrown);
          assert.equal((thrown as { data: { line: number } }).data.line, line);
          return true;
        },
      );
      // Bytes that are not UTF-8 are noticed before they are parsed, and the parser is a little behind.
      if (typeof text === "string" && line > 1) assert.equal(rows[0], 2, `by ${size}`);
    }
  });

test("csv and ndjson: a record beyond the limit, which a missing quote makes of the rest of a file, takes no memory", async () => {
  let read = 0;
  const endless = async function* (): AsyncGenerator<Uint8Array> {
    yield Buffer.from('a,b\n1,2\n3,"');
    for (; read < 1_000; read++) yield Buffer.from("x,y\n".repeat(5_000));
  };
  await assert.rejects(
    Array.fromAsync(csv(endless(), { maxRecordBytes: 100_000 })),
    says(ErrorCode.fileRecordTooLong, 'line 3, column "b": it begins a record of more than 100000 bytes'),
  );
  assert.ok(read < 10, `${read} chunks were read`);
  const line = `"${"x".repeat(300_000)}"`;
  const rows = await jsonRows(`1\n${line}\n2\n${line}`, { maxRecordBytes: 100_000 });
  assert.deepEqual(
    rows.map(({ line: at, error }) => [at, error?.code]),
    [
      [1, undefined],
      [2, ErrorCode.fileRecordTooLong],
      [3, undefined],
      [4, ErrorCode.fileRecordTooLong],
    ],
  );
  assert.equal(String(rows[1]!.input).length, 1_000);
});

test("ndjson: every kind of value, CRLF, blank lines, BOM, no last newline", async () => {
  const text = '\uFEFF{"a":"ü€😀"}\r\n\r\n  \n[1,2]\nnull\n"\\u0000"\r\n7';
  assert.deepEqual(shown(await jsonRows(text)), [
    [1, { a: "ü€😀" }, undefined],
    [4, [1, 2], undefined],
    [5, null, undefined],
    [6, "\0", undefined],
    [7, 7, undefined],
  ]);
  assert.deepEqual(await jsonRows(""), []);
  assert.deepEqual(await jsonRows("\n\r\n"), []);
});

test("ndjson: a bad line is a row of its own with line and column, or ends the iteration if that is wanted", async () => {
  const text = Buffer.concat([
    Buffer.from('{"a":1}\n{"a":x}\n{"a":\n'),
    Buffer.from([0x22, 0xff, 0x22, 0x0a]),
    Buffer.from("4\n{"),
  ]);
  const rows = await jsonRows(text);
  assert.deepEqual(
    rows.map(({ line, error }) => [line, error?.code ?? null, error?.data["column"]]),
    [
      [1, null, undefined],
      [2, ErrorCode.fileMalformed, 6],
      [3, ErrorCode.fileMalformed, 6],
      [4, ErrorCode.fileMalformed, null],
      [5, null, undefined],
      [6, ErrorCode.fileMalformed, 2],
    ],
  );
  assert.equal(rows[1]!.input, '{"a":x}');
  const before: number[] = [];
  await assert.rejects(
    async () => {
      for await (const { line } of ndjson(chunks(text, 3), { badLines: "stop" })) before.push(line);
    },
    says(ErrorCode.fileMalformed, "line 2, column 6"),
  );
  assert.deepEqual(before, [1]);
});

test("a path, a URL, a Readable and texts are sources; a missing file and a folder say so; what is read is closed", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-files-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "rows.csv");
  writeFileSync(path, "a\n1\n2\n");
  const texts = async function* (): AsyncGenerator<string> {
    yield* ["a\n1", "\n2"];
  };
  for (const source of [path, pathToFileURL(path), Readable.from([Buffer.from("a\n1\n2\n")]), texts()])
    assert.deepEqual(shown(await Array.fromAsync(csv(source))), [
      [2, { a: "1" }, undefined],
      [3, { a: "2" }, undefined],
    ]);
  const rows = csv(path);
  assert.equal((await Array.fromAsync(rows)).length, 2);
  assert.equal((await Array.fromAsync(rows)).length, 2, "a file can be read again");
  assert.ok(isRows(rows) && isRows(ndjson(path)) && !isRows([]) && rows.name === path);
  await assert.rejects(Array.fromAsync(csv(join(folder, "none.csv"))), says(ErrorCode.fileUnreadable, "none.csv"));
  await assert.rejects(Array.fromAsync(ndjson(folder)), says(ErrorCode.fileUnreadable, folder));
  await assert.rejects(
    Array.fromAsync(csv(new URL("https://example.com/a.csv"))),
    says(ErrorCode.optionInvalid, "https:"),
  );
  let ended = false;
  const watched = async function* (): AsyncGenerator<Uint8Array> {
    try {
      for (;;) yield Buffer.from("a\n1\n");
    } finally {
      ended = true;
    }
  };
  for await (const row of csv(watched())) {
    assert.equal(row.line, 2);
    break;
  }
  assert.ok(ended);
});

test("an error of the source comes out as it is, after the rows before it", async () => {
  const broken = new Error("broken");
  const failing = async function* (): AsyncGenerator<Uint8Array> {
    yield Buffer.from("1\n".repeat(100));
    throw broken;
  };
  for (const rows of [csv(failing()), ndjson(failing())]) {
    let count = 0;
    await assert.rejects(
      async () => {
        for await (const row of rows) count += row.line > 0 ? 1 : 0;
      },
      (thrown) => thrown === broken,
    );
    // The CSV parser is a few bytes behind.
    assert.ok(count >= 95, `${count} rows`);
  }
});

test("a source is read no faster than its rows are taken", async () => {
  let read = 0;
  const source = async function* (): AsyncGenerator<Uint8Array> {
    for (;;) {
      read++;
      yield Buffer.from("a\n".repeat(1_000));
    }
  };
  for (const rows of [csv(source()), ndjson(source())]) {
    read = 0;
    let taken = 0;
    for await (const { line } of rows) if (line > 0 && ++taken === 10_500) break;
    assert.ok(read <= 14, `${read} chunks for 10,500 rows`);
  }
});

test("options that can't work are refused at once", () => {
  assert.throws(() => csv("x", { delimiter: '"' }), says(ErrorCode.optionInvalid));
  assert.throws(() => csv("x", { delimiter: ";;" }), says(ErrorCode.optionInvalid));
  assert.throws(() => csv("x", { columns: [] }), says(ErrorCode.optionInvalid));
  assert.throws(() => csv("x", { columns: ["a", "a"] }), says(ErrorCode.optionInvalid));
  assert.throws(() => csv("x", { maxRecordBytes: 0 }), says(ErrorCode.optionInvalid));
  assert.throws(() => ndjson("x", { badLines: "skip" as "stop" }), says(ErrorCode.optionInvalid));
});
