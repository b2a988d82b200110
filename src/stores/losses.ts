// Losses of contact as a store keeps them. Without a proof of death nothing is counted against a worker's jobs; what happened to the
// worker is found out later, and only then are its jobs judged (recovery/losses.ts decides).
import type { Loss, LossVerdict, LostJob, Resolution } from "../recovery/losses.ts";

export interface Losses {
  /** Losses that are not resolved, or whose jobs are not all judged; the oldest first, at most 100. Reads only. */
  open(): Promise<readonly Loss[]>;

  /** Writes what became of a worker with which contact was lost. A loss resolves once: returns the resolution that stands. Null: there is no such loss. */
  resolve(worker: string, resolution: Resolution): Promise<Resolution | null>;

  /** The jobs of a loss that are not judged yet, as they are now. Jobs whose rows are gone are left out. Reads only. */
  jobs(incident: string, limit: number): Promise<readonly LostJob[]>;

  /**
   * One transaction: each verdict under guard (the job is still in the state and under the fence that were read), its history row, and that
   * it was judged. What the guard refuses is read again by the next pass. Returns whether all jobs of the loss are judged now; the loss
   * is closed then.
   */
  judge(incident: string, verdicts: readonly LossVerdict[]): Promise<boolean>;
}
