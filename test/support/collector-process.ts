// A worker of the tests that collects from RabbitMQ, and may kill itself at a point of its own work. Arguments: the store's url, a folder for blobs, and
// a JSON of CollectorProcess.
import { type BlobData, type BlobStore, fileSystem } from "../../src/blobs.ts";
import { collection, job, open } from "../../src/index.ts";
import { rabbitmq } from "../../src/rabbitmq.ts";
import { POISON } from "./collection-jobs.ts";
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
  /** Default "shared". */
  readonly queues?: "per-collection";
  /** Does not take the notifications of the kind itself. Default false. */
  readonly leavesResults?: boolean;
  /** Kills itself when it stores the body POISON: as a part, or wherever it stores it. */
  readonly poison?: "as a part" | "anywhere";
}

const [url, blobs, given] = process.argv.slice(2);
const {
  broker,
  kind,
  collect,
  dies,
  queues = "shared",
  leavesResults = false,
  poison,
} = JSON.parse(given!) as CollectorProcess;
const retry = { backoff: { base: "1ms", max: "5ms" }, crashes: 10 } as const;

const scan = collection(kind, { series: ["files"], retry, queues });
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

/** Runs until the test releases it. One death as the only suspect of its process is its end. */
const held = job(`${kind}-held`, { retry: { ...retry, crashes: 1 } }).handle(async () => {
  const released = new Promise((resolve) => process.once("message", resolve));
  tell("held");
  await released;
});

const link = rabbitmq(broker);
if (!leavesResults) link.consume(`${kind}.results`, result);
const engine = await open(url!, {
  jobs: [scan, result, held],
  blobs: poison === undefined ? blobs! : deadly(fileSystem({ folder: blobs! })),
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

/** A blob store that ends its process, as a fault in native code would. */
function deadly(store: BlobStore): BlobStore {
  const check = (data: BlobData): void => {
    if (data instanceof Uint8Array && Buffer.from(data).toString() === POISON) process.kill(process.pid, "SIGKILL");
  };
  return {
    place: store.place,
    put: (key, data, expected) => {
      if (poison === "anywhere" || key.startsWith("collections/")) check(data);
      return store.put(key, data, expected);
    },
    get: (key, range) => store.get(key, range),
    head: (key) => store.head(key),
    delete: (keys) => store.delete(keys),
    list: (prefix) => store.list(prefix),
    check: () => store.check(),
  };
}
