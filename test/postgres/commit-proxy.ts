// A TCP proxy that cuts one connection at its COMMIT: before the server gets it, or after the server has answered it and before the
// client hears of that. Only a connection that wrote `mark` before is cut, once for each `cutAt`: the maintenance commits, too.
import { connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

export type CutAt = "before COMMIT" | "before its answer";

export interface CommitProxy {
  readonly url: string;
  /** The next COMMIT of a marked connection is the last thing on it. */
  readonly cutAt: (when: CutAt) => void;
  readonly cuts: () => number;
}

/** A message of the simple protocol: `Q`, the length, the text and a zero. Other statements may come before the COMMIT in the same message. */
function hasCommit(data: Buffer): boolean {
  return data[0] === 0x51 && /^(?:EXECUTE [^\0]*; )?COMMIT\0$/.test(data.toString("latin1", 5));
}

export async function commitProxy(t: TestContext, target: string, mark: string): Promise<CommitProxy> {
  const { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  let armed: CutAt | null = null;
  let cuts = 0;
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    let marked = false;
    let deaf = false;
    const cut = (): void => {
      near.destroy();
      far.destroy();
    };
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => {});
      socket.on("close", cut);
    }
    near.on("data", (data) => {
      marked ||= data.includes(mark);
      if (!armed || !marked || !hasCommit(data)) return void far.write(data);
      cuts++;
      if (armed === "before COMMIT") cut();
      else {
        deaf = true;
        far.write(data);
      }
      armed = null;
    });
    far.on("data", (data) => (deaf ? cut() : near.write(data)));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const url = new URL(target);
  url.host = `127.0.0.1:${(server.address() as { port: number }).port}`;
  return { url: url.href, cutAt: (when) => void (armed = when), cuts: () => cuts };
}
