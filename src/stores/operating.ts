// What people change by hand: cancel, retry, pause, and what a supervisor knows of a death.
import type { JobState } from "../job/job.ts";

export interface Operating {
  /** One transaction: a queued job is cancelled; a running one is asked to end, and its worker learns of it with its next turn. Any other state is returned, and nothing is written. */
  cancel(id: string, actor: string): Promise<OperatorAnswer>;

  /** One transaction: a terminal job is queued again. Refused, with nothing written, if it is not terminal or if another job holds its dedupe key. */
  retry(id: string, actor: string): Promise<OperatorAnswer>;

  /**
   * One transaction: keeps a signal for an unfinished job until it is read or the job has ended, and wakes the job if it waits for it. Sent again with the
   * same id it is kept once.
   */
  signal(signal: Signal): Promise<SignalAnswer>;

  /** Paused kinds are not claimed by any worker. Returns false if the kind was never declared. */
  setPaused(kind: string, paused: boolean): Promise<boolean>;

  /** Keeps how a worker's process ended, in its row and, in the same transaction, in the evidence of its incident if there is one. A worker without a row: nothing is written. */
  noteDeath(worker: string, words: string): Promise<void>;
}

export interface Signal {
  readonly job: string;
  readonly name: string;
  /** JSON text. */
  readonly payload: string;
  /** The sender's own, by which a repetition is known. */
  readonly id: string;
}

/** `repeated`: a signal with this id was kept before. `full`: too many are kept that were not read. Then, and if the job is missing or has ended, nothing was written. */
export type SignalAnswer =
  | { readonly is: "kept" | "repeated" | "missing" | "full" }
  | { readonly is: "ended"; readonly state: JobState };

/** What an operator's change of one job came to. */
export type OperatorAnswer =
  | { readonly is: "applied"; readonly state: JobState }
  | { readonly is: "requested" }
  | { readonly is: "missing" }
  | { readonly is: "wrong-state"; readonly state: JobState }
  | { readonly is: "key-held"; readonly holder: string; readonly dedupeKey: string };
