// What all wires have in common: whether faults have ended, and whether the store can be reached.

export class Conditions {
  /** Since when (virtual ms) nothing is lost, slow, stopped or killed from outside any more. */
  calmAt = Number.POSITIVE_INFINITY;
  /** Until when (virtual ms) no process reaches the store. */
  downUntil = 0;
  /** How often the store was restarted: an answer that was on its way during a restart is lost. */
  restarts = 0;

  get calm(): boolean {
    return this.calmAt < Number.POSITIVE_INFINITY;
  }
}
