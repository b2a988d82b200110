// What the engine needs of a kind in order to run it. The contract that users write is made in contract.ts.
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
