// Wake-ups between processes: a file whose times are touched, watched by inotify (or what the platform has). Never the
// database itself: polling its data_version every 5 ms costs 3.4 % of a core. A missed ring costs one poll interval, no more.
import { closeSync, futimesSync, openSync, watch, type FSWatcher } from "node:fs";
import { join } from "node:path";
import { makeSideFolder } from "./lock.ts";

export class Bell {
  readonly #path: string;
  readonly #fd: number;
  #watcher: FSWatcher | undefined;
  readonly #listeners = new Set<() => void>();

  constructor(databasePath: string) {
    this.#path = join(makeSideFolder(databasePath), "bell");
    this.#fd = openSync(this.#path, "a", 0o600);
  }

  ring(): void {
    const now = Date.now() / 1_000;
    try {
      futimesSync(this.#fd, now, now);
    } catch {
      // The others poll.
    }
  }

  onRing(listener: () => void): () => void {
    this.#listeners.add(listener);
    this.#watch();
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#unwatch();
    };
  }

  close(): void {
    this.#listeners.clear();
    this.#unwatch();
    closeSync(this.#fd);
  }

  #watch(): void {
    if (this.#watcher) return;
    try {
      this.#watcher = watch(this.#path, { persistent: false }, () => {
        for (const listener of this.#listeners) listener();
      });
      this.#watcher.on("error", () => this.#unwatch());
    } catch {
      // No watches left, or none on this platform: polling is the fallback.
    }
  }

  #unwatch(): void {
    this.#watcher?.close();
    this.#watcher = undefined;
  }
}
