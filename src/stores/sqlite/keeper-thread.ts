// The keeper's thread: its own connection, its own timers, no user code. It beats, watches, recovers and purges while the main
// loop does what it does, and it kills the process if a handler blocks the loop beyond deadline and grace.
import { type MessagePort, parentPort, workerData } from "node:worker_threads";
import { idSource } from "../../core/ids.ts";
import { Keeper } from "../../core/keeper.ts";
import { systemClock as clock, systemRandom as random } from "../../platform/clock.ts";
import { Bell } from "./bell.ts";
import { Database } from "./database.ts";
import { type FromKeeper, type KeeperData, sharedTimes, type ToKeeper } from "./keeper-messages.ts";
import { lockFileLiveness } from "./lock.ts";
import { SqliteStore } from "./store.ts";
import { whenFree } from "./when-free.ts";

async function keep(port: MessagePort, data: KeeperData): Promise<void> {
  const { database, options } = data;
  const times = sharedTimes(data.shared);
  const say = (message: FromKeeper): void => port.postMessage(message);
  const newId = idSource(clock, random);
  const db = await whenFree(clock, random, () => new Database(database));
  const store = new SqliteStore({ db, clock, random, newId, bell: new Bell(database.path) });
  const liveness = lockFileLiveness(database.path, options.bootId, new Set([data.ownLock]));
  const events = { emit: (name: string, event: object) => say({ type: "event", name, event }), has: () => true };
  const keeper = new Keeper({ store, liveness, clock, random, events, newId }, options, {
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
        .then(() => store.close())
        .finally(() => port.close());
  });
  keeper.start();
  say({ type: "ready" });
}

// A failure to start is this thread's error, which the main thread hears and answers with another try.
void keep(parentPort!, workerData as KeeperData);
