// Wake-ups between processes: writers touch a file's timestamps, and the others watch it with inotify (or the
// platform's equivalent). Never the database itself: polling its data_version every 5 ms costs 3.4 % of a core. A
// missed wake-up costs one poll interval at most.
import { closeSync, type FSWatcher, futimesSync, openSync, watch } from "node:fs";
import { join } from "node:path";
import { makeSideFolder } from "./lock.ts";

export class WakeupChannel {
  readonly #path: string;
  readonly #fd: number;
  readonly #unwatchable: (text: string) => void;
  #watcher: FSWatcher | undefined;
  readonly #listeners = new Set<() => void>();

  /**
   * `unwatchable` receives a sentence when the file can't be watched: from then on only polling finds what other
   * processes enqueue.
   */
  constructor(databasePath: string, unwatchable: (text: string) => void = () => {}) {
    this.#unwatchable = unwatchable;
    this.#path = join(makeSideFolder(databasePath), "wakeup");
    this.#fd = openSync(this.#path, "a", 0o600);
  }

  notify(): void {
    const now = Date.now() / 1_000;
    try {
      futimesSync(this.#fd, now, now);
    } catch {
      // The other processes poll.
    }
  }

  onWakeup(listener: () => void): () => void {
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
      this.#watcher.on("error", (thrown) => {
        this.#unwatch();
        this.#warn(thrown);
      });
    } catch (thrown) {
      // No watches left, or not supported on this platform: polling is the fallback.
      this.#warn(thrown);
    }
  }

  #warn(thrown: unknown): void {
    const why = thrown instanceof Error ? thrown.message : String(thrown);
    this.#unwatchable(
      `The file ${this.#path} can't be watched (${why}), so this process notices jobs of other processes only when it polls. On Linux, raise fs.inotify.max_user_watches or fs.inotify.max_user_instances, and start it again.`,
    );
  }

  #unwatch(): void {
    this.#watcher?.close();
    this.#watcher = undefined;
  }
}
