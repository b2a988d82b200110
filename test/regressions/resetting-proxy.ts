// A TCP proxy in front of a PostgreSQL server that can reset every connection and refuse new ones for a while, as a sidecar, a load
// balancer or a NAT does when it restarts.
import { connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

export interface ResettingProxy {
  readonly url: string;
  /** Resets all connections and refuses new ones until `accept` is called. */
  refuse(): void;
  accept(): void;
}

export async function resettingProxy(t: TestContext, target: string): Promise<ResettingProxy> {
  const { hostname, port } = new URL(target);
  const pairs = new Set<readonly [Socket, Socket]>();
  let refusing = false;
  const server = createServer((near) => {
    near.on("error", () => {});
    if (refusing) return void near.resetAndDestroy();
    const far = connect(Number(port), hostname);
    far.on("error", () => {});
    const pair = [near, far] as const;
    pairs.add(pair);
    near.pipe(far);
    far.pipe(near);
    const end = (): void => {
      pairs.delete(pair);
      near.destroy();
      far.destroy();
    };
    near.on("close", end);
    far.on("close", end);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const reset = (): void => {
    for (const [near, far] of pairs) {
      near.resetAndDestroy();
      far.destroy();
    }
  };
  t.after(() => {
    server.close();
    reset();
  });
  const url = new URL(target);
  url.host = `127.0.0.1:${(server.address() as { port: number }).port}`;
  return {
    url: url.href,
    refuse() {
      refusing = true;
      reset();
    },
    accept: () => void (refusing = false),
  };
}
