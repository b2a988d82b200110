// Text on its way into a store, a log or an error: cut between code points, never inside a surrogate pair, and free of what some
// reader of it can't take. PostgreSQL refuses JSON that holds half a surrogate pair, drivers end a text at NUL, and a terminal obeys
// control characters. Every other file that shortens or cleans a text uses these functions.

/** Without NUL (written out as `\0`), with U+FFFD in place of half a surrogate pair, and with at most `maxLength` UTF-16 code units. Default: all. */
export function storableText(text: string, maxLength = Number.POSITIVE_INFINITY): string {
  return cutText(text.replaceAll("\0", "\\0").toWellFormed(), maxLength);
}

/** The first `maxLength` UTF-16 code units of a well-formed text, or one fewer if that would split a surrogate pair. */
export function cutText(text: string, maxLength: number): string {
  if (text.length <= maxLength) return text;
  const splitsPair = isHighSurrogate(text.charCodeAt(maxLength - 1)) && isLowSurrogate(text.charCodeAt(maxLength));
  return text.slice(0, splitsPair ? maxLength - 1 : maxLength);
}

/** The text as one line: line breaks and other control characters (C0, DEL, C1, U+2028, U+2029) are written out, tabs become spaces. */
export function oneLine(text: string): string {
  return text.replaceAll(/[\p{Cc}\u2028\u2029]/gu, (character) => {
    if (character === "\n") return "\\n";
    if (character === "\t") return " ";
    const code = character.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code}` : `\\x${code.padStart(2, "0")}`;
  });
}

function isHighSurrogate(unit: number): boolean {
  return (unit & 0xfc00) === 0xd800;
}

function isLowSurrogate(unit: number): boolean {
  return (unit & 0xfc00) === 0xdc00;
}

/** "1 job", "3 jobs". */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** A number of bytes for people: 12345678 is "12.3 MB". */
export function humanBytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let left = value;
  let unit = 0;
  while (left >= 1_000 && unit < units.length - 1) {
    left /= 1_000;
    unit++;
  }
  return `${unit === 0 || left >= 100 ? Math.round(left) : Number(left.toFixed(1))} ${units[unit]}`;
}

/** A word as a shell takes it: quoted only if it must be. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The word that is a few keystrokes away; null: none is near. */
export function nearest(word: string, words: readonly string[]): string | null {
  const [best] = words
    .map((one) => ({ one, distance: distance(word.toLowerCase(), one.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance);
  return best && best.distance <= Math.max(1, Math.floor(word.length / 3)) ? best.one : null;
}

/** The Levenshtein distance, with a swap of neighbours as one keystroke. */
function distance(a: string, b: string): number {
  const rows: number[][] = Array.from({ length: a.length + 1 }, (_, i) => [i]);
  for (let j = 0; j <= b.length; j++) rows[0]![j] = j;
  for (let i = 1; i <= a.length; i++) {
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let least = Math.min(rows[i - 1]![j]! + 1, rows[i]![j - 1]! + 1, rows[i - 1]![j - 1]! + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        least = Math.min(least, rows[i - 2]![j - 2]! + 1);
      rows[i]![j] = least;
    }
  }
  return rows[a.length]![b.length]!;
}
