// Maintenance in a thread, both sides. The main thread starts the maintenance thread, publishes the progress of its own
// loop, and forwards the thread's messages. A maintenance thread that dies, or that does not reach the store when it
// starts, is started again; until then the main thread sends the heartbeats, or the worker's trust in what it holds runs
// out. What a store opens inside the thread is in that store's own `maintenance-thread.ts`.
import { type MessagePort, parentPort, Worker as Thread, workerData } from "node:worker_threads";
import { idSource } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Clock } from "../job/time.ts";
import {
  newSharedTimes,
  type SharedTimes,
  sharedTimes,
  systemClock,
  systemRandom as random,
} from "../platform/clock.ts";
import { checkProcess } from "../platform/identity.ts";
import { hostNeighbours } from "../platform/neighbours.ts";
import type { MaintenanceHandle, MaintenanceListener } from "../stores/backend.ts";
import type { Liveness } from "../stores/liveness.ts";
import type { BeatAnswer, Store, Wakeup } from "../stores/port.ts";
import { Maintenance, type MaintenanceOptions, type UnfitReason } from "./maintenance.ts";

/** How often the main loop reports that it is running. A loop counts as blocked after a second without a report. */
const STAMP_MS = 200;
const RESTART_MS = 500;

interface ThreadDeps<Own> {
  readonly clock: Clock;
  readonly events: Emitter;
  /** The file the thread runs. */
  readonly file: URL;
  readonly own: Own;
  readonly shared?: SharedArrayBuffer;
  readonly wakeup?: (what: Wakeup) => void;
  /** The thread is running, or it died and has to be started again. */
  readonly up?: () => void;
  readonly down?: () => void;
}

interface SpawnedThread {
  readonly thread: Thread;
  /** Rejects if the thread ends before it is running, with the store's error if it could not open the store. */
  readonly ready: Promise<void>;
  /** Stays settled once the thread has ended: the event fires only once, and may be long past. */
  readonly exited: Promise<void>;
}

export async function startMaintenanceThread<Own>(
  deps: ThreadDeps<Own>,
  options: MaintenanceOptions,
  host: MaintenanceListener,
): Promise<MaintenanceHandle> {
  const { clock, events } = deps;
  const { own, shared = newSharedTimes() } = deps;
  const times = sharedTimes(shared);
  const data: MaintenanceData<Own> = { options, own, shared };
  let stopping = false;
  host.beatsAt?.(times.beatAt);
  host.contact?.(times.inContact);
  let current = spawn();
  await current.ready.catch((thrown: unknown) => {
    // The worker has registered, so the store was there a moment ago: a server that fails over ends no worker.
    if (!(thrown instanceof OutliveError) || thrown.code !== ErrorCode.storeUnreachable) throw thrown;
    failed(thrown);
    restartSoon();
  });
  times.setLoopAt(clock.mono());
  const stamp = setInterval(() => times.setLoopAt(clock.mono()), STAMP_MS).unref();

  return {
    beat: (leases = false) => tell({ type: "beat", leases }),
    async stop() {
      stopping = true;
      clearInterval(stamp);
      // Also stops a thread that has already ended or is still booting.
      const { thread, exited } = current;
      tell({ type: "stop" });
      const callOff = clock.after(2_000, () => void thread.terminate());
      await exited;
      callOff();
    },
  };

  function tell(message: ToMaintenance): void {
    current.thread.postMessage(message);
  }

  function spawn(): SpawnedThread {
    times.setLoopAt(clock.mono());
    const thread = new Thread(deps.file, { workerData: data, name: "outlive-maintenance", execArgv: [] });
    const { promise: ready, resolve: isReady, reject } = Promise.withResolvers<void>();
    const { promise: exited, resolve: hasExited } = Promise.withResolvers<void>();
    let wasReady = false;
    thread.on("message", (message: FromMaintenance) => {
      if (message.type === "ready") {
        wasReady = true;
        deps.up?.();
        isReady();
      } else hear(message);
    });
    thread.on("error", (thrown) => {
      if (wasReady) failed(thrown);
      else reject(revived(thrown));
    });
    thread.on("exit", (code) => {
      hasExited();
      reject(new Error(`the maintenance thread ended with code ${code} before it was at work`));
      if (!wasReady || stopping) return;
      deps.down?.();
      restartSoon();
    });
    return { thread, ready, exited };
  }

  function restartSoon(): void {
    clock.after(RESTART_MS, () => void restart());
  }

  async function restart(): Promise<void> {
    if (stopping) return;
    current = spawn();
    try {
      await current.ready;
    } catch (thrown) {
      if (stopping) return;
      failed(thrown);
      restartSoon();
    }
  }

  function failed(thrown: unknown): void {
    events.emit("heartbeat.failed", { worker: options.worker, error: toStoredError(thrown), failures: 1 });
  }

  function hear(message: FromMaintenance): void {
    switch (message.type) {
      case "event":
        return events.emit(message.name as never, message.event as never);
      case "beaten":
        return host.beaten(message.sentAtMono, message.answer);
      case "disowned":
        return host.disowned();
      case "unfit":
        return host.unfit(message.why, message.detail);
      case "wakeup":
        return deps.wakeup?.(message.what);
      case "elected":
        return host.elected?.(message.is);
      case "ready":
        return;
    }
  }
}

/** What a thread throws arrives as a plain Error with the fields of the one that was thrown. */
function revived(thrown: unknown): unknown {
  const { name, code, what, hint, data } = thrown as OutliveError;
  return name === "OutliveError" ? new OutliveError(code, what, hint, data, { cause: thrown }) : thrown;
}

// The messages between the main thread and the maintenance thread.

interface MaintenanceData<Own> {
  readonly options: MaintenanceOptions;
  /** What the store's part of the thread needs: how to open the store, which lock is the worker's. */
  readonly own: Own;
  readonly shared: SharedArrayBuffer;
}

type ToMaintenance = { readonly type: "beat"; readonly leases: boolean } | { readonly type: "stop" };

type FromMaintenance =
  | { readonly type: "ready" }
  | { readonly type: "event"; readonly name: string; readonly event: object }
  | { readonly type: "beaten"; readonly sentAtMono: number; readonly answer: BeatAnswer }
  | { readonly type: "disowned" }
  | { readonly type: "unfit"; readonly why: UnfitReason; readonly detail: string }
  /** Another process may have made work ready, or the store is reachable again. */
  | { readonly type: "wakeup"; readonly what: Wakeup }
  /** Whether this process polls for all. */
  | { readonly type: "elected"; readonly is: boolean };

// The thread's side: its own connection, its own timers, no user code. It sends heartbeats, watches, recovers and
// purges while the main loop works. It kills the process if a handler blocks the loop beyond deadline and grace.

/** What a store opens for its maintenance. */
interface OpenedForMaintenance {
  readonly store: Store;
  readonly liveness: Liveness;
  /** The store's clock, if it differs from this machine's. */
  readonly clock?: Clock;
  readonly close: () => Promise<void>;
  /** Calls `listener` when lost contact with the store is re-established. */
  readonly onReturn?: (listener: () => void) => void;
  /** Calls `listener` when workers have come or gone, or work may be ready. Absent: nothing says so. */
  readonly onNews?: (listener: (news: "wake" | "fleet") => void) => void;
}

interface ThreadTools {
  readonly options: MaintenanceOptions;
  readonly newId: () => string;
  readonly events: Emitter;
  readonly times: SharedTimes;
  /** Wakes the main thread's worker. */
  readonly wakeup: (what: Wakeup) => void;
}

type Open<Own> = (own: Own, tools: ThreadTools) => Promise<OpenedForMaintenance>;

/**
 * Runs the maintenance in this thread until the main thread stops it. A failure to start becomes the thread's error,
 * and the main thread tries again. `words` wraps errors of the store's driver.
 */
export function maintainInThread<Own>(open: Open<Own>, words: (doing: string, thrown: unknown) => unknown): void {
  void maintain(parentPort!, workerData as MaintenanceData<Own>, (own: Own, tools) =>
    open(own, tools).catch((thrown: unknown) => {
      throw words("starting the maintenance of a worker", thrown);
    }),
  );
}

async function maintain<Own>(
  port: MessagePort,
  { options, own, shared }: MaintenanceData<Own>,
  open: Open<Own>,
): Promise<void> {
  const times = sharedTimes(shared);
  const say = (message: FromMaintenance): void => port.postMessage(message);
  const newId = idSource(systemClock, random);
  const events = { emit: (name: string, event: object) => say({ type: "event", name, event }), has: () => true };
  const wakeup = (what: Wakeup): void => say({ type: "wakeup", what });
  const {
    store,
    liveness,
    clock = systemClock,
    close,
    onReturn,
    onNews,
  } = await open(own, { options, newId, events, times, wakeup });
  const neighbours = hostNeighbours(options.worker, options.bootId, clock);
  const given = { store, liveness, clock, random, events, newId, processState: checkProcess };
  const deps = neighbours ? { ...given, neighbours } : given;
  const maintenance = new Maintenance(deps, options, {
    loopLagMs: () => Math.max(0, clock.mono() - times.loopAt()),
    beaten(sentAtMono, answer) {
      times.setBeatAt(sentAtMono);
      say({ type: "beaten", sentAtMono, answer });
    },
    elected: (is) => say({ type: "elected", is }),
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
  // The other workers learn at once that this worker is back, and do not mistake a second loss for the first one
  // continuing.
  onReturn?.(() => void maintenance.beat());
  onNews?.((news) => maintenance.heard(news));
  maintenance.start();
  say({ type: "ready" });
}
