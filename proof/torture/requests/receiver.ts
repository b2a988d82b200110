// The other side of all requests: it records every arrival, holds it for a while, answers some with 503, and cuts some connections before or after it has
// acted.
import { createServer, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Chance } from "../../../src/torture/killer.ts";

export interface Arrival {
  readonly kind: string;
  readonly queue: number;
  readonly n: number;
  /** It was answered with 503: by what HTTP says, not begun. */
  readonly isRejected: boolean;
  /** The latest one of its queue that had been answered by then; -1: none. */
  readonly after: number;
}

export class RecordingReceiver {
  readonly arrivals: Arrival[] = [];
  /** How often the one who is asked said "resend", by number. */
  readonly allowed = new Map<number, number>();
  inFlight = 0;
  maxInFlight = 0;
  cuts = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #seen = new Set<number>();
  /** Of each queue of each kind. */
  readonly #answered = new Map<string, number>();

  static async start(chance: Chance, holdMs: number): Promise<RecordingReceiver> {
    const receiver = new RecordingReceiver(chance, holdMs);
    await new Promise<void>((resolve) => receiver.#server.listen(0, "127.0.0.1", 4_096, resolve));
    return receiver;
  }

  private constructor(chance: Chance, holdMs: number) {
    this.#server = createServer((request, response) => {
      const [, kind = "", queue = "0", number = ""] = request.url!.split("/");
      request.resume();
      if (kind === "seen") {
        const n = Number(queue);
        const seen = this.#seen.has(n);
        if (!seen && n % 2 === 0) this.allowed.set(n, (this.allowed.get(n) ?? 0) + 1);
        response.end(JSON.stringify({ seen }));
        return;
      }
      this.inFlight++;
      this.maxInFlight = Math.max(this.maxInFlight, this.inFlight);
      response.once("close", () => this.inFlight--);
      request.once("end", () => {
        const n = Number(number);
        const draw = chance.whole(0, 99);
        const isRejected = draw < 3;
        const of = `${kind}/${queue}`;
        this.arrivals.push({ kind, queue: Number(queue), n, isRejected, after: this.#answered.get(of) ?? -1 });
        if (isRejected) return void response.writeHead(503).end();
        if (kind === "asking") this.#seen.add(n);
        // The connection breaks after it has acted.
        if (draw < 5) {
          this.cuts++;
          return void request.socket.destroy();
        }
        const answer = (): void => {
          this.#answered.set(of, Math.max(n, this.#answered.get(of) ?? -1));
          response.end("done");
        };
        setTimeout(answer, chance.whole(holdMs / 4, holdMs));
      });
      request.once("error", () => {});
    });
    this.#server.on("connection", (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}
