// The pages of a damaged file, read without SQLite: the newest committed version of each, from the write-ahead log or the file.
// Everything that can be checked is checked. SQLite's format is described at sqlite.org/fileformat2.html.
// Trap: closing the file drops SQLite's locks of this process on it. It stays open until the process ends.
import { fstatSync, openSync, readSync, statSync } from "node:fs";

const MAGIC = Buffer.from("SQLite format 3\0");
const SIZES = [4_096, 1_024, 2_048, 8_192, 16_384, 32_768, 65_536, 512] as const;
const WAL_HEADER = 32;
const FRAME_HEADER = 24;
/** How many pages are read when the size of a page has to be guessed. */
const SAMPLE = 2_000;

export interface Header {
  readonly pageSize: number;
  /** Bytes of a page that hold data: extensions may reserve some at its end. */
  readonly usable: number;
  readonly encoding: "utf8" | "utf16le" | "utf16be";
  /** False: the header of the file is damaged, and the fields above were guessed. */
  readonly sound: boolean;
  readonly wal: boolean;
  readonly autoVacuum: 0 | 1 | 2;
  readonly userVersion: number;
  readonly applicationId: number;
  readonly freelistTrunk: number;
  readonly freelistCount: number;
}

export class Pages {
  readonly header: Header;
  readonly count: number;
  readonly #file: number;
  readonly #log: Log | null;

  /** `log` null: the file alone. */
  constructor(file: number, log: Log | null) {
    this.#file = file;
    this.#log = log;
    const { size } = fstatSync(file);
    const first = Buffer.alloc(100);
    if (log?.frames.has(1)) readSync(log.file, first, 0, 100, log.frames.get(1)!);
    else readSync(file, first, 0, 100, 0);
    this.header = readHeader(first, file, size, log?.pageSize);
    const held = Math.ceil(size / this.header.pageSize);
    this.count = log ? log.pageCount : held;
  }

  /** A page, or null if the file has none of that number. A page that is cut off is padded with zeros. */
  read(page: number): Buffer | null {
    if (page < 1 || page > this.count) return null;
    const { pageSize } = this.header;
    const bytes = Buffer.alloc(pageSize);
    const frame = this.#log?.frames.get(page);
    const read =
      frame === undefined
        ? readSync(this.#file, bytes, 0, pageSize, (page - 1) * pageSize)
        : readSync(this.#log!.file, bytes, 0, pageSize, frame);
    return read === 0 ? null : bytes;
  }
}

function readHeader(first: Buffer, file: number, size: number, logPageSize: number | undefined): Header {
  const stated = first.readUInt16BE(16);
  const pageSize = stated === 1 ? 65_536 : stated;
  const sound = first.subarray(0, 16).equals(MAGIC) && (SIZES as readonly number[]).includes(pageSize);
  const known = (SIZES as readonly number[]).includes(pageSize) ? pageSize : (logPageSize ?? guess(file, size));
  const reserved = sound && known - first[20]! >= 480 ? first[20]! : 0;
  const encodings = ["utf8", "utf8", "utf16le", "utf16be"] as const;
  return {
    pageSize: known,
    usable: known - reserved,
    encoding: encodings[first.readUInt32BE(56)] ?? "utf8",
    sound,
    wal: first[18] === 2,
    autoVacuum: first.readUInt32BE(52) === 0 ? 0 : first.readUInt32BE(64) === 0 ? 1 : 2,
    userVersion: first.readInt32BE(60),
    applicationId: first.readInt32BE(68),
    freelistTrunk: first.readUInt32BE(32),
    freelistCount: first.readUInt32BE(36),
  };
}

/** The smallest size at whose multiples pages begin as those of a tree do. */
function guess(file: number, size: number): number {
  const begins = Buffer.alloc(8);
  const share = (pageSize: number): number => {
    const pages = Math.min(SAMPLE, Math.floor(size / pageSize));
    let trees = 0;
    for (let page = 1; page < pages; page++) {
      readSync(file, begins, 0, 8, page * pageSize);
      const content = begins.readUInt16BE(5) || 65_536;
      if ([2, 5, 10, 13].includes(begins[0]!) && content <= pageSize && content >= 8) trees++;
    }
    return pages < 2 ? 0 : trees / (pages - 1);
  };
  const shares = SIZES.toSorted((a, b) => a - b).map((pageSize) => ({ pageSize, share: share(pageSize) }));
  const best = Math.max(...shares.map((one) => one.share));
  return best === 0 ? SIZES[0] : shares.find((one) => one.share > 0.7 * best)!.pageSize;
}

/** What a write-ahead log has committed: where in it the latest version of each page is. */
export interface Log {
  readonly file: number;
  readonly pageSize: number;
  readonly frames: ReadonlyMap<number, number>;
  readonly pageCount: number;
}

/** Null: there is no log, or nothing in it is committed. Every frame is checked as SQLite does; the first wrong one ends the log. */
export function readLog(path: string): Log | null {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (!stat || stat.size < WAL_HEADER + FRAME_HEADER) return null;
  const file = openSync(path, "r");
  const head = Buffer.alloc(WAL_HEADER);
  readSync(file, head, 0, WAL_HEADER, 0);
  const magic = head.readUInt32BE(0);
  const pageSize = head.readUInt32BE(8);
  if ((magic & ~1) >>> 0 !== 0x377f0682 || !(SIZES as readonly number[]).includes(pageSize)) return null;
  const sums = new Sums((magic & 1) === 1);
  sums.add(head, 0, 24);
  if (!sums.match(head, 24)) return null;

  const frames = new Map<number, number>();
  let pending = new Map<number, number>();
  let pageCount = 0;
  const frame = Buffer.alloc(FRAME_HEADER + pageSize);
  for (let at = WAL_HEADER; at + frame.length <= stat.size; at += frame.length) {
    readSync(file, frame, 0, frame.length, at);
    if (frame.compare(head, 16, 24, 8, 16) !== 0) break;
    sums.add(frame, 0, 8);
    sums.add(frame, FRAME_HEADER, frame.length);
    if (!sums.match(frame, 16)) break;
    pending.set(frame.readUInt32BE(0), at + FRAME_HEADER);
    const commit = frame.readUInt32BE(4);
    if (commit === 0) continue;
    for (const [page, where] of pending) frames.set(page, where);
    pending = new Map();
    pageCount = commit;
  }
  return frames.size === 0 ? null : { file, pageSize, frames, pageCount };
}

/** The running checksum of a log, of words in its writer's byte order. */
class Sums {
  readonly #big: boolean;
  #one = 0;
  #two = 0;

  constructor(big: boolean) {
    this.#big = big;
  }

  add(bytes: Buffer, from: number, to: number): void {
    let one = this.#one;
    let two = this.#two;
    for (let at = from; at < to; at += 8) {
      const first = this.#big ? bytes.readUInt32BE(at) : bytes.readUInt32LE(at);
      const second = this.#big ? bytes.readUInt32BE(at + 4) : bytes.readUInt32LE(at + 4);
      one = (one + first + two) >>> 0;
      two = (two + second + one) >>> 0;
    }
    this.#one = one;
    this.#two = two;
  }

  match(bytes: Buffer, at: number): boolean {
    return bytes.readUInt32BE(at) === this.#one && bytes.readUInt32BE(at + 4) === this.#two;
  }
}

// Cells and records of SQLite's trees, read one by one and checked. A cell that contradicts itself is skipped; a record whose end is on
// an unreadable page has the values before it.

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
