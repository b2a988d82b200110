// One death and everything recovery did about it, as it is stored. The readable account is made in report.ts.
import type { StoreNote } from "../stores/integrity.ts";
import type { HowLost } from "../stores/liveness.ts";
import type { RecoveredJob } from "../stores/port.ts";
import type { Resolution } from "./losses.ts";
import { describeProcess, type ProcessKey } from "./process-key.ts";

export interface IncidentSummary {
  readonly id: string;
  /** The recovery pass it belongs to: deaths found together share one report. */
  readonly recovery: string;
  readonly worker: string;
  readonly how: HowLost;
  /** What became of a worker with which contact was lost; null: not known yet, or its death was proved at once. */
  readonly resolution: Resolution | null;
  readonly detectedAt: number;
  /** null: the recovery is not finished yet. */
  readonly completedAt: number | null;
  readonly jobCount: number;
}

/** A recovered job, and when it ran again. */
export interface IncidentJob extends RecoveredJob {
  readonly resumedAt: number | null;
}

export interface Incident extends IncidentSummary {
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly workerStartedAt: number;
  readonly lastHeartbeatAt: number;
  readonly lastSeenAliveAt: number | null;
  readonly loopLagMs: number;
  readonly evidence: string | null;
  readonly startedAt: number;
  /** Who recovered: a worker's id, "open", "recover". */
  readonly by: string;
  readonly integrity: string;
  /** What the store did at the open that this recovery belongs to, in its own words; null: it says nothing. */
  readonly summary: StoreNote | null;
  readonly heldAtDeath: number;
  readonly jobs: readonly IncidentJob[];
}

const PROCESS_IS_GONE = "its process is gone";
const ONLY_GONE = new RegExp(`^${PROCESS_IS_GONE} \\([^()]*\\)$`);

/** The evidence if the kernel no longer knows the process, and nothing else is known. */
export function processIsGone(key: Omit<ProcessKey, "bootId">): string {
  return `${PROCESS_IS_GONE} (${describeProcess(key)})`;
}

/**
 * The evidence of a death, together with the worker's last word. A supervisor may write that word before or after a watcher finds the
 * worker dead. What a parent knows of the exit replaces what the kernel alone could say.
 */
export function withLastWord(known: string | null, lastWord: string | null): string | null {
  if (lastWord === null || known?.includes(lastWord)) return known;
  if (known === null || lastWord.includes(known) || ONLY_GONE.test(known)) return lastWord;
  return `${known}; ${lastWord}`;
}
