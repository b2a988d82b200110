// The other side of the bench of requests: it responds at once or after a while, or holds everything until it is let go.
import { createServer, type RequestListener, type ServerResponse } from "node:http";
import { createServer as createSecureServer } from "node:https";
import type { AddressInfo } from "node:net";
import { given, monoMs, serve } from "../program.ts";

const { tls, delayMs } = given<{ tls?: { key: string; cert: string }; delayMs?: number }>();
/** The paths of those that have one of their own, in the order of their arrival. */
let paths: string[] = [];
let holds = false;
let arrivals: number[] = [];
let held: ServerResponse[] = [];
const listener: RequestListener = (request, response) => {
  arrivals.push(monoMs());
  if (request.url !== "/x") paths.push(request.url!);
  if (holds) held.push(response);
  else if (delayMs !== undefined) setTimeout(() => response.end("ok"), delayMs);
  else response.end("ok");
};
const server = tls ? createSecureServer(tls, listener) : createServer(listener);
server.keepAliveTimeout = 60_000;
// On all addresses of the loopback network: each is a host of its own.
await new Promise<void>((resolve) => server.listen(0, "0.0.0.0", 16_384, resolve));

serve({
  url: () => `http${tls ? "s" : ""}://127.0.0.1:${(server.address() as AddressInfo).port}/x`,
  hold: ({ on }: { on: boolean }) => {
    holds = on;
    if (!on) for (const response of held.splice(0)) response.end("ok");
    held = [];
  },
  reset: () => {
    arrivals = [];
    paths = [];
  },
  count: () => arrivals.length,
  arrivals: () => arrivals,
  paths: () => paths,
});
