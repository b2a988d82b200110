// Finished jobs and old incidents go after a while, in batches small enough that nobody waits for them.
import type { Store } from "./store.ts";

export interface RetentionTimes {
  /** How long a finished job is kept. */
  readonly finishedMs: number;
  /** How long an incident is kept. */
  readonly incidentsMs: number;
}

const PURGE_BATCH = 500;
/** At most this many batches in one sweep, so that a sweep ends; the next goes on. */
const PURGE_BATCHES = 200;

export async function purgeOld(store: Store, times: RetentionTimes): Promise<{ jobs: number; incidents: number }> {
  const purged = { jobs: 0, incidents: 0 };
  for (let batch = 0; batch < PURGE_BATCHES; batch++) {
    const gone = await store.purge({
      finishedOlderThanMs: times.finishedMs,
      incidentsOlderThanMs: times.incidentsMs,
      limit: PURGE_BATCH,
    });
    purged.jobs += gone.jobs;
    purged.incidents += gone.incidents;
    if (!gone.more) break;
  }
  return purged;
}
