// A worker process of the Redis tests: opens the store that it is given, works, and reports to its parent what happens. It ends on SIGTERM.
// Arguments: the address, then a JSON of { concurrency, heartbeat, poll, only }.
import { type EngineOptions, open } from "../../src/index.ts";
import { kinds, tell } from "../support/jobs.ts";

const [url, given] = process.argv.slice(2);
const { concurrency, heartbeat, poll, only } = JSON.parse(given!) as {
  concurrency: number;
  heartbeat: NonNullable<EngineOptions["heartbeat"]>;
  poll: NonNullable<EngineOptions["poll"]>;
  only?: string[];
};

const engine = await open(url!, {
  jobs: Object.values(kinds),
  logger: false,
  heartbeat,
  poll,
  onEvent: (event) => tell("event", { event }),
});
const starting = engine.start({
  concurrency,
  ...(only && { only: Object.values(kinds).filter(({ name }) => only.includes(name)) }),
});
process.on("SIGTERM", () => {
  void starting
    .then((worker) => worker.stop({ grace: "5s" }))
    .then(() => engine.close())
    .then(() => process.send?.({ fact: "stopped" }, () => process.exit(0)));
});
tell("working", { worker: (await starting).id });
