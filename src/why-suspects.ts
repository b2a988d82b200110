// What `why` says of a suspect that waits. It only words what is known; which worker takes it is decided in core/isolation.ts.
import { ANY_NUMBER } from "./core/isolation.ts";
import type { JobDetails } from "./core/job.ts";
import type { WorkerRow } from "./core/liveness.ts";
import type { WorkerSuspects } from "./core/store.ts";
import type { Said } from "./why.ts";

/** `able`: the live workers that know its kind. */
export function suspect(job: JobDetails, able: readonly WorkerRow[], suspects: readonly WorkerSuspects[]): Said {
  const { crashes, losses } = job.counters;
  const times = crashes + losses;
  const others = job.together === 0 ? "any number of other such jobs" : `at most ${job.together - 1} other such job(s)`;
  const base = `It was in flight at ${times} death(s) or loss(es) of contact, so it runs with ${others} in one process.`;
  const bound = job.together === 0 ? ANY_NUMBER : job.together;
  const full = able.flatMap((worker) => {
    const held = suspects.find((one) => one.worker === worker.id);
    const together = Math.min(bound, held?.together ?? bound);
    return held && held.count >= together ? [{ ...held, together }] : [];
  });
  const details = { together: job.together, workers: able.length, withoutRoom: full.length };
  if (full.length < able.length)
    return {
      because: "suspect",
      text: `${base} ${able.length - full.length} of ${able.length} worker(s) that know its kind may take it when they have a free slot and no job of a higher priority is ready.`,
      next: "Look again; if it stays, raise the concurrency, or start more workers.",
      details,
    };
  const [first] = full;
  const more = full.length > 1 ? ` The other ${full.length - 1} worker(s) hold too many as well.` : "";
  return {
    because: "suspect",
    text: `${base} Worker ${first!.worker} holds ${first!.count} of them, which is all that may run together (${first!.together}).${more}`,
    next: "Wait until those have ended, or start another worker.",
    details,
  };
}
