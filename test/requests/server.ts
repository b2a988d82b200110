// A receiver for tests of requests: it records everything, and answers as the test says.
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { TestContext } from "node:test";

export interface Received {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

export class Receiver {
  readonly received: Received[] = [];
  readonly url: string;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #heard = new Set<() => void>();

  static async start(
    t: Pick<TestContext, "after">,
    answer: (request: Received, response: ServerResponse, raw: IncomingMessage) => void,
    create: (listener: RequestListener) => Server = createServer,
  ): Promise<Receiver> {
    const made: { receiver?: Receiver } = {};
    const server = create((raw, response) => {
      const chunks: Buffer[] = [];
      raw.on("data", (chunk: Buffer) => chunks.push(chunk));
      raw.on("error", () => {});
      raw.on("end", () => {
        const body = Buffer.concat(chunks).toString();
        const request = { method: raw.method!, url: raw.url!, headers: raw.headers, body };
        made.receiver!.received.push(request);
        answer(request, response, raw);
        made.receiver!.#hear();
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const secure = "setSecureContext" in server;
    const receiver = new Receiver(
      server,
      `http${secure ? "s" : ""}://127.0.0.1:${(server.address() as AddressInfo).port}`,
    );
    made.receiver = receiver;
    t.after(() => receiver.close());
    return receiver;
  }

  constructor(server: Server, url: string) {
    this.#server = server;
    this.url = url;
    server.on("connection", (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  get connections(): number {
    return this.#sockets.size;
  }

  /** Resolves when it holds. */
  async until(is: () => boolean): Promise<void> {
    while (!is())
      await new Promise<void>((resolve) => {
        const hear = (): void => {
          this.#heard.delete(hear);
          resolve();
        };
        this.#heard.add(hear);
      });
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }

  #hear(): void {
    for (const hear of this.#heard) hear();
  }
}
