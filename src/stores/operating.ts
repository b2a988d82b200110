// What people change by hand: cancel, retry, pause, and what a supervisor knows of a death.
import type { JobState } from "../job/job.ts";

export interface Operating {
  /** One transaction: a queued job is cancelled; a running one is asked to end, and its worker learns of it with its next turn. Any other state is returned, and nothing is written. */
  cancel(id: string, actor: string): Promise<OperatorAnswer>;

  /** One transaction: a terminal job is queued again. Refused, with nothing written, if it is not terminal or if another job holds its dedupe key. */
  retry(id: string, actor: string): Promise<OperatorAnswer>;

  /** Paused kinds are not claimed by any worker. Returns false if the kind was never declared. */
  setPaused(kind: string, paused: boolean): Promise<boolean>;

  /** Keeps how a worker's process ended, in its row and, in the same transaction, in the evidence of its incident if there is one. A worker without a row: nothing is written. */
  noteDeath(worker: string, words: string): Promise<void>;
}

/** What an operator's change of one job came to. */
export type OperatorAnswer =
  | { readonly is: "applied"; readonly state: JobState }
  | { readonly is: "requested" }
  | { readonly is: "missing" }
  | { readonly is: "wrong-state"; readonly state: JobState }
  | { readonly is: "key-held"; readonly holder: string; readonly dedupeKey: string };
