// Deadlines follow the time that passes, not the clock: a jump of the wall clock ends no attempt and no process. The oracle's own time,
// which never jumps, is the measure.
import type { KindFacts } from "../workloads/workload.ts";
import type { SimProcess } from "../world/process.ts";
import { type Model, type Moment, STATE } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow } from "./watch.ts";

/** Two clocks may drift apart by half a second before it is taken for a jump. */
const DRIFT_MS = 600;

interface Attempt {
  /** When its deadline and grace have passed, in virtual ms. */
  readonly endsAt: number;
  readonly process: SimProcess | null;
}

export class DeadlineLaw {
  readonly #model: Model;
  readonly #facts: (kind: string) => KindFacts;
  /** What runs, by the number of the job. */
  readonly #running = new Map<number, Attempt>();
  /** Processes of which an attempt ended too late: they may be ended for it, though it is not theirs any more. */
  readonly #late = new Set<SimProcess>();

  constructor(model: Model, facts: (kind: string) => KindFacts) {
    this.#model = model;
    this.#facts = facts;
  }

  onChange(was: JobRow | null, is: JobRow, { now, wall }: Moment): void {
    if (is.state !== STATE.running) return this.#ended(is.seq, now);
    if (was?.state === STATE.running && was.deadline === is.deadline) return;
    const leftMs = is.deadline === null ? Infinity : is.deadline - Math.floor(wall) + this.#facts(is.kind).graceMs;
    const process = this.#model.workers.get(is.worker ?? -1)?.process ?? null;
    this.#running.set(is.seq, { endsAt: now + leftMs, process });
  }

  /** Another process fences this attempt out as overdue; it waits for `marginMs` more. Before `onChange`. */
  onExpired({ seq, id }: JobRow, marginMs: number, now: number): void {
    const endsAt = this.#running.get(seq)?.endsAt ?? 0;
    const earlyMs = endsAt + marginMs - DRIFT_MS - now;
    demand(
      earlyMs <= 0,
      () =>
        `job ${id} was fenced out as overdue ${Math.round(earlyMs)} ms too early: the clock jumped, the time did not pass`,
    );
  }

  /** Maintenance ends its process, because a job that blocks the loop is past its deadline and grace. */
  onMaintenanceKills(process: SimProcess, now: number): void {
    const isOverdue = [...this.#running.values()].some(
      (one) => one.process === process && one.endsAt - DRIFT_MS <= now,
    );
    demand(
      isOverdue || this.#late.has(process),
      () => `${process.name} was ended by its maintenance, and none of its jobs is past deadline and grace`,
    );
  }

  /** The rows are older ones. */
  wentBack(): void {
    this.#running.clear();
  }

  #ended(seq: number, now: number): void {
    const attempt = this.#running.get(seq);
    if (attempt?.process && attempt.endsAt - DRIFT_MS <= now) this.#late.add(attempt.process);
    this.#running.delete(seq);
  }
}
