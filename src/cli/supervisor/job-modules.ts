// From patterns to jobs: finds the modules, imports them, and collects every exported job that has a handler, also in
// arrays and objects one level deep.
import { type FSWatcher, statSync, watch } from "node:fs";
import { glob } from "node:fs/promises";
import { dirname, resolve, sep } from "node:path";
import { pathToFileURL } from "node:url";
import { isBatch, isScheduleDeclaration } from "../../engine/batch.ts";
import { isCollection } from "../../engine/collection.ts";
import { isRequest } from "../../engine/request.ts";
import type { Declared } from "../../engine/options.ts";
import type { Middleware } from "../../engine/middleware.ts";
import { PROGRAM_OPTIONS } from "../../engine/settings.ts";
import type { AnyContract } from "../../job/contract.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { userFrames } from "../../telemetry/log.ts";
import type { JobGlobs } from "./child.ts";
import { counted } from "../../job/text.ts";

/** Declarations, and tests that sit next to what they test: loading a test would run it in a worker. */
const NOT_A_JOB_MODULE = /\.(d|test|spec)\.[cm]?[jt]sx?$/;

/**
 * The matching files, in a stable order. Patterns skip tests, declarations and node_modules; a file named explicitly is
 * always included.
 */
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

/** The job of this name in the modules, with or without a handler; null: no module exports one. */
export async function findJob(globs: JobGlobs, kind: string): Promise<AnyContract | null> {
  for (const file of await findModules(globs)) {
    const found = contractsOf(await load(file)).find(({ name }) => name === kind);
    if (found) return found;
  }
  return null;
}

/** All jobs of the modules, with or without a handler. */
export async function allJobs(globs: JobGlobs): Promise<readonly AnyContract[]> {
  const contracts = new Set<AnyContract>();
  for (const file of await findModules(globs)) for (const one of contractsOf(await load(file))) contracts.add(one);
  return [...contracts];
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
  const runnable = [...contracts].filter(hasHandler);
  if (runnable.length > 0) return runnable;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${counted(files.length, "file matches", "files match")} ${where}, and none exports a job with a handler` +
      (contracts.size > 0 ? ` (without one: ${[...contracts].map(({ name }) => name).join(", ")}).` : "."),
    "Export what job() returned, after .handle(...): export const mail = job(...).handle(...).",
    { globs: globs.patterns, files: files.slice(0, 20) },
  );
}

function hasHandler(contract: AnyContract): boolean {
  if (isCollection(contract)) return contract.isRunnable;
  // It is sent, and needs none.
  if (isRequest(contract)) return true;
  if (!isBatch(contract)) return contract.handler !== null;
  const { row, block } = contract.handlers;
  return row !== null || block !== null;
}

/** What these modules declare as schedules, and the jobs of those, which a program must know although another may run them. */
export async function loadSchedules(globs: JobGlobs): Promise<readonly Declared[]> {
  const found = new Set<Declared>();
  for (const file of await findModules(globs))
    for (const one of exportsOf(await load(file)))
      if (isScheduleDeclaration(one)) {
        found.add(one);
        found.add(one.contract);
      }
  return [...found];
}

/** What these modules export as their default: a middleware or several, in the order of the modules. */
export async function loadMiddleware({ base, patterns }: JobGlobs): Promise<readonly Middleware[]> {
  const { accepts } = PROGRAM_OPTIONS.middleware;
  const all: Middleware[] = [];
  for (const path of patterns) {
    const file = resolve(base, path);
    const refused = (what: string, hint: string): OutliveError =>
      new OutliveError(ErrorCode.optionInvalid, `The module ${path} of the middleware ${what}.`, hint, { file });
    if (!isFile(file)) throw refused("does not exist", `Name a file, relative to ${base}.`);
    const { default: found } = (await load(file)) as { readonly default?: unknown };
    const some: unknown = Array.isArray(found) ? found : [found];
    if (!accepts(some))
      throw refused(
        "has no middleware as its default export",
        "Write `export default { attempt(attempt, next) { ... } } satisfies Middleware`, or export an array of them.",
      );
    all.push(...(some as readonly Middleware[]));
  }
  return all;
}

async function load(file: string): Promise<object> {
  try {
    return (await import(pathToFileURL(file).href)) as object;
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${file} can't be loaded: ${thrown instanceof Error ? `${thrown.name}: ${thrown.message}${placeOf(thrown)}` : String(thrown)}`,
      "Correct the module, or narrow the pattern. Modules that Node can't run itself need --import, for example --import tsx.",
      { file },
      { cause: thrown },
    );
  }
}

/** Where in the user's code an error came from. A module that can't be parsed has its place in the first line of the stack. */
function placeOf({ stack = "" }: Error): string {
  const place = userFrames(stack)[0] ?? /^(?:file:\/\/)?\/\S+:\d+$/m.exec(stack)?.[0];
  return place === undefined ? "" : ` (${place.replace(/^at /, "at ").replaceAll("file://", "")})`;
}

function contractsOf(module: object): AnyContract[] {
  return exportsOf(module).filter(isContract);
}

/** What a module exports, also in arrays and objects one level deep. */
function exportsOf(module: object): unknown[] {
  return Object.values(module).flatMap((value: unknown) => {
    if (isContract(value) || isScheduleDeclaration(value)) return [value];
    return typeof value === "object" && value !== null ? (Object.values(value) as unknown[]) : [];
  });
}

/** Checked by shape: the program's copy of outlive may differ from the command line's. */
function isContract(value: unknown): value is AnyContract {
  if (typeof value !== "object" || value === null) return false;
  if (isCollection(value)) return true;
  const { name, settings, handle } = value as Partial<AnyContract>;
  return typeof name === "string" && typeof settings === "object" && typeof handle === "function";
}

// Detects changes of the program's modules: the files that match the patterns and those that were loaded. It watches
// folders, because editors replace files, and compares each file's size and mtime.

/** Editors write in several steps, and a checkout writes many files. */
const QUIET_MS = 150;

export class ModuleWatch {
  readonly #globs: JobGlobs;
  readonly #changed: (files: readonly string[]) => void;
  readonly #loaded = new Set<string>();
  readonly #watchers = new Map<string, FSWatcher>();
  #known = new Map<string, string>();
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(globs: JobGlobs, changed: (files: readonly string[]) => void) {
    this.#globs = globs;
    this.#changed = changed;
  }

  async start(): Promise<void> {
    this.#known = await this.#stamps();
    this.#watchFolders();
  }

  /** A worker process has loaded these. */
  loaded(files: readonly string[]): void {
    for (const file of files) {
      if (this.#loaded.has(file)) continue;
      this.#loaded.add(file);
      const stamp = stampOf(file);
      if (stamp !== null) this.#known.set(file, stamp);
    }
    this.#watchFolders();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    for (const watcher of this.#watchers.values()) watcher.close();
  }

  #watchFolders(): void {
    const folders = [...this.#known.keys()].map((file) => dirname(file));
    const roots = this.#globs.patterns.map((pattern) => resolve(this.#globs.base, fixedPart(pattern)));
    for (const folder of new Set([...folders, ...roots])) {
      if (this.#watchers.has(folder) || this.#closed) continue;
      try {
        const watcher = watch(folder, () => this.#soon());
        watcher.on("error", () => {
          watcher.close();
          this.#watchers.delete(folder);
        });
        this.#watchers.set(folder, watcher);
      } catch {
        // No such folder (yet): the watcher of its parent reports it when it appears, if there is one.
      }
    }
  }

  #soon(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#compare().catch(() => {}), QUIET_MS);
  }

  async #compare(): Promise<void> {
    const now = await this.#stamps();
    if (this.#closed) return;
    const names = new Set([...now.keys(), ...this.#known.keys()]);
    const changed = [...names].filter((file) => now.get(file) !== this.#known.get(file));
    this.#known = now;
    this.#watchFolders();
    if (changed.length > 0) this.#changed(changed);
  }

  async #stamps(): Promise<Map<string, string>> {
    const files = new Set([...(await findModules(this.#globs)), ...this.#loaded]);
    const stamps = new Map<string, string>();
    for (const file of files) {
      const stamp = stampOf(file);
      if (stamp !== null) stamps.set(file, stamp);
    }
    return stamps;
  }
}

function stampOf(file: string): string | null {
  const stat = statSync(file, { throwIfNoEntry: false });
  return stat ? `${stat.mtimeMs} ${stat.size}` : null;
}

/** `jobs` of `jobs/**\/*.ts`: the folders before the first magic character. */
function fixedPart(pattern: string): string {
  const parts = pattern.split("/");
  const magic = parts.findIndex((part) => /[*?[\]{}!()]/.test(part));
  return parts.slice(0, magic === -1 ? -1 : magic).join("/") || (pattern.startsWith("/") ? "/" : ".");
}
