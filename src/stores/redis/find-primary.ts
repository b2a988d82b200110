// Which server the store is on, where an address names several: the primary that sentinels name, or the node of a cluster that has the store's slot. Asked
// again for every connection, so a promotion or a moved slot is followed by reconnecting.
import { connectTo, Disconnected, type Wire, type WireAddress } from "./driver.ts";

export interface HostPort {
  readonly host: string;
  readonly port: number;
}

const ASK_MS = 2_000;

/** A connection to the primary. `moved`: the node that a cluster has named last. */
export async function connectToPrimary(address: WireAddress, moved: HostPort | null): Promise<Wire> {
  const { sentinel, nodes = [] } = address;
  if (sentinel !== undefined) return viaSentinels(address, sentinel);
  if (moved !== null) return connectTo({ ...address, url: at(address.url, moved) });
  if (nodes.length === 0) return connectTo(address);
  return firstOf(nodes, (node) => connectTo({ ...address, url: at(address.url, node) }));
}

async function viaSentinels(
  address: WireAddress,
  { name, nodes, password }: NonNullable<WireAddress["sentinel"]>,
): Promise<Wire> {
  const primary = await firstOf(nodes, (node) => ask(node, name, password));
  const wire = await connectTo({ ...address, url: at(address.url, primary) });
  try {
    // A former primary that came back may not know yet that it is a replica now, and sentinels may not have noticed a failure.
    const role = await roleOf(wire);
    if (role !== "master") throw new Unready(`${primary.host}:${primary.port}, which sentinels name, is a ${role}`);
    return wire;
  } catch (thrown) {
    wire.close();
    throw thrown;
  }
}

async function ask({ host, port }: HostPort, name: string, password: string | null): Promise<HostPort> {
  const url = new URL(`redis://${host}:${port}`);
  if (password !== null) url.password = password;
  const wire = await connectTo({ url: url.href });
  try {
    const reply = (await wire.call(["SENTINEL", "get-master-addr-by-name", name], ASK_MS)) as [string, string] | null;
    if (reply === null) throw new Unready(`the sentinel at ${host}:${port} knows no primary called ${name}`);
    return { host: reply[0], port: Number(reply[1]) };
  } finally {
    wire.close();
  }
}

async function roleOf(wire: Wire): Promise<string> {
  const reply = (await wire.call(["HELLO"], ASK_MS)) as unknown;
  // RESP3 returns a map, RESP2 a flat list.
  if (!Array.isArray(reply)) return String((reply as { readonly role?: unknown }).role);
  return String(reply[reply.indexOf("role") + 1]);
}

async function firstOf<T>(nodes: readonly HostPort[], attempt: (node: HostPort) => Promise<T>): Promise<T> {
  const failures: unknown[] = [];
  for (const node of nodes)
    try {
      return await attempt(node);
    } catch (thrown) {
      failures.push(thrown);
    }
  const reasons = failures.map((thrown) => (thrown instanceof Error ? thrown.message : String(thrown)));
  throw new Unready(reasons.join("; "));
}

/** The same user, password and scheme at another place. */
function at(url: string, { host, port }: HostPort): string {
  const there = new URL(url);
  there.hostname = host;
  there.port = String(port);
  return there.href;
}

/** "MOVED 3999 127.0.0.1:6381": where the store's slot is. An empty host is the one that was asked. */
export function movedTo(thrown: unknown): HostPort | null {
  if (!(thrown instanceof Error)) return null;
  const found = /^MOVED \d+ (\S+):(\d+)/.exec(thrown.message);
  return found ? { host: found[1]!.replace(/^\[|\]$/g, ""), port: Number(found[2]) } : null;
}

/** No server can be the primary at the moment. */
class Unready extends Disconnected {
  constructor(message: string) {
    super(message, "NO_PRIMARY");
  }
}
