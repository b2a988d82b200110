// The maintenance thread: its own connection, its own timers, no user code. It beats, watches, recovers and purges while the main
// loop does what it does, and it kills the process if a handler blocks the loop beyond deadline and grace.
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import type { Clock } from "../job/clock.ts";
import type { Emitter } from "../job/events.ts";
import { idSource } from "../job/ids.ts";
import { systemClock, systemRandom as random } from "../platform/clock.ts";
import { checkProcess } from "../platform/identity.ts";
import type { Liveness } from "../stores/liveness.ts";
import type { Store } from "../stores/port.ts";
import {
  type FromMaintenance,
  type MaintenanceData,
  sharedTimes,
  type SharedTimes,
  type ToMaintenance,
} from "./maintenance-thread.ts";
import { Maintenance, type MaintenanceOptions } from "./maintenance.ts";

/** What a store opens for its maintenance. */
export interface Kept {
  readonly store: Store;
  readonly liveness: Liveness;
  /** The store's, if that is not this machine's. */
  readonly clock?: Clock;
  readonly close: () => Promise<void>;
  /** Calls `listener` when contact with the store is there again after it was lost. */
  readonly onReturn?: (listener: () => void) => void;
}

export interface ThreadTools {
  readonly options: MaintenanceOptions;
  readonly newId: () => string;
  readonly events: Emitter;
  readonly times: SharedTimes;
  /** Wakes the main thread's worker. */
  readonly wakeup: () => void;
}

/** Runs the maintenance in this thread until the main thread stops it. A failure to start is the thread's error, and is answered with another try. */
export function maintainInThread<Own>(open: (own: Own, tools: ThreadTools) => Promise<Kept>): void {
  void keep(parentPort!, workerData as MaintenanceData<Own>, open);
}

async function keep<Own>(
  port: MessagePort,
  { options, own, shared }: MaintenanceData<Own>,
  open: (own: Own, tools: ThreadTools) => Promise<Kept>,
): Promise<void> {
  const times = sharedTimes(shared);
  const say = (message: FromMaintenance): void => port.postMessage(message);
  const newId = idSource(systemClock, random);
  const events = { emit: (name: string, event: object) => say({ type: "event", name, event }), has: () => true };
  const wakeup = (): void => say({ type: "wakeup" });
  const {
    store,
    liveness,
    clock = systemClock,
    close,
    onReturn,
  } = await open(own, { options, newId, events, times, wakeup });
  const deps = { store, liveness, clock, random, events, newId, processState: checkProcess };
  const maintenance = new Maintenance(deps, options, {
    loopLagMs: () => Math.max(0, clock.mono() - times.loopAt()),
    beaten(sentAtMono, answer) {
      times.setBeatAt(sentAtMono);
      say({ type: "beaten", sentAtMono, answer });
    },
    disowned: () => say({ type: "disowned" }),
    unfit: (why, detail) => say({ type: "unfit", why, detail }),
    kill: () => process.kill(process.pid, "SIGKILL"),
  });
  port.on("message", (message: ToMaintenance) => {
    if (message.type === "beat") void maintenance.beat(message.leases);
    else
      void maintenance
        .stop()
        .then(close)
        .finally(() => port.close());
  });
  // The others learn at once that this worker is back, and do not take a second loss for the first one going on.
  onReturn?.(() => void maintenance.beat());
  maintenance.start();
  say({ type: "ready" });
}
