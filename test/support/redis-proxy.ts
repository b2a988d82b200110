// A proxy in front of a Redis server, as services have them: it may refuse connections, hide subscriptions, cut what passes, or lead to another server.
import { type AddressInfo, createConnection, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";
import type { RedisServer } from "../../proof/servers/redis-server.ts";

export interface ProxyRules {
  /** Whether a connection may reach the server; one that may not is closed at its first command. */
  readonly admits?: () => boolean;
  /** Whether what a client sends reaches the server; if not, its connection is cut. Default: all of it does. */
  readonly passes?: (text: string) => boolean;
  /** What becomes of what the server sends. */
  readonly sends?: (text: string) => string;
}

export interface RedisProxy {
  readonly url: string;
  /** From now on new connections lead to this server. */
  leadTo(server: RedisServer): void;
  /** Cuts the connections that stand, from the one with this number on; the first that was made is 1. */
  cut(from?: number): void;
}

export async function redisProxy(t: TestContext, to: RedisServer, rules: ProxyRules = {}): Promise<RedisProxy> {
  const { admits = () => true, passes = () => true, sends } = rules;
  let { port } = to;
  const clients: Socket[] = [];
  const proxy = createServer((client) => {
    clients.push(client);
    if (!admits()) return void client.on("error", () => {}).once("data", () => client.destroy());
    const server = createConnection(port, "127.0.0.1");
    client.on("data", (data) => (passes(data.toString("latin1")) ? server.write(data) : client.destroy()));
    server.on("data", (data: Buffer) => client.write(sends ? sends(data.toString("latin1")) : data, "latin1"));
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const)
      one.on("error", () => {}).once("close", () => other.destroy());
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => proxy.close());
  return {
    url: `redis://127.0.0.1:${(proxy.address() as AddressInfo).port}`,
    leadTo: (server) => void ({ port } = server),
    cut: (from = 1) => clients.slice(from - 1).forEach((client) => client.destroy()),
  };
}

const COUNTED = /(w:[^\r\n]+\r\n):[1-9]\r\n/g;

/** Counts no subscriber of a worker's channel, like a proxy that sees only its own. */
export const hidesSubscriptions = (text: string): string => text.replaceAll(COUNTED, "$1:0\r\n");

/** Shows every second count of a channel: connections go in turn to two proxies, each of which sees only its own. */
export function hidesFromEverySecond(): (text: string) => string {
  const shown = new Set<string>();
  return (text) =>
    text.replaceAll(COUNTED, (count: string, channel: string) => {
      if (shown.delete(channel)) return `${channel}:0\r\n`;
      shown.add(channel);
      return count;
    });
}
