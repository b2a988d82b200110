// The proxy of the rig between a client and a server of its own: what it does to a connection, a network could have done.
import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { test, type TestContext } from "node:test";
import { Chance } from "../../src/demo/chance.ts";
import { Proxy } from "../../torture/processes/proxy.ts";
import { untilTrue } from "../support/processes.ts";

/** The four ends of one connection through the proxy. */
interface Ends {
  readonly proxy: Proxy;
  readonly client: Socket;
  readonly server: Socket;
  /** The proxy's own, by which it is seen what has come to it. */
  readonly fromClient: Socket;
  readonly fromServer: Socket;
}

async function connected(t: TestContext): Promise<Ends> {
  const listening = createServer();
  await new Promise<void>((resolve) => listening.listen(0, "127.0.0.1", resolve));
  t.after(() => listening.close());
  const { port } = listening.address() as AddressInfo;
  const { proxy, url } = await Proxy.before(`tcp://127.0.0.1:${port}`);
  const made: Record<"client" | "server", Socket[]> = { client: [], server: [] };
  for (const side of ["client", "server"] as const) {
    const heard = (message: unknown): void => void made[side].push((message as { socket: Socket }).socket);
    subscribe(`net.${side}.socket`, heard);
    t.after(() => unsubscribe(`net.${side}.socket`, heard));
  }
  const accepted = once(listening, "connection");
  const client = connect(Number(new URL(url).port), "127.0.0.1");
  const [server] = (await accepted) as [Socket];
  t.after(() => [client, server].forEach((socket) => socket.destroy()));
  return { proxy, client, server, fromClient: made.server[0]!, fromServer: made.client.find((one) => one !== client)! };
}

/** Begins a fault; the answer ends it. */
function begin(proxy: Proxy, name: string): () => Promise<void> {
  const over = new AbortController();
  const struck = proxy.faults.find((fault) => fault.name === name)!.strike(new Chance(1), over.signal);
  return async () => {
    over.abort();
    await struck;
  };
}

function reading(socket: Socket): () => string {
  let text = "";
  socket.on("data", (bytes) => (text += bytes.toString()));
  socket.on("error", () => {});
  return () => text;
}

const DIRECTIONS = [
  { title: "to the server", ends: ({ client, fromClient, server }: Ends) => [client, fromClient, server] as const },
  { title: "to the client", ends: ({ server, fromServer, client }: Ends) => [server, fromServer, client] as const },
];

for (const { title, ends } of DIRECTIONS) {
  test(`what is sent ${title} after a delay does not overtake what was delayed`, async (t) => {
    const all = await connected(t);
    const [from, through, to] = ends(all);
    const read = reading(to);
    const end = begin(all.proxy, "delay everything on the network");
    from.write("first ");
    await untilTrue(
      () => through.bytesRead,
      (bytes) => bytes === 6,
      "the first bytes have come to the proxy",
    );
    await end();
    from.write("second ");
    await untilTrue(
      () => through.bytesRead,
      (bytes) => bytes === 13,
      "the second bytes have come to the proxy",
    );
    from.write("third");
    assert.equal(
      await untilTrue(
        () => read(),
        (text) => text.length === 18,
        "everything has arrived",
      ),
      "first second third",
    );
  });
}

test("what is delayed when its connection is cut is lost", async (t) => {
  const { proxy, client, server, fromClient } = await connected(t);
  const read = reading(server);
  client.on("error", () => {});
  const end = begin(proxy, "delay everything on the network");
  client.write("never");
  await untilTrue(
    () => fromClient.bytesRead,
    (bytes) => bytes === 5,
    "the bytes have come to the proxy",
  );
  const closed = once(server, "close");
  await begin(proxy, "cut every connection")();
  await closed;
  await end();
  assert.equal(read(), "");
});

test("after the bytes in the middle of which an answer is cut, nothing arrives", async (t) => {
  const { proxy, client, server } = await connected(t);
  const read = reading(client);
  const answer = Buffer.alloc(1_000_000, "0123456789");
  server.on("error", () => {});
  const closed = once(client, "close");
  const end = begin(proxy, "cut connections after some bytes of an answer");
  server.write(answer);
  await closed;
  await end();
  assert.ok(read().length <= 400, `${read().length} bytes`);
  assert.ok(answer.toString().startsWith(read()));
});
