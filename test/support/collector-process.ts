// A worker of the tests that collects from RabbitMQ, and may kill itself at a point of its own work. Arguments: the store's url, a folder for blobs, and
// a JSON of CollectorProcess.
import { collection, job, open } from "../../src/index.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import { effect, tell } from "./jobs.ts";
import { PATIENT } from "./processes.ts";

export interface CollectorProcess {
  readonly broker: string;
  /** The name of the kind: the tests of one broker must not meet. */
  readonly kind: string;
  /** Opens this collection before it works. */
  readonly collect?: string;
  /** Where it kills itself with SIGKILL. */
  readonly dies?: "in request" | "in done";
  /** Does not take the notifications of the kind itself. Default false. */
  readonly leavesResults?: boolean;
}

const [url, blobs, given] = process.argv.slice(2);
const { broker, kind, collect, dies, leavesResults = false } = JSON.parse(given!) as CollectorProcess;
const retry = { backoff: { base: "1ms", max: "5ms" }, crashes: 10 } as const;

const scan = collection(kind, { series: ["files"], retry });
scan.request(async (_input, run) => {
  if (dies === "in request") process.kill(process.pid, "SIGKILL");
  await run.publish(`${kind}.asks`, { wire: run.wire as never });
});
scan.done((collected) => {
  if (dies === "in done") process.kill(process.pid, "SIGKILL");
  effect(`done ${collected.id}`);
});
scan.notify(`${kind}.results`);
const result = job(`${kind}-result`).handle((input) =>
  effect(`result ${(input as { collection: string }).collection}`),
);

const link = rabbitmq(broker);
if (!leavesResults) link.consume(`${kind}.results`, result);
const engine = await open(url!, {
  jobs: [scan, result],
  blobs: blobs!,
  broker: link,
  logger: false,
  heartbeat: PATIENT,
});
engine.on("broker.changed", ({ state }) => tell(state));
engine.on("part.accepted", ({ ordinal }) => tell("accepted", { ordinal }));
if (collect !== undefined) {
  await engine.collect(scan, null, { id: collect });
  tell("collecting");
}
await engine.start({ concurrency: 1 });
tell("working");
