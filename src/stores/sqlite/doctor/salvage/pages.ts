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
