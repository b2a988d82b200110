// A worker process for tests: opens the given store, works, and reports to its parent what happens. It ends on SIGTERM.
// Arguments: the store's url, then a JSON of { concurrency, follows, heartbeat, only, poll, recoverOnly }.
import { open, type EngineOptions } from "../../src/index.ts";
import { openFollowing } from "./following.ts";
import { jobs, tell } from "./jobs.ts";

const [url, given] = process.argv.slice(2);
const {
  concurrency = 10,
  follows = false,
  heartbeat,
  only,
  recoverOnly,
  poll,
} = JSON.parse(given ?? "{}") as {
  concurrency?: number;
  follows?: boolean;
  heartbeat?: NonNullable<EngineOptions["heartbeat"]>;
  only?: string[];
  recoverOnly?: boolean;
  poll?: NonNullable<EngineOptions["poll"]>;
};

const engine = await (follows ? openFollowing : open)(url!, {
  jobs,
  logger: false,
  ...(heartbeat ? { heartbeat } : {}),
  ...(poll ? { poll } : {}),
  onEvent: (event) => tell("event", { event }),
});
tell("open");
if (!recoverOnly) {
  // Jobs may run before `start` resolves: so the listener for the stop comes first.
  const starting = engine.start({
    concurrency,
    ...(only ? { only: jobs.filter(({ name }) => only.includes(name)) } : {}),
  });
  process.on("SIGTERM", () => {
    void starting
      .then((worker) => worker.stop({ grace: "5s" }))
      .then(() => engine.close())
      // What a handler left behind (a timer) must not keep the process.
      .then(() => process.send?.({ fact: "stopped" }, () => process.exit(0)));
  });
  tell("working", { worker: (await starting).id });
}
