// From patterns to jobs: finds the modules, imports them, and takes every exported job that has a handler, also in arrays and
// objects one level deep.
import { statSync } from "node:fs";
import { glob } from "node:fs/promises";
import { resolve, sep } from "node:path";
import { pathToFileURL } from "node:url";
import type { AnyContract } from "../../core/contract.ts";
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { JobGlobs } from "./messages.ts";

/** Declarations, and tests that lie next to what they test: loading a test would run it in a worker. */
const NOT_A_JOB_MODULE = /\.(d|test|spec)\.[cm]?[jt]sx?$/;

/** The files that match, in a stable order. No pattern finds tests, declarations or node_modules; a file that is named itself is taken. */
export async function findModules({ base, patterns }: JobGlobs): Promise<string[]> {
  const named = patterns.map((pattern) => resolve(base, pattern)).filter(isFile);
  const found = new Set<string>();
  for await (const file of glob(patterns, { cwd: base, exclude: (name) => name === "node_modules" }))
    if (!NOT_A_JOB_MODULE.test(file)) found.add(resolve(base, file));
  const ours = [...found].filter((file) => !file.includes(`${sep}node_modules${sep}`));
  return [...new Set([...named, ...ours])].sort();
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}

export async function loadJobs(globs: JobGlobs): Promise<readonly AnyContract[]> {
  const files = await findModules(globs);
  const where = `${globs.patterns.map((pattern) => JSON.stringify(pattern)).join(", ")} in ${globs.base}`;
  if (files.length === 0)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `No file matches ${where}.`,
      "Name the modules that export your jobs: outlive work 'jobs/**/*.ts', or `jobs` in the configuration.",
      { globs: globs.patterns },
    );
  const contracts = new Set<AnyContract>();
  for (const file of files) for (const contract of contractsOf(await load(file))) contracts.add(contract);
  const runnable = [...contracts].filter(({ handler }) => handler !== null);
  if (runnable.length > 0) return runnable;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${files.length} file(s) match ${where}, and none exports a job with a handler` +
      (contracts.size > 0 ? ` (${[...contracts].map(({ name }) => name).join(", ")} have none).` : "."),
    "Export what job() returned, after .handle(...): export const mail = job(...).handle(...).",
    { globs: globs.patterns, files: files.slice(0, 20) },
  );
}

async function load(file: string): Promise<object> {
  try {
    return (await import(pathToFileURL(file).href)) as object;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${file} can't be loaded: ${thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown)}`,
      "Correct the module, or narrow the pattern. Modules that Node can't run itself need --import, for example --import tsx.",
      { file },
      { cause: thrown },
    );
  }
}

function contractsOf(module: object): AnyContract[] {
  return Object.values(module).flatMap((value: unknown) => {
    if (isContract(value)) return [value];
    const inside: unknown[] = typeof value === "object" && value !== null ? Object.values(value) : [];
    return inside.filter(isContract);
  });
}

/** By its shape: the program's own copy of outlive may be another one than the command line's. */
function isContract(value: unknown): value is AnyContract {
  if (typeof value !== "object" || value === null) return false;
  const { name, settings, handle } = value as Partial<AnyContract>;
  return typeof name === "string" && typeof settings === "object" && typeof handle === "function";
}
