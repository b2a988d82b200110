// Promise 10, its second half: a watcher that was asleep begins its watch again. A process that calls a worker silent was awake for a
// whole lease in which that worker's heartbeat stood still; time that the watcher itself slept through proves nothing.
import type { SimProcess } from "../world/process.ts";
import type { KnownWorker, Model, Moment } from "./model.ts";
import { demand } from "./violation.ts";
import type { WorkerRow } from "./watch.ts";

export class SilenceLaw {
  readonly #model: Model;

  constructor(model: Model) {
    this.#model = model;
  }

  /** `known`: as it was before. The incident has been learnt already. */
  onChange(was: WorkerRow, is: WorkerRow, known: KnownWorker | undefined, { process, now }: Moment): void {
    if (was.state !== "live" || is.state === "live" || !process || !known || !this.#calledSilent(is.id)) return;
    const watchedMs = longestWatch(process, known.aliveAt, now, is.lease);
    demand(
      watchedMs >= is.lease,
      () =>
        `${process.name} called ${is.id} silent after a watch of ${watchedMs.toFixed(1)} ms (lease ${is.lease} ms): it was asleep itself`,
    );
  }

  #calledSilent(worker: string): boolean {
    for (const incident of this.#model.incidents.values())
      if (incident.worker === worker) return incident.how === "silent";
    return false;
  }
}

/** The longest time since `from` that was not broken by a sleep of more than a lease. */
function longestWatch({ sleeps }: SimProcess, from: number, now: number, lease: number): number {
  let since = from;
  let longest = 0;
  for (const sleep of sleeps) {
    if (sleep.to <= since || sleep.to - sleep.from <= lease) continue;
    longest = Math.max(longest, sleep.from + (sleep.unnoticedMs ?? 0) - since);
    since = sleep.to;
  }
  return Math.max(longest, now - since);
}
