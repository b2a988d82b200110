// Promises 2 and 8, why an attempt ended: the row becomes what was settled, or the cancel that is honoured instead; and whatever
// the engine asked for, a job has succeeded only if its handler has, and is dead only if a limit was reached or its handler
// said that it is hopeless. What handlers did is known from the workloads.
import type { Settlement } from "../../../src/stores/port.ts";
import type { KindFacts, RunOf, Word } from "../workloads/workload.ts";
import { settlementOf } from "./authority-law.ts";
import { attemptOf, type Moment, OUTCOME, OUTCOME_NAMES, STATE, STATE_NAMES } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** The states that an attempt may leave its job in, by how it ended. Nothing is rejected here, and no kind ends by a crash. */
const LEFT_IN: Readonly<Record<number, readonly number[]>> = {
  [OUTCOME.succeeded]: [STATE.succeeded],
  [OUTCOME.failed]: [STATE.queued, STATE.dead, STATE.cancelled],
  [OUTCOME.timedOut]: [STATE.queued, STATE.dead, STATE.cancelled],
  [OUTCOME.crashed]: [STATE.queued, STATE.quarantined],
  [OUTCOME.released]: [STATE.queued, STATE.cancelled],
  [OUTCOME.lost]: [STATE.queued],
  [OUTCOME.cancelled]: [STATE.cancelled],
  [OUTCOME.waiting]: [STATE.queued, STATE.cancelled],
};

/** When a wait is due that does not end by time. */
const NO_TIMEOUT = 253_402_300_799_998;

const NOTHING: readonly Word[] = [];

export class EndLaw {
  readonly #facts: (kind: string) => KindFacts;
  /** What the handler of each attempt has said: one whose commit was applied may still throw. */
  readonly #words = new Map<string, Word[]>();

  constructor(facts: (kind: string) => KindFacts) {
    this.#facts = facts;
  }

  /** What a handler did, reported by the workload. */
  told({ id, fence: { epoch, number: fence } }: RunOf, word: Word): void {
    const attempt = attemptOf({ id, epoch, fence });
    const words = this.#words.get(attempt);
    if (words) words.push(word);
    else this.#words.set(attempt, [word]);
  }

  /** The attempt of `was` has ended. */
  onEnd(was: JobRow, is: JobRow, { answers, wall }: Moment): void {
    for (const answer of answers) {
      const settlement = settlementOf(answer, was);
      if (settlement) this.#isWhatWasSettled(was, is, settlement, wall);
    }
    this.#isTrue(is);
  }

  #isWhatWasSettled(was: JobRow, is: JobRow, { change }: Settlement, wall: number): void {
    const to = change.to === "queued" && was.cancel === 1 ? "cancelled" : change.to;
    const delayMs = change.wait ? change.wait.forMs : change.delayMs;
    const runAt = delayMs === null ? NO_TIMEOUT : change.wait || delayMs > 0 ? Math.floor(wall) + delayMs : null;
    demand(
      STATE_NAMES[is.state] === to &&
        OUTCOME_NAMES[is.outcome ?? -1] === change.outcome &&
        (to !== "queued" || is.runAt === runAt),
      () =>
        `attempt ${is.fence} of job ${is.id} was settled as ${change.outcome}, ${to} (run at ${runAt}), and the row says ${told(is)} (run at ${is.runAt})`,
    );
  }

  #isTrue(is: JobRow): void {
    const { limits, rows } = this.#facts(is.kind);
    const { errors, timeouts } = limits;
    const words = this.#words.get(attemptOf(is)) ?? NOTHING;
    const said = (...any: readonly Word[]): boolean => any.some((word) => words.includes(word));
    const says = (): string =>
      `attempt ${is.fence} of job ${is.id} left it ${told(is)}; its handler ${words.join(" and ") || "has not ended"}`;
    const failed = is.outcome === OUTCOME.failed;
    demand(LEFT_IN[is.outcome ?? -1]?.includes(is.state) ?? false, says);
    // What runs a batch's jobs is the engine's own; what rows say is held by batches-law.ts.
    if (rows) return;
    demand(is.outcome !== OUTCOME.succeeded || said("returned", "committed"), says);
    demand(!failed || said("threw", "gave up"), says);
    if (!failed && is.outcome !== OUTCOME.timedOut) return;
    const hopeless = failed && said("gave up");
    const usedUp = failed ? is.errors >= errors : is.timeouts >= timeouts;
    demand(
      (is.state === STATE.dead) === (hopeless || usedUp),
      () => `${says()}; ${is.errors} of ${errors} errors and ${is.timeouts} of ${timeouts} timeouts`,
    );
  }
}

function told(row: JobRow): string {
  return `${OUTCOME_NAMES[row.outcome ?? -1] ?? "without an outcome"}, ${STATE_NAMES[row.state]}`;
}
