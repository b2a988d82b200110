// The other side of the bench of requests: answers at once, or holds everything until it is let go.
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { monoMs, serve } from "../program.ts";

let holds = false;
let arrivals: number[] = [];
let held: ServerResponse[] = [];
const server = createServer((_, response) => {
  arrivals.push(monoMs());
  if (holds) held.push(response);
  else response.end("ok");
});
server.keepAliveTimeout = 60_000;
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", 16_384, resolve));

serve({
  url: () => `http://127.0.0.1:${(server.address() as AddressInfo).port}/x`,
  hold: ({ on }: { on: boolean }) => {
    holds = on;
    if (!on) for (const response of held.splice(0)) response.end("ok");
    held = [];
  },
  reset: () => void (arrivals = []),
  count: () => arrivals.length,
  arrivals: () => arrivals,
});
