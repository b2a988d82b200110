// A worker process for tests: opens the store that it is told, works, and tells its parent what happens. It ends on SIGTERM.
// Arguments: the store's url, then a JSON of { concurrency, heartbeat, only }.
import { open, type EngineOptions } from "../../src/index.ts";
import { jobs, tell } from "./jobs.ts";

const [url, given] = process.argv.slice(2);
const {
  concurrency = 10,
  heartbeat,
  only,
  recoverOnly,
} = JSON.parse(given ?? "{}") as {
  concurrency?: number;
  heartbeat?: NonNullable<EngineOptions["heartbeat"]>;
  only?: string[];
  recoverOnly?: boolean;
};

const engine = await open(url!, {
  jobs,
  logger: false,
  ...(heartbeat ? { heartbeat } : {}),
  onEvent: (event) => tell("event", { event }),
});
tell("open");
if (!recoverOnly) {
  const worker = await engine.start({
    concurrency,
    ...(only ? { only: jobs.filter(({ name }) => only.includes(name)) } : {}),
  });
  tell("working", { worker: worker.id });
  process.on("SIGTERM", () => {
    void worker.stop({ graceMs: 5_000 }).then(async () => {
      await engine.close();
      // What a handler left behind (a timer) must not keep the process.
      process.send?.({ fact: "stopped" }, () => process.exit(0));
    });
  });
}
