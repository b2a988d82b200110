// What is known of a worker, as people and programs see it: its row, the ages of its signs of life, and whether its lock or its
// silence says that it is dead.
import type { Death, WorkerRow } from "../core/liveness.ts";

/** The words of the glossary: live, blocked, silent, gone, contact lost; `recovering` and `stopped` are what its row says. */
export type Known = "live" | "blocked" | "silent" | "gone" | "lost" | "recovering" | "stopped";

export interface KnownWorker {
  readonly id: string;
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  readonly known: Known;
  readonly kinds: readonly string[];
  readonly concurrency: number;
  readonly heldCount: number;
  readonly startedAt: number;
  readonly heartbeatAt: number;
  readonly heartbeatAgeMs: number;
  readonly beats: number;
  readonly leaseMs: number;
  readonly loopLagMs: number;
  readonly lastWord: string | null;
}

export type Deaths = readonly { readonly worker: WorkerRow; readonly death: Death }[];

/** A main loop that stands still for longer is blocked; less is ordinary work. */
const BLOCKED_MS = 1_000;

export function knownWorker(worker: WorkerRow, deaths: Deaths, now: number): KnownWorker {
  const heartbeatAgeMs = Math.max(0, now - worker.heartbeatAt);
  const { id, host, pid, version, kinds, concurrency, heldCount, startedAt, heartbeatAt, beats, leaseMs } = worker;
  const known = whatIsKnown(worker, deaths, heartbeatAgeMs);
  const { loopLagMs, lastWord } = worker;
  return {
    id,
    host,
    pid,
    version,
    known,
    kinds,
    concurrency,
    heldCount,
    startedAt,
    heartbeatAt,
    heartbeatAgeMs,
    beats,
    leaseMs,
    loopLagMs,
    lastWord,
  };
}

/** Claims jobs, or will again: whoever is not dead, silent or on its way out. */
export function works({ known }: KnownWorker): boolean {
  return known === "live" || known === "blocked";
}

function whatIsKnown(worker: WorkerRow, deaths: Deaths, heartbeatAgeMs: number): Known {
  const death = deaths.find((one) => one.worker.id === worker.id)?.death;
  if (worker.state !== "live") return worker.state;
  if (death) return death.how;
  if (heartbeatAgeMs > worker.leaseMs) return "silent";
  return worker.loopLagMs > BLOCKED_MS ? "blocked" : "live";
}
