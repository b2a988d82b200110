// Wake-ups between processes: writers touch a file's timestamps, and the others watch it with inotify (or the
// platform's equivalent). A proof that wake-ups arrive sets the file's mode instead, which leaves the timestamps as they are. Never the database itself: polling its data_version every 5 ms costs 3.4 % of a core. A
// missed wake-up costs one poll interval at most.
import { closeSync, fchmodSync, fstatSync, type FSWatcher, futimesSync, openSync, watch } from "node:fs";
import { join } from "node:path";
import type { Wakeup } from "../port.ts";
import { makeSideFolder } from "./lock.ts";

const MODE = 0o600;

export class WakeupChannel {
  readonly #path: string;
  readonly #fd: number;
  readonly #unwatchable: (text: string) => void;
  #watcher: FSWatcher | undefined;
  readonly #listeners = new Set<(what: Wakeup) => void>();
  /** When the file was last touched, as last seen. */
  #touchedNs = 0n;

  /**
   * `unwatchable` receives a sentence when the file can't be watched: from then on only polling finds what other
   * processes enqueue.
   */
  constructor(databasePath: string, unwatchable: (text: string) => void = () => {}) {
    this.#unwatchable = unwatchable;
    this.#path = join(makeSideFolder(databasePath), "wakeup");
    this.#fd = openSync(this.#path, "a", MODE);
  }

  notify(what: Wakeup = "wake"): void {
    // In parts of a millisecond: two wake-ups with the same time would look like a proof.
    const now = (performance.timeOrigin + performance.now()) / 1_000;
    try {
      if (what === "proof") fchmodSync(this.#fd, MODE);
      else futimesSync(this.#fd, now, now);
    } catch {
      // The other processes poll.
    }
  }

  onWakeup(listener: (what: Wakeup) => void): () => void {
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
      this.#touchedNs = fstatSync(this.#fd, { bigint: true }).mtimeNs;
      this.#watcher = watch(this.#path, { persistent: false }, () => {
        const what = this.#seen();
        for (const listener of this.#listeners) listener(what);
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

  #seen(): Wakeup {
    const { mtimeNs } = fstatSync(this.#fd, { bigint: true });
    if (mtimeNs === this.#touchedNs) return "proof";
    this.#touchedNs = mtimeNs;
    return "wake";
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
