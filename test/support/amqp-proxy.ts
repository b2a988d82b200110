// A proxy in front of a broker that sees each frame, and may drop it or send others with it: what a broker does seldom, at a moment that a test chooses.
import { connect, createServer, type Socket } from "node:net";
import type { TestContext } from "node:test";

/** A method of AMQP as `class.method`: 60.20 is basic.consume. Null: the frame is not a method. */
export interface Frame {
  readonly method: string | null;
  readonly channel: number;
  readonly bytes: Buffer;
}

/** What is sent in place of a frame. */
type Change = (frame: Frame, connection: number) => readonly Buffer[];

export interface AmqpProxy {
  readonly url: string;
  /** How many connections were made. */
  readonly connections: () => number;
}

export async function amqpProxy(
  t: TestContext,
  broker: string,
  { fromClient = asItIs, fromBroker = asItIs }: { readonly fromClient?: Change; readonly fromBroker?: Change },
): Promise<AmqpProxy> {
  const { hostname, port } = new URL(broker);
  const sockets = new Set<Socket>();
  let connections = 0;
  const server = createServer((client) => {
    const number = ++connections;
    const upstream = connect(Number(port), hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
    }
    // The client begins with eight bytes that are not a frame.
    pass(client, upstream, 8, (frame) => fromClient(frame, number));
    pass(upstream, client, 0, (frame) => fromBroker(frame, number));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const url = new URL(broker);
  url.hostname = "127.0.0.1";
  url.port = String((server.address() as { port: number }).port);
  return { url: url.href, connections: () => connections };
}

function asItIs({ bytes }: Frame): readonly Buffer[] {
  return [bytes];
}

function pass(from: Socket, to: Socket, first: number, change: (frame: Frame) => readonly Buffer[]): void {
  let rest = Buffer.alloc(0);
  let greeting = first;
  from.on("data", (chunk) => {
    rest = Buffer.concat([rest, chunk]);
    const out: Buffer[] = [];
    if (greeting > 0 && rest.length >= greeting) {
      out.push(rest.subarray(0, greeting));
      rest = rest.subarray(greeting);
      greeting = 0;
    }
    for (let length = lengthOf(rest); greeting === 0 && rest.length >= length; length = lengthOf(rest)) {
      const bytes = rest.subarray(0, length);
      rest = rest.subarray(length);
      const method = bytes[0] === 1 ? `${bytes.readUInt16BE(7)}.${bytes.readUInt16BE(9)}` : null;
      out.push(...change({ method, channel: bytes.readUInt16BE(1), bytes }));
    }
    // In one write, so that they come in one packet.
    if (out.length > 0) to.write(Buffer.concat(out));
  });
  from.on("end", () => to.end());
  from.on("close", () => to.destroy());
}

/** Type, channel, size, the payload and a last byte. */
function lengthOf(rest: Buffer): number {
  return rest.length < 7 ? Infinity : rest.readUInt32BE(3) + 8;
}

/** The request of a broker to close a connection (channel 0) or a channel. */
export function closeFrame(channel: number, code: number, text: string): Buffer {
  const payload = Buffer.alloc(4 + 2 + 1 + text.length + 4);
  payload.writeUInt16BE(channel === 0 ? 10 : 20, 0);
  payload.writeUInt16BE(channel === 0 ? 50 : 40, 2);
  payload.writeUInt16BE(code, 4);
  payload.writeUInt8(text.length, 6);
  payload.write(text, 7);
  const head = Buffer.alloc(7);
  head.writeUInt8(1, 0);
  head.writeUInt16BE(channel, 1);
  head.writeUInt32BE(payload.length, 3);
  return Buffer.concat([head, payload, Buffer.from([0xce])]);
}
