// A process that removes all finished jobs in chunks, and reports each. Arguments: the address of the store, and the options of its client as JSON.
import { type ClientOptions, connect } from "../../src/client.ts";

const [url, options] = process.argv.slice(2) as [string, string];
const client = await connect(url, JSON.parse(options) as ClientOptions);
process.send!({ fact: "connected" });
await client.bulk(
  "remove",
  { state: "cancelled" },
  {
    actor: "child",
    onProgress: ({ changed }) => process.send!({ fact: "chunk", changed }),
  },
);
process.send!({ fact: "done" });
await client.close();
process.disconnect();
