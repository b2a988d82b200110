// The proxy of the rig between a client and a server of its own: what it does to a connection, a network could have done.
import assert from "node:assert/strict";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { test, type TestContext } from "node:test";
import { Proxy } from "../../proof/torture/faults/proxy.ts";
import type { FaultContext } from "../../proof/torture/processes/fault-schedule.ts";
import { Chance } from "../../src/torture/killer.ts";
import { untilTrue } from "../support/processes.ts";

/** The four ends of one connection through the proxy. */
interface Ends {
  readonly proxy: Proxy;
  readonly urls: readonly string[];
  readonly client: Socket;
  readonly server: Socket;
  /** The proxy's own, by which it is seen what has come to it. */
  readonly fromClient: Socket;
  readonly fromServer: Socket;
}

/** Through its second door. */
async function connected(t: TestContext): Promise<Ends> {
  // Says to later connections what they say.
  const listening = createServer((socket) => socket.on("error", () => {}).pipe(socket));
  await new Promise<void>((resolve) => listening.listen(0, "127.0.0.1", resolve));
  t.after(() => listening.close());
  const { port } = listening.address() as AddressInfo;
  const { proxy, urls } = await Proxy.before(`tcp://127.0.0.1:${port}`, 2);
  const made: Record<"client" | "server", Socket[]> = { client: [], server: [] };
  for (const side of ["client", "server"] as const) {
    const heard = (message: unknown): void => void made[side].push((message as { socket: Socket }).socket);
    subscribe(`net.${side}.socket`, heard);
    t.after(() => unsubscribe(`net.${side}.socket`, heard));
  }
  const accepted = once(listening, "connection");
  const client = connect(Number(new URL(urls[1]!).port), "127.0.0.1");
  const [server] = (await accepted) as [Socket];
  t.after(() => [client, server].forEach((socket) => socket.destroy()));
  return {
    proxy,
    urls,
    client,
    server,
    fromClient: made.server[0]!,
    fromServer: made.client.find((one) => one !== client)!,
  };
}

/** Begins a fault; the answer ends it. */
function begin(proxy: Proxy, name: string): () => Promise<void> {
  const over = new AbortController();
  const context = {} as FaultContext;
  const struck = proxy.faults.find((fault) => fault.name === name)!.strike(new Chance(1), over.signal, context);
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

/** A connection, and how it ends: closed in order, or with the error of a reset. */
function dial(t: TestContext, url: string): { readonly socket: Socket; readonly ended: Promise<string> } {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  t.after(() => socket.destroy());
  const { promise, resolve } = Promise.withResolvers<string>();
  socket.on("error", (error: NodeJS.ErrnoException) => resolve(error.code!));
  socket.on("close", () => resolve("closed"));
  return { socket, ended: promise };
}

test("a door that is refused is reset on both sides, refuses what comes, lets others through, and opens again", async (t) => {
  const { proxy, urls, client, server } = await connected(t);
  const read = reading(client);
  const serverEnded = once(server, "error") as Promise<[NodeJS.ErrnoException]>;
  const clientEnded = once(client, "error") as Promise<[NodeJS.ErrnoException]>;
  const { promise: time, resolve: open } = Promise.withResolvers<void>();
  const refused = proxy.refuse(1, () => time);
  for (const ended of [clientEnded, serverEnded]) assert.equal((await ended)[0].code, "ECONNRESET");
  assert.equal(await dial(t, urls[1]!).ended, "ECONNRESET");
  const other = dial(t, urls[0]!);
  await once(other.socket, "connect");
  open();
  await refused;
  const again = dial(t, urls[1]!);
  const greeting = once(again.socket, "data") as Promise<[Buffer]>;
  again.socket.write("hello");
  assert.equal((await greeting)[0].toString(), "hello");
  assert.equal(read(), "");
});
