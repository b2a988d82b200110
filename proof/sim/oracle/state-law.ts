// Promises 2, 4 and 8 on every single change of a job's row: which states follow each other, that (epoch, fence) only grows,
// that nothing disappears, and that each end of an attempt counts once, in its own counter, and never at the claim.
import { isTerminal, type Model, OUTCOME, STATE, STATE_NAMES } from "./model.ts";
import type { HistoryRow, JobRow } from "./watch.ts";
import { convicts } from "./batches-law.ts";
import { demand, Violation } from "./violation.ts";

export interface LimitsOf {
  (kind: string): { readonly errors: number; readonly timeouts: number; readonly rows?: boolean };
}

export class StateLaw {
  readonly #limits: LimitsOf;
  /** The highest (epoch, fence) that was ever issued for a job, whatever the disk remembers of it. */
  readonly #issued = new Map<string, { readonly epoch: number; readonly fence: number }>();

  constructor(limits: LimitsOf) {
    this.#limits = limits;
  }

  onChange(was: JobRow | null, is: JobRow | null): void {
    demand(is !== null, () => `job ${was!.id} was deleted`);
    if (was === null) {
      demand(is.state === STATE.queued && is.fence === 0, () => `job ${is.id} began as ${name(is)}`);
      return;
    }
    this.#fences(was, is);
    this.#counters(was, is);
    this.#bounds(is);
  }

  /** What was written down stays. */
  onHistory(was: HistoryRow | null): void {
    demand(was === null, () => `"${was!.event}" was taken out of the history of job ${was!.job}`);
  }

  /** A terminal state is left only by a retry that is written down in the same transaction. */
  onMoment(
    changes: readonly { readonly was: JobRow | null; readonly is: JobRow | null }[],
    history: readonly HistoryRow[],
    model: Model,
  ): void {
    for (const { was, is } of changes) {
      if (!was || !is || !isTerminal(was.state) || was.state === is.state) continue;
      const recorded = history.filter(
        ({ job, event, from }) => job === is.seq && event === "retry" && from === was.state,
      );
      demand(
        is.state === STATE.queued && recorded.length === 1,
        () => `job ${is.id} left ${name(was)} for ${name(is)} with ${recorded.length} recorded retries`,
      );
    }
    for (const { job, event } of history)
      demand(model.jobs.has(job), () => `history "${event}" of a job ${job} that does not exist`);
  }

  #fences(was: JobRow, is: JobRow): void {
    const claimed = was.state === STATE.queued && is.state === STATE.running;
    if (claimed) {
      demand(
        is.fence === was.fence + 1,
        () => `job ${is.id} was claimed and its fence went from ${was.fence} to ${is.fence}`,
      );
      demand(
        is.epoch >= was.epoch,
        () => `job ${is.id}: (epoch, fence) fell from (${was.epoch}, ${was.fence}) to (${is.epoch}, ${is.fence})`,
      );
      const issued = this.#issued.get(is.id) ?? { epoch: 0, fence: 0 };
      demand(
        is.epoch > issued.epoch || (is.epoch === issued.epoch && is.fence > issued.fence),
        () =>
          `job ${is.id} was claimed under (${is.epoch}, ${is.fence}), and (${issued.epoch}, ${issued.fence}) had been issued before`,
      );
      this.#issued.set(is.id, is);
      return;
    }
    demand(
      is.fence === was.fence && is.epoch === was.epoch && is.worker === was.worker,
      () => `job ${is.id} changed owner or fence without a claim, from ${name(was)} to ${name(is)}`,
    );
    const legal =
      was.state === is.state ||
      was.state === STATE.running ||
      (was.state === STATE.queued && is.state === STATE.cancelled) ||
      (was.state === STATE.queued && is.state === STATE.quarantined && is.losses === was.losses - 1) ||
      (isTerminal(was.state) && is.state === STATE.queued);
    demand(legal, () => `job ${is.id} went from ${name(was)} to ${name(is)}`);
  }

  #counters(was: JobRow, is: JobRow): void {
    const grew = {
      errors: is.errors - was.errors,
      timeouts: is.timeouts - was.timeouts,
      interruptions: is.interruptions - was.interruptions,
      crashes: is.crashes - was.crashes,
      blamed: is.blamed - was.blamed,
      losses: is.losses - was.losses,
    };
    const ends = was.state === STATE.running && is.state !== STATE.running;
    const told = (): string =>
      `job ${is.id}, ${name(was)} to ${name(is)}, outcome ${is.outcome}: ${JSON.stringify(grew)}`;
    if (isTerminal(was.state) && is.state === STATE.queued) {
      const sum = is.errors + is.timeouts + is.interruptions + is.crashes + is.blamed + is.losses;
      return demand(sum === 0, () => `a retry left counters behind: ${told()}`);
    }
    // One of its rows was found guilty: batches-law.ts.
    if (this.#limits(is.kind).rows && convicts(was, is)) return;
    const runs = was.state === STATE.running && is.state === STATE.running;
    const set = runs && is.crashes === 0 && is.blamed === 0 && is.losses === 0;
    // A loss of contact was resolved (loss-law.ts): it may count as the crash that it was.
    const judged = !ends && was.losses > 0 && grew.losses === -1;
    const by = (outcome: number): number => (ends && is.outcome === outcome ? 1 : 0);
    demand(grew.errors === by(OUTCOME.failed), () => `errors miscounted: ${told()}`);
    demand(grew.timeouts === by(OUTCOME.timedOut), () => `timeouts miscounted: ${told()}`);
    demand(grew.interruptions === by(OUTCOME.released), () => `interruptions miscounted: ${told()}`);
    demand(set || judged || grew.crashes === by(OUTCOME.crashed), () => `crashes miscounted: ${told()}`);
    demand(set || judged || grew.losses === by(OUTCOME.lost), () => `losses miscounted: ${told()}`);
    demand(
      set || grew.blamed === 0 || (grew.blamed === 1 && (by(OUTCOME.crashed) === 1 || (judged && grew.crashes === 1))),
      () => `blame miscounted: ${told()}`,
    );
  }

  #bounds(is: JobRow): void {
    const { errors, timeouts } = this.#limits(is.kind);
    const over = is.errors > errors || is.timeouts > timeouts;
    const used = is.errors === errors || is.timeouts === timeouts;
    if (over || (used && (is.state === STATE.queued || is.state === STATE.running)))
      throw new Violation(
        `job ${is.id} is ${name(is)} with ${is.errors} errors and ${is.timeouts} timeouts; the limits are ${errors} and ${timeouts}`,
      );
  }
}

function name(row: JobRow): string {
  return STATE_NAMES[row.state] ?? String(row.state);
}
