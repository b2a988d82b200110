// What `why` says while jobs must run alone: about such a job, and about an ordinary one that waits because of it. It only words what
// is known; which worker does what is decided in core/alone.ts and core/suspect-turns.ts.
import { humanMs, isoInstant } from "./core/duration.ts";
import type { JobDetails } from "./core/job.ts";
import type { WorkerRow } from "./core/liveness.ts";
import type { Isolation } from "./core/store.ts";
import { MAX_EMPTYING_MS } from "./core/suspect-turns.ts";
import type { Said } from "./why.ts";

/** The job must run alone. `able`: the live workers that know its kind. `isolations`: the highest priority first. */
export function suspect(job: JobDetails, able: readonly WorkerRow[], isolations: readonly Isolation[]): Said {
  const base = `It was in flight at ${job.counters.crashes} deaths, so it runs only in a worker with nothing else in flight.`;
  const held = able.reduce((sum, { heldCount }) => sum + heldCount, 0);
  const own = isolations.find(({ jobId }) => jobId === job.id);
  const other = isolations.find(({ worker }) => able.some(({ id }) => id === worker));
  const details = { worker: own?.worker ?? null, atMostMs: own ? MAX_EMPTYING_MS : null, workers: able.length, held };
  const said = { because: "runs-alone", details } as const;
  const more = "or start another worker: an idle one takes it once no job of a higher priority is ready";
  if (own)
    return {
      ...said,
      text: `${base} Worker ${own.worker} claims only jobs of a higher priority until it is idle, for at most ${humanMs(MAX_EMPTYING_MS)} at a time.`,
      next: `Wait until the running jobs of ${own.worker} have ended, ${more}.`,
    };
  const next = `Wait, ${more}.`;
  if (other) return { ...said, text: `${base} ${takenUp(other)}`, next };
  return {
    ...said,
    text: `${base} The ${able.length} worker(s) that know its kind hold ${held} job(s). One of them empties itself for it, or, if it has tried that in vain, runs other jobs first and tries again.`,
    next,
  };
}

/** What keeps the worker from claiming an ordinary job of this priority; undefined: nothing. */
export function keptFrom(worker: string, priority: number, isolations: readonly Isolation[]): Isolation | undefined {
  return isolations.find((one) => one.worker === worker && (one.doing === "running" || priority <= one.priority));
}

/** An ordinary job, and every worker that could claim it is kept from that. */
export function behindSuspect(job: JobDetails, able: readonly WorkerRow[], isolations: readonly Isolation[]): Said {
  const first = keptFrom(able[0]!.id, job.priority, isolations)!;
  const others =
    able.length > 1 ? ` The other ${able.length - 1} worker(s) that know its kind are taken up in the same way.` : "";
  return {
    because: "waits-for-suspect",
    text: `${takenUp(first)}${others}`,
    next: `Wait, or start another worker. More about that job: outlive why ${first.jobId}`,
    details: {
      worker: first.worker,
      suspect: first.jobId,
      atMostMs: first.doing === "emptying" ? MAX_EMPTYING_MS : null,
    },
  };
}

function takenUp({ worker, jobId, doing, priority, startedAt }: Isolation): string {
  return doing === "running"
    ? `Worker ${worker} has run job ${jobId} alone since ${isoInstant(startedAt!)} and claims nothing until that ends.`
    : `Worker ${worker} empties itself for job ${jobId}, which must run alone: until it is idle, and for at most ${humanMs(MAX_EMPTYING_MS)}, it claims only jobs with a priority above ${priority}.`;
}
