// The keeper's thread: its own connection, its own timers, no user code. It beats, watches, recovers and purges while the main
// loop does what it does, and it kills the process if a handler blocks the loop beyond deadline and grace.
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import type { Clock } from "../core/clock.ts";
import type { Emitter } from "../core/events.ts";
import { idSource } from "../core/ids.ts";
import { Keeper, type KeeperOptions } from "../core/keeper.ts";
import type { Liveness } from "../core/liveness.ts";
import type { Store } from "../core/store.ts";
import { systemClock, systemRandom as random } from "./clock.ts";
import { checkProcess } from "./identity.ts";
import { type FromKeeper, type KeeperData, sharedTimes, type SharedTimes, type ToKeeper } from "./keeper-messages.ts";

/** What a store opens for its keeper. */
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
  readonly options: KeeperOptions;
  readonly newId: () => string;
  readonly events: Emitter;
  readonly times: SharedTimes;
  /** Wakes the main thread's worker. */
  readonly bell: () => void;
}

/** Runs the keeper in this thread until the main thread stops it. A failure to start is the thread's error, and is answered with another try. */
export function keepInThread<Own>(open: (own: Own, tools: ThreadTools) => Promise<Kept>): void {
  void keep(parentPort!, workerData as KeeperData<Own>, open);
}

async function keep<Own>(
  port: MessagePort,
  { options, own, shared }: KeeperData<Own>,
  open: (own: Own, tools: ThreadTools) => Promise<Kept>,
): Promise<void> {
  const times = sharedTimes(shared);
  const say = (message: FromKeeper): void => port.postMessage(message);
  const newId = idSource(systemClock, random);
  const events = { emit: (name: string, event: object) => say({ type: "event", name, event }), has: () => true };
  const bell = (): void => say({ type: "bell" });
  const {
    store,
    liveness,
    clock = systemClock,
    close,
    onReturn,
  } = await open(own, { options, newId, events, times, bell });
  const deps = { store, liveness, clock, random, events, newId, processState: checkProcess };
  const keeper = new Keeper(deps, options, {
    loopLagMs: () => Math.max(0, clock.mono() - times.loopAt()),
    beaten(sentAtMono, answer) {
      times.setBeatAt(sentAtMono);
      say({ type: "beaten", sentAtMono, answer });
    },
    disowned: () => say({ type: "disowned" }),
    unfit: (why, detail) => say({ type: "unfit", why, detail }),
    kill: () => process.kill(process.pid, "SIGKILL"),
  });
  port.on("message", (message: ToKeeper) => {
    if (message.type === "beat") void keeper.beat();
    else
      void keeper
        .stop()
        .then(close)
        .finally(() => port.close());
  });
  // The others learn at once that this worker is back, and do not take a second loss for the first one going on.
  onReturn?.(() => void keeper.beat());
  keeper.start();
  say({ type: "ready" });
}
