// What the objects of one worker (life, loop, executor, attempt) share from its beginning to its end.
import type { Clock, Random } from "../job/clock.ts";
import type { RunnableKind } from "../job/contract.ts";
import type { Emitter } from "../job/events.ts";
import type { JobDraft } from "../job/job.ts";
import type { Store } from "../stores/port.ts";

export interface WorkerContext {
  /** The worker's id. */
  readonly worker: string;
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly kinds: ReadonlyMap<string, RunnableKind>;
  readonly draft: DraftMaker;
  /** Throws if the contract is not one of the program's own; omitted: all are taken. */
  readonly assertKnown?: (contract: { readonly name: string }) => void;
  readonly trust: Trust;
}

/** What a worker may believe of itself. */
export interface Trust {
  /** Until when (own monotonic clock) it may trust what it holds. */
  readonly untilMono: number;
  /** Whether the session that speaks for this worker is there. */
  readonly inContact: boolean;
}

/**
 * Makes the draft of a child; done by the engine, which knows schemas and hashes. Without an id of the caller's it gets one made
 * of `idSeed` of its content, which is the same in every attempt.
 */
export type DraftMaker = (
  kind: never,
  input: never,
  options: never,
  idSeed: (content: string) => string,
) => JobDraft | Promise<JobDraft>;
