// A worker process of the PostgreSQL tests: opens the given store, works, and reports to its parent what happens. It ends on
// SIGTERM. Arguments: the address, then a JSON of { concurrency, heartbeat, poll, schema, liveness, only }.
import { open, type EngineOptions } from "../../src/index.ts";
import { tell } from "../support/jobs.ts";
import { jobs } from "./jobs.ts";

const [url, given] = process.argv.slice(2);
const { concurrency, heartbeat, poll, schema, liveness, only } = JSON.parse(given!) as {
  concurrency: number;
  heartbeat: NonNullable<EngineOptions["heartbeat"]>;
  poll: NonNullable<EngineOptions["poll"]>;
  schema: string;
  liveness?: string;
  only?: string[];
};

const engine = await open(url!, {
  jobs,
  logger: false,
  heartbeat,
  poll,
  postgres: { schema },
  ...(liveness !== undefined && { liveness }),
  onEvent: (event) => tell("event", { event }),
});
const starting = engine.start({
  concurrency,
  ...(only && { only: jobs.filter(({ name }) => only.includes(name)) }),
});
process.on("SIGTERM", () => {
  void starting
    .then((worker) => worker.stop({ grace: "5s" }))
    .then(() => engine.close())
    .then(() => process.send?.({ fact: "stopped" }, () => process.exit(0)));
});
tell("working", { worker: (await starting).id });
