// Waiting for a file that is busy for a moment, without blocking the loop. Group commits have their own way (writer.ts).
import { type Clock, pause, type Random } from "../../core/clock.ts";
import { ErrorCode } from "../../core/errors.ts";
import { primaryCode, SQLITE_BUSY } from "./errors.ts";

const LIMIT_MS = 30_000;

/** Does `work` at once, and again every few ms as long as the file is busy; half a minute at the most. */
export async function whenFree<T>(clock: Clock, random: Random, work: () => T): Promise<T> {
  const giveUpAt = clock.mono() + LIMIT_MS;
  for (;;) {
    try {
      return work();
    } catch (thrown) {
      const busy = primaryCode(thrown) === SQLITE_BUSY || (thrown as { code?: unknown }).code === ErrorCode.storeBusy;
      if (!busy || clock.mono() > giveUpAt) throw thrown;
    }
    await pause(clock, 1 + random.next() * 10);
  }
}
