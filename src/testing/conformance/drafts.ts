// Plain values for the conformance tests: kinds, jobs and workers with everything said, so that a test names only what it is about.
import type { Backoff, JobDraft, KindSettings, Limits } from "../../core/job.ts";
import type { WorkerRecord } from "../../core/liveness.ts";

export const TIMEOUT_MS = 60_000;
export const GRACE_MS = 5_000;
export const LEASE_MS = 30_000;

const BACKOFF: Backoff = { type: "exponential", baseMs: 1_000, maxMs: 60_000, jitter: 0 };
const LIMITS: Limits = { errors: 3, timeouts: 3, crashes: 3 };

export function kind(name: string, more: Partial<Omit<KindSettings, "name">> = {}): KindSettings {
  return {
    name,
    timeoutMs: TIMEOUT_MS,
    maxRuntimeMs: null,
    graceMs: GRACE_MS,
    limits: LIMITS,
    backoff: BACKOFF,
    onCrash: "retry",
    ...more,
  };
}

export type Draft = Partial<JobDraft> & Pick<JobDraft, "id">;

/** A job of the kind `mail`, to be run at once. */
export function draft(said: string | Draft): JobDraft {
  const more = typeof said === "string" ? { id: said } : said;
  return { kind: "mail", input: "{}", priority: 0, runAt: null, delayMs: 0, dedupeKey: null, ...more };
}

/** `count` names, in the order in which they sort. */
export function names(prefix: string, count: number): readonly string[] {
  return Array.from({ length: count }, (_, i) => `${prefix}${String(i + 1).padStart(4, "0")}`);
}

export function workerRecord(id: string, more: Partial<WorkerRecord> = {}): WorkerRecord {
  return {
    id,
    host: "stage",
    bootId: "boot-1",
    namespace: null,
    pid: 4_711,
    startTicks: null,
    predecessor: null,
    version: "1.2.3",
    leaseMs: LEASE_MS,
    concurrency: 10,
    kinds: ["mail", "sms"],
    lock: { name: null, identity: null },
    ...more,
  };
}
