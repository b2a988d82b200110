// Keeps secrets out of the log: values under keys that look like secrets, and what looks like one inside a text. It is a net, no
// proof: a secret under an innocent key passes.
import { oneLine, storableText } from "../job/text.ts";

const SECRET_KEY =
  /pass(?:word|wd|phrase)?$|passwd|password|secret|token|authorization|api[-_]?key|private[-_]?key|access[-_]?key|cookie|credential|session[-_]?id/i;
const HIDDEN = "[redacted]";
const MAX_DEPTH = 6;

/** The same data without its secrets; what it is given is not changed. */
export function redact(value: unknown, depth = 0): unknown {
  if (typeof value === "string") return redactText(value);
  if (typeof value !== "object" || value === null) return typeof value === "bigint" ? String(value) : value;
  if (depth >= MAX_DEPTH) return "[deep]";
  if (Array.isArray(value)) return value.map((item) => redact(item, depth + 1));
  if (value instanceof Date) return value;
  if (value instanceof Error) return { name: value.name, message: redactText(value.message) };
  const entries = Object.entries(value).map(([key, inner]): [string, unknown] => [
    key,
    isSecret(key) && inner !== null && inner !== undefined ? HIDDEN : redact(inner, depth + 1),
  ]);
  return Object.fromEntries(entries);
}

export function isSecret(key: string): boolean {
  return SECRET_KEY.test(key);
}

/**
 * `password=...`, `"apiKey": "..."`, `Authorization: Bearer ...`, and the password inside an address. A text that was redacted before
 * stays as it is. Every pattern starts at a fixed word and nests no repetition, so the time is linear in the length of the text.
 */
export function redactText(text: string): string {
  return text
    .replaceAll(/\b(bearer\s+)[\w.~+/=-]{6,}/gi, `$1${HIDDEN}`)
    .replaceAll(/\b(authorization["']?\s*[:=]\s*["']?(?:basic|digest|negotiate)\s+)[^\s"',;]+/gi, `$1${HIDDEN}`)
    .replaceAll(
      /((?:pass(?:word|wd|phrase)?|secret|token|api[-_]?key|private[-_]?key|access[-_]?key|cookie)["']?\s*[:=]\s*)(?!\[redacted\])(?:"[^"]*"|'[^']*'|[^\s"',;&)}\]]+)/gi,
      `$1${HIDDEN}`,
    )
    .replaceAll(/(:\/\/[^\s/:@]*:)[^\s/@]+@/g, `$1${HIDDEN}@`);
}

// What is kept of the last words of a process, in the store and in reports. A process that dies of an uncaught error prints whatever
// its program put into the message, so this passes the same net as the log.

/** One line without secrets, at most `maxLength` long. Cut last: the net would not know half of an address with a password in it. */
export function evidenceText(words: string, maxLength: number): string {
  return storableText(oneLine(redactText(words)), maxLength);
}
