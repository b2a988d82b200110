// A process that enqueues a job of the kind `slow` and is killed with SIGKILL between the commit and the wake-up: the driver of wake-ups is replaced, nothing else.
// On Redis the write itself wakes the workers that say that they sleep, so that is taken back first, and the process is killed after the write.
// Arguments: the address of the store, the id of the job, and the options of its client as JSON.
import { type ClientOptions, connect } from "../../src/client.ts";
import { WakeupChannel as OfPostgres } from "../../src/stores/postgres/wakeup.ts";
import { redisAddress } from "../../src/stores/redis/address.ts";
import { tagOf } from "../../src/stores/redis/connection.ts";
import { connect as connectWire } from "../../src/stores/redis/driver.ts";
import { WakeupChannel as OfRedis } from "../../src/stores/redis/wakeup.ts";
import { WakeupChannel as OfSqlite } from "../../src/stores/sqlite/wakeup.ts";
import { kinds } from "./jobs.ts";

const [url, id, options] = process.argv.slice(2) as [string, string, string];
for (const { prototype } of [OfPostgres, OfRedis, OfSqlite])
  prototype.notify = () => {
    process.kill(process.pid, "SIGKILL");
    for (;;);
  };
const client = await connect(url, { jobs: [kinds.slow], ...(JSON.parse(options) as ClientOptions) });
if (url.startsWith("redis")) {
  const { wire: at, name } = redisAddress(url);
  const wire = await connectWire(at);
  await wire.call(["HDEL", `${tagOf(name)}meta`, "asleep"], 5_000);
}
await client.enqueue(kinds.slow, { ms: 0 }, { id });
if (url.startsWith("redis")) process.kill(process.pid, "SIGKILL");
