// Finds and reads a configuration file, `outlive.config.ts` or `outlive.yaml`: each value with its dotted key and its line. What
// the values mean, and which source wins, is in config.ts.
import { existsSync, readFileSync } from "node:fs";
import { relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Node } from "yaml";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { type Leaf, leavesOf, type LoadedConfig, mayBeObject, resolveConfig, unusable } from "./config.ts";

export interface ConfigSources {
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly flags: { readonly file?: string | undefined; readonly store?: string | undefined };
}

/** The names under which a configuration is found in the working directory. */
export const CONFIG_FILES = [
  "outlive.config.ts",
  "outlive.config.mts",
  "outlive.config.mjs",
  "outlive.config.js",
  "outlive.yaml",
  "outlive.yml",
];

/** The configuration of the command line: file, environment and flags. Rejects with OPTION_INVALID that names file and line. */
export async function loadConfig({ cwd, env, flags }: ConfigSources): Promise<LoadedConfig> {
  const file = findFile(cwd, flags.file);
  const leaves = file === null ? [] : await readLeaves(file, relative(cwd, file) || file);
  const call = flags.store === undefined ? [] : [{ key: "store", value: flags.store, source: "--store" }];
  return { file, ...resolveConfig({ config: leaves, env, call }) };
}

function findFile(cwd: string, named: string | undefined): string | null {
  if (named !== undefined) {
    const file = resolve(cwd, named);
    if (!existsSync(file))
      throw unusable(
        `There is no configuration file ${named}.`,
        "Check --config, or remove it to use the file in this folder.",
      );
    return file;
  }
  const found = CONFIG_FILES.filter((name) => existsSync(resolve(cwd, name)));
  if (found.length > 1)
    throw unusable(
      `There are ${found.length} configuration files: ${found.join(", ")}.`,
      "Keep one, or name it with --config.",
    );
  return found[0] === undefined ? null : resolve(cwd, found[0]);
}

/** The values of a file, in its order. `name` is the file's name in sources and errors. */
async function readLeaves(file: string, name: string): Promise<readonly Leaf[]> {
  return /\.ya?ml$/.test(file) ? readYaml(file, name) : readModule(file, name);
}

async function readYaml(file: string, name: string): Promise<readonly Leaf[]> {
  // Loaded here: its 70 files would be a sixth of what starting a program costs, and most programs have no such file.
  const { isMap, isScalar, isSeq, LineCounter, parseDocument } = await import("yaml");
  const lines = new LineCounter();
  const document = parseDocument(readFileSync(file, "utf8"), { lineCounter: lines });
  const [error] = document.errors;
  if (error)
    throw unusable(`${name}:${error.linePos?.[0].line ?? 1}: ${error.message.split("\n")[0]}`, "Correct the YAML.");
  const leaves: Leaf[] = [];
  const walk = (node: unknown, key: string): void => {
    if (isMap(node) && !mayBeObject(key)) {
      for (const { key: member, value } of node.items)
        walk(value ?? member, key === "" ? String(member) : `${key}.${String(member)}`);
      return;
    }
    const line = lines.linePos((node as Node | null)?.range?.[0] ?? 0).line;
    const value = isMap(node) || isSeq(node) || isScalar(node) ? (node.toJSON() as unknown) : node;
    leaves.push({ key, value, source: `${name}:${line}` });
  };
  walk(document.contents, "");
  return leaves.filter(({ key }) => key !== "");
}

async function readModule(file: string, name: string): Promise<readonly Leaf[]> {
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
    throw unusable(`${name} has no default export.`, "Write `export default defineConfig({ ... })`.");
  const text = readFileSync(file, "utf8").split("\n");
  return leavesOf(config, (path) => `${name}:${lineOf(text, path)}`);
}

/** Good enough for a message: from the line of its group on, the first line that begins with the key, or else has it. Comments are skipped. */
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
