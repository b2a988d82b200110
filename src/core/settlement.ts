// What crosses the store port about an attempt: how it ended, what it writes while it runs, and what a worker's turn claims in
// exchange. The verbs are in store.ts.
import type { HeldSuspects } from "./isolation.ts";
import type { ClaimedJob, Enqueued, JobDraft, JobState } from "./job.ts";
import type { Lease } from "./lease.ts";
import type { Change } from "./transitions.ts";

/** How a settled attempt ended. */
export interface Settlement {
  readonly lease: Lease;
  readonly change: Change;
  /** The worker's own mark; stores do not look at it. */
  readonly slot?: number;
}

/** The fence did not hold: what the row says now. Nothing was changed; the store has counted and recorded it. */
export interface Stale {
  readonly lease: Lease;
  /** What was tried: "succeed", "step render", ... */
  readonly tried: string;
  readonly state: JobState | "missing";
  readonly worker: string | null;
  readonly epoch: number;
  readonly fence: number;
}

/**
 * `applied`: written now. `repeated`: this same settlement of this same attempt had been accepted before, nothing changed.
 * `stale`: the attempt does not own the job any more, nothing changed.
 */
export type WriteAnswer =
  | { readonly is: "applied"; readonly enqueued?: readonly Enqueued[] }
  | { readonly is: "repeated" }
  | { readonly is: "stale"; readonly stale: Stale };

export const APPLIED: WriteAnswer = { is: "applied" };
export const REPEATED: WriteAnswer = { is: "repeated" };

/** A small write about a running attempt. */
export type AttemptWrite =
  | { readonly type: "step"; readonly name: string; readonly result: string | null }
  | { readonly type: "progress"; readonly value: string }
  | { readonly type: "log"; readonly message: string }
  | { readonly type: "heartbeat" }
  | { readonly type: "enqueue"; readonly drafts: readonly JobDraft[] };

/** Lines kept of one job's log; the oldest go first. */
export const MAX_LOG_LINES = 1_000;

/** `tried` of a small write that was refused. */
export function triedBy(write: AttemptWrite): string {
  switch (write.type) {
    case "step":
      return `step ${write.name}`;
    case "enqueue":
      return `enqueue ${write.drafts.map((draft) => draft.kind).join(", ")}`;
    default:
      return write.type;
  }
}

/** How many jobs a worker can take: of each kind at most `room`, `total` together. */
export interface Room {
  readonly total: number;
  /** Kinds with `shares` have one room in common: `room` is what is left of it for all of them together. */
  readonly kinds: readonly { readonly kind: string; readonly room: number; readonly shares?: boolean }[];
  /** The suspects that it holds, which limit how many more it takes (isolation.ts). Omitted: none. */
  readonly suspects?: HeldSuspects;
}

/** A claimed job that was quarantined in the same transaction, because what is stored of it is not what was written. */
export interface CorruptJob {
  readonly lease: Lease;
  readonly kind: string;
  readonly change: Change;
}

export interface SettleAndClaim {
  readonly settled: readonly WriteAnswer[];
  readonly claimed: readonly ClaimedJob[];
  /** Claimed beside those and quarantined at once: the input or a kept step does not match its checksum. Left out: none. */
  readonly corrupt?: readonly CorruptJob[];
  /** False if the worker's own row is not live any more: nothing was claimed, and it must register again under a new id. */
  readonly live: boolean;
  /**
   * Why the store is not the one that this worker registered with: it was restored from a backup, its row is gone or is another worker's,
   * the epoch fell. Then it is not live, and must stop instead of registering again. Absent: nothing says so.
   */
  readonly replaced?: string;
  /** Running jobs of this worker whose cancel was asked for. */
  readonly cancels: readonly string[];
  /** In how many ms the next delayed job is due; null: none waits. */
  readonly nextDueInMs: number | null;
}
