// Cells and records of SQLite's trees, read one by one and checked. A cell that contradicts itself is skipped; a record whose end is on
// an unreadable page has the values before it.
import type { Pages } from "./pages.ts";

/** A stored value; undefined: it can't be read. */
export type Value = null | number | bigint | string | Uint8Array | BadText | undefined;

/** Text whose bytes are not valid in its encoding: kept as they are. */
export class BadText {
  readonly bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

export interface Cell {
  /** Of a table's leaf; 0 elsewhere. */
  readonly rowid: number | bigint;
  readonly values: readonly Value[];
  /** False: its end is on pages that can't be read. */
  readonly complete: boolean;
}

/** Reads one number of 1 to 9 bytes after the other. */
export class Cursor {
  readonly #bytes: Uint8Array;
  at: number;

  constructor(bytes: Uint8Array, at: number) {
    this.#bytes = bytes;
    this.at = at;
  }

  /** As a 64-bit number with sign, in the smallest form that holds it. */
  varint(): number | bigint {
    let value = 0;
    for (let n = 0; n < 7; n++) {
      const byte = this.#bytes[this.at++] ?? 0;
      value = value * 128 + (byte & 0x7f);
      if (byte < 0x80) return value;
    }
    let large = BigInt(value);
    const eighth = this.#bytes[this.at++] ?? 0;
    large = (large << 7n) | BigInt(eighth & 0x7f);
    if (eighth >= 0x80) large = (large << 8n) | BigInt(this.#bytes[this.at++] ?? 0);
    return small(BigInt.asIntN(64, large));
  }

  /** As a length; -1: it is not one. */
  length(): number {
    const value = this.varint();
    return typeof value === "number" && value >= 0 ? value : -1;
  }
}

function small(value: bigint): number | bigint {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}

/** The cell of a table's leaf, or of an index's page (`at` is after the pointer to the child). Null: it contradicts itself. */
export function readCell(pages: Pages, page: Buffer, at: number, kind: "table" | "index"): Cell | null {
  const { usable, encoding } = pages.header;
  const cursor = new Cursor(page, at);
  const length = cursor.length();
  if (length < 1 || length > 1_000_000_000) return null;
  const rowid = kind === "table" ? cursor.varint() : 0;
  const local = localLength(length, usable, kind);
  if (cursor.at + local > usable) return null;
  const payload = readPayload(pages, page, cursor.at, local, length);
  const values = decode(payload, length, encoding);
  return values && { rowid, values, complete: payload.length === length };
}

function localLength(length: number, usable: number, kind: "table" | "index"): number {
  const max = kind === "table" ? usable - 35 : Math.floor(((usable - 12) * 64) / 255) - 23;
  if (length <= max) return length;
  const min = Math.floor(((usable - 12) * 32) / 255) - 23;
  const fitting = min + ((length - min) % (usable - 4));
  return fitting <= max ? fitting : min;
}

/** What does not fit on the page is on a chain of overflow pages. A chain that breaks ends the record there. */
function readPayload(pages: Pages, page: Buffer, at: number, local: number, length: number): Buffer {
  const parts = [page.subarray(at, at + local)];
  if (local === length) return parts[0]!;
  const room = pages.header.usable - 4;
  let next = page.readUInt32BE(at + local);
  for (let left = length - local; left > 0; left -= room) {
    const bytes = next < 2 ? null : pages.read(next);
    if (!bytes) break;
    next = bytes.readUInt32BE(0);
    // A chain that ends early, or continues after the end, is not this record's.
    if (left > room ? next === 0 : next !== 0) break;
    parts.push(bytes.subarray(4, 4 + Math.min(left, room)));
  }
  return Buffer.concat(parts);
}

/** Null: the header of the record contradicts its length. */
function decode(bytes: Buffer, length: number, encoding: Pages["header"]["encoding"]): Value[] | null {
  const cursor = new Cursor(bytes, 0);
  const headLength = cursor.length();
  if (headLength < 1 || headLength > length || headLength > bytes.length) return null;
  const types: number[] = [];
  let end = headLength;
  while (cursor.at < headLength) {
    const type = cursor.length();
    if (type < 0 || type === 10 || type === 11) return null;
    types.push(type);
    end += sizeOf(type);
  }
  if (cursor.at !== headLength || end !== length) return null;
  let at = headLength;
  return types.map((type) => {
    const from = at;
    at += sizeOf(type);
    // A null has no bytes after the header.
    return at > bytes.length && at > from ? undefined : valueOf(type, bytes, from, at, encoding);
  });
}

const FIXED = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0] as const;

function sizeOf(type: number): number {
  return type < 10 ? FIXED[type]! : Math.floor((type - 12) / 2);
}

function valueOf(type: number, bytes: Buffer, from: number, to: number, encoding: string): Value {
  switch (type) {
    case 0:
      return null;
    case 7:
      return bytes.readDoubleBE(from);
    case 6:
      return small(bytes.readBigInt64BE(from));
    case 8:
      return 0;
    case 9:
      return 1;
    default:
      if (type < 6) return bytes.readIntBE(from, to - from);
      // A copy, so that one value does not keep its page in memory.
      return type % 2 === 0 ? Uint8Array.from(bytes.subarray(from, to)) : textOf(bytes.subarray(from, to), encoding);
  }
}

function textOf(bytes: Buffer, encoding: string): Value {
  if (encoding === "utf8") {
    const text = bytes.toString("utf8");
    return !text.includes("\uFFFD") || Buffer.from(text).equals(bytes) ? text : new BadText(Uint8Array.from(bytes));
  }
  if (bytes.length % 2 === 1) return new BadText(Uint8Array.from(bytes));
  const little = encoding === "utf16be" ? Buffer.from(bytes).swap16() : bytes;
  const text = little.toString("utf16le");
  return text.isWellFormed() ? text : new BadText(Uint8Array.from(bytes));
}
