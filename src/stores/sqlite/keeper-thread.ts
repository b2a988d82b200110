// The keeper's thread: its own connection, its own timers, no user code. It beats, watches, recovers and purges while the main
// loop does what it does, and it kills the process if a handler blocks the loop beyond deadline and grace.
import { parentPort, workerData } from "node:worker_threads";
import { systemClock, systemRandom } from "../../platform/clock.ts";
import { idSource } from "../../core/ids.ts";
import { Keeper } from "../../core/keeper.ts";
import { Bell } from "./bell.ts";
import { Database } from "./database.ts";
import { type FromKeeper, type KeeperData, sharedTimes, type ToKeeper } from "./keeper-messages.ts";
import { lockFileLiveness } from "./lock.ts";
import { SqliteStore } from "./store.ts";

const data = workerData as KeeperData;
const times = sharedTimes(data.shared);
const say = (message: FromKeeper): void => parentPort!.postMessage(message);
const newId = idSource(systemClock, systemRandom);
const db = new Database(data.database);
const store = new SqliteStore({
  db,
  clock: systemClock,
  random: systemRandom,
  newId,
  bell: new Bell(data.database.path),
});
// The main thread's lock is in this process: it must never be probed from here.
const own = new Set([data.ownLock]);
const liveness = lockFileLiveness(data.database.path, data.options.bootId, own);
const events = { emit: (name: string, event: object) => say({ type: "event", name, event }), has: () => true };

const keeper = new Keeper({ store, liveness, clock: systemClock, random: systemRandom, events, newId }, data.options, {
  loopLagMs: () => Math.max(0, systemClock.mono() - times.loopAt()),
  beaten(sentAtMono, answer) {
    times.setBeatAt(sentAtMono);
    say({ type: "beaten", sentAtMono, answer });
  },
  disowned: () => say({ type: "disowned" }),
  unfit: (why, detail) => say({ type: "unfit", why, detail }),
  kill: () => process.kill(process.pid, "SIGKILL"),
});

parentPort!.on("message", (message: ToKeeper) => {
  if (message.type === "beat") void keeper.beat();
  else
    void keeper
      .stop()
      .then(() => store.close())
      .finally(() => parentPort!.close());
});
keeper.start();
say({ type: "ready" });
