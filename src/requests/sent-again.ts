// Reports each request that is sent again after a death, with the worker that had it. Only the incident names that worker, so it is read once for all that follow one death.
import type { Emitter } from "../job/events.ts";
import { type Clock, pause } from "../job/time.ts";
import type { Store } from "../stores/port.ts";

/** One death is followed by many, within moments. */
const GATHER_MS = 50;
/** How many incidents are read at most to find the one of a request. */
const RECENT = 10;

interface Again {
  readonly jobId: string;
  readonly kind: string;
  readonly attempt: number;
  readonly host: string;
}

export interface SentAgainDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly events: Emitter;
}

export class SentAgain {
  readonly #deps: SentAgainDeps;
  /** Those that wait for the name of a worker; undefined: none do, and nothing is read. */
  #waiting: Again[] | undefined;

  constructor(deps: SentAgainDeps) {
    this.#deps = deps;
  }

  report(one: Again): void {
    if (!this.#deps.events.has("request.sentAgain")) return;
    if (this.#waiting) return void this.#waiting.push(one);
    this.#waiting = [one];
    void this.#reportAll();
  }

  async #reportAll(): Promise<void> {
    const { clock, events } = this.#deps;
    /** By job and attempt. */
    const workers = new Map<string, string>();
    for (;;) {
      await pause(clock, GATHER_MS);
      const all = this.#waiting!.splice(0);
      if (all.length === 0) break;
      const before = ({ jobId, attempt }: Again): string => `${jobId} ${attempt - 1}`;
      // A store that can't be read now costs the report a name.
      await this.#find(all.map(before), workers).catch(() => {});
      for (const one of all) events.emit("request.sentAgain", { ...one, worker: workers.get(before(one)) ?? null });
    }
    this.#waiting = undefined;
  }

  /** The latest incidents, until each of these is in one. */
  async #find(wanted: readonly string[], workers: Map<string, string>): Promise<void> {
    const { inspect } = this.#deps.store;
    const isFound = (): boolean => wanted.every((one) => workers.has(one));
    if (isFound()) return;
    for (const { id, worker } of await inspect.incidents(RECENT, null)) {
      const incident = await inspect.incident(id);
      for (const { jobId, fence } of incident?.jobs ?? []) workers.set(`${jobId} ${fence}`, worker);
      if (isFound()) return;
    }
  }
}
