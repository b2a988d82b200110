// The promises of keys-law.ts as far as they can be read out of the records of the atomic store: no key has more jobs admitted or running than its
// limit, and of a strict one only one job has begun.
import type { Data, JobRecord } from "../stores/records.ts";
import { limitFacts } from "../workloads/index.ts";
import { FAIR } from "../../../src/job/limits.ts";
import { demand } from "./violation.ts";

/** At any time. Nothing changes a limit or retries a job by hand here. */
export function keysAreWithinLimits(data: Data): void {
  const taken = new Map<string, string[]>();
  for (const job of [...data.running(), ...data.queued()])
    for (const { limit, key } of job.keys) {
      if (limit.startsWith("throttle/") || limit === FAIR || !counts(job, limitFacts(limit).strict)) continue;
      const name = `${limit} of ${key}`;
      const ids = taken.get(name) ?? [];
      taken.set(name, [...ids, job.id]);
      const { running, strict } = limitFacts(limit);
      const most = strict ? 1 : (running ?? Number.POSITIVE_INFINITY);
      demand(ids.length < most, () => `over limit: ${name} allows ${most}, and ${ids.join(", ")} and ${job.id} count`);
    }
}

function counts({ state, admitted, fence }: JobRecord, strict: boolean): boolean {
  return state === "running" || admitted || (strict && fence > 0);
}
