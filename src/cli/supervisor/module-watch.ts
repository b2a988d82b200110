// Tells when a module of the program has changed: the files that match the patterns and those that were loaded. Folders are
// watched, because editors replace files; what counts is whether a file's size or time of change is another.
import { type FSWatcher, statSync, watch } from "node:fs";
import { dirname, resolve } from "node:path";
import { findModules } from "./job-modules.ts";
import type { JobGlobs } from "./messages.ts";

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
        // No such folder (yet): its parent tells when it comes, if that is watched.
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
