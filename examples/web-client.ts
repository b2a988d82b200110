// A web process that enqueues and reads, and a worker next to it. The client has no thread and recovers nothing, so a web
// process stays what it is. Start the web process (`node web-client.ts`) and the worker (`node web-client.ts worker`), in either order.
//   POST /invoices {"orderId":"42"}  ->  202 {"id":"...","created":true}
//   GET  /jobs/<id>                  ->  200 {"state":"succeeded", ...}
// Outside of this repository write:
//   import { job, open, OutliveError } from "outlive";
//   import { connect } from "outlive/client";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import * as z from "zod";
import { connect } from "../src/client.ts";
import { job, open, OutliveError } from "../src/index.ts";

const invoice = job("invoice", { input: z.object({ orderId: z.string().min(1) }) });
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());

if (process.argv[2] === "worker") await work();
else await serve();

async function work(): Promise<void> {
  invoice.handle(async ({ orderId }, run) => {
    const path = await run.step("render", () => `/tmp/invoice-${orderId}.pdf`);
    console.log(`rendered ${path}`);
    return { path };
  });
  await using engine = await open("sqlite:./shop.db", { jobs: [invoice] });
  console.log("working");
  await engine.work({ signal: stop.signal });
}

async function serve(): Promise<void> {
  await using client = await connect("sqlite:./shop.db", { jobs: [invoice] });

  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const reply = (status: number, body: unknown): void => {
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    };
    try {
      if (request.method === "POST" && request.url === "/invoices") {
        // The schema says whether it is one. A customer who clicks twice gets the same job.
        const input = JSON.parse(await text(request)) as { orderId: string };
        return reply(202, await client.enqueue(invoice, input, { dedupeKey: `order-${input?.orderId}` }));
      }
      const id = /^\/jobs\/([^/]+)$/.exec(request.url ?? "")?.[1];
      const found = id === undefined ? null : await client.get(decodeURIComponent(id));
      if (found) return reply(200, { state: found.state, result: found.result });
      return reply(404, { error: "not found" });
    } catch (thrown) {
      const bad =
        thrown instanceof SyntaxError ||
        (thrown instanceof OutliveError && ["INPUT_INVALID", "KEY_INVALID"].includes(thrown.code));
      return reply(bad ? 400 : 500, { error: bad ? (thrown as Error).message : "internal error" });
    }
  };

  const server = createServer((request, response) => void answer(request, response));
  await new Promise<void>((resolve) => server.listen(Number(process.env["PORT"] ?? 0), "127.0.0.1", resolve));
  console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  await new Promise<void>((resolve) => stop.signal.addEventListener("abort", () => server.close(() => resolve())));
}

/** The body, at most 100 kB of it. */
async function text(request: IncomingMessage): Promise<string> {
  let body = "";
  for await (const chunk of request as AsyncIterable<Buffer>) {
    body += chunk.toString();
    if (body.length > 100_000) throw new SyntaxError("the body is too large");
  }
  return body;
}
