// What the engine needs of a kind in order to run it, and the settings of a kind that sets none. The contract that users write is made
// in contract.ts.
import type { StoredError } from "./errors.ts";
import type { Json } from "./json.ts";
import type { KindSettings } from "./job.ts";
import type { Run } from "./run.ts";

export interface RunnableKind {
  readonly settings: KindSettings;
  /** The value that the handler gets: the stored input through the kind's schema. Throws or rejects if it does not fit. */
  readonly parse: ((input: Json) => unknown) | null;
  readonly handler: (input: never, run: Run) => unknown;
  /** The user's own backoff, asked when the attempt fails; null: the settings' backoff. */
  readonly delayMs: ((failures: number, error: StoredError) => number) | null;
}

/** The settings of a kind that sets nothing itself: those of config-kind.ts, and of a kind whose own settings were lost with its row. */
export const KIND_DEFAULTS: Omit<KindSettings, "name"> = {
  timeoutMs: 15 * 60_000,
  maxRuntimeMs: null,
  graceMs: 5_000,
  limits: { errors: 10, timeouts: 10, crashes: 3 },
  backoff: { type: "exponential", baseMs: 1_000, maxMs: 60 * 60_000, jitter: 0.5 },
  onCrash: "retry",
};
