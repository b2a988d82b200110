// What a configuration file says: each value with its dotted key and the line that it stands in. Whether the key is known, and what
// the value means, is for config-file.ts.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import type { Node } from "yaml";
import { SETTINGS } from "./config-settings.ts";
import { ErrorCode, OutliveError } from "./core/errors.ts";

/** Settings whose value may be an object. */
const OBJECTS: ReadonlySet<string> = new Set(SETTINGS.filter(({ object }) => object).map(({ key }) => key));

/** A value, and who said it: "default", "outlive.yaml:7", "OUTLIVE_STORE", "--store". */
export interface Said {
  readonly value: unknown;
  readonly source: string;
}

/** A value of the file, its dotted key, and "name:line". */
export interface Leaf extends Said {
  readonly key: string;
}

/** The values of a file, in its order. `name`: what it is called in sources and errors. */
export async function readLeaves(file: string, name: string): Promise<Leaf[]> {
  return /\.ya?ml$/.test(file) ? readYaml(file, name) : readModule(file, name);
}

async function readYaml(file: string, name: string): Promise<Leaf[]> {
  // Loaded here: its 70 files would be a sixth of what starting a program costs, and most have no such file.
  const { isMap, isScalar, isSeq, LineCounter, parseDocument } = await import("yaml");
  const lines = new LineCounter();
  const document = parseDocument(readFileSync(file, "utf8"), { lineCounter: lines });
  const [error] = document.errors;
  if (error)
    throw wrong(`${name}:${error.linePos?.[0].line ?? 1}: ${error.message.split("\n")[0]}`, "Correct the YAML.");
  const leaves: Leaf[] = [];
  const walk = (node: unknown, key: string): void => {
    if (isMap(node) && !OBJECTS.has(key)) {
      for (const { key: name_, value } of node.items)
        walk(value ?? name_, key === "" ? String(name_) : `${key}.${String(name_)}`);
      return;
    }
    const line = lines.linePos((node as Node | null)?.range?.[0] ?? 0).line;
    const value = isMap(node) || isSeq(node) || isScalar(node) ? (node.toJSON() as unknown) : node;
    leaves.push({ key, value, source: `${name}:${line}` });
  };
  walk(document.contents, "");
  return leaves.filter(({ key }) => key !== "");
}

async function readModule(file: string, name: string): Promise<Leaf[]> {
  let config: unknown;
  try {
    config = ((await import(pathToFileURL(file).href)) as { default?: unknown }).default;
  } catch (cause) {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${name} can't be loaded: ${(cause as Error).message}.`,
      "Correct the file; `node --check` may say more.",
      { file },
      { cause },
    );
  }
  if (typeof config !== "object" || config === null)
    throw wrong(`${name} has no default export.`, "Write `export default defineConfig({ ... })`.");
  const text = readFileSync(file, "utf8").split("\n");
  const leaves: Leaf[] = [];
  const walk = (value: unknown, path: readonly string[]): void => {
    const isGroup = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isGroup && path.length < 3 && !OBJECTS.has(path.join("."))) {
      for (const [key, member] of Object.entries(value)) walk(member, [...path, key]);
    } else leaves.push({ key: path.join("."), value, source: `${name}:${lineOf(text, path)}` });
  };
  walk(config, []);
  return leaves;
}

/** Good enough for a message: from the line of its group on, the first that begins with the key, or else has it; no comment. */
function lineOf(lines: readonly string[], path: readonly string[]): number {
  const code = lines.map((line) => (/^\s*(\/\/|\/?\*)/.test(line) ? "" : line.replace(/\s\/\/.*$/, "")));
  const at = path.reduce((from, key) => {
    const name = `["']?${RegExp.escape(key)}["']?\\s*:`;
    const begins = new RegExp(`^\\s*${name}`);
    const has = new RegExp(`(^|[\\s{,])${name}`);
    if (from >= 0 && has.test(code[from]!)) return from;
    const first = code.findIndex((line, i) => i > from && begins.test(line));
    return first >= 0 ? first : code.findIndex((line, i) => i > from && has.test(line));
  }, -1);
  return Math.max(0, at) + 1;
}

/** An error of the configuration. */
export function wrong(what: string, hint: string): OutliveError {
  return new OutliveError(ErrorCode.optionInvalid, what, hint);
}
