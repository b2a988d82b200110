// Goes on with a check that an open could not finish in its time: the whole file, without a limit, in a process that has less
// priority than anything else, keeps nobody alive and ends with this one.
import type { Emitter } from "../../../core/events.ts";
import type { IntegrityCheck } from "../../../core/integrity.ts";
import { checkFile } from "./integrity.ts";

export interface BackgroundCheck {
  /** Null: it was ended before it had a verdict. */
  readonly verdict: Promise<IntegrityCheck | null>;
  end(): void;
}

export function checkInBackground(path: string, events: Emitter): BackgroundCheck {
  const wanted = new AbortController();
  const options = { signal: wanted.signal, background: true };
  const verdict = checkFile(path, "full", Number.POSITIVE_INFINITY, options).then(
    (check) => {
      events.emit("integrity.checked", { ...check, background: true });
      return check;
    },
    () => null,
  );
  return { verdict, end: () => wanted.abort() };
}
