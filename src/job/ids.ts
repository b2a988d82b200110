// Ids are made by the enqueuer, before the store is asked, so that a repeated enqueue is the same enqueue.
// They sort by time, which keeps the id index growing at its right edge only.
import type { Clock, Random } from "./clock.ts";
import { ErrorCode, OutliveError } from "./errors.ts";
import { storableText } from "./text.ts";

/** Crockford's, in small letters: no i, l, o, u. */
export const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";
const MAX_KEY = 255;

/** A source of ids of 22 characters: 10 of time (ms), 12 that start at random and count up within a ms; one bit is left for the carry. */
export function idSource(clock: Clock, random: Random): () => string {
  let lastMs = -1;
  let time = "";
  let high = 0;
  let low = 0;
  return () => {
    const ms = clock.now();
    if (ms !== lastMs) {
      lastMs = ms;
      time = base32(ms, 10);
      high = Number.parseInt(random.hex(4), 16) >>> 3;
      low = Number.parseInt(random.hex(4), 16) >>> 2;
    } else if (++low > 0x3fff_ffff) {
      low = 0;
      high++;
    }
    return time + base32(high, 6) + base32(low, 6);
  };
}

function base32(value: number, width: number): string {
  let text = "";
  for (let left = value; text.length < width; left = Math.floor(left / 32)) text = ALPHABET[left % 32] + text;
  return text;
}

/** Ids, dedupe keys, kinds and step names: 1 to 255 characters, no NUL, no control characters, no lone surrogates. */
export function assertKey(value: unknown, what: string): asserts value is string {
  const wrong =
    typeof value !== "string"
      ? `is not a text but ${typeof value}`
      : value.length === 0
        ? "is empty"
        : value.length > MAX_KEY
          ? `has ${value.length} characters, at most ${MAX_KEY} are allowed`
          : /\p{Cc}/u.test(value)
            ? "contains NUL or a control character"
            : value.isWellFormed()
              ? undefined
              : "contains half a surrogate pair";
  if (wrong !== undefined) {
    throw new OutliveError(
      ErrorCode.keyInvalid,
      `${what} ${wrong}.`,
      `Use 1 to ${MAX_KEY} printable characters; hash longer keys before you pass them.`,
      { what, value: typeof value === "string" ? storableText(value, 300) : value },
    );
  }
}

/** A kind is a name that ends up in file names, metrics and SQL of every store: letters, digits and `. _ - : /`. */
export function assertKind(value: unknown): asserts value is string {
  assertKey(value, "The kind");
  if (!/^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$/.test(value)) {
    throw new OutliveError(
      ErrorCode.keyInvalid,
      `The kind ${JSON.stringify(value)} is not a name.`,
      "Use letters, digits and . _ - : / (at most 128, the first a letter or digit).",
      { what: "kind", value },
    );
  }
}
