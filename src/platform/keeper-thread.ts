// The main thread's side of a keeper in a thread: starts it, stamps the loop's progress for it, passes on what it says. A keeper
// thread that dies is started again; while there is none, the worker's trust in what it holds runs out by itself. What runs in
// the thread is the store's (`keep-in-thread.ts`).
import { Worker as Thread } from "node:worker_threads";
import type { Clock } from "../core/clock.ts";
import { toStoredError } from "../core/errors.ts";
import type { Emitter } from "../core/events.ts";
import type { KeeperHandle, KeeperListener } from "../core/backend.ts";
import type { KeeperOptions } from "../core/keeper.ts";
import { type FromKeeper, type KeeperData, newSharedTimes, sharedTimes, type ToKeeper } from "./keeper-messages.ts";

/** How often the main loop says that it turns. A loop is called blocked after a second without it. */
const STAMP_MS = 200;
const RESTART_MS = 500;

export interface KeeperThreadDeps<Own> {
  readonly clock: Clock;
  readonly events: Emitter;
  /** The source file that the thread runs; in the package, where tsc rewrites imports but not this, it ends in .js. */
  readonly file: URL;
  readonly own: Own;
  readonly shared?: SharedArrayBuffer;
  readonly bell?: () => void;
  /** The thread is at work, or it died and is to be started again. */
  readonly up?: () => void;
  readonly down?: () => void;
}

interface SpawnedThread {
  readonly thread: Thread;
  /** Rejects if it ends before it is at work. */
  readonly ready: Promise<void>;
  /** Settled for good once it has ended: the event comes only once, and may be long past. */
  readonly exited: Promise<void>;
}

export async function startKeeperThread<Own>(
  deps: KeeperThreadDeps<Own>,
  options: KeeperOptions,
  host: KeeperListener,
): Promise<KeeperHandle> {
  const { clock, events } = deps;
  const { own, shared = newSharedTimes() } = deps;
  const times = sharedTimes(shared);
  const data: KeeperData<Own> = { options, own, shared };
  const file = import.meta.url.endsWith(".ts") ? deps.file : new URL(deps.file.href.replace(/\.ts$/, ".js"));
  let stopping = false;
  host.beatsAt?.(() => times.beatAt());
  host.contact?.(() => times.inContact());
  let current = spawn();
  await current.ready;
  times.setLoopAt(clock.mono());
  const stamp = setInterval(() => times.setLoopAt(clock.mono()), STAMP_MS).unref();

  return {
    beat: () => tell({ type: "beat" }),
    async stop() {
      stopping = true;
      clearInterval(stamp);
      // One that has ended already, or is still booting, is stopped, too.
      const { thread, exited } = current;
      tell({ type: "stop" });
      const callOff = clock.after(2_000, () => void thread.terminate());
      await exited;
      callOff();
    },
  };

  function tell(message: ToKeeper): void {
    current.thread.postMessage(message);
  }

  function spawn(): SpawnedThread {
    times.setLoopAt(clock.mono());
    const thread = new Thread(file, { workerData: data, name: "outlive-keeper", execArgv: [] });
    const { promise: ready, resolve: isReady, reject } = Promise.withResolvers<void>();
    const { promise: exited, resolve: hasExited } = Promise.withResolvers<void>();
    let wasReady = false;
    thread.on("message", (message: FromKeeper) => {
      if (message.type === "ready") {
        wasReady = true;
        deps.up?.();
        isReady();
      } else hear(message);
    });
    thread.on("error", (thrown) => {
      if (wasReady) failed(thrown);
      else reject(thrown);
    });
    thread.on("exit", (code) => {
      hasExited();
      reject(new Error(`the keeper's thread ended with code ${code} before it was at work`));
      if (!wasReady || stopping) return;
      deps.down?.();
      clock.after(RESTART_MS, () => void restart());
    });
    return { thread, ready, exited };
  }

  async function restart(): Promise<void> {
    if (stopping) return;
    current = spawn();
    try {
      await current.ready;
    } catch (thrown) {
      if (stopping) return;
      failed(thrown);
      clock.after(RESTART_MS, () => void restart());
    }
  }

  function failed(thrown: unknown): void {
    events.emit("heartbeat.failed", { worker: options.worker, error: toStoredError(thrown), failures: 1 });
  }

  function hear(message: FromKeeper): void {
    switch (message.type) {
      case "event":
        return events.emit(message.name as never, message.event as never);
      case "beaten":
        return host.beaten(message.sentAtMono, message.answer);
      case "disowned":
        return host.disowned();
      case "unfit":
        return host.unfit(message.why, message.detail);
      case "bell":
        return deps.bell?.();
      case "ready":
        return;
    }
  }
}
