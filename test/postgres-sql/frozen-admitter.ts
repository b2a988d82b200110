// A worker process that stops in the middle of its first admission: the keys are locked, and what was decided is not written. Arguments: the address and the
// schema. It waits for a signal there; when it goes on, it reports how its turn ended.
import pg from "pg";
import { NO_ROOM, TestWorker, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";

const [url, schema] = process.argv.slice(2) as [string, string];
type Query = (this: pg.Client, query: { text?: string }, ...more: unknown[]) => unknown;
const { value } = Object.getOwnPropertyDescriptor(pg.Client.prototype, "query")!;
const send = value as Query;
let stops = true;
(pg.Client.prototype as { query: Query }).query = function (query, ...more) {
  if (stops && query.text?.includes("admitted AS (UPDATE")) {
    stops = false;
    process.send!({ fact: "admitting" });
    // Not before the fact is on its way.
    return new Promise((resolve) => setImmediate(resolve)).then(() => {
      process.kill(process.pid, "SIGSTOP");
      return send.call(this, query, ...more);
    });
  }
  return send.call(this, query, ...more);
};

const store = await openStore({ url, schema });
const { epoch } = await store.register(workerRecord("frozen"));
const { live } = await new TestWorker(store, "frozen", epoch).turn([], NO_ROOM);
process.send!({ fact: "ended", live });
process.disconnect();
await store.close();
