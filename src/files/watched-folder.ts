// A folder into which other programs put files. Each file is taken once and moved to `done` or `failed` below the folder when it has been read. What a file
// has come to is asked of the store, by a name that is made of the file: killed anywhere, the next scan of any process continues.
import { createHash } from "node:crypto";
import { mkdir, readdir, rename, stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { CallOff, Clock } from "../job/time.ts";

/** What a file has come to. */
export type FileState = "waiting" | "done" | "failed";

export interface WatchedFolderDeps {
  readonly clock: Clock;
  readonly events: Emitter;
  /** Has this file read, once for each name, and says what has become of that. */
  readonly take: (path: string, name: string) => Promise<FileState>;
}

const OUTCOMES = ["done", "failed"] as const;

export class WatchedFolder {
  readonly folder: string;
  readonly #deps: WatchedFolderDeps;
  readonly #everyMs: number;
  /** Of each file at the last scan: one that is still written is another one at the next. */
  #seen = new Map<string, string>();
  #timer: CallOff | undefined;
  #scanning: Promise<void> | undefined;
  #stopped = false;

  constructor(folder: string, everyMs: number, deps: WatchedFolderDeps) {
    this.folder = resolve(folder);
    this.#everyMs = everyMs;
    this.#deps = deps;
  }

  /** Rejects if the folder can't be used. */
  async start(): Promise<this> {
    try {
      for (const outcome of OUTCOMES) await mkdir(join(this.folder, outcome), { recursive: true });
      await readdir(this.folder);
    } catch (thrown) {
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The folder ${this.folder} can't be watched: ${(thrown as Error).message}.`,
        "Name a folder that this process may read and write: files are moved to `done` and `failed` in it.",
        { folder: this.folder },
        { cause: thrown },
      );
    }
    this.#later(0);
    return this;
  }

  /** Ends the watch. Files that were taken are read to their end by workers, and moved by the next watch. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#timer?.();
    await this.#scanning;
  }

  #later(ms: number): void {
    if (this.#stopped) return;
    this.#timer = this.#deps.clock.after(ms, () => {
      this.#scanning = this.#scan()
        .catch((thrown: unknown) => this.#failed(thrown))
        .finally(() => this.#later(this.#everyMs));
    });
  }

  async #scan(): Promise<void> {
    const entries = await readdir(this.folder, { withFileTypes: true });
    const seen = new Map<string, string>();
    for (const entry of entries.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
      if (this.#stopped) return;
      // Hidden files are those that others write before they give them their name.
      if (!entry.isFile() || entry.name.startsWith(".")) continue;
      try {
        const form = await this.#formOf(entry.name);
        if (form === null) continue;
        seen.set(entry.name, form);
        if (this.#seen.get(entry.name) === form) await this.#take(entry.name, form);
      } catch (thrown) {
        this.#failed(thrown);
      }
    }
    this.#seen = seen;
  }

  /** Null: it is gone, moved by another process for instance. */
  async #formOf(name: string): Promise<string | null> {
    const found = await stat(join(this.folder, name)).catch(() => null);
    return found === null ? null : `${found.size} ${found.mtimeMs}`;
  }

  async #take(name: string, form: string): Promise<void> {
    const path = join(this.folder, name);
    const hash = createHash("sha256").update(`${path}\n${form}`).digest("hex").slice(0, 32);
    const state = await this.#deps.take(path, hash);
    if (state === "waiting") return;
    const target = join(this.folder, state, name);
    const isThere = (await stat(target).catch(() => null)) !== null;
    await rename(path, isThere ? join(this.folder, state, `${hash.slice(0, 8)}-${name}`) : target).catch(
      (thrown: unknown) => {
        if ((thrown as { code?: string }).code !== "ENOENT") throw thrown;
      },
    );
  }

  #failed(thrown: unknown): void {
    const error = toStoredError(thrown);
    this.#deps.events.emit("folder.failed", { folder: this.folder, error, retryInMs: this.#everyMs });
  }
}
