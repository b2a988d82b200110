// A handler that blocks the loop can't be aborted when it is overdue: its maintenance's thread ends the process, soon after the deadline
// and the grace of any job that it holds, if nothing was done to it meanwhile.
import type { KindFacts } from "../workloads/workload.ts";
import type { SimProcess } from "../world/process.ts";
import { HEARTBEAT_MS } from "../world/profile.ts";
import { type Model, STATE } from "./model.ts";
import { demand } from "./violation.ts";

/** A loop that stands still for less may be back at any moment. */
const BLOCKED_MS = 1_000;
/** A maintenance hears with its next heartbeat what is overdue, and leaves a last word. Others take the job after 2,000 ms. */
const ENDED_WITHIN_MS = 1.5 * HEARTBEAT_MS;

export class MaintenanceLaw {
  readonly #model: Model;
  readonly #processes: () => readonly SimProcess[];
  readonly #facts: (kind: string) => KindFacts;
  /** Since when (virtual ms) a process has to be ended. */
  readonly #doomed = new Map<SimProcess, number>();
  /** How far the wall clock is ahead, and when it jumped last (virtual ms). */
  #aheadMs = 0;
  #jumpedAt = Number.NEGATIVE_INFINITY;

  constructor(model: Model, processes: () => readonly SimProcess[], facts: (kind: string) => KindFacts) {
    this.#model = model;
    this.#processes = processes;
    this.#facts = facts;
  }

  onTime(now: number, wall: number): void {
    // What the clock says counts only as far as the maintenance's own time confirms it: after a jump that takes as long as the job may.
    if (Math.abs(wall - now - this.#aheadMs) > 1) this.#jumpedAt = now;
    this.#aheadMs = wall - now;
    for (const process of this.#processes()) {
      const overdue = process.alive && process.loopLagMs() > BLOCKED_MS ? this.#overdue(process, now, wall) : null;
      if (overdue === null) {
        this.#doomed.delete(process);
        continue;
      }
      const since = Math.max(this.#doomed.get(process) ?? now, process.troubledUntil);
      this.#doomed.set(process, since);
      demand(
        now - since < ENDED_WITHIN_MS,
        () =>
          `${process.name} lives, ${Math.round(now - since)} ms after ${overdue} was past deadline and grace with its loop blocked`,
      );
    }
  }

  /** A job that this process still holds, past its deadline and grace. */
  #overdue(process: SimProcess, now: number, wall: number): string | null {
    for (const { id, kind, state, worker, deadline } of this.#model.jobs.values()) {
      const { graceMs, timeoutMs } = this.#facts(kind);
      if (state !== STATE.running || deadline === null || deadline + graceMs >= wall) continue;
      if (now - this.#jumpedAt < timeoutMs + graceMs + 2 * HEARTBEAT_MS) continue;
      const owner = this.#model.workers.get(worker ?? -1);
      if (owner?.process === process && owner.row.state === "live") return id;
    }
    return null;
  }
}
