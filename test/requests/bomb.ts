// One request whose answer is a gzip of about a megabyte that unpacks to a gigabyte. Prints how it ended, and by how much the process grew meanwhile, in JSON.
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { gzipSync } from "node:zlib";
import { open } from "../../src/index.ts";
import { request, type RequestFailure } from "../../src/requests.ts";

const LIMIT = 1 << 20;
const GIGABYTE = 1 << 30;

/** A gzip of many members, each of 16 MB: the gigabyte itself is never in memory. */
const member = gzipSync(Buffer.alloc(16 << 20), { level: 9 });
const body = Buffer.concat(Array.from({ length: GIGABYTE / (16 << 20) }, () => member));
let isArmed = false;
const server = createServer((_, response) => {
  if (isArmed) response.writeHead(200, { "content-encoding": "gzip" }).end(body);
  else response.end("warm");
});
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const call = request("call", {
  method: "GET",
  addresses: "any",
  retry: { attempts: 1 },
  maxResponse: "1MB",
  send: () => ({ url }),
});
let failure: RequestFailure | undefined;
call.onError((given) => void (failure = given));
call.onResponse(() => {});
const engine = await open("sqlite::memory:", { jobs: [call], logger: false });
// What the first requests load and compile is not the bomb's.
for (let i = 0; i < 20; i++) await engine.enqueue(call, i);
await engine.runUntilIdle();
isArmed = true;
globalThis.gc!();
const before = process.memoryUsage.rss();
let largest = before;
const watch = setInterval(() => (largest = Math.max(largest, process.memoryUsage.rss())), 1);
await engine.enqueue(call, null);
await engine.runUntilIdle();
clearInterval(watch);
largest = Math.max(largest, process.memoryUsage.rss());
process.stdout.write(
  JSON.stringify({
    is: failure?.is,
    message: failure?.message,
    grownBytes: largest - before,
    limitBytes: LIMIT,
  }),
);
await engine.close();
process.exit(0);
