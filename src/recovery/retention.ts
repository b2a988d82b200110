// Deletes finished jobs and old incidents after a while, in small batches, with a pause after each so other processes
// can reach the store. A job that can't be deleted does not block the rest.
import { type Clock, pause } from "../job/time.ts";
import type { PurgeAnswer, Store } from "../stores/port.ts";

export interface RetentionTimes {
  /** How long a finished job is kept. */
  readonly finishedMs: number;
  /** How long an incident is kept. */
  readonly incidentsMs: number;
}

const PURGE_BATCH = 500;
/** At most this many batches of PURGE_BATCH in one sweep, so that a sweep ends; the next one continues, at once. */
const PURGE_BATCHES = 200;
/** From one batch of PURGE_BATCH to the next, at least, and in proportion for a store with larger ones: 12,500 jobs a second, however many are old. A steady pace leaves the store to the workers; without it 100,000 went in a burst every minute. */
const PURGE_PERIOD_MS = 40;
/**
 * Longer than a process waits between two tries for the write lock of a SQLite file, so that every process gets its
 * turn.
 */
export const PURGE_PAUSE_MS = 15;

export interface Purged {
  readonly jobs: number;
  readonly incidents: number;
  /** The first job that could not be deleted, and how many there were; null: none. */
  readonly refused: NonNullable<PurgeAnswer["refused"]> | null;
  /** Jobs are left that can go. */
  readonly more: boolean;
}

/** Calls `goOn` between two batches. */
export async function purgeOld(
  { store, clock }: { readonly store: Store; readonly clock: Clock },
  times: RetentionTimes,
  goOn: () => boolean = () => true,
): Promise<Purged> {
  const purged = { jobs: 0, incidents: 0, refused: null as Purged["refused"], more: false };
  const limit = store.purgesAtOnce ?? PURGE_BATCH;
  const periodMs = (PURGE_PERIOD_MS * limit) / PURGE_BATCH;
  let sinceMono = 0;
  for (let batch = 0; batch * limit < PURGE_BATCHES * PURGE_BATCH && goOn(); batch++) {
    if (batch > 0) await pause(clock, Math.max(PURGE_PAUSE_MS, sinceMono + periodMs - clock.mono()));
    sinceMono = clock.mono();
    const gone = await store.purge({
      finishedOlderThanMs: times.finishedMs,
      incidentsOlderThanMs: times.incidentsMs,
      limit,
    });
    purged.jobs += gone.jobs;
    purged.incidents += gone.incidents;
    if (gone.refused)
      purged.refused = { ...(purged.refused ?? gone.refused), jobs: (purged.refused?.jobs ?? 0) + gone.refused.jobs };
    purged.more = gone.more;
    if (!gone.more) break;
  }
  for (let batch = 0; store.batches && batch < PURGE_BATCHES && goOn(); batch++) {
    if (!(await store.batches.purge(times.finishedMs, PURGE_BATCH)).more) break;
    await pause(clock, PURGE_PAUSE_MS);
  }
  return purged;
}
