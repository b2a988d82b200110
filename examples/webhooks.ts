// Webhooks: signed as Standard Webhooks say, in order per endpoint, and an endpoint that is gone is disabled. Outside of this repository write:
//   import { open } from "outlive";
//   import { request, secret, standardWebhooks } from "outlive/requests";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import * as z from "zod";
import { open } from "../src/index.ts";
import { request, secret, standardWebhooks } from "../src/requests.ts";

// Stands for two receivers. The first one is out of order once; the second one is gone.
const received: string[] = [];
let isBroken = true;
const receiver = createServer((incoming, response) => {
  let body = "";
  incoming.on("data", (chunk: Buffer) => (body += chunk.toString()));
  incoming.on("end", () => {
    if (incoming.url === "/gone") return void response.writeHead(410).end();
    if (isBroken) {
      isBroken = false;
      return void response.writeHead(503).end();
    }
    const { n } = JSON.parse(body) as { n: number };
    const isSigned = String(incoming.headers["webhook-signature"]).startsWith("v1,");
    received.push(`${n}${isSigned ? " signed" : ""}`);
    response.end();
  });
});
await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}`;

const deliver = request("deliver", {
  input: z.object({ endpoint: z.string(), n: z.number() }),
  method: "POST",
  ifUnknown: "resend", // receivers know a delivery again by its webhook-id, which is the request's id
  send: ({ endpoint, n }) => ({
    url: `${origin}/${endpoint}`,
    json: { type: "order.paid", n },
    sign: standardWebhooks(secret(`whsec/${endpoint}`)),
  }),
  key: ({ endpoint }) => endpoint,
  order: "strict",
  limit: { rate: "50/s" },
  disable: { failures: 10 },
  retry: { schedule: ["50ms", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"] },
  response: "ignore",
  timeouts: { total: "20s" },
  addresses: "any", // the receivers of this example are on this machine
});
deliver.onError(({ input, is, status }) => console.log(`given up: ${input.endpoint} ${is} ${status}`));

await using engine = await open("sqlite::memory:", {
  jobs: [deliver],
  secrets: () => `whsec_${Buffer.alloc(32, 7).toString("base64")}`,
  logger: false,
});
engine.on("request.disabled", ({ key, reason }) => console.log(`disabled: ${key}, ${reason}`));
for (let n = 1; n <= 3; n++) await engine.enqueue(deliver, { endpoint: "orders", n });
await engine.enqueue(deliver, { endpoint: "gone", n: 1 });
const ids = (await engine.list({ kind: "deliver" })).jobs.map(({ id }) => id);
const worker = await engine.start();
await Promise.allSettled(ids.map((id) => engine.result(id)));
await worker.stop();
console.log(`in order: ${received.join(", ")}`);
receiver.close();
receiver.closeAllConnections();
