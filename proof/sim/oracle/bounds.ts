// What a limit allows, as the workloads declare it; of a throttle, as its name says. Never from the store.
import { FAIR } from "../../../src/job/limits.ts";
import { limitFacts } from "../workloads/index.ts";

export interface Bounds {
  readonly running: number;
  readonly intervalMs: number | null;
  readonly burst: number;
  readonly strict: boolean;
}

/** What was set for one key alone. */
export interface OwnBounds {
  readonly running: number | null;
  readonly intervalMs: number | null;
  readonly burst: number | null;
}

export function boundsOf(limit: string, own?: OwnBounds): Bounds {
  const { running, intervalMs, burst, strict } = declared(limit);
  const allowed = own?.running ?? running ?? Number.POSITIVE_INFINITY;
  return {
    running: strict ? Math.min(1, allowed) : allowed,
    intervalMs: own?.intervalMs ?? intervalMs,
    burst: own?.burst ?? burst,
    strict,
  };
}

function declared(limit: string): Omit<Bounds, "running"> & { readonly running: number | null } {
  const [, everyMs] = /^throttle\/(\d+)$/.exec(limit) ?? [];
  if (everyMs !== undefined) return { running: null, intervalMs: Number(everyMs), burst: 1, strict: false };
  // By the keys of a fair kind jobs take turns, and nothing else.
  if (limit === FAIR) return { running: null, intervalMs: null, burst: 1, strict: false };
  return limitFacts(limit);
}
