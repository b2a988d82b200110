// The doctor of one file, as a command line calls it: no worker runs, and the store may be too damaged to be opened.
import { toStoredError } from "../../../job/errors.ts";
import { EventBus } from "../../../job/events.ts";
import { systemClock } from "../../../platform/clock.ts";
import type { StoreDoctor } from "../../integrity.ts";
import { checkFile } from "./check.ts";
import { repairUnused } from "./repair.ts";
import { finishSwap } from "./swap.ts";

export function fileDoctor(path: string): StoreDoctor {
  return {
    check({ readOnly }) {
      finishSwap(path, readOnly);
      return checkFile(path, "full", Number.POSITIVE_INFINITY);
    },
    repair({ salvage, onStep, onProgress }) {
      const events = new EventBus(toStoredError);
      events.on("open.waits", ({ pid }) => onProgress?.(`waiting for the start-up of process ${pid ?? "unknown"}`));
      return repairUnused(
        path,
        { salvage },
        {
          clock: systemClock,
          events,
          ...(onStep && { onStep }),
          ...(onProgress && { onProgress: ({ done, total, what }) => onProgress(`${what} (${done + 1} of ${total})`) }),
        },
      );
    },
  };
}
